r"""Attention layers whose scores multiply what a token is by how far the other one stands, with transformers' weights.

To be copied, a function at a time.

Scores are $c\,q_i \cdot k_j + b(i, j)$, where the bias is a product of the query or the key with a row of a table for
the offset $i - j$. `pe.attention` gives a tile's queries and keys to `pe.content_bias`, which computes the bias of that
tile. No array of queries by keys exists: memory is linear in the length, in the derivative too.

    function         layers of transformers
    deberta_v2       DebertaV2 (v2 and v3), SEW-D: DisentangledSelfAttention
    deberta          Deberta: DisentangledSelfAttention
    conformer        ParakeetEncoderAttention, Wav2Vec2Conformer and Wav2Vec2Bert with "relative"
    relative_keys    Wav2Vec2BertSelfAttention with "relative_key", the speech encoder of SeamlessM4T v2
    sam              SamVisionAttention, VitDetAttention
    inkling          InklingAttention
    wavlm            WavLMAttention
    forgetting       none: forgetting attention, whose gates the keys have

Each takes hidden states (batch, length, width), of which `sam` has a grid (batch, rows, columns, width), and the
arrays of the module by their names in its `state_dict()`, and returns what the module does. `mask` (batch, length) is
1 for tokens and 0 for padding, whose own outputs mean nothing. For a layer of a checkpoint:

    model = transformers.DebertaV2Model.from_pretrained(folder)
    weights = {name: x.numpy() for name, x in model.encoder.layer[0].attention.self.state_dict().items()}
    weights["rel_embeddings"] = model.encoder.get_rel_embedding().detach().numpy()
    layer = jax.jit(functools.partial(deberta_v2, heads=12, max_distance=512))
    y = layer(hidden_states, weights, mask=mask)

DeBERTa shares `rel_embeddings` between its layers, and WavLM the `rel_attn_embed.weight` of its first: add them to the
weights of each. The program compares tiles with the formulas of `content_formulas.py`, on random weights:

    python examples/content_attention.py

It prints the largest difference for each, some 1e-7 to 5e-6, and takes five seconds on two cores.

He et al., "DeBERTa", 2021; Dai et al., "Transformer-XL", 2019; Shaw et al., "Self-Attention with Relative Position
Representations", 2018; Li et al., "Exploring Plain Vision Transformer Backbones for Object Detection", 2022; Chen et
al., "WavLM", 2022; Lin et al., "Forgetting Transformer", 2025.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import content_formulas
import jax
import jax.numpy as jnp
import numpy as np

import posenc_jax as pe

Weights = Mapping[str, Any]


def linear(x: jax.Array, weights: Weights, name: str) -> jax.Array:
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def split(x: jax.Array, width: int) -> jax.Array:
    """Heads of this width, on an axis before it."""
    return x.reshape(*x.shape[:-1], -1, width)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: Any, **options: Any) -> jax.Array:
    """Attention to the tokens of a mask, heads side by side."""
    if mask is not None:
        options |= {"query_segments": jnp.ones(mask.shape, jnp.int32), "key_segments": jnp.asarray(mask, jnp.int32)}
    y = pe.attention(q, k, v, **options)
    return y.reshape(*y.shape[:-2], -1)


# DeBERTa: the query with the row of an offset (c2p), and the key with a row of the same offset (p2c)


def disentangled(
    q: jax.Array, k: jax.Array, v: jax.Array, c2p: Any, p2c: Any, mask: Any, rows: dict[str, Any], block_size: int
) -> jax.Array:
    """One scale for the scores and for all terms: one over the root of the width times their number."""
    terms = 1 + (c2p is not None) + (p2c is not None)
    scale = (terms * q.shape[-1]) ** -0.5

    def bias(i: jax.Array, j: jax.Array, q: jax.Array, k: jax.Array) -> jax.Array:
        of_query = 0.0 if c2p is None else pe.content_bias(i, j, c2p, query=q, **rows)
        of_key = 0.0 if p2c is None else pe.content_bias(i, j, p2c, key=k, **rows)
        return scale * (of_query + of_key)

    data = {"bias": bias, "query_data": q, "key_data": k} if terms > 1 else {}
    return attend(q, k, v, mask, scale=scale, block_size=block_size, **data)


def deberta_v2(
    x: jax.Array,
    weights: Weights,
    *,
    heads: int,
    max_distance: int | None = None,
    terms: tuple[str, ...] = ("c2p", "p2c"),
    mask: Any = None,
    block_size: int = 512,
) -> jax.Array:
    """DeBERTa v2 and v3: `terms` is `pos_att_type`, and max_distance `max_relative_positions` if there are buckets.

    The paper has the rows of j − i in the term of keys, and the code those of i − j.
    """
    table, width = weights["rel_embeddings"], weights["query_proj.weight"].shape[0] // heads
    q, k, v = (split(linear(x, weights, f"{name}_proj"), width) for name in ("query", "key", "value"))
    c2p, p2c = None, None
    own = [name for name in ("pos_key_proj", "pos_query_proj") if f"{name}.weight" in weights]
    if "c2p" in terms:  # share_att_key: the projections of tokens are those of the table too
        c2p = split(linear(table, weights, "pos_key_proj" if own else "key_proj"), width)
    if "p2c" in terms:
        p2c = split(linear(table, weights, "pos_query_proj" if own else "query_proj"), width)
    clipped = {"first": -(len(table) // 2), "out_of_range": "nearest"}
    rows = clipped if max_distance is None else {"max_distance": max_distance}
    return disentangled(q, k, v, c2p, p2c, mask, rows, block_size)


def deberta(x: jax.Array, weights: Weights, *, heads: int, mask: Any = None, block_size: int = 512) -> jax.Array:
    """DeBERTa v1: queries, keys and values in one matrix, those of a head side by side; offsets are clipped.

    The code takes the middle rows of the table that a length needs, and clips to these; no other offsets occur.
    """
    table, width = weights["rel_embeddings"], weights["q_bias"].shape[0] // heads
    q, k, v = jnp.split(split(linear(x, weights, "in_proj"), 3 * width), 3, axis=-1)
    q, v = q + split(weights["q_bias"], width), v + split(weights["v_bias"], width)
    names = ("pos_proj", "pos_q_proj")
    c2p, p2c = (split(linear(table, weights, n), width) if f"{n}.weight" in weights else None for n in names)
    rows = {"first": -(len(table) // 2), "out_of_range": "nearest"}  # from −n to n − 1
    return disentangled(q, k, v, c2p, p2c, mask, rows, block_size)


# Transformer-XL and Shaw


PARAKEET = ("q_proj", "k_proj", "v_proj", "o_proj", "relative_k_proj", "bias_u", "bias_v")
WAV2VEC2 = ("linear_q", "linear_k", "linear_v", "linear_out", "linear_pos", "pos_bias_u", "pos_bias_v")


def conformer(x: jax.Array, weights: Weights, *, mask: Any = None, block_size: int = 512) -> jax.Array:
    """Transformer-XL's scores (q + u) · k + (q + v) · r(i − j), where r is a projection of sinusoids."""
    *names, of_rows, u, v = PARAKEET if "bias_u" in weights else WAV2VEC2
    (_, width), length = weights[u].shape, x.shape[1]
    query, key, value = (split(linear(x, weights, name), width) for name in names[:3])
    waves = pe.sinusoidal(jnp.arange(1 - length, length), weights[f"{of_rows}.weight"].shape[1])
    table = split(linear(waves, weights, of_rows), width)
    bias = lambda i, j, q, _: pe.content_bias(i, j, table, query=q)  # noqa: E731
    moved = (query + weights[v]) * width**-0.5
    y = attend(query + weights[u], key, value, mask, bias=bias, query_data=moved, block_size=block_size)
    return linear(y, weights, names[3])


