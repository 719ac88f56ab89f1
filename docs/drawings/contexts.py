"""Longer contexts: what was never seen, and what each scaling does about it."""

import json
import pathlib

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import posenc_jax as pe
from drawings import FIRST, GREY, NEW, SECOND, SEEN, fit, legend, panels, single
from posenc_jax import plot
from posenc_jax.hf import rotary_from_config
from posenc_jax.plot import _drawing

_DIM, _BASE, _LENGTH, _FACTOR = 128, 10_000.0, 4096, 8


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
    pairs = (30, 47, 55, 63)
    figure, dials = panels((1, 4, 250), (2, 2, 430), [f"pair {i}" for i in pairs])
    for axes, i in zip(dials, pairs, strict=True):
        axes.set(aspect="equal", xlim=(-1.15, 1.15), ylim=(-1.15, 1.15))
        axes.set_axis_off()
        seen, used = (min(1.0, length * cycles[i]) for length in (_LENGTH, _FACTOR * _LENGTH))
        styles = (
            (0.0, 1.0, f"{GREY}60", 2.0),
            (seen, used, NEW, 5.0),
            (0.0, seen, SEEN, 9.0),
        )
        for start, stop, colour, width in styles:
            angle = 2 * np.pi * np.linspace(start, stop, 200)
            if stop > start:
                axes.plot(np.cos(angle), np.sin(angle), color=colour, lw=width, solid_capstyle="butt")
        axes.text(0, 0, f"{_LENGTH * cycles[i]:.3g} cycles", ha="center", va="center")
    handles = [
        Line2D([], [], color=SEEN, lw=9, label="seen: positions below 4,096"),
        Line2D([], [], color=NEW, lw=5, label="new: positions below 32,768"),
    ]
    legend(figure, handles=handles, ncols=4 // figure.axes[0].get_gridspec().nrows ** 2)
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
    figure, axes = single("wavelength before scaling (positions per cycle)", "times longer", 420, 420)
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
        axes.axvline(x, color=GREY, lw=0.8, zorder=0)
        axes.text(x, 0.93, f" {text}", transform=axes.get_xaxis_transform())
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
    figure, axes = single("offset (tokens)", "offset that RoPE sees")
    axes.axhspan(0, _LENGTH, color=SEEN, alpha=0.15, lw=0)
    axes.text(25_000, 300, "seen in training", ha="right")
    for i, (label, seen) in enumerate(curves.items()):
        axes.plot(true, seen, label=label, **_drawing.line(i) | {"marker": ""})
    axes.set(ylim=(0, 6000), xlim=(0, 25_600))
    _drawing.legend(figure)
    return figure


def sinks() -> Figure:
    """Two triangles of 24 queries by 24 keys. Left, a window: each query sees the eight keys up to itself, a diagonal
    band. Right, the same band, and in a second colour the first four keys for every query, a column on the left."""
    query = np.arange(24)
    start = np.maximum(query - 7, 0)
    titles = ("a window of 8", "and four sinks")
    figure, both = panels((1, 2, 400), (1, 2, 250), titles, "key", "query", sharey=True)
    for axes in both:
        axes.set(aspect="equal", xlim=(-0.5, 23.5), ylim=(23.5, -0.5))
        axes.barh(query, query + 1 - start, left=start - 0.5, height=0.9, color=FIRST, label="window")
    axes.barh(query, np.minimum(start, 4), left=-0.5, height=0.9, color=SECOND, label="sinks")
    legend(figure, handles=axes.containers, ncols=2)
    return figure


def layer_spectra() -> Figure:
    """Wavelengths of two kinds of layers of one model, on a logarithmic axis. Full attention begins eight times above
    sliding windows and rises more steeply: the last pair rotates once in 58 thousand positions where there is a window
    and once in 45 million in the other layer."""
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
    spectra = {"layers 0 to 4: sliding window": layers[0], "layer 5: full attention": layers[5]}
    return fit(plot.spectrum({name: layer.frequencies for name, layer in spectra.items()}), phone=350)
