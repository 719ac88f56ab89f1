"""`pe.attention` with a model's options equals the attention of transformers' models, in value and in gradient.

Each case is an attention module with random weights. The JAX side projects with these weights, rotates by the plan of
the config, calls `pe.attention` and projects again. Whole models then run twice, the second time with `pe.attention` as
their attention function.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from attention_modules import CACHE, CHUNK, HEAD_DIM, HEADS, KEY_HEADS, MODELS, WINDOW
from jax import lax
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

import posenc_jax as pe
from posenc_jax import hf

BATCH, LENGTH, PADDING = 2, 24, (0, 7)  # the second sequence begins with padding
BLOCK = 8  # several tiles, some of which a window skips
# Of the standard deviation of outputs, and of the largest gradient of an array.
TOLERANCE, CHANGED = 1e-5, 0.1
RNG = np.random.default_rng(0)
X, COTANGENT = RNG.standard_normal((2, BATCH, LENGTH, MODELS["gpt_oss"].config().hidden_size), np.float32)
REAL = np.arange(LENGTH) >= np.array(PADDING)[:, None]
POSITIONS = np.maximum(REAL.cumsum(1, dtype=np.int32) - 1, 0)
COUNTED = np.tile(np.arange(LENGTH, dtype=np.int32), (BATCH, 1))


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
    """What a layer takes beside features: its index, positions (batch, seq), and which tokens are no padding."""

    layer: int
    positions: Any
    real: Any
    changes: dict[str, Any]

    def attend(self, q, k, v, chunks=None, **options):
        """`pe.attention` with these options and the changes to them; heads are joined."""
        options = {"causal": True, "chunks": chunks, "hidden": self.real is not None} | options | self.changes
        queries, hidden = options.pop("chunks"), options.pop("hidden")
        if hidden:
            queries = np.zeros_like(COUNTED) if queries is None else queries
        if queries is not None:
            options |= {
                "query_segments": queries,
                "key_segments": np.where(self.real, queries, -1) if hidden else queries,
            }
        options |= {"query_positions": self.positions, "key_positions": self.positions}
        return pe.attention(q, k, v, block_size=BLOCK, **options).reshape(*q.shape[:2], -1)


def linear(w, name, x, heads=None):
    """The torch.nn.Linear of that name, its result split into heads."""
    y = x @ w[f"{name}.weight"].T
    if f"{name}.bias" in w:
        y = y + w[f"{name}.bias"][None, None]
    return y.reshape(*y.shape[:2], heads, -1) if heads else y


def projected(w, x):
    names = {"q_proj": HEADS, "k_proj": KEY_HEADS, "v_proj": KEY_HEADS}
    return (linear(w, name, x, heads) for name, heads in names.items())


def rms_norm(x, weight=None, epsilon=1e-6):
    y = x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)
    return y if weight is None else y * jnp.expand_dims(weight, range(x.ndim - 1))


def rotated(plan, q, k, given, scaled=None):
    q = plan.rotate(q, given.layer, given.positions, head_axis=-2, role="query", scaled=scaled)
    return q, plan.rotate(k, given.layer, given.positions, head_axis=-2, role="key")


def decoder(config, plan, w, x, given):
    """gpt_oss, Gemma 2, Gemma 3 and Mistral."""
    q, k, v = projected(w, x)
    if "q_norm.weight" in w:  # Gemma 3
        q, k = rms_norm(q, 1 + w["q_norm.weight"]), rms_norm(k, 1 + w["k_norm.weight"])
    q, k = rotated(plan, q, k, given)
    kinds = getattr(config, "layer_types", None)
    local = kinds is None or kinds[given.layer] == "sliding_attention"
    options = {
        "window": (config.sliding_window - 1, 0) if local else (None, None),
        "logits_soft_cap": getattr(config, "attn_logit_softcapping", None),
        "sinks": w.get("sinks"),
        "scale": getattr(config, "query_pre_attn_scalar", HEAD_DIM) ** -0.5,
    }
    return linear(w, "o_proj", given.attend(q, k, v, **options))


def latent(config, plan, w, x, given):
    """DeepSeek-V3: keys and values expanded from a latent; values are narrower than queries."""
    nope, rope = config.qk_nope_head_dim, config.qk_rope_head_dim
    q = linear(w, "q_b_proj", rms_norm(linear(w, "q_a_proj", x), w["q_a_layernorm.weight"]), HEADS)
    kv, shared = jnp.split(linear(w, "kv_a_proj_with_mqa", x), [config.kv_lora_rank], -1)
    expanded = linear(w, "kv_b_proj", rms_norm(kv, w["kv_a_layernorm.weight"]), HEADS)
    k, v = jnp.split(expanded, [nope], -1)
    k = jnp.concatenate([k, jnp.broadcast_to(shared[:, :, None], (*k.shape[:-1], rope))], -1)
    q, k = rotated(plan, q, k, given, scaled=False)
    return linear(w, "o_proj", given.attend(q, k, v, scale=plan.softmax_scale * (nope + rope) ** -0.5))


def llama4(config, plan, w, x, given):
    """Llama 4: chunks and normalized heads in layers with RoPE; in the others, a scale that grows with the index."""
    q, k, v = projected(w, x)
    settings = plan.layers[given.layer]
    if settings.rotary_dim:
        q, k = (rms_norm(z, epsilon=config.rms_norm_eps) for z in rotated(plan, q, k, given))
        options = {"chunks": given.positions // CHUNK}
    else:
        growing = settings.query_scale(COUNTED)[..., None]  # transformers' code counts padding too
        options = {"scale": HEAD_DIM**-0.5 * growing}
    return linear(w, "o_proj", given.attend(q, k, v, **options))


def t5(config, plan, w, x, given):
    """T5: its bias, and no scale."""
    q, k, v = (linear(w, name, x, HEADS) for name in "qkv")
    table = w["relative_attention_bias.weight"]
    settings = {"bidirectional": not config.is_decoder, "max_distance": config.relative_attention_max_distance}
    options = {"bias": lambda i, j: pe.t5(i, j, table, **settings), "scale": 1.0, "causal": config.is_decoder}
    return linear(w, "o", given.attend(q, k, v, **options))


OURS = {"deepseek_v3": latent, "llama4": llama4, "t5": t5, "t5 decoder": t5}
CASES = [(name, layer, padded) for name, model in MODELS.items() for layer in model.layers for padded in (False, True)]
# Of each case, options that leave out or mistake what the model does.
NO_WINDOW = {
    "no window": {"window": (None, None)},
    "one key more": {"window": (WINDOW, 0)},
    "one key less": {"window": (WINDOW - 2, 0)},
}
NO_SINKS = {"no sinks": {"sinks": None}, "sinks of zero": {"sinks": np.zeros(HEADS, np.float32)}}
NO_CAP = {"no soft cap": {"logits_soft_cap": None}}
BY_WIDTH = {"scale by head_dim": {"scale": HEAD_DIM**-0.5}}
ONE_CHUNK = {"chunks": np.zeros_like(COUNTED)}
OTHERWISE = {
    ("gpt_oss", 0): NO_WINDOW | NO_SINKS,
    ("gpt_oss", 1): NO_SINKS,
    ("gemma2", 0): NO_WINDOW | NO_CAP | BY_WIDTH,
    ("gemma2", 1): NO_CAP | BY_WIDTH,
    ("gemma3", 0): NO_WINDOW | BY_WIDTH,
    ("gemma3", 1): BY_WIDTH,
    ("mistral", 0): NO_WINDOW,
    ("deepseek_v3", 0): {
        "no mscale": {"scale": None},
        "scale by qk_nope_head_dim": {"scale": 16**-0.5},
        "scale by v_head_dim": {"scale": 20**-0.5},
    },
    ("llama4", 0): {"no chunks": ONE_CHUNK, "a window for chunks": ONE_CHUNK | {"window": (CHUNK - 1, 0)}},
    ("llama4", 1): {"one scale for all": {"scale": None}},
    ("t5", 0): {"scaled": {"scale": None}, "no bias": {"bias": None}, "causal": {"causal": True}},
    ("t5 decoder", 0): {"scaled": {"scale": None}, "no bias": {"bias": None}, "not causal": {"causal": False}},
}
CONTROLS = [(*case, label, changes) for case, others in OTHERWISE.items() for label, changes in others.items()]
CONTROLS += [(name, layer, "padding seen", {"hidden": False}) for name, layer, padded in CASES if padded]


@functools.cache
def made(name, layer):
    """The config and the PyTorch module of one layer."""
    config = MODELS[name].config()
    return config, MODELS[name].module(config, layer)


def tokens(padded):
    """Positions of both sequences, and which tokens are no padding if some are."""
    return (POSITIONS, REAL) if padded else (COUNTED, None)


@functools.cache
def theirs(name, layer, padded):
    """Output, gradient of the input and gradients of the weights by autograd; nothing comes back to padding."""
    module, x = made(name, layer)[1], torch.from_numpy(X).clone().requires_grad_()
    positions, real = tokens(padded)
    real = torch.from_numpy(np.ones_like(REAL) if real is None else real).long()
    y = MODELS[name].run(module, x, torch.from_numpy(positions).long(), real)
    module.zero_grad()
    (y * torch.from_numpy(COTANGENT) * real[..., None]).sum().backward()
    return y.detach().numpy(), x.grad.numpy(), {key: w.grad.numpy().copy() for key, w in module.named_parameters()}


def ours(name, layer, padded, changes):
    """The output as a function of weights and input, and the weights."""
    config, module = made(name, layer)
    plan = None if name.startswith("t5") else hf.rotary_from_config(config.to_dict())
    given = Given(layer, *tokens(padded), changes)
    weights = {key: weight.detach().numpy() for key, weight in module.named_parameters()}
    return jax.jit(functools.partial(OURS.get(name, decoder), config, plan, given=given)), weights


def difference(x, y, padded):
    """The largest over real tokens, in units of y's standard deviation."""
    x, y = (np.asarray(z)[REAL if padded else ...] for z in (x, y))
    return float(np.max(np.abs(x - y)) / y.std())


