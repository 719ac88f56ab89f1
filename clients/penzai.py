"""Penzai: its layer of RoPE, on named arrays, of whole heads and of a part of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from penzai import pz

from clients.harness import Far, Replaced, Timed, Trial, layer

# --8<-- [start:copy]
import posenc_jax as pe


def apply_1d(self, input_slice, position):  # ApplyRoPE._apply_1d, of one vector at one position
    f = pe.geometric(input_slice.shape[-1], self.max_wavelength)
    return pe.rotary(input_slice[None], position[None], f, head_axis=None)[0]


# --8<-- [end:copy]

REPLACED = [Replaced(pz.nn.ApplyRoPE, "_apply_1d", apply_1d, lambda self, x, position: x)]


NAMED = {"embedding_axis": "feature", "positions_input_name": "at"}


def _rotate(rope, x, at):
    axes = "batch", "position", "head", "feature"
    return rope(pz.nx.wrap(x).tag(*axes), at=pz.nx.wrap(at).tag(*axes[:2])).unwrap(*axes)


FAR = Far(functools.partial(_rotate, pz.nn.ApplyRoPE(**NAMED, max_wavelength=500_000.0)))
PACKAGE = "penzai"
TESTS = ["tests/nn/embedding_test.py"]  # of a checkout


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """A layer of attention around each layer of theirs."""
    named = NAMED | {"max_wavelength": 10_000.0}
    ropes = {
        "ApplyRoPE": pz.nn.ApplyRoPE(**named),
        "ApplyRoPEToSubset": pz.nn.ApplyRoPEToSubset(**named, rope_subset_size=16),
    }
    at = jnp.broadcast_to(jnp.arange(256, dtype=jnp.int32), (2, 256))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2048, 16, 128)), jnp.float32)
    timed = Timed(lambda x, p: _rotate(ropes["ApplyRoPE"], x, p), (x, jnp.arange(2048, dtype=jnp.int32)[None]))
    for name, rope in ropes.items():
        call, params, tokens = layer(lambda x, p, rope=rope: _rotate(rope, x, p))
        yield Trial(name, call, params, (tokens, at), (tokens, at + 1_000_000)), timed
        timed = None
