"""Levanter: its three classes of RoPE, on named arrays, in its Llama."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from levanter.layers import rotary as theirs
from levanter.layers.attention_mask import AttentionMask
from levanter.models.llama import LlamaConfig, LlamaLMHeadModel

from clients.harness import Far, Replaced, Timed, Trial, drawn

# --8<-- [start:copy]
import posenc_jax as pe


def turn(self, q, position_ids, frequencies):
    """Rotates q along its named axes: those that the positions lack are heads, however many they are."""
    q = q.rearrange((..., self.HeadDim))
    heads = tuple(i for i, axis in enumerate(q.axes[:-1]) if axis not in position_ids.axes)
    at = position_ids.rearrange([axis for axis in q.axes if axis in position_ids.axes]).array
    return hax.named(pe.rotary(q.array, at, frequencies, head_axis=heads), q.axes)


def default(self, q, position_ids):  # DefaultRotaryEmbeddings
    f = pe.linear_scaling(pe.geometric(self.HeadDim.size, self.config.theta), self.config.factor)
    return turn(self, q, position_ids, f)


def llama3(self, q, position_ids):  # Llama3RotaryEmbeddings
    c = self.config
    bounds = {"low_freq_factor": c.low_freq_factor, "high_freq_factor": c.high_freq_factor}
    f = pe.geometric(self.HeadDim.size, c.theta)
    f = pe.llama3(f, c.factor, **bounds, original_max=c.original_max_position_embeddings)
    return turn(self, q, position_ids, f)


def yarn(self, q, position_ids):  # YarnRotaryEmbeddings
    c = self.config
    betas = {"beta_fast": c.beta_fast, "beta_slow": c.beta_slow}
    f = pe.yarn(self.HeadDim.size, c.theta, c.factor, c.original_max_position_embeddings, **betas)
    f = f.with_attention_factor(1 + c.mscale * (f.attention_factor - 1))
    return turn(self, q, position_ids, f)


# --8<-- [end:copy]


def _same(self, q, position_ids):
    return q


REPLACED = [
    Replaced(theirs.DefaultRotaryEmbeddings, "__call__", default, _same),
    Replaced(theirs.Llama3RotaryEmbeddings, "__call__", llama3, _same),
    Replaced(theirs.YarnRotaryEmbeddings, "__call__", yarn, _same),
]


def _far(x, at):
    batch, seq, heads, width = (
        hax.Axis(name, n) for name, n in zip(("batch", "position", "heads", "head_size"), x.shape, strict=True)
    )
    rope = theirs.DefaultRotaryEmbeddingsConfig(500_000).build(width)
    return rope(hax.named(x, (batch, seq, heads, width)), hax.named(at[0], seq)).array


FAR = Far(_far)
PACKAGE = "marin-levanter"
TESTS = ["tests/test_rotary.py", "tests/test_llama.py"]  # of a checkout


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """Llama of two layers under each class."""
    ropes = {
        "default": theirs.DefaultRotaryEmbeddingsConfig(10_000, 2.0),
        "llama3": theirs.Llama3RotaryEmbeddingsConfig(original_max_position_embeddings=64),
        "yarn": theirs.YarnRotaryEmbeddingsConfig(factor=4.0, original_max_position_embeddings=64),
    }
    small = LlamaConfig(
        max_seq_len=128, hidden_dim=64, intermediate_dim=96, num_layers=2, num_heads=4, num_kv_heads=2,
        gradient_checkpointing=False, scan_layers=False,
    )  # fmt: skip
    vocabulary, batch, sequence = hax.Axis("vocab", 96), "batch", hax.Axis("position", 128)
    head_dim = hax.Axis("head_size", 128)
    of = (hax.Axis("batch", 1), hax.Axis("position", 2048), hax.Axis("kv_head", 4), hax.Axis("q_heads_per_group", 4))
    big = ropes["default"].build(head_dim)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2048, 4, 4, 128)), jnp.float32)
    at = hax.arange(of[1])
    timed = Timed(lambda x: big(hax.named(x, (*of, head_dim)), at).array, (x,))
    for name, rope in ropes.items():
        model = LlamaLMHeadModel.init(vocabulary, dataclasses.replace(small, rope=rope), key=jax.random.key(0))
        arrays, static = eqx.partition(model, eqx.is_inexact_array)

        def forward(params, ids, at, static=static):
            axes = (hax.Axis(batch, ids.shape[0]), sequence)
            named, positions = hax.named(ids, axes), hax.named(at, axes)
            return eqx.combine(params, static)(named, AttentionMask.causal(), pos_ids=positions).array

        ids = jnp.asarray(np.random.default_rng(1).integers(0, 96, (2, 128)), jnp.int32)
        places = jnp.broadcast_to(jnp.arange(128, dtype=jnp.int32), (2, 128))
        yield Trial(f"Llama, {name}", forward, drawn(arrays), (ids, places), (ids, places + 1_000_000)), timed
        timed = None