def relative(x, y):
    """The largest difference, in units of the largest number of y."""
    return float(np.max(np.abs(np.asarray(x) - y)) / np.max(np.abs(y)))


@pytest.mark.parametrize(("name", "layer", "padded"), CASES)
def test_module(name, layer, padded, differences):
    y, dx, dw = theirs(name, layer, padded)
    f, weights = ours(name, layer, padded, {})
    value, pull = jax.vjp(f, weights, X)
    got_w, got_x = pull(jnp.asarray(np.where(REAL[..., None] | (not padded), COTANGENT, np.float32(0))))
    found = {key: relative(got_w[key], dw[key]) for key in dw}
    row = {"output": difference(value, y, padded), "d input": relative(got_x, dx), "d weights": max(found.values())}
    differences(
        f"{name}, layer {layer}{', left padding' if padded else ''}", row | {"d sinks": found.get("sinks", "–")}
    )
    assert max(row.values()) <= TOLERANCE, (row, found)


@pytest.mark.parametrize(
    ("name", "layer", "label", "changes"), CONTROLS, ids=[f"{c[0]}-{c[1]}-{c[2]}" for c in CONTROLS]
)
def test_other_options_give_other_outputs(name, layer, label, changes, differences):
    padded = "hidden" in changes
    f, weights = ours(name, layer, padded, changes)
    found = difference(f(weights, X), theirs(name, layer, padded)[0], padded)
    differences(f"{name}, layer {layer}, {label}", {"output": found})
    assert found > CHANGED


