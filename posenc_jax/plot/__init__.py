"""Figures of positional encodings: tables, similarities, spectra, attention weights, and the error of float32.

The functions require matplotlib: `pip install posenc_jax[plot]`. Each returns a new `matplotlib.figure.Figure` and
keeps no reference to it. Save the figure with `figure.savefig`, or make it the last line of a notebook cell after
`%matplotlib inline`. No function shows a figure or uses pyplot.

The colours of text, axes and background come from `matplotlib.rcParams` at the time of the call, so styles such as
"dark_background" apply. Data colours do not depend on the style. They stand out on light and dark backgrounds and are
safe for colour-blind readers. Lines also differ in dashes or markers, for greyscale print.
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
