"""Attention layers of DeepSeek-V4 and of Mistral Large 4, written with a plan, for one sequence in float32.

Weights are those of the module of transformers, by its names.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax, nn

from posenc_jax import hf
from posenc_jax._jax.arrays import align

einsum = functools.partial(jnp.einsum, precision="highest")


def linear(w: Mapping[str, Any], name: str, x: Any, heads: int | None = None) -> Any:
    y = einsum("...i,oi->...o", x, w[f"{name}.weight"])
    return y if heads is None else y.reshape(*y.shape[:-1], heads, -1)


def rms_norm(x: Any, weight: Any = None, epsilon: float = 1e-6) -> Any:
    y = x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)
    return y if weight is None else y * align(weight, y.ndim)


def layer_norm(w: Mapping[str, Any], name: str, x: Any) -> Any:
    return rms_norm(x - x.mean(-1, keepdims=True), w[f"{name}.weight"]) + align(w[f"{name}.bias"], x.ndim)


def best(scores: Any, visible: Any, count: int) -> Any:
    """Whether a key (queries, keys) is visible, and among the best of its query."""
    scores = jnp.where(visible, scores, -jnp.inf)
    least = jnp.sort(scores, -1)[:, -min(count, scores.shape[-1]), None]
    return visible & (scores >= least)


def chosen(query: Any, key: Any, head_weights: Any) -> Any:
    """Scores of an indexer: (queries, heads, width), (keys, width), (queries, heads) → (queries, keys)."""
    scores = nn.relu(einsum("qhd,kd->qhk", query, key)) * query.shape[-1] ** -0.5
    return einsum("qhk,qh->qk", scores, head_weights * head_weights.shape[-1] ** -0.5)


def attend(query: Any, key: Any, value: Any, visible: Any, scale: float, sinks: Any = None) -> Any:
    """Attention of (seq, heads, width), where a single head of keys serves all."""
    key, value = (jnp.broadcast_to(x, (x.shape[0], query.shape[1], x.shape[2])) for x in (key, value))
    scores = jnp.where(visible, einsum("qhd,khd->hqk", query, key) * scale, -jnp.inf)
    if sinks is not None:
        column = jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
        scores = jnp.concatenate([scores, column], -1)
    weights = nn.softmax(scores, axis=-1)[..., : key.shape[0]]
    return einsum("hqk,khd->qhd", weights, value)


def deepseek_v4(config: Mapping[str, Any], w: Mapping[str, Any], x: Any, layer: int) -> Any:
    """x (seq, hidden_size) → (seq, hidden_size): keys are values, and those of blocks follow those of tokens."""
    plan, seq = hf.rotary_from_config(config), x.shape[0]
    kind, heads, epsilon = config["layer_types"][layer], config["num_attention_heads"], config["rms_norm_eps"]

    def turn(plan: hf.RotaryPlan, y: Any, role: str, positions: Any = None) -> Any:
        return plan.rotate(y, layer, positions, head_axis=-2, role=role)

    def compress(name: str) -> Any:
        """One vector for each whole block of tokens; where blocks overlap, it sees the block before too."""
        prefix, rate = f"compressor.{name}", config["compress_rates"][kind]
        values, gates = (linear(w, f"{prefix}{part}_proj", x)[: seq // rate * rate] for part in ("kv", "gate"))
        values, gates = (y.reshape(-1, rate, y.shape[-1]) for y in (values, gates))
        gates, width = gates + w[f"{prefix}position_bias"][None], w[f"{prefix}kv_norm.weight"].shape[0]
        if gates.shape[-1] == 2 * width:
            before = [jnp.pad(y[:-1, :, :width], ((1, 0), (0, 0), (0, 0)), constant_values=fill) for y, fill in
                      ((values, 0), (gates, -np.inf))]  # fmt: skip
            values, gates = (
                jnp.concatenate([a, y[..., width:]], 1) for a, y in zip(before, (values, gates), strict=True)
            )
        return rms_norm((values * nn.softmax(gates, axis=1)).sum(1), w[f"{prefix}kv_norm.weight"], epsilon)[:, None]

    latent = rms_norm(linear(w, "q_a_proj", x), w["q_a_norm.weight"], epsilon)
    query = turn(plan, rms_norm(linear(w, "q_b_proj", latent, heads), epsilon=epsilon), "query")
    vectors = rms_norm(linear(w, "kv_proj", x), w["kv_norm.weight"], epsilon)[:, None]
    key, value = (turn(plan, vectors, role) for role in ("key", "value"))
    i, j = np.arange(seq)[:, None], np.arange(seq)
    visible = (j <= i) & (i - j < config["sliding_window"])
    if kind != "sliding_attention":
        rate, blocks = config["compress_rates"][kind], compress("")
        count = blocks.shape[0]
        at, whole = rate * np.arange(count, dtype=np.int32), np.arange(count) < (i + 1) // rate
        if kind == "compressed_sparse_attention":
            index_query = linear(w, "compressor.indexer.q_b_proj", latent, config["index_n_heads"])
            index_query = turn(plan.indexer, index_query, "query")
            index_key = turn(plan.indexer, compress("indexer."), "key", at)[:, 0]
            head_weights = linear(w, "compressor.indexer.scorer.weights_proj", x)
            whole = best(chosen(index_query, index_key, head_weights), whole, config["index_topk"])
        key, value = (
            jnp.concatenate([z, turn(plan, blocks, role, at)]) for z, role in ((key, "key"), (value, "value"))
        )
        visible = jnp.concatenate([visible, whole], 1)
    output = attend(query, key, value, visible, config["head_dim"] ** -0.5, w["sinks"])
    groups = config["o_groups"]
    output = turn(plan, output, "output").reshape(seq, groups, -1)
    grouped = einsum("sgi,goi->sgo", output, w["o_a_proj.weight"].reshape(groups, -1, output.shape[-1]))
    return linear(w, "o_b_proj", grouped.reshape(seq, -1))


# What a module of transformers calls the parameters that a checkpoint has under these names.
LEARNED = {
    "lerope.alpha": "alpha",
    "layers.{layer}.attention.ssmax_scaling.s": "softmax_scaling.scale",
    "layers.{layer}.attention.ssmax_scaling.b": "softmax_scaling.bias",
    "layers.{layer}.attention.indexer.ssmax_scaling.s": "indexer.softmax_scaling.scale",
    "layers.{layer}.attention.indexer.ssmax_scaling.b": "indexer.softmax_scaling.bias",
}


def mistral_large4(config: Mapping[str, Any], w: Mapping[str, Any], x: Any, layer: int) -> Any:
    """x (seq, hidden_size) → (seq, hidden_size), in layers that compute their own keys and their own choice of them."""
    plan, seq = hf.rotary_from_config(config), x.shape[0]
    heads, rope, settings = config["num_attention_heads"], config["qk_rope_head_dim"], plan.layers[layer]
    nope = settings.head_dim - rope if config["no_rope_layers"][layer] else settings.head_dim

    def turn(plan: hf.RotaryPlan, y: Any, role: str) -> Any:
        parameters = {name: w[LEARNED[name]] for name, _ in plan.parameters}
        return plan.rotate(y, layer, head_axis=-2, role=role, scaled=False, parameters=parameters)

    query = turn(plan, linear(w, "q_proj", x, heads), "query")
    latent, shared = jnp.split(linear(w, "kv_a_proj_with_mqa", x), [config["kv_lora_rank"]], -1)
    latent = rms_norm(latent, w["kv_a_layernorm.weight"], config["rms_norm_eps"])
    key, value = jnp.split(linear(w, "kv_b_proj", latent, heads), [nope], -1)
    shared = jnp.broadcast_to(shared[:, None], (seq, heads, shared.shape[-1]))
    key = turn(plan, jnp.concatenate([key, shared], -1), "key")
    index_query = linear(w, "indexer.wq_b", layer_norm(w, "indexer.q_input_norm", x), config["index_n_heads"])
    index_query = turn(plan.indexer, index_query, "query")
    index_key = turn(plan.indexer, layer_norm(w, "indexer.k_norm", linear(w, "indexer.wk", x))[:, None], "key")[:, 0]
    scores = chosen(index_query, index_key, linear(w, "indexer.weights_proj", x))
    visible = best(scores, np.tri(seq, dtype=bool), config["index_topk"])
    output = attend(query, key, value, visible, plan.softmax_scale * settings.head_dim**-0.5)
    return linear(w, "o_proj", output.reshape(seq, -1))


LAYERS = {"deepseek_v4": deepseek_v4, "mistral_large4_text": mistral_large4}
