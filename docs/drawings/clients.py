"""Errors of RoPE as twelve codebases compute it, of the numbers in clients/results."""

import json
import pathlib

from matplotlib.figure import Figure

from drawings import FIRST, SECOND, single

RESULTS = pathlib.Path(__file__).parents[2] / "clients" / "results"


def client_errors() -> Figure:
    """Largest error of cosines and sines against position on logarithmic axes. The twelve lines of the codebases rise
    together from 4e-8 at the first positions to about a half at ten million, where contexts of ten million tokens end.
    With posenc_jax inside, all twelve stay below 8e-8."""
    figure, axes = single("position", "largest error of a cosine or sine")
    colours = {"theirs": SECOND, "ours": FIRST}
    for path in sorted(RESULTS.glob("*.json")):
        far = json.loads(path.read_text("utf-8"))["far"]
        for whose, colour in colours.items():
            axes.plot(far["below"], far[whose], color=colour, lw=1, alpha=0.7)
    axes.annotate("as they are", (6e3, 2e-3), color=colours["theirs"], ha="right")
    axes.annotate("with posenc_jax inside", (1e7, 1.3e-7), color=colours["ours"], ha="right")
    axes.set(xscale="log", yscale="log")
    return figure
