"""Sequences that devices share."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import posenc_jax as pe
from drawings import COLOURS, panels


def shard_orders() -> Figure:
    """Sixteen positions shared by four devices in three orders. Contiguous: four neighbours for each device. Zigzag:
    each device holds two neighbours from the front and two from the back, so that device 0 holds 0, 1, 14 and 15.
    Striped: every fourth position, so that device 0 holds 0, 4, 8 and 12."""
    orders = ("contiguous", "zigzag", "striped")
    figure, rows = panels((3, 1, 250), (3, 1, 250), orders, sharex=True)
    for axes, order in zip(rows, orders, strict=True):
        for device, positions in enumerate(np.asarray(pe.shard_positions(16, 4, order=order))):
            for position in positions.tolist():
                axes.add_patch(Rectangle((position + 0.05, 0), 0.9, 1, color=COLOURS[device], alpha=0.4, lw=0))
                axes.text(position + 0.5, 0.5, f"{device}", ha="center", va="center")
        axes.set(xlim=(0, 16), ylim=(0, 1), yticks=[])
        axes.spines[:].set_visible(False)
        axes.grid(False)
    axes.set_xticks(np.arange(16) + 0.5, [f"{p}" for p in range(16)])
    axes.set_xlabel("position; each cell names the device that holds it")
    return figure
