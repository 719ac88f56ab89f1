r"""Figures of positional encodings: tables, similarities, spectra, attention weights, and the error of float32.

Requires matplotlib: `pip install posenc_jax[plot]`. Every function returns a new `matplotlib.figure.Figure` that only
the caller holds: save it with `figure.savefig`, or make it the last line of a notebook cell after `%matplotlib inline`.
No function shows a figure or touches pyplot.

Text, axes and background take their colours from `matplotlib.rcParams` at the time of the call, so styles such as
"dark_background" apply. Data colours do not depend on the style. They stand out on light and dark backgrounds and are
safe for colour-blind readers; lines also differ in dashes or markers, for greyscale print.
"""

from posenc_jax.plot._figures import (
    attention_weights,
    columns,
    heatmap,
    offset_products,
    phase_error,
    similarity,
    spectrum,
)

__all__ = ["attention_weights", "columns", "heatmap", "offset_products", "phase_error", "similarity", "spectrum"]
