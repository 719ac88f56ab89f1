"""Rounded phases."""

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure

import posenc_jax as pe
from posenc_jax.plot import _drawing

FEATURE = 16  # the sine of pair 8 at width 128: 20 positions a turn


def torn() -> Figure:
    """One sine wave of 20 positions a turn, near position one million and near one hundred million. Near one million
    the squares of float32 phases lie on the line or just beside it. Near one hundred million they are scattered in
    steps, with no likeness to the line."""
    spectra = pe.geometric(128), pe.geometric(128).with_precision("float32")
    figure = Figure(figsize=(6.8, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, start, name in zip(panels, (10**6, 10**8), ("one million", "one hundred million"), strict=True):
        labels = ("true wave", "float32 phases") if axes is panels[0] else (None, None)
        positions = np.arange(start, start + 41, dtype=np.int32)
        truth, float32 = (np.asarray(pe.sinusoidal(positions, f))[:, FEATURE] for f in spectra)
        between = np.linspace(0, 40, 401)
        omega = spectra[0].angular[FEATURE // 2]
        phase = np.arctan2(truth[0], np.asarray(pe.sinusoidal(positions[0], spectra[0]))[FEATURE + 1])
        axes.plot(between, np.sin(phase + omega * between), color=rcParams["text.color"], lw=1, label=labels[0])
        style = _drawing.line(1) | {"linestyle": "none"}
        axes.plot(positions - start, float32, label=labels[1], **style)
        axes.set(title=f"near {name}", xlabel=f"position − {start:,}")
    panels[0].set_ylabel(f"feature {FEATURE}")
    _drawing.legend(figure)
    return figure
