"""One decoder for nine families, told apart by their config: to be copied, or imported from this folder.

They are Llama, Mistral, Qwen3, Gemma 3, SmolLM3, Cohere2, OLMo 3, GPT-NeoX, and DeepSeek without experts.

`posenc_jax.hf.rotary_from_config` says how each layer rotates its queries and keys, and `FAMILIES` what else differs.
Layers repeat after a period (six in Gemma 3: five see a window, one sees everything), and the model scans over the
periods. Each place in the period has a `pe.kv_cache` of rotated keys, in as many slots as its window or the whole text
needs. So prompts of several lengths share a batch, and may stand anywhere up to position 2³¹ − 2.

`checkpoint.py` reads the weights of a Hugging Face folder, and `generate.py` continues prompts with them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from grouped_attention import GroupedQueryAttention
from latent_attention import LatentAttention, Widths

import posenc_jax as pe
from posenc_jax.hf import RotaryPlan, rotary_from_config

EMPTY = np.iinfo(np.int32).max  # the position of padding and of empty slots: after every query, so no query sees it

# What families differ in, beside their rotations


class Norms(NamedTuple):
    """The names that a family gives to the norms of a block; None where it has none."""

    before_attention: str | None
    after_attention: str | None
    before_mlp: str | None
    after_mlp: str | None


USUAL = Norms("input_layernorm", None, "post_attention_layernorm", None)
SHARED = Norms("input_layernorm", None, "input_layernorm", None)
AFTER = Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
AROUND = Norms("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """Where a family differs from Llama, and the values of its class for keys that a config may leave out."""

    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    norms: Norms = USUAL
    centered: bool = False  # LayerNorm in place of RMSNorm
    biased_norms: bool = False
    unit_offset: bool = False  # norms multiply by 1 + weight
    qk_norm: str | None = None  # of queries and keys before they rotate: over a "head", or over "all" heads at once
    parallel: bool = False  # attention and MLP read the same x, if use_parallel_residual does not say otherwise
    gated: bool = True  # the MLP
    scaled_embeddings: bool = False  # by √width
    full_every: int | None = None  # every so many layers one sees everything, the others a window; 0: none does
    latent: bool = False
    names: dict[str, str] = dataclasses.field(default_factory=dict)  # modules that the files call otherwise


TIED = {"tie_word_embeddings": True}
GEMMA = {"num_attention_heads": 8, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "vocab_size": 262_208}
GELU = {"hidden_act": "gelu_pytorch_tanh", "sliding_window": 4096}
NEOX = {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu", "use_parallel_residual": True}
NEOX_NAMES = {"self_attn": "attention", "o_proj": "dense", "up_proj": "dense_h_to_4h", "down_proj": "dense_4h_to_h"}
NEOX_NAMES |= {"embed_tokens": "embed_in", "norm": "final_layer_norm"}
NEOX_NAMES |= dict.fromkeys(("q_proj", "k_proj", "v_proj"), "query_key_value")
FAMILIES = {
    "llama": Family(),
    "mistral": Family({"num_key_value_heads": 8, "sliding_window": 4096}, full_every=0),
    "qwen3": Family({"num_key_value_heads": 32, "use_sliding_window": False}, qk_norm="head"),
    "smollm3": Family({"num_key_value_heads": 4, "use_sliding_window": False} | TIED),
    "olmo3": Family({"rms_norm_eps": 1e-5, "sliding_window": 4096}, norms=AFTER, qk_norm="all", full_every=4),
    "gemma3_text": Family(
        GEMMA | GELU | TIED, AROUND, unit_offset=True, qk_norm="head", scaled_embeddings=True, full_every=6
    ),
    "cohere2": Family(
        {"logit_scale": 0.0625, "sliding_window": 4096} | TIED, SHARED, centered=True, parallel=True, full_every=4
    ),
    "gpt_neox": Family(NEOX, centered=True, biased_norms=True, parallel=True, gated=False, names=NEOX_NAMES),
    "deepseek_v3": Family({"q_lora_rank": 1536, "first_k_dense_replace": 3}, latent=True),
    "deepseek_v2": Family({"q_lora_rank": 1536, "first_k_dense_replace": 0}, latent=True),
}
DEFAULTS = {"num_key_value_heads": None, "rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5, "hidden_act": "silu"}
DEFAULTS |= {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "logit_scale": 1.0}
ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": jax.nn.gelu,
    "gelu_new": jax.nn.gelu,
    "gelu_fast": jax.nn.gelu,
    "relu": jax.nn.relu,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """A model: what its config and its family say."""

    family: Family
    plan: RotaryPlan
    windows: tuple[tuple[int | None, None], ...]  # of each layer, as `pe.attention` takes it
    width: int
    mlp_width: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    activation: Callable[[jax.Array], jax.Array]
    attention_bias: bool
    mlp_bias: bool
    parallel: bool
    tied: bool
    score_scale: float
    logit_scale: float
    logit_cap: float | None
    latent: Widths | None
    dtype: Any
    implementation: str | None  # of `pe.attention`

    @property
    def period(self) -> int:
        """After how many layers the same windows and rotations come again."""
        kinds = list(zip(self.windows, self.plan.layers, strict=True))
        return next(n for n in range(1, len(kinds) + 1) if kinds[n:] == kinds[:-n])


def settings_of(
    config: dict[str, Any], dtype: Any = jnp.float32, length: int | None = None, implementation: str | None = None
) -> Settings:
    """Reads a parsed config.json. Rotations that depend on the length of the text are those for `length`.

    `implementation` is that of `pe.attention`.
    """
    c = config | config.get("text_config", {})
    if c.get("model_type") not in FAMILIES:
        raise ValueError(f"model_type {c.get('model_type')!r} is not one of {', '.join(FAMILIES)}")
    for key in "quantization_config", "use_bidirectional_attention", "attn_logit_softcapping":
        if c.get(key):
            raise ValueError(f"{key} = {c[key]} is not read here")
    family = FAMILIES[c["model_type"]]
    c = DEFAULTS | family.defaults | c
    for key in "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_hidden_layers":
        if not isinstance(c.get(key), int):
            raise ValueError(f"{key} must be a whole number, got {c.get(key)!r}")
    activation = c.get("hidden_activation") or c["hidden_act"]
    if activation not in ACTIVATIONS:
        raise ValueError(f"the activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    plan = rotary_from_config(config, length=length)
    dense = c.get("first_k_dense_replace", math.inf)
    try:
        if c["num_hidden_layers"] > dense:
            raise ValueError(f"first_k_dense_replace = {dense}: layers with experts are not read")
        head_dim = plan.layers[0].head_dim
        scale = c.get("query_pre_attn_scalar") or head_dim
        return Settings(
            family=family,
            plan=plan,
            windows=windows_of(c, family),
            width=c["hidden_size"],
            mlp_width=c["intermediate_size"],
            vocabulary=c["vocab_size"],
            heads=c["num_attention_heads"],
            kv_heads=c["num_key_value_heads"] or c["num_attention_heads"],
            head_dim=head_dim,
            epsilon=c["layer_norm_eps" if family.centered else "rms_norm_eps"],
            activation=ACTIVATIONS[activation],
            attention_bias=c["attention_bias"],
            mlp_bias=c["mlp_bias"],
            parallel=c.get("use_parallel_residual", family.parallel),
            tied=c["tie_word_embeddings"],
            score_scale=scale**-0.5,
            logit_scale=c["logit_scale"],
            logit_cap=c.get("final_logit_softcapping"),
            latent=Widths(*(c[name] for name in Widths._fields)) if family.latent else None,
            dtype=jnp.dtype(dtype),
            implementation=implementation,
        )
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is missing") from None


def windows_of(c: dict[str, Any], family: Family) -> tuple[tuple[int | None, None], ...]:
    """The window of each layer."""
    count, every = c["num_hidden_layers"], c.get("sliding_window_pattern") or family.full_every
    window = c.get("sliding_window") if c.get("use_sliding_window", True) else None
    types = c.get("layer_types") if family.full_every != 0 else None
    if types is None and every is None and window:
        raise ValueError(f"sliding_window = {window}: layer_types must say which layers have it")
    types = types or ["full_attention" if every and not (i + 1) % every else "sliding_attention" for i in range(count)]
    if unknown := set(types) - {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types: {', '.join(sorted(unknown))} is not read here")
    return tuple((None if kind == "full_attention" or window is None else window - 1, None) for kind in types)


# The model; its modules have the names of Llama's files


def norm_of(s: Settings, width: int, rngs: nnx.Rngs) -> nnx.Module:
    if s.family.centered:
        use = {"use_bias": s.family.biased_norms, "use_fast_variance": False}
        return nnx.LayerNorm(width, epsilon=s.epsilon, dtype=s.dtype, rngs=rngs, **use)
    return nnx.RMSNorm(width, epsilon=s.epsilon, dtype=s.dtype, rngs=rngs)


def split(x: jax.Array, width: int) -> jax.Array:
    """(batch, tokens, …) as (batch, tokens, heads, width)."""
    return x.reshape(*x.shape[:2], -1, width)


class Attention(GroupedQueryAttention):
    """Attention of a layer in the period, as its plan and window have it."""

    def __init__(self, s: Settings, layer: int, *, rngs: nnx.Rngs) -> None:
        self.settings = s
        sizes = s.width, s.heads, s.kv_heads, s.head_dim
        rotate = functools.partial(s.plan.rotate, layer=layer, head_axis=-2)
        options = {"window": s.windows[layer], "use_bias": s.attention_bias, "dtype": s.dtype, "rngs": rngs}
        super().__init__(*sizes, rotate, scale=s.score_scale, **options)
        if s.family.qk_norm:
            together = (s.heads, s.kv_heads) if s.family.qk_norm == "all" else (1, 1)
            self.q_norm, self.k_norm = (norm_of(s, n * s.head_dim, rngs) for n in together)
        self.kept = s.kv_heads, s.head_dim, s.head_dim  # key heads, and features of the keys and values of a cache

    def heads_of(self, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, ...]:
        """Normed where the family norms them, rotated by the plan."""
        s = self.settings
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if s.family.qk_norm:
            q, k = (norm(split(z, norm.num_features)) for norm, z in ((self.q_norm, q), (self.k_norm, k)))
        q, k, v = (split(z, s.head_dim) for z in (q, k, v))
        q = self.rotate(q, positions=positions, role="query", scaled=True)
        return q, self.rotate(k, positions=positions, role="key"), v


class MLP(nnx.Module):
    """act(gate x) · up x, or act(up x), and down."""

    def __init__(self, s: Settings, *, rngs: nnx.Rngs) -> None:
        linear = functools.partial(nnx.Linear, use_bias=s.mlp_bias, dtype=s.dtype, param_dtype=s.dtype, rngs=rngs)
        self.activation, self.gated = s.activation, s.family.gated
        if self.gated:
            self.gate_proj = linear(s.width, s.mlp_width)
        self.up_proj, self.down_proj = linear(s.width, s.mlp_width), linear(s.mlp_width, s.width)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The same shape."""
        up = self.up_proj(x)
        return self.down_proj(self.activation(self.gate_proj(x)) * up if self.gated else self.activation(up))


