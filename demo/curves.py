"""The figures of the results of `train_text.py`."""

from __future__ import annotations

import functools
from typing import Any

import matplotlib
import numpy as np
from colours import LINES, VERDICTS
from figures import picture
from matplotlib.figure import Figure

FAMILIES = {
    "added": "Positions added to embeddings, or none",
    "rotary": "Positions that rotate queries and keys",
    "bias": "Positions that bias the scores of attention",
}


def of_results(results: dict[str, Any]) -> str:
    """Who keeps the loss, at a glance."""
    length, longest = results["setup"]["length"], longest_window(results)
    return picture(
        lambda: beyond(results),
        "Dot chart: a row for each model, with the bits that bytes beyond the training length cost and those that the "
        "same bytes cost in windows of the training length.",
        f"The bytes at positions from {length} on in windows of {longest} (filled), and the same bytes in windows of "
        f"{length} (hollow). Left is better.",
    )


def of_positions(results: dict[str, Any]) -> str:
    """The loss by position, a figure for each family."""
    length, longest = results["setup"]["length"], longest_window(results)
    limits = by_position_limits(results)
    return "".join(
        picture(
            functools.partial(by_position, results, family, limits),
            f"Line chart: held-out bits per byte against the position of the byte in its window. {title}.",
            f"In windows of {longest} bytes{notes(results, family)}. Each point is the mean over {length // 4} "
            "neighbouring positions; grey lines are the other models.",
        )
        for family, title in FAMILIES.items()
        if any(variant["family"] == family for variant in results["variants"].values())
    )


def notes(results: dict[str, Any], family: str) -> str:
    length, longest = results["setup"]["length"], longest_window(results)
    no_answer = any(v["family"] == family and v["beyond"] is None for v in results["variants"].values())
    yarn = family == "rotary" and "yarn" in results["variants"]
    return (f"; for a learned table, which ends at {length}, of {length}" if no_answer else "") + (
        f"; YaRN is set for {longest}" if yarn else ""
    )


def longest_window(results: dict[str, Any]) -> int:
    return max(int(n) for v in results["variants"].values() for n in v["windows"])


def beyond(results: dict[str, Any]) -> Figure:
    """A row for each model: from the loss within the training length to that beyond it."""
    found = {v["label"]: v["beyond"] for v in results["variants"].values()}
    order = sorted(found, key=lambda label: found[label]["difference"] if found[label] else np.inf)
    figure = Figure(figsize=(5.2, 1.3 + 0.33 * len(order)), layout="constrained")
    axes = figure.subplots()
    axes.set(title="Beyond the training length", xlabel="bits per byte")
    for row, label in enumerate(order):
        side = {"va": "center", "transform": axes.get_yaxis_transform()}
        if (change := found[label]) is None:
            axes.text(1.03, row, "no answer", **side)
            continue
        colour = VERDICTS[change["verdict"]]
        near, far = change["within"], change["beyond"]
        axes.plot([near, far], [row, row], color=colour, lw=2.5, alpha=0.6)
        axes.plot(near, row, "o", ms=7, mfc="none", mec=colour, mew=1.6)
        axes.plot(far, row, "o", ms=7, color=colour)
        axes.text(1.03, row, f"{change['verdict']} {change['difference']:+.2f}".replace("-", "−"), **side)
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
    return figure


def by_position_of(variant: dict[str, Any]) -> np.ndarray:
    """The loss in the longest windows that have an answer, in means of two of its stretches."""
    values = [w["by_position"] for w in variant["windows"].values() if "by_position" in w][-1]
    return np.reshape(values, (-1, 2)).mean(axis=1)


def by_position_limits(results: dict[str, Any]) -> tuple[float, float]:
    """The same for all families, with room for labels."""
    values = np.concatenate([by_position_of(variant) for variant in results["variants"].values()])
    return values.min() - 0.1, values.max() + 0.08 * np.ptp(values) + 0.1


