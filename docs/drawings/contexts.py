"""Longer contexts: what was never seen, and what each scaling does about it."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import posenc_jax as pe
from posenc_jax import _figure, plot
from posenc_jax.hf import rotary_from_config

_DIM, _BASE, _LENGTH, _FACTOR = 128, 10_000.0, 4096, 8


def unseen_phases() -> Figure:
    """Four dials, for pairs 30, 47, 55 and 63 of 64. The arc that positions below 4,096 cover is blue, what positions
    up to 32,768 add is vermilion. Pair 30 is blue all round; of pair 47 a quarter is new, of pair 55 three quarters,
    and of pair 63, blue for a thirteenth of the dial, half of the dial is new and the rest still never reached."""
    turns = 1 / pe.geometric(_DIM, _BASE).wavelengths
    figure = Figure(figsize=(6.4, 2.6), layout="constrained")
    for axes, i in zip(figure.subplots(1, 4), (30, 47, 55, 63), strict=True):
        axes.set_aspect("equal")
        axes.set_axis_off()
        axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))
        axes.set_title(f"pair {i}", size="medium")
        seen, used = (min(1.0, length * turns[i]) for length in (_LENGTH, _FACTOR * _LENGTH))
        styles = (
            (0.0, 1.0, "#8c959f60", 2.0),
            (seen, used, _figure.COLOURS[1], 5.0),
            (0.0, seen, _figure.COLOURS[0], 9.0),
        )
        for start, stop, colour, width in styles:
            angle = 2 * np.pi * np.linspace(start, stop, 200)
            if stop > start:
                axes.plot(np.cos(angle), np.sin(angle), color=colour, lw=width, solid_capstyle="butt")
        axes.text(0, 0, f"{_LENGTH * turns[i]:.3g}\nturns", ha="center", va="center", size="medium")
    handles = [
        Line2D([], [], color=_figure.COLOURS[0], lw=9, label="seen: positions below 4,096"),
        Line2D([], [], color=_figure.COLOURS[1], lw=5, label="new: positions below 32,768"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def scaling_ratios() -> Figure:
    """How many times longer each scaling makes a wavelength, against the wavelength, both axes logarithmic. Linear is
    flat at 8. NTK rises in a straight line from 1 at the fastest pair to 8 at the slowest; dynamic NTK does so to 15.
    YaRN and Llama 3 stay at 1 for fast pairs, reach 8 at about the trained length and stay there; Llama 3 climbs later
    and more steeply. Proportional is at 8 and ends after a quarter of the pairs."""
    plain = pe.geometric(_DIM, _BASE)
    spectra = {
        "linear": pe.linear_scaling(plain, _FACTOR),
        "NTK-aware": pe.ntk(_DIM, _BASE, _FACTOR),
        "dynamic NTK, s = 2": pe.dynamic_ntk(_DIM, _BASE, 2.0, _LENGTH, _FACTOR * _LENGTH),
        "YaRN": pe.yarn(_DIM, _BASE, _FACTOR, _LENGTH),
        "Llama 3": pe.llama3(plain, _FACTOR, low_freq_factor=1, high_freq_factor=4, original_max=_LENGTH),
        "proportional": pe.proportional(_DIM, _BASE, 0.25, _FACTOR),
    }
    figure, axes = _figure.single(
        "What each scaling does to a pair, s = 8", "wavelength before scaling (positions per turn)", "times longer", 6.4
    )
    figure.set_figheight(4.6)
    axes.set(xscale="log", yscale="log")
    for i, (label, scaled) in enumerate(spectra.items()):
        ratio = scaled.wavelengths / plain.wavelengths
        ratio = np.where(np.isfinite(ratio), ratio, np.nan)
        style = _figure.line(i)
        if label == "proportional":  # upon linear's line
            style |= {"linestyle": "none", "markersize": 9}
        axes.plot(plain.wavelengths, ratio, label=label, markevery=(2 * i % 7, 7) if i < 5 else 3, **style)
    for x, text in ((_LENGTH / 32, "L/32"), (_LENGTH / 4, "L/4"), (_LENGTH, "L")):
        axes.axvline(x, color="#8c959f", lw=0.8, zorder=0)
        axes.text(x, 0.02, f" {text}", transform=axes.get_xaxis_transform(), size="small")
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.minorticks_off()
    axes.set_ylim(0.85, 18)
    _figure.legend(figure)
    return figure


def layer_spectra() -> Figure:
    """Wavelengths of two kinds of layers of one model, on a logarithmic axis. Full attention begins eight times above
    sliding windows and rises more steeply: the last pair turns once in 58 thousand positions where there is a window
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
    figure = plot.spectrum(
        {"layers 0 to 4: sliding window": layers[0].frequencies, "layer 5: full attention": layers[5].frequencies}
    )
    figure.axes[0].set_title("Two spectra in one model")
    return figure
