"""This library."""

import jax.numpy as jnp
import numpy as np

import posenc_jax as pe

NAME, PACKAGES, FRAMEWORK = "posenc_jax", ("posenc_jax",), "jax"
IMPORT = "import posenc_jax"
HEAD_AXIS, LAYOUTS = -2, ("half", "interleaved")


def table(case):
    return lambda positions: pe.sinusoidal(positions, case.shape[-1])


def add(case):
    return pe.add_sinusoidal


def rotary(case):
    return lambda x: pe.rotary(x, layout=case.layout, head_axis=-2)


def decode(case):
    return lambda x, positions: pe.rotary(x, positions, layout=case.layout, head_axis=-2)


def attention(case):
    heads = case.shape[-2]
    return lambda q, k, v: pe.attention(q, k, v, bias=lambda i, j: pe.alibi(i, j, heads), causal=True)


def waves(position):
    turned = np.asarray(pe.rotary(jnp.ones((1, 128)).at[:, 64:].set(0), jnp.array([position]), head_axis=None))[0]
    return turned[:64] + 1j * turned[64:]
