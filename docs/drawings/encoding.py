"""The sinusoidal encoding: its table, its columns, its wavelengths, and binary digits."""

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from drawings import colour_bar, fit, panels
from posenc_jax import plot
from posenc_jax.plot import _drawing


def mesh() -> Figure:
    """Heatmap of 128 positions by 256 features in red and blue. Features at the left alternate within a few
    positions; towards the right the stripes grow wider, until the last columns keep one colour from top to bottom."""
    return fit(plot.heatmap(pe.sinusoidal(jnp.arange(128), 256)), 380)


def small_mesh() -> Figure:
    """Heatmap of 50 positions by 16 features: stripes of red and blue that are short in the first columns and longer
    in each pair of columns after them."""
    return fit(plot.heatmap(pe.sinusoidal(jnp.arange(50), 16)))


def five_waves() -> Figure:
    """Five sine waves over 50 positions. Feature 0 makes eight cycles, feature 2 two and a half, feature 4 under one;
    feature 8 rises slowly to 0.5 and feature 14 stays near zero."""
    return fit(plot.columns(pe.sinusoidal(jnp.arange(50), 16)), 300)


def wavelengths() -> Figure:
    """Wavelength against pair of features on a logarithmic axis. Widths 16, 64 and 128 give straight lines that start
    at 6.3; a wider encoding has a line that rises more gently, and ends nearer to 62,832. A base of one million
    makes the line of width 128 steeper."""
    spectra = {f"width {d}": d for d in (16, 64, 128)} | {"width 128, base 10⁶": pe.geometric(128, 1e6)}
    return fit(plot.spectrum(spectra), phone=370)


def similarities() -> Figure:
    """Square heatmap of cosine similarities between 50 positions: a bright diagonal, and parallel bands beside it that
    are alternately darker and brighter, constant along every diagonal."""
    return fit(plot.similarity(pe.sinusoidal(jnp.arange(50), 16)), 380)


def counter() -> Figure:
    """Two heatmaps over positions 0 to 31, five columns each. Left, the bits of the position: the first column
    alternates at each step, the second every two steps, up to the fifth, which is 0 in the upper half and 1 in the
    lower. Right, five negated sines with the same periods: red, positive, in the same cells where the bit is 1, in
    softer steps."""
    positions, j = np.arange(32), np.arange(5)
    bits = positions[:, None] >> j & 1
    frequencies = jnp.asarray(2 * np.pi / 2.0 ** (j + 1), jnp.float32)
    waves = pe.sinusoidal(jnp.asarray(positions, jnp.float32) + 0.5, frequencies, layout="half")[:, :5]
    codes = {"bits (red: 1)": 2 * bits - 1, "negated sines": -np.asarray(waves)}
    figure, both = panels((1, 2, 420), (1, 2, 400), codes, "period (positions)", "position", sharey=True)
    for axes, values in zip(both, codes.values(), strict=True):
        image = _drawing.image(axes, values, "RdBu_r", -1, 1, "auto")
        axes.set_xticks(j, [f"{2 ** (k + 1)}" for k in j])
    colour_bar(image, both, "value of the sine", [-1, 0, 1])
    return figure
