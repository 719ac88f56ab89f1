"""MaxText: its eight classes of RoPE, and its sinusoids."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from maxtext.layers import embeddings as theirs

from clients.harness import Far, Replaced, Timed, Trial, drawn, layer

# --8<-- [start:copy]
import posenc_jax as pe


def cast(self, y):
    return y.astype(self.fprop_dtype) if self.cast_as_fprop_dtype else y


def rotary(self, inputs, position=None):  # RotaryEmbedding and PartialRotaryEmbedding
    base = self.max_timescale / self.min_timescale
    slower = self.min_timescale * self.rope_linear_scaling_factor
    f = pe.linear_scaling(pe.geometric(self.embedding_dims, base), slower)
    return cast(self, pe.rotary(inputs, position, f, head_axis=-2))


def gemma4(self, inputs, position=None):  # Gemma4PartialRotaryEmbedding
    slower = self.min_timescale * self.rope_linear_scaling_factor
    base = self.max_timescale / self.min_timescale
    f = pe.proportional(self.head_dim, base, self.partial_rotary_factor, slower)
    return cast(self, pe.rotary(inputs, position, f, head_axis=-2))


def llama(self, inputs, position=None):  # LLaMARotaryEmbedding
    f = pe.linear_scaling(
        pe.geometric(self.embedding_dims, self.max_timescale / self.min_timescale), self.min_timescale
    )
    if self.use_scale:
        f = pe.llama3(f, 8, low_freq_factor=1, high_freq_factor=4, original_max=8192)
    return cast(self, pe.rotary(inputs, position, f, head_axis=-2, layout="interleaved"))


def yarn(self, inputs, position=None):  # YarnRotaryEmbedding, which takes pairs and gives halves
    betas = {"beta_fast": self.beta_fast, "beta_slow": self.beta_slow, "truncate": self.truncate}
    scaled = self.embedding_dims, self.rope_theta, self.rope_factor
    f = pe.yarn(*scaled, self.original_max_position_embeddings, **betas)
    if not self.attention_scaling:
        f = f.with_attention_factor(1)
    if self.interleave and not self.pairwise:
        inputs = jnp.swapaxes(inputs.reshape(*inputs.shape[:-1], -1, 2), -1, -2).reshape(inputs.shape)
    layout = "interleaved" if self.pairwise else "half"
    return cast(self, pe.rotary(inputs, position, f, head_axis=-2, layout=layout))


def llama_vision(self, inputs, position=None):  # LlamaVisionRotaryEmbedding; class token unrotated
    side = self.image_size // self.patch_size
    at = jnp.pad(1 + pe.grid_positions((side, side), order="column"), ((0, 1), (0, 0)))
    f = pe.axial(pe.geometric(inputs.shape[-1] // 2, self.rope_theta), 2)
    return cast(self, pe.rotary(inputs, at, f, head_axis=-2, layout="interleaved"))


def thinker(self, inputs, position):  # Qwen3OmniMoeThinkerTextRotaryEmbedding
    f = pe.geometric(self.rotary_dim, self.max_timescale / self.min_timescale)
    f = pe.multi_section(f, self.mrope_section, interleaved=True)
    f = f.with_attention_factor(self.attention_scaling)
    at = position[..., None] if position.ndim == 2 else position
    return cast(self, pe.rotary(inputs, at, f, head_axis=-2))


def deepseek_v4(self, inputs, position, unsqueeze_dim=1, reverse=False):  # DeepSeekV4RotaryEmbedding
    f = pe.geometric(self.dim, self.rope_theta)
    options = {"layout": "interleaved", "part": "last", "inverse": reverse}
    return pe.rotary(inputs, position, f, head_axis=unsqueeze_dim, **options)


def sinusoids(self, position):  # PositionalEmbedding._compute_embeddings
    dtype = self.fprop_dtype if self.cast_as_fprop_dtype else jnp.float32
    f = pe.geometric(self.embedding_dims, self.max_wavelength, endpoint=True)
    return pe.sinusoidal(position, f, layout="half", dtype=dtype)


# --8<-- [end:copy]


def _same(self, x, *_, **__):
    return x


CALLS = {
    "RotaryEmbedding": rotary,
    "PartialRotaryEmbedding": rotary,
    "LLaMARotaryEmbedding": llama,
    "YarnRotaryEmbedding": yarn,
    "LlamaVisionRotaryEmbedding": llama_vision,
    "Qwen3OmniMoeThinkerTextRotaryEmbedding": thinker,
    "DeepSeekV4RotaryEmbedding": deepseek_v4,
    "Gemma4PartialRotaryEmbedding": gemma4,
}
REPLACED = [Replaced(getattr(theirs, name), "__call__", call, _same) for name, call in CALLS.items()]
REPLACED += [
    Replaced(
        theirs.PositionalEmbedding, "_compute_embeddings", sinusoids,
        lambda self, p: jnp.zeros((*p.shape, self.embedding_dims)),
    ),
]  # fmt: skip
FAR = Far(
    theirs.LLaMARotaryEmbedding(
        min_timescale=1, max_timescale=500_000, mesh=None, embedding_dims=64, fprop_dtype=jnp.float32, use_scale=False
    ),
    layout="interleaved",
)
PACKAGE = "maxtext"
TESTS = [
    f"tests/unit/{name}_test.py"
    for name in ("embeddings", "partial_rotary_embedding", "qwen35_partial_mrope", "yarn_vs_reference")
]


def trials() -> Iterator[tuple[Trial, Timed | None]]:
    """A layer of attention around each class."""
    plain = {"min_timescale": 1, "max_timescale": 10_000, "embedding_dims": 32, "fprop_dtype": jnp.float32}
    on = plain | {"mesh": None}
    ropes = {
        "RotaryEmbedding": theirs.RotaryEmbedding(**on),
        "PartialRotaryEmbedding": theirs.PartialRotaryEmbedding(**on, partial_rotary_factor=0.5),
        "Gemma4PartialRotaryEmbedding": theirs.Gemma4PartialRotaryEmbedding(**on),
        "LLaMARotaryEmbedding": theirs.LLaMARotaryEmbedding(**on | {"max_timescale": 500_000}),
        "Qwen3OmniMoeThinker": theirs.Qwen3OmniMoeThinkerTextRotaryEmbedding(**plain, mrope_section=(6, 5, 5)),
        "DeepSeekV4RotaryEmbedding": theirs.DeepSeekV4RotaryEmbedding(32, 0.5),
    }
    yarns = {"pairs in, halves out": {}, "pairs": {"pairwise": True}, "halves": {"interleave": False}}
    for name, settings in yarns.items():
        settings = {"attention_scaling": True, "fprop_dtype": jnp.float32} | settings
        ropes[f"Yarn, {name}"] = theirs.YarnRotaryEmbedding(32, None, **settings)
    at = jnp.broadcast_to(jnp.arange(256, dtype=jnp.int32), (2, 256))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2048, 16, 128)), jnp.float32)
    big = theirs.RotaryEmbedding(**on | {"embedding_dims": 128})
    timed = Timed(lambda x, p: big(x, p), (x, jnp.arange(2048, dtype=jnp.int32)[None]))
    for name, rope in ropes.items():
        rotate = (lambda x, p, rope=rope: rope(x, p, unsqueeze_dim=2)) if "V4" in name else rope
        call, params, tokens = layer(rotate)
        far = None if "Yarn" in name else (tokens, at + 1_000_000)  # their table ends before
        yield Trial(name, call, params, (tokens, at), far), timed
        timed = None
    vision = theirs.LlamaVisionRotaryEmbedding(224, 14, 128, 4, fprop_dtype=jnp.float32)
    call, params, patches = layer(vision)
    patches = jnp.concatenate([patches, patches[:, :1]], 1)
    yield Trial("LlamaVisionRotaryEmbedding", call, params, (patches,)), None
    added = theirs.PositionalEmbedding(64)
    weights = drawn(jnp.zeros((64, 64)))
    yield Trial("PositionalEmbedding", lambda w, x, at: (x + added(256, at)) @ w, weights, (patches[:, :256], at)), None
