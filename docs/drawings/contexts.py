"""Longer contexts: what was never seen, and what each scaling does about it."""

import json
import pathlib

import numpy as np
from matplotlib import rcParams
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import posenc_jax as pe
from posenc_jax import plot
from posenc_jax.hf import rotary_from_config
from posenc_jax.plot import _drawing

_DIM, _BASE, _LENGTH, _FACTOR = 128, 10_000.0, 4096, 8
_SEEN, _NEW = "#7f97ab", _drawing.COLOURS[1]


def _long_factors() -> np.ndarray:
    """The divisors of Phi-3.5-mini-instruct, of 48 pairs with base 10,000, for 32 times its 4,096 positions."""
    recorded = pathlib.Path(__file__).parents[2] / "tests" / "oracles" / "recorded" / "hf_published.json"
    cases = json.loads(recorded.read_text(encoding="utf-8"))["cases"]
    (config,) = (case["config"] for case in cases if case["name"] == "et-phi3.5-mini-instruct")
    return np.array(config["rope_scaling"]["long_factor"])


def unseen_phases() -> Figure:
    """Four dials, for pairs 30, 47, 55 and 63 of 64. The arc that positions below 4,096 cover is grey-blue, what
    positions up to 32,768 add is vermilion. Pair 30 is seen all round; of pair 47 a quarter is new, of pair 55 three
    quarters, and of pair 63, seen for a thirteenth of the dial, half of the dial is new and the rest is
    still never reached."""
    cycles = 1 / pe.geometric(_DIM, _BASE).wavelengths
    figure = Figure(figsize=(6.4, 2.6), layout="constrained")
    for axes, i in zip(figure.subplots(1, 4), (30, 47, 55, 63), strict=True):
        axes.set_aspect("equal")
        axes.set_axis_off()
        axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))
        axes.set_title(f"pair {i}", size="medium")
        seen, used = (min(1.0, length * cycles[i]) for length in (_LENGTH, _FACTOR * _LENGTH))
        styles = (
            (0.0, 1.0, "#8c959f60", 2.0),
            (seen, used, _NEW, 5.0),
            (0.0, seen, _SEEN, 9.0),
        )
        for start, stop, colour, width in styles:
            angle = 2 * np.pi * np.linspace(start, stop, 200)
            if stop > start:
                axes.plot(np.cos(angle), np.sin(angle), color=colour, lw=width, solid_capstyle="butt")
        axes.text(0, 0, f"{_LENGTH * cycles[i]:.3g}\ncycles", ha="center", va="center", size="medium")
    handles = [
        Line2D([], [], color=_SEEN, lw=9, label="seen: positions below 4,096"),
        Line2D([], [], color=_NEW, lw=5, label="new: positions below 32,768"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def scaling_ratios() -> Figure:
    """How many times longer each scaling makes a wavelength, against the wavelength, both axes logarithmic. Linear is
    flat at 8. NTK rises in a straight line from 1 at the fastest pair to 8 at the slowest; dynamic NTK does so to 15.
    YaRN and Llama 3 stay at 1 for fast pairs, reach 8 at about the trained length and stay there; Llama 3 climbs later
    and more steeply. Proportional is at 8 and ends after a quarter of the pairs. LongRoPE with the list of
    Phi-3.5 mini, for a factor of 32, begins at 1.08, passes 8 at a wavelength of 60, 24 at L/32, and ends at 65."""
    plain = pe.geometric(_DIM, _BASE)
    spectra = {
        "linear": pe.linear_scaling(plain, _FACTOR),
        "NTK-aware": pe.ntk(_DIM, _BASE, _FACTOR),
        "dynamic NTK, s = 2": pe.dynamic_ntk(_DIM, _BASE, 2.0, _LENGTH, _FACTOR * _LENGTH),
        "YaRN": pe.yarn(_DIM, _BASE, _FACTOR, _LENGTH),
        "Llama 3": pe.llama3(plain, _FACTOR, low_freq_factor=1, high_freq_factor=4, original_max=_LENGTH),
        "proportional": pe.proportional(_DIM, _BASE, 0.25, _FACTOR),
    }
    figure, axes = _drawing.single(
        "What each scaling does to a pair, s = 8", "unscaled wavelength (positions per cycle)", "times longer", 6.4
    )
    figure.set_figheight(4.6)
    axes.set(xscale="log", yscale="log")
    for i, (label, scaled) in enumerate(spectra.items()):
        ratio = scaled.wavelengths / plain.wavelengths
        ratio = np.where(np.isfinite(ratio), ratio, np.nan)
        style = _drawing.line(i)
        if label == "proportional":  # upon linear's line
            style |= {"linestyle": "none", "markersize": 9}
        axes.plot(plain.wavelengths, ratio, label=label, markevery=(2 * i % 7, 7) if i < 5 else 3, **style)
    long = pe.geometric(96, _BASE).wavelengths
    axes.plot(long, _long_factors(), label="LongRoPE, Phi-3.5 mini, s = 32", color=rcParams["text.color"], lw=1)
    for x, text in ((_LENGTH / 32, "L/32"), (_LENGTH / 4, "L/4"), (_LENGTH, "L")):
        axes.axvline(x, color="#8c959f", lw=0.8, zorder=0)
        axes.text(x, 0.93, f" {text}", transform=axes.get_xaxis_transform(), size="small")
    axes.set_yticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    axes.minorticks_off()
    axes.set_ylim(0.85, 110)  # room for the names of lengths
    _drawing.legend(figure)
    return figure


def self_extend() -> Figure:
    """The offset that RoPE sees against the true offset, up to 25,600. Plain RoPE is the diagonal and leaves the grey
    band of offsets below 4,096, seen in training, at once. Linear scaling is a straight line that reaches 3,200.
    Self-Extend follows the diagonal up to 1,024 and then rises with an eighth of the slope, to 4,096 at the right."""
    true, window, group = np.arange(25_601), 1024, 8
    curves = {
        "plain": true,
        "linear, s = 8": true / 8,
        "Self-Extend": np.where(true < window, true, true // group + window - window // group),
    }
    figure, axes = _drawing.single("", "offset (tokens)", "offset that RoPE sees", 5.6)
    axes.axhspan(0, _LENGTH, color=_SEEN, alpha=0.15, lw=0)
    axes.text(25_000, 300, "seen in training", ha="right", size="small")
    for i, (label, seen) in enumerate(curves.items()):
        axes.plot(true, seen, label=label, **_drawing.line(i) | {"marker": ""})
    axes.set(ylim=(0, 6000), xlim=(0, 25_600))
    _drawing.legend(figure)
    return figure


def sinks() -> Figure:
    """Two triangles of 24 queries by 24 keys. Left, a window: each query sees the eight keys up to itself, a diagonal
    band. Right, the same band, and in a second colour the first four keys for every query, a column on the left."""
    query, key = np.mgrid[:24, :24]
    window = (key <= query) & (key > query - 8)
    first = (key < 4) & (key <= query) & ~window
    colours = ListedColormap([_drawing.COLOURS[0], _drawing.COLOURS[1]])
    figure = Figure(figsize=(5.6, 3.9), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, seen, title in zip(
        panels, (window, window | first), ("a window of 8", "four sinks and a window of 8"), strict=True
    ):
        cells = np.where(seen, np.where(first, 1.0, 0.0), np.nan)
        _drawing.image(axes, cells, colours, 0, 1, "equal")
        axes.set_title(title, size="medium")
        axes.set_xlabel("key")
    panels[0].set_ylabel("query")
    handles = [Patch(color=_drawing.COLOURS[i], label=label) for i, label in enumerate(("window", "sinks"))]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def layer_spectra() -> Figure:
    """Wavelengths of two kinds of layers of one model, on a logarithmic axis. Full attention begins eight times above
    sliding windows and rises more steeply: the last pair completes a cycle in 58 thousand positions where there is a
    window and in 45 million in the other layer."""
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "head_dim": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 6,
    }
    layers = rotary_from_config(config).layers
    figure = plot.spectrum(
        {"layers 0 to 4: sliding window": layers[0].frequencies, "layer 5: full attention": layers[5].frequencies}
    )
    figure.axes[0].set_title("Two spectra in one model")
    return figure
