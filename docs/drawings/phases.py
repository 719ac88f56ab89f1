"""Rounded phases."""

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure

import posenc_jax as pe
from drawings import fit, panels
from posenc_jax import plot
from posenc_jax.plot import _drawing

FEATURE = 16  # the sine of pair 8 at width 128: 20 positions per cycle


def torn() -> Figure:
    """One sine wave of 20 positions per cycle, near position one million and near one hundred million. Near one million
    the squares of float32 phases lie on the line or just beside it. Near one hundred million they are scattered in
    steps, with no likeness to the line."""
    spectra = pe.geometric(128), pe.geometric(128).with_precision("float32")
    starts = {"near one million": 10**6, "near one hundred million": 10**8}
    figure, both = panels((1, 2, 320), (2, 1, 520), starts, "", f"feature {FEATURE}", sharey=True)
    for axes, start in zip(both, starts.values(), strict=True):
        labels = ("true wave", "float32 phases") if axes is both[0] else (None, None)
        positions = np.arange(start, start + 41, dtype=np.int32)
        truth, float32 = (np.asarray(pe.sinusoidal(positions, f))[:, FEATURE] for f in spectra)
        between = np.linspace(0, 40, 401)
        omega = spectra[0].angular[FEATURE // 2]
        phase = np.arctan2(truth[0], np.asarray(pe.sinusoidal(positions[0], spectra[0]))[FEATURE + 1])
        axes.plot(between, np.sin(phase + omega * between), color=rcParams["text.color"], lw=1, label=labels[0])
        style = _drawing.line(1) | {"linestyle": "none"}
        axes.plot(positions - start, float32, label=labels[1], **style)
        axes.set_xlabel(f"position − {start:,}")
    _drawing.legend(figure)
    return figure


def phase_errors() -> Figure:
    """Two curves on logarithmic axes, error against position. The error of textbook float32 begins at 5e-8, rises in a
    ragged straight line to 2 near position fifty million, and stays there up to two billion. The error of exact phases
    stays level at 5e-8, under a dotted line at 9e-8, over the whole range."""
    return fit(plot.phase_error(128))