class Block(nnx.Module):
    """Attention and MLP, with norms before them, after them, or both."""

    def __init__(self, s: Settings, layer: int, *, rngs: nnx.Rngs) -> None:
        self.parallel = s.parallel
        self.self_attn = (LatentAttention if s.latent else Attention)(s, layer, rngs=rngs)
        self.mlp = MLP(s, rngs=rngs)
        for place, name in s.family.norms._asdict().items():
            setattr(self, place, norm_of(s, s.width, rngs) if name else nnx.identity)

    def __call__(self, x: jax.Array, *tokens: Any, **options: Any) -> tuple[jax.Array, Any]:
        """As of the attention."""
        y, cache = self.self_attn(self.before_attention(x), *tokens, **options)
        after = x + self.after_attention(y)
        return after + self.after_mlp(self.mlp(self.before_mlp(x if self.parallel else after))), cache


class Decoder(nnx.Module):
    """`layers` are the blocks of a period, with the weights of all periods; `rest` are layers after the last period."""

    def __init__(self, s: Settings, *, rngs: nnx.Rngs) -> None:
        self.settings, (self.periods, rest) = s, divmod(len(s.windows), s.period)

        def blocks(rngs: nnx.Rngs, count: int) -> nnx.List:
            return nnx.List([Block(s, layer, rngs=rngs) for layer in range(count)])

        stacked = nnx.vmap(functools.partial(blocks, count=s.period))
        self.embed_tokens = nnx.Embed(s.vocabulary, s.width, dtype=s.dtype, param_dtype=s.dtype, rngs=rngs)
        self.layers, self.rest = nnx.split_rngs(splits=self.periods)(stacked)(rngs), blocks(rngs, rest)
        self.norm = norm_of(s, s.width, rngs)
        if not s.tied:
            linear = {"use_bias": False, "dtype": s.dtype, "param_dtype": s.dtype}
            self.lm_head = nnx.Linear(s.width, s.vocabulary, rngs=rngs, **linear)

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, cache: Any = None, segments: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """What follows tokens (batch, length) at such positions, (batch, length, width), and the cache with them."""
        s = self.settings
        x = self.embed_tokens(tokens)
        if s.family.scaled_embeddings:
            x *= jnp.asarray(s.width**0.5, s.dtype)
        caches = list(cache or [None] * s.period)
        options = {"query_segments": segments, "key_segments": segments, "implementation": s.implementation}

        @nnx.scan(in_axes=(nnx.Carry, 0, 0), out_axes=nnx.Carry)
        def run(carry: Any, blocks: nnx.List, period: jax.Array) -> Any:
            x, caches = carry
            for place, block in enumerate(blocks):
                x, caches[place] = block(x, positions, caches[place], layer=period, **options)
            return x, caches

        x, caches = run((x, caches), self.layers, jnp.arange(self.periods, dtype=jnp.int32))
        for place, block in enumerate(self.rest):
            x, caches[place] = block(x, positions, caches[place], layer=self.periods, **options)
        return self.norm(x), cache and caches

    def logits(self, x: jax.Array) -> jax.Array:
        """Of the next token, float32, (…, vocabulary)."""
        s = self.settings
        y = self.embed_tokens.attend(x) if s.tied else self.lm_head(x)
        y = y.astype(jnp.float32) * s.logit_scale
        return y if s.logit_cap is None else s.logit_cap * jnp.tanh(y / s.logit_cap)

    def new_cache(self, batch: int, length: int, chunk: int) -> list[pe.KVCache]:
        """For each place in the period, room for `length` tokens, of which up to `chunk` come at once."""
        s, caches = self.settings, []
        for place, block in enumerate(self.layers):
            left, _ = window = s.windows[place]
            if left is None or left >= length:
                left, window = None, (None, None)
            slots = max(length, chunk) if left is None else left + chunk
            layers = self.periods + (place < len(self.rest))
            caches.append(pe.kv_cache(batch, slots, *block.self_attn.kept, layers=layers, window=window, dtype=s.dtype))
        return caches