def test_a_plan_scales_the_queries_of_llama4_as_an_array_does():
    plan, rng = hf.rotary_from_config(made("llama4", 1)[0].to_dict()), np.random.default_rng(3)
    q, k, v = rng.standard_normal((3, BATCH, LENGTH, HEADS, HEAD_DIM), np.float32)
    given = Given(1, COUNTED, None, {})
    growing = HEAD_DIM**-0.5 * plan.layers[1].query_scale(COUNTED)[..., None]
    by_plan = given.attend(*rotated(plan, q, k, given), v)
    np.testing.assert_allclose(given.attend(q, k, v, scale=growing), by_plan, rtol=0, atol=TOLERANCE)


# Whole models


class Attention:
    """`pe.attention` as an attention function of transformers, which is told what each layer does; changes to that."""

    end, changes = 0, {}

    def __call__(self, module, query, key, value, mask, scaling, sliding_window=None, softcap=None, s_aux=None, **_):
        assert mask is None  # the options say all
        q, k, v = (x.transpose(1, 2).numpy() for x in (query, key, value))
        options = {"window": (None if sliding_window is None else sliding_window - 1, 0), "logits_soft_cap": softcap}
        options |= {"scale": scaling, "sinks": None if s_aux is None else s_aux.numpy()}
        # The cache of a sliding layer keeps only its last keys.
        i, j = (np.arange(self.end - x.shape[1], self.end, dtype=np.int32) for x in (q, k))
        if module.config.model_type == "llama4_text" and module.use_rope:
            options |= {"query_segments": i // CHUNK, "key_segments": j // CHUNK}
        options |= {"query_positions": i, "key_positions": j, "block_size": BLOCK}
        return torch.from_numpy(np.array(pe.attention(q, k, v, **options | self.changes))), None


ATTENTION = Attention()
AttentionInterface.register("posenc_jax", ATTENTION)
AttentionMaskInterface.register("posenc_jax", lambda *_, **__: None)
TOKENS = np.random.default_rng(2).integers(0, 64, (BATCH, LENGTH))
CUTS = {"prefill": [], "decode": [*range(LENGTH // 2, LENGTH, 4), LENGTH - 1]}
OTHER_LOGITS = [
    ("gpt_oss", {"sinks": None}),
    ("gpt_oss", {"window": (None, 0)}),  # in every layer
    ("gpt_oss", {"window": (WINDOW - 1, 0)}),
    ("gemma2", {"logits_soft_cap": None}),
    ("gemma2", {"window": (None, 0)}),
    ("gemma2", {"window": (WINDOW - 1, 0)}),
    ("gemma2", {"scale": None}),
    ("gemma3", {"window": (None, 0)}),
    ("mistral", {"window": (WINDOW, 0)}),
    ("deepseek_v3", {"scale": None}),
    ("llama4", {"query_segments": None, "key_segments": None}),
]


@functools.cache
def whole(name, implementation):
    """A model of four layers, from a fixed seed."""
    torch.manual_seed(3)
    cls = getattr(transformers, MODELS[name].whole)
    model = cls._from_config(MODELS[name].config(), attn_implementation=implementation).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.ndim == 1 and "norm" not in key:  # biases, initialised to zero, and sinks
                weight.normal_()
            if key.endswith(("q_proj.weight", "q_b_proj.weight")):
                weight.mul_(2)
    return model


@torch.no_grad()
def logits(name, implementation, cuts, changes=None):
    """Logits of the model, called once for each part of the tokens, with its cache."""
    model, cache, parts = whole(name, implementation), None, []
    ATTENTION.changes, ATTENTION.end = changes or {}, 0
    for part in np.split(TOKENS, cuts, axis=1):
        ATTENTION.end += part.shape[1]
        output = model(torch.from_numpy(part), **{CACHE: cache}, use_cache=True)
        cache = getattr(output, CACHE)
        parts.append(output.logits.numpy())
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.whole])
def test_logits(name, cuts, differences):
    got, want = (logits(name, implementation, CUTS[cuts]) for implementation in ("posenc_jax", "eager"))
    found = difference(got, want, padded=False)
    differences(f"{name}, 4 layers, {cuts}", {"logits": found})
    assert found <= TOLERANCE


@pytest.mark.parametrize(("name", "changes"), OTHER_LOGITS, ids=str)
def test_other_options_give_other_logits(name, changes, differences):
    found = difference(logits(name, "posenc_jax", [], changes), logits(name, "eager", []), padded=False)
    differences(f"{name}, 4 layers, {changes}", {"logits": found})
    assert found > CHANGED
