"""Sequences that devices share."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import posenc_jax as pe
from posenc_jax.plot import _drawing


def shard_orders() -> Figure:
    """Sixteen positions shared by four devices in three orders. Contiguous: four neighbours for each device. Zigzag:
    each device holds two neighbours from the front and two from the back, so that device 0 holds 0, 1, 14 and 15.
    Striped: every fourth position, so that device 0 holds 0, 4, 8 and 12."""
    figure = Figure(figsize=(7.2, 2.7), layout="constrained")
    axes = figure.subplots()
    orders = ("contiguous", "zigzag", "striped")
    for row, order in enumerate(orders):
        for device, positions in enumerate(np.asarray(pe.shard_positions(16, 4, order=order))):
            for position in positions.tolist():
                corner = position + 0.05, -row - 0.4
                axes.add_patch(Rectangle(corner, 0.9, 0.8, color=_drawing.COLOURS[device], alpha=0.45, lw=0))
                axes.text(position + 0.5, -row, f"{device}", ha="center", va="center")
    axes.set(xlim=(0, 16), ylim=(-2.6, 0.6), xlabel="position; each cell names the device that holds it")
    axes.set_yticks([0, -1, -2], orders)
    axes.set_xticks(np.arange(16) + 0.5, [f"{p}" for p in range(16)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure
