"""Equinox: its layer of RoPE, alone and in multi-head attention."""

from __future__ import annotations

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from clients.harness import Far, Replaced, Timed, Trial, drawn

# --8<-- [start:copy]
import posenc_jax as pe


def rotary(self, x, *, key=None):  # RotaryPositionalEmbedding, of one head (seq, embedding_size)
    f = pe.geometric(self.embedding_size, self.theta)
    return pe.rotary(x, jnp.arange(len(x)), f, head_axis=None)


# --8<-- [end:copy]

REPLACED = [Replaced(eqx.nn.RotaryPositionalEmbedding, "__call__", rotary, lambda self, x, **_: x)]


def _far(x, at):
    """Of the whole sequence, since no positions are taken."""
    whole = jnp.zeros((int(at.max()) + 1, 64)).at[at[0]].set(x[0, :, 0])
    return eqx.nn.RotaryPositionalEmbedding(64, 500_000.0)(whole)[at[0]][None, :, None]


FAR = Far(_far)
PACKAGE = "equinox"
TESTS = ["tests/test_nn.py"]  # of a checkout


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """Multi-head attention, and what a vision transformer adds to patches."""
    rope = eqx.nn.RotaryPositionalEmbedding(32, 10_000.0)
    attention = eqx.nn.MultiheadAttention(4, 128, key=jax.random.key(0))

    def heads(q, k, v):  # (seq, heads, head_dim)
        along = jax.vmap(rope, in_axes=1, out_axes=1)
        return along(q), along(k), v

    arrays, static = eqx.partition(attention, eqx.is_array)

    def forward(params, x):
        of = eqx.combine(params, static)
        return jax.vmap(lambda x: of(x, x, x, process_heads=heads))(x)

    big = eqx.nn.RotaryPositionalEmbedding(128, 10_000.0)
    timed = Timed(jax.vmap(big), (jnp.asarray(np.random.default_rng(0).normal(size=(16, 2048, 128)), jnp.float32),))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 256, 128)), jnp.float32)
    yield Trial("MultiheadAttention", forward, drawn(arrays), (x,)), timed