def by_position(results: dict[str, Any], family: str, limits: tuple[float, float]) -> Figure:
    """The loss of the family's models against position, over those of all others in grey."""
    length = results["setup"]["length"]
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set(title=FAMILIES[family], xlabel="position (bytes)", ylabel="bits per byte", ylim=limits)
    for name, variant in results["variants"].items():
        values = by_position_of(variant)
        positions = (np.arange(len(values)) + 0.5) * length / 4
        if variant["family"] == family:
            axes.plot(positions, values, lw=2, label=variant["label"], **LINES[name] | {"markevery": 2})
        else:
            axes.plot(positions, values, lw=1, color="#7D8590", alpha=0.35, zorder=1)
    mark_training_length(axes, length)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def mark_training_length(axes: Any, length: int, side: str = "left") -> None:
    axes.axvline(length, color=matplotlib.rcParams["text.color"], lw=1, ls=(0, (1, 3)))
    axes.text(length, 0.98, "  training length  ", ha=side, va="top", transform=axes.get_xaxis_transform())


def of_training(results: dict[str, Any]) -> str:
    return picture(
        lambda: training(results),
        "Line chart: bits per byte of the training batches against the step, a line for each model.",
        "Each point is the mean of about a sixtieth of the steps. All models see the same batches.",
    )


def training(results: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set(title="Loss of the training batches", xlabel="step", ylabel="bits per byte")
    for name, variant in results["variants"].items():
        if variant["training"]:
            axes.plot(*variant["training"].values(), lw=1.6, label=variant["label"], **LINES[name])
    axes.set_ylim(top=min(axes.get_ylim()[1], 5.0))
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def of_biases(results: dict[str, Any]) -> str:
    biased = [variant for variant in results["variants"].values() if variant["bias"]]
    limits = bias_limits([variant["bias"] for variant in biased])
    return "".join(
        picture(
            functools.partial(bias_figure, variant["label"], variant["bias"], results["setup"]["length"], limits),
            f"Line chart: the bias of {variant['label']} against distance, a line for each head.",
            caption(results, variant),
        )
        for variant in biased
    )


def bias_limits(biases: list[dict[str, list]]) -> tuple[float, float]:
    """The same for all biases, down to −10 at most: a key then has e^−10 of its weight without the bias, next to none.

    Above, there is room for a label.
    """
    values = np.concatenate([np.ravel(bias["layers"]) for bias in biases] or [np.zeros(1)])
    low, high = max(values.min(), -10.0), max(values.max(), 0.0)
    return low - 0.05 * (high - low), high + 0.15 * (high - low)


def caption(results: dict[str, Any], variant: dict[str, Any]) -> str:
    layers = variant["bias"]["layers"]
    heads = f"{len(layers[0])} heads" + (f" of each of {len(layers)} layers" if len(layers) > 1 else ", in all layers")
    learned = variant["parameters"] - results["variants"]["none"]["parameters"]
    origin = f"{learned} learned numbers, as trained here" if learned else "by formula"
    return f"The bias of {heads}: {origin}. For position {longest_window(results) - 1}, less the bias at distance 0."


def bias_figure(label: str, bias: dict[str, list], length: int, limits: tuple[float, float]) -> Figure:
    """A line for each head, on a logarithmic axis of distances; dashes tell layers apart."""
    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.set(title=label, xlabel="distance (bytes)", ylabel="bias", xscale="log", ylim=limits)
    colours = ("#1A86CC", "#D55E00", "#009E73", "#CC79A7")
    for layer, heads in enumerate(bias["layers"]):
        for head, values in enumerate(heads):
            style = {"color": colours[head % 4], "ls": ("-", (0, (3, 1.5)), ":")[layer % 3]}
            axes.plot(bias["distance"], values, lw=1.6, label=None if head else f"layer {layer + 1}", **style)
    mark_training_length(axes, length, "right")
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.grid(alpha=0.25)
    if len(bias["layers"]) > 1:
        axes.legend(loc="lower left", frameon=False)
    return figure
