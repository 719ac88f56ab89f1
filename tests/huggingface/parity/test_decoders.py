"""A decoder that scans over its layers and rotates by `plan.rotate` equals transformers' models, logit by logit.

SmolLM3 and Llama 4 have layers without RoPE, Cohere 2 rotates only in its sliding layers, and Gemma 3 has one base for
sliding layers and another for full ones. The decoder calls `plan.rotate` in every layer, with the traced index of the
layer: only the plan knows how its layers differ.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from attention_modules import CACHE
from jax import lax

from posenc_jax import hf

BATCH, LENGTH, PREFIX, VOCABULARY = 2, 16, 7, 64
HIDDEN, QUERY_HEADS, KEY_HEADS, HEAD_DIM = 64, 4, 2, 16
WINDOW, CHUNK, EPSILON = 4, 5, 1e-5
TOLERANCE, CHANGED = 1e-5, 0.1  # of logits, whose standard deviation is between 0.5 and 1
# Layers with local attention; in SmolLM3, layers with RoPE. The pattern has no period, so a wrong index shows.
LOCAL = (True, False, True, True, False)
SLIDING = ["sliding_attention" if local else "full_attention" for local in LOCAL]
NO_ROPE = [int(local) for local in LOCAL]  # of `no_rope_layers`, where 1 means RoPE
COMMON = {
    "hidden_size": HIDDEN,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": len(LOCAL),
    "num_attention_heads": QUERY_HEADS,
    "num_key_value_heads": KEY_HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "initializer_range": 0.75 * HIDDEN**-0.5,  # scores and logits of order 1
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
    """A model, and where its layers differ from Llama's apart from the rotation."""

    model: type
    settings: dict[str, Any]
    local: Literal["window", "chunk"] | None = None  # the mask of local layers; None: every layer has full attention
    block: Literal["sequential", "parallel", "sandwich"] = "sequential"
    centered: bool = False  # LayerNorm without bias instead of RMSNorm
    norm_offset: float = 0.0  # norms multiply by weight + norm_offset
    qk_norm: Literal["before", "after"] | None = None  # the rotation
    activation: Any = jax.nn.silu
    embedding_scale: float = 1.0
    score_scale: float = HEAD_DIM**-0.5
    logit_scale: float = 1.0

    def make(self):
        """The config and the PyTorch model, initialised from a fixed seed."""
        config = self.model.config_class(**COMMON, **self.settings)
        torch.manual_seed(0)
        model = self.model._from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:  # initialised alike, so that swapped norms would not show
                    weight.add_(0.25 * torch.randn_like(weight))
        return config, model


def gemma3(**scaling):
    """Gemma 3; `scaling` is the context extension of its full layers."""
    sliding, full = {"rope_type": "default", "rope_theta": 1e2}, {"rope_type": "default", "rope_theta": 1e4} | scaling
    return Decoder(
        transformers.Gemma3ForCausalLM,
        {
            "head_dim": HEAD_DIM,
            "layer_types": SLIDING,
            "sliding_window": WINDOW,
            "rope_parameters": {"sliding_attention": sliding, "full_attention": full},
            "query_pre_attn_scalar": 24,  # differs from head_dim, as in the 27B model
            "rms_norm_eps": EPSILON,
        },
        local="window",
        block="sandwich",
        norm_offset=1.0,
        qk_norm="before",
        activation=functools.partial(jax.nn.gelu, approximate=True),
        embedding_scale=HIDDEN**0.5,
        score_scale=24**-0.5,
    )


ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
DECODERS = {
    "smollm3": Decoder(transformers.SmolLM3ForCausalLM, ROPE | {"no_rope_layers": NO_ROPE, "rms_norm_eps": EPSILON}),
    "cohere2": Decoder(
        transformers.Cohere2ForCausalLM,
        ROPE | {"layer_types": SLIDING, "sliding_window": WINDOW, "logit_scale": 0.75, "layer_norm_eps": EPSILON},
        local="window",
        block="parallel",
        centered=True,
        logit_scale=0.75,
    ),
    "gemma3": gemma3(),
    "gemma3 linear": gemma3(rope_type="linear", factor=8.0),
    "gemma3 yarn": gemma3(rope_type="yarn", factor=8.0, original_max_position_embeddings=16),
    "llama4": Decoder(
        transformers.Llama4ForCausalLM,
        ROPE
        | {
            "head_dim": HEAD_DIM,
            "intermediate_size_mlp": HIDDEN,
            "moe_layers": [],
            "no_rope_layers": NO_ROPE,
            "attention_chunk_size": CHUNK,
            "floor_scale": 4,  # the query scale grows from position 3 on
            "attn_scale": 0.5,
            "rms_norm_eps": EPSILON,
        },
        local="chunk",
        qk_norm="after",
    ),
}