def relative_keys(x: jax.Array, weights: Weights, *, left: int, mask: Any = None, block_size: int = 512) -> jax.Array:
    """Shaw's keys: rows for j − i from −left (`left_max_position_embeddings`) on; offsets beyond are clipped."""
    table = weights["distance_embedding.weight"]
    rows, width = table.shape
    q, k, v = (split(linear(x, weights, f"linear_{name}"), width) for name in "qkv")
    where = {"first": left + 1 - rows, "out_of_range": "nearest"}
    bias = lambda i, j, q, _: pe.content_bias(i, j, table[::-1], query=q, **where)  # noqa: E731
    y = attend(q, k, v, mask, bias=bias, query_data=q * width**-0.5, block_size=block_size)
    return linear(y, weights, "linear_out")


# A grid


def sam(x: jax.Array, weights: Weights, *, block_size: int = 512) -> jax.Array:
    """Tables of rows and of columns, interpolated to those of the grid; the bias is not scaled."""
    (batch, rows, columns, _), width = x.shape, weights["rel_pos_h"].shape[1]
    tokens = linear(x.reshape(batch, rows * columns, -1), weights, "qkv")
    q, k, v = jnp.moveaxis(tokens.reshape(*tokens.shape[:2], 3, -1, width), 2, 0)
    of_rows = pe.resize_table(weights["rel_pos_h"], 2 * rows - 1, antialias=False)
    of_columns = pe.resize_table(weights["rel_pos_w"], 2 * columns - 1, antialias=False)

    def bias(i: jax.Array, j: jax.Array, q: jax.Array, _: None) -> jax.Array:
        along_rows = pe.content_bias(i // columns, j // columns, of_rows, query=q)
        return along_rows + pe.content_bias(i % columns, j % columns, of_columns, query=q)

    y = attend(q, k, v, None, bias=bias, query_data=q, block_size=block_size)
    return linear(y, weights, "proj").reshape(x.shape)


# Text, causal


def short_convolution(x: jax.Array, kernel: jax.Array, mask: Any) -> jax.Array:
    """Adds to each token a sum of itself and those before, feature by feature; kernel (width, 1, tokens)."""
    last = x if mask is None else x * jnp.asarray(mask, x.dtype)[..., None]
    for back, weight in enumerate(kernel[:, 0, ::-1].T):
        x = x + weight * jnp.pad(last, ((0, 0), (back, 0), (0, 0)))[:, : x.shape[1]]
    return x


def inkling(
    x: jax.Array,
    weights: Weights,
    *,
    sliding: bool = False,
    floor: int | None = None,
    alpha: float = 0.1,
    epsilon: float = 1e-6,
    mask: Any = None,
    block_size: int = 512,
) -> jax.Array:
    """Each token mixes a bank of biases by distance, which are 0 beyond its end.

    Full layers multiply scores and biases by 1 + alpha · ln((i + 1) / floor) (`log_scaling_n_floor`); the window of the
    others is as long as their bank.
    """
    width, table = weights["q_norm.weight"].shape[0], weights["rel_logits_proj.proj"].T
    norm = lambda x, w: x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + epsilon) * w  # noqa: E731
    k, v = (
        short_convolution(x @ weights[f"{n}_proj.weight"].T, weights[f"{n}_sconv.conv1d.weight"], mask) for n in "kv"
    )
    q, r = split(linear(x, weights, "q_proj"), width), split(linear(x, weights, "r_proj"), table.shape[1])
    q, k, v = norm(q, weights["q_norm.weight"]), norm(split(k, width), weights["k_norm.weight"]), split(v, width)
    if floor is not None and not sliding:
        tau = 1 + alpha * jnp.log(jnp.maximum(jnp.arange(1, x.shape[1] + 1, dtype=x.dtype) / floor, 1))[:, None, None]
        q, r = q * tau, r * tau
    bias = lambda i, j, r, _: pe.content_bias(i, j, table, query=r, first=0, out_of_range="zeros")  # noqa: E731
    seen = {"causal": True, "window": (len(table) - 1 if sliding else None, None)}
    y = attend(q, k, v, mask, bias=bias, query_data=r, scale=1 / width, block_size=block_size, **seen)
    return linear(y, weights, "o_proj")


