"""Layers whose values rotate, or that learn frequencies, compute what their modules compute: recorded values.

This file has the attention of DeepSeek-V4 and of Mistral Large 4 in NumPy, for one sequence (tokens, features); only
rotations and query scales come from plans. `w` are the weights of a module of transformers, by its names.
"""

import functools

import jax
import numpy as np
import pytest

from oracles import recorded
from posenc_jax.hf import rotary_from_config

# The indexer of DeepSeek-V4's sparse layers is compared with transformers in parity/test_forward.py.
CASES = {case["name"]: case for case in recorded.cases("hf_layers")}


def linear(w, name, x, heads=None):
    """x (tokens, features) times a weight; with `heads`, the output is (tokens, heads, features)."""
    y = x @ w[f"{name}.weight"].T
    return y.reshape(len(x), heads, -1) if heads else y


def rms_norm(x, weight=1.0, epsilon=1e-6):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * weight


def layer_norm(w, name, x):
    return rms_norm(x - x.mean(-1, keepdims=True), w[f"{name}.weight"]) + w[f"{name}.bias"]


def softmax(x, axis):
    y = np.exp(x)
    return y / y.sum(axis, keepdims=True)


def keys_of_indexer(query, key, head_weights, visible, count):
    """A mask (queries, keys) with the `count` visible keys of the best scores of an indexer."""
    scores = np.einsum("qhk,qh->qk", np.maximum(np.einsum("qhd,kd->qhk", query, key), 0), head_weights)
    scores = np.where(visible, scores, -np.inf)
    return visible & (scores >= np.sort(scores)[:, -count:][:, :1])


def attend(query, key, value, visible, scale, sinks=(-np.inf,)):
    """Attention (tokens, heads, features); a sink is one more score per head, without a value."""
    scores = np.where(visible, np.einsum("qhd,khd->hqk", query, key) * scale, -np.inf)
    scores = np.concatenate([scores, np.broadcast_to(np.reshape(sinks, (-1, 1, 1)), (*scores.shape[:2], 1))], -1)
    return np.einsum("hqk,khd->qhd", softmax(scores, -1)[..., :-1], value)


def compressed(w, rate, x):
    """The keys of blocks of `rate` tokens in DeepSeek-V4: means, weighted by gates; a rest of tokens has no key."""
    count = len(x) // rate
    values, gates = (
        linear(w, f"compressor.{name}_proj", x)[: count * rate].reshape(count, rate, -1) for name in ("kv", "gate")
    )
    gates = gates + w["compressor.position_bias"]
    return rms_norm((values * softmax(gates, 1)).sum(1), w["compressor.kv_norm.weight"])[:, None]


# Names of parameters in a plan, which are those of checkpoints, and in a module of transformers.
LEARNED = {
    "lerope.alpha": "alpha",
    "layers.{layer}.attention.ssmax_scaling.s": "softmax_scaling.scale",
    "layers.{layer}.attention.ssmax_scaling.b": "softmax_scaling.bias",
    "layers.{layer}.attention.indexer.ssmax_scaling.s": "indexer.softmax_scaling.scale",
    "layers.{layer}.attention.indexer.ssmax_scaling.b": "indexer.softmax_scaling.bias",
}


def rotated(plan, w, layer, at, **vectors):
    """Vectors, keyed by role, after rotation at the first len(vector) of the positions `at`, in one program."""
    learned = {name: np.float32(w[LEARNED[name]]) for name, _ in plan.parameters}
    rotate = functools.partial(plan.rotate, layer=layer, head_axis=-2, scaled=False, parameters=learned)
    each = jax.jit(lambda vectors: {role: rotate(y, positions=at[: len(y)], role=role) for role, y in vectors.items()})
    return jax.device_get(each(jax.tree.map(np.float32, vectors)))