def stack(model):
    """The weights outside the layers and the stacked weights of the layers, by the names of their modules."""
    outer, layers = {}, {}
    for path, weight in model.state_dict().items():
        name = path.split(".")[-2]
        if ".layers." in path:
            layers.setdefault(name, []).append(weight.numpy())
        else:
            outer[name] = weight.numpy()
    return outer, {name: np.stack(weights) for name, weights in layers.items()}


def normalize(decoder, x, weight=None):
    """LayerNorm or RMSNorm over the features."""
    if decoder.centered:
        x = x - x.mean(-1, keepdims=True)
    x = x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + EPSILON)
    if weight is None:
        return x
    return x * jnp.expand_dims(weight + decoder.norm_offset, range(x.ndim - 1))


def visible(decoder, positions, local):
    """The mask of one layer, (seq, LENGTH): which slots of the cache each query attends to."""
    p, q = positions[:, None], jnp.arange(LENGTH, dtype=jnp.int32)[None]
    near = {"window": p - q < WINDOW, "chunk": p // CHUNK == q // CHUNK, None: True}[decoder.local]
    return (q <= p) & (near | ~local)


def attend(decoder, plan, x, positions, scanned):
    """Attention of one layer, and its cache with the rotated keys and the values of x written to it."""
    layer, local, w, cache = scanned
    q, k, v = ((x @ w[name].T).reshape(*x.shape[:2], -1, HEAD_DIM) for name in ("q_proj", "k_proj", "v_proj"))
    if decoder.qk_norm == "before":
        q, k = normalize(decoder, q, w["q_norm"]), normalize(decoder, k, w["k_norm"])
    q = plan.rotate(q, layer, positions, head_axis=-2, role="query")
    k = plan.rotate(k, layer, positions, head_axis=-2, role="key")
    if decoder.qk_norm == "after":  # Llama 4: without weights, and only in layers with RoPE, which are its local ones
        q, k = (jnp.where(local, normalize(decoder, z), z) for z in (q, k))
    k, v = (lax.dynamic_update_slice_in_dim(old, new, positions[0], 1) for old, new in zip(cache, (k, v), strict=True))
    q = q.reshape(*q.shape[:2], KEY_HEADS, -1, HEAD_DIM)  # each key head serves adjacent query heads
    scores = jnp.einsum("bpkgd,bqkd->bkgpq", q, k) * decoder.score_scale
    mask = visible(decoder, positions, local)[None, None, None]
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return jnp.einsum("bkgpq,bqkd->bpkgd", weights, v).reshape(*x.shape[:2], -1) @ w["o_proj"].T, (k, v)


@functools.partial(jax.jit, static_argnums=(0, 1))
def forward(decoder, plan, weights, tokens, start, cache):
    """Logits of tokens at positions start, start + 1, …, and the cache of all layers with these tokens in it."""
    outer, layers = weights
    norm = functools.partial(normalize, decoder)
    positions = start + jnp.arange(tokens.shape[1], dtype=jnp.int32)

    def mlp(x, w):
        return (decoder.activation(x @ w["gate_proj"].T) * (x @ w["up_proj"].T)) @ w["down_proj"].T

    def apply_layer(x, scanned):
        w = scanned[2]
        y = norm(x, w["input_layernorm"])
        attended, cache = attend(decoder, plan, y, positions, scanned)
        if decoder.block == "parallel":  # Cohere 2: attention and MLP read the same normalized features
            return x + attended + mlp(y, w), cache
        if decoder.block == "sandwich":  # Gemma 3: norms before and after both attention and MLP
            x = x + norm(attended, w["post_attention_layernorm"])
            y = norm(x, w["pre_feedforward_layernorm"])
            return x + norm(mlp(y, w), w["post_feedforward_layernorm"]), cache
        x = x + attended
        return x + mlp(norm(x, w["post_attention_layernorm"]), w), cache

    scanned = (jnp.arange(len(LOCAL), dtype=jnp.int32), jnp.array(LOCAL), layers, cache)
    x, cache = lax.scan(apply_layer, outer["embed_tokens"][tokens] * decoder.embedding_scale, scanned)
    return norm(x, outer["norm"]) @ outer["lm_head"].T * decoder.logit_scale, cache


TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH))
PREFILL, DECODE = (), range(PREFIX, LENGTH)  # where the tokens are cut into parts