# Biases that tokens multiply or make


def wavlm(x: jax.Array, weights: Weights, *, max_distance: int, mask: Any = None, block_size: int = 512) -> jax.Array:
    """T5's bias times a gate of each query and head."""
    table = weights["rel_attn_embed.weight"]
    q, k, v = (split(linear(x, weights, f"{name}_proj"), x.shape[-1] // table.shape[1]) for name in "qkv")
    parts = linear(x.reshape(q.shape), weights, "gru_rel_pos_linear").reshape(*q.shape[:3], 2, 4).sum(-1)
    a, b = jnp.moveaxis(jax.nn.sigmoid(parts), -1, 0)
    gate = a * (b * weights["gru_rel_pos_const"][0, :, 0, 0] - 1) + 2  # (batch, length, heads)

    def bias(i: jax.Array, j: jax.Array, gate: jax.Array, _: None) -> jax.Array:
        return jnp.swapaxes(gate, 1, 2)[..., None] * pe.t5(i, j, table, max_distance=max_distance)

    return linear(attend(q, k, v, mask, bias=bias, query_data=gate, block_size=block_size), weights, "out_proj")


def forgetting(x: jax.Array, weights: Weights, *, heads: int, mask: Any = None, block_size: int = 512) -> jax.Array:
    """The bias c(i) − c(j) of summed logarithms of gates, which are the sigmoids of `f_proj`, one for each head."""
    q, k, v = (split(linear(x, weights, f"{name}_proj"), x.shape[-1] // heads) for name in "qkv")
    c = jnp.cumsum(jax.nn.log_sigmoid(linear(x, weights, "f_proj")), axis=1)  # (batch, length, heads)

    def bias(i: jax.Array, j: jax.Array, of_query: jax.Array, of_key: jax.Array) -> jax.Array:
        return jnp.swapaxes(of_query, 1, 2)[..., None] - jnp.swapaxes(of_key, 1, 2)[..., None, :]

    y = attend(q, k, v, mask, bias=bias, query_data=c, key_data=c, causal=True, block_size=block_size)
    return linear(y, weights, "o_proj")


LAYERS = {f.__name__: f for f in (deberta_v2, deberta, conformer, relative_keys, sam, inkling, wavlm, forgetting)}


def main() -> None:
    random = np.random.default_rng(0)
    for name, layer in LAYERS.items():
        x, weights, settings = content_formulas.example(name, random)
        tiles = jax.jit(functools.partial(layer, **settings, block_size=64))(x, weights)
        dense = getattr(content_formulas, name)(x, weights, **settings)
        print(f"{name:15} largest difference {np.abs(np.asarray(tiles) - dense).max():.1e}", flush=True)


if __name__ == "__main__":
    main()
