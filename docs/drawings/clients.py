"""Errors of RoPE as twelve codebases compute it, of the numbers in clients/results."""

import json
import pathlib

from matplotlib.figure import Figure

from posenc_jax.plot import _drawing

RESULTS = pathlib.Path(__file__).parents[2] / "clients" / "results"


def client_errors() -> Figure:
    """Largest error of cosines and sines against position on logarithmic axes. The twelve lines of the codebases rise
    together from 4e-8 at the first positions to about a half at ten million, where contexts of ten million tokens end.
    With posenc_jax inside, all twelve stay below 8e-8."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    colours = {"theirs": _drawing.line(1)["color"], "ours": _drawing.line(0)["color"]}
    for path in sorted(RESULTS.glob("*.json")):
        far = json.loads(path.read_text("utf-8"))["far"]
        for whose, colour in colours.items():
            axes.plot(far["below"], far[whose], color=colour, lw=1, alpha=0.7)
    axes.annotate("as they are", (6e3, 2e-3), color=colours["theirs"], ha="right")
    axes.annotate("with posenc_jax inside", (1e7, 1.3e-7), color=colours["ours"], ha="right")
    axes.set(xscale="log", yscale="log", xlabel="position", ylabel="largest error of a cosine or sine")
    axes.grid(alpha=0.6)
    return figure