def our_logits(decoder, plan, weights, cuts):
    """Logits of the JAX decoder, called once for each part of the tokens."""
    cache = (jnp.zeros((len(LOCAL), BATCH, LENGTH, KEY_HEADS, HEAD_DIM), jnp.float32),) * 2
    parts = []
    for start, tokens in zip((0, *cuts), np.split(TOKENS, cuts, axis=1), strict=True):
        logits, cache = forward(decoder, plan, weights, tokens, np.int32(start), cache)
        parts.append(logits)
    return np.concatenate(parts, axis=1)


@torch.no_grad()
def their_logits(model, cuts):
    """Logits of transformers' model, called once for each part of the tokens, with its own cache."""
    cache, parts = None, []
    for tokens in np.split(TOKENS, cuts, axis=1):
        output = model(torch.from_numpy(tokens), **{CACHE: cache}, use_cache=True)
        cache = getattr(output, CACHE)
        parts.append(output.logits.numpy())
    return np.concatenate(parts, axis=1)


@functools.cache
def made(name):
    """The decoder, its plan, its weights and the PyTorch model."""
    config, model = DECODERS[name].make()
    return DECODERS[name], hf.rotary_from_config(config.to_dict()), stack(model), model


def difference(x, y):
    return float(np.max(np.abs(x - y)))


def with_layers(plan, **changes):
    """The plan with these fields replaced in every layer."""
    return dataclasses.replace(plan, layers=tuple(dataclasses.replace(layer, **changes) for layer in plan.layers))


def every_layer_as_the_first(plan):
    """Rotates every layer alike, layers without RoPE too; query scales stay."""
    return with_layers(plan, frequencies=plan.layers[0].frequencies)


def without_query_scale(plan):
    return with_layers(plan, query_scale=None)


def without_extension(_):
    return made("gemma3")[1]


def in_the_other_layout(plan):
    return dataclasses.replace(plan, layout="half" if plan.layout == "interleaved" else "interleaved")


@pytest.mark.parametrize("cuts", [PREFILL, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("name", DECODERS)
def test_logits(name, cuts):
    *ours, model = made(name)
    logits, whole = our_logits(*ours, cuts), their_logits(model, PREFILL)
    assert 0.5 < whole.std() < 1
    assert difference(logits, their_logits(model, cuts)) <= TOLERANCE
    assert difference(logits, whole) <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name in DECODERS for change in (every_layer_as_the_first, in_the_other_layout)]
    + [("llama4", without_query_scale), ("gemma3 linear", without_extension), ("gemma3 yarn", without_extension)],
)
def test_another_plan_changes_the_logits(name, change):
    decoder, plan, weights, model = made(name)
    assert difference(our_logits(decoder, change(plan), weights, PREFILL), their_logits(model, PREFILL)) > CHANGED


@pytest.mark.parametrize(("role", "heads"), [("query", QUERY_HEADS), ("key", KEY_HEADS)])
@pytest.mark.parametrize("name", DECODERS)
def test_a_traced_layer_gives_the_bits_of_a_python_integer(name, role, heads):
    plan, count = made(name)[1], len(LOCAL)
    x = np.random.default_rng(1).standard_normal((BATCH, LENGTH, heads, HEAD_DIM), np.float32)
    rotate = functools.partial(plan.rotate, x, positions=np.arange(LENGTH, dtype=np.int32), head_axis=-2, role=role)
    before, *scanned, after = np.asarray(lax.map(rotate, jnp.arange(-1, count + 1, dtype=jnp.int32)))
    for layer, y in enumerate(scanned):
        np.testing.assert_array_equal(y.view(np.int32), np.asarray(rotate(layer)).view(np.int32))
    assert np.isnan(before).all() and np.isnan(after).all()