def deepseek_v4(config, w, x, layer):
    """Keys are also the values. Keys of blocks, if a layer has blocks, follow the keys of tokens."""
    plan, heads = rotary_from_config(config), config["num_attention_heads"]

    latent = rms_norm(linear(w, "q_a_proj", x), w["q_a_norm.weight"])
    query = rms_norm(linear(w, "q_b_proj", latent, heads))
    tokens = rms_norm(linear(w, "kv_proj", x), w["kv_norm.weight"])[:, None]
    at = np.int32(range(len(x)))
    i, j = np.ogrid[: len(x), : len(x)]
    visible = (j <= i) & (i - j < config["sliding_window"])
    rate = config["compress_rates"].get(config["layer_types"][layer])
    if rate:
        blocks = compressed(w, rate, x)
        starts = rate * np.int32(range(len(blocks)))
        tokens, at = np.concatenate([tokens, blocks]), np.concatenate([at, starts])
        visible = np.concatenate([visible, starts + rate <= i + 1], 1)  # blocks that end at the query or before
    vectors = rotated(plan, w, layer, at, query=query, key=tokens, value=tokens)
    key, value = (np.repeat(vectors[role], heads, 1) for role in ("key", "value"))
    output = attend(vectors["query"], key, value, visible, config["head_dim"] ** -0.5, w["sinks"])
    # The role "output" is rotated back.
    output = rotated(plan, w, layer, at, output=output)["output"].reshape(len(x), config["o_groups"], -1)
    weight = w["o_a_proj.weight"].reshape(config["o_groups"], -1, output.shape[-1])
    return linear(w, "o_b_proj", np.einsum("sgi,goi->sgo", output, weight).reshape(len(x), -1))


def mistral_large4(config, w, x, layer):
    """Latent attention to the keys that the layer's indexer chooses."""
    plan, heads = rotary_from_config(config), config["num_attention_heads"]
    head_dim, rope = plan.layers[layer].head_dim, config["qk_rope_head_dim"]

    latent, shared = np.split(linear(w, "kv_a_proj_with_mqa", x), [config["kv_lora_rank"]], -1)
    latent = rms_norm(latent, w["kv_a_layernorm.weight"], config["rms_norm_eps"])
    # no_rope_layers has 1 for a layer with RoPE.
    nope = head_dim - rope if config["no_rope_layers"][layer] else head_dim
    key, value = np.split(linear(w, "kv_b_proj", latent, heads), [nope], -1)
    shared = np.broadcast_to(shared[:, None], (len(x), heads, shared.shape[-1]))
    query, key, at = linear(w, "q_proj", x, heads), np.concatenate([key, shared], -1), np.int32(range(len(x)))
    vectors = rotated(plan, w, layer, at, query=query, key=key)
    index_query = linear(w, "indexer.wq_b", layer_norm(w, "indexer.q_input_norm", x), config["index_n_heads"])
    index_key = layer_norm(w, "indexer.k_norm", linear(w, "indexer.wk", x))[:, None]
    index = rotated(plan.indexer, w, layer, at, query=index_query, key=index_key)
    head_weights, causal = linear(w, "indexer.weights_proj", x), np.tri(len(x), dtype=bool)
    visible = keys_of_indexer(index["query"], index["key"][:, 0], head_weights, causal, config["index_topk"])
    output = attend(vectors["query"], vectors["key"], value, visible, plan.softmax_scale * head_dim**-0.5)
    return linear(w, "o_proj", output.reshape(len(x), -1))


LAYERS = {"deepseek_v4": deepseek_v4, "mistral_large4_text": mistral_large4}


@pytest.mark.parametrize("name", CASES)
def test_the_output_of_a_layer_is_that_of_transformers(name):
    """Errors are at most 1e-5 times the standard deviation of the output."""
    case = CASES[name]
    weights = {key: np.float64(weight) for key, weight in case["weights"].items()}
    layer = LAYERS[case["config"]["model_type"]]
    got, want = layer(case["config"], weights, np.float64(case["input"]), case["layer"]), np.array(case["output"])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * want.std())
