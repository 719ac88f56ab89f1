"""The sinusoidal encoding."""

import jax.numpy as jnp

import posenc_jax as pe
from posenc_jax import plot


def mesh():
    """Heatmap of 128 positions by 256 features in red and blue. Features at the left alternate within a few
    positions; towards the right the stripes grow wider, until the last columns keep one colour from top to bottom."""
    return plot.heatmap(pe.sinusoidal(jnp.arange(128), 256), title="128 positions, 256 features")
