"""Rotary embeddings."""

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from posenc_jax import _figure


def heads() -> Figure:
    """Two curves of score against how many tokens back the key stands. The first peaks at 1 for the token itself and
    falls to one half within forty tokens, with ripples. The second has the same shape moved by five: its peak
    stands at the key five tokens back."""
    back = jnp.arange(41)
    ones = jnp.ones((41, 1, 64))
    figure, axes = _figure.single("What one head can look for", "key, tokens before the query", "score / largest")
    for i, (turn, label) in enumerate({0: "looks at itself", -5: "looks five back"}.items()):
        query = pe.rotary(jnp.ones((1, 1, 64)), turn, head_axis=-2)  # at position 0, after the turn of its weights
        scores = np.asarray(jnp.sum(query * pe.rotary(ones, -back, head_axis=-2), axis=(1, 2))) / 64
        axes.plot(np.asarray(back), scores, label=label, markevery=5, **_figure.line(i))
    axes.xaxis.set_major_locator(_figure.whole_ticks())
    _figure.legend(figure)
    return figure
