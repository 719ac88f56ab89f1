"""The models of `train_text.py`: a small decoder, and the ways in which it can be given its positions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
from flax import nnx

import posenc_jax as pe
from posenc_jax.nnx import FIRE, KERPLE, ALiBi, LearnedEncoding, PoPE, SinusoidalEncoding, T5Bias, positional_attention


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all models share. The sizes suit two CPU cores; `segments` must be even."""

    width: int = 96
    depth: int = 2
    heads: int = 4
    length: int = 128  # of the windows in training, in bytes
    batch: int = 8
    learning_rate: float = 4e-3
    segments: int = 128  # of the held-out text, each of 4 · length bytes to predict

    @property
    def scale(self) -> float:
        """√d. Embeddings begin with variance 1/d; this makes it 1, beside ½ for the sinusoidal encoding."""
        return self.width**0.5

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.width // self.heads


@dataclasses.dataclass(frozen=True)
class Variant:
    """Where a model's positions come from: what is added to its embeddings, and what its attention does.

    Both are made from the setup and a source of initial values of their own, so that all other weights of two variants
    begin the same. `embed` makes a function of the embeddings (batch, length, width), which also multiplies them by
    √d. `attention` makes the `attention_fn` of a layer's `nnx.MultiHeadAttention`, or with `shared` that of all layers;
    it also gets the length of the windows, as some change with it. With `weights` a variant is not trained: it takes
    those of that earlier variant. A `family` has a figure of its own.
    """

    label: str
    family: str
    embed: Callable[[Setup, nnx.Rngs], Callable] = lambda s, rngs: lambda x: s.scale * x
    attention: Callable[[Setup, nnx.Rngs, int], Callable] = lambda s, rngs, length: nnx.dot_product_attention
    shared: bool = False
    weights: str | None = None


def biased(bias: Callable[[Setup, nnx.Rngs], Callable]) -> Callable[[Setup, nnx.Rngs, int], Callable]:
    """Attention with a bias, which does not change with the length of the windows."""
    return lambda s, rngs, length: positional_attention(bias=bias(s, rngs))


# Distances among the settings of biases are the fraction of the training length that they are in the papers: ¼ of T5's
# 512 tokens and ¼ of FIRE's 2048. T5's and KERPLE's layers share one bias, as in the authors' code; FIRE's do not.
VARIANTS = {
    "none": Variant("no positions", "added"),
    "sinusoidal": Variant(
        "sinusoidal positions", "added", embed=lambda s, rngs: SinusoidalEncoding(s.width, scale=s.scale)
    ),
    "learned": Variant(
        "learned positions",
        "added",
        embed=lambda s, rngs: LearnedEncoding(s.length, s.width, scale=s.scale, rngs=rngs),
    ),
    "rotary": Variant(
        "rotary positions", "rotary", attention=lambda s, rngs, length: positional_attention(rotation=s.head_dim)
    ),
    "yarn": Variant(
        "rotary + YaRN",
        "rotary",
        attention=lambda s, rngs, length: positional_attention(
            rotation=pe.yarn(s.head_dim, 10_000.0, length / s.length, original_max=s.length)
        ),
        weights="rotary",
    ),
    "alibi": Variant("ALiBi", "bias", attention=biased(lambda s, rngs: ALiBi(s.heads)), shared=True),
    "t5": Variant(
        "T5’s bias",
        "bias",
        attention=biased(
            lambda s, rngs: T5Bias(
                s.heads, num_buckets=s.length // 8, max_distance=s.length // 4, bidirectional=False, rngs=rngs
            )
        ),
        shared=True,
    ),
    "kerple": Variant("KERPLE", "bias", attention=biased(lambda s, rngs: KERPLE(s.heads, rngs=rngs)), shared=True),
    "fire": Variant("FIRE", "bias", attention=biased(lambda s, rngs: FIRE(s.heads, threshold=s.length / 4, rngs=rngs))),
    "pope": Variant(
        "PoPE",
        "rotary",
        attention=lambda s, rngs, length: positional_attention(
            rotation=PoPE(s.heads, 2 * s.head_dim, head_axis=-2, rngs=rngs)
        ),
    ),
}
STORY = ("none", "sinusoidal", "learned", "rotary", "yarn", "alibi")  # the default; YaRN stretches the trained rotary


class Block(nnx.Module):
    """Causal self-attention and a feed-forward layer, each normalised before and added to its input."""

    def __init__(self, setup: Setup, attention: Callable, rngs: nnx.Rngs) -> None:
        width = setup.width
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(
            setup.heads, width, attention_fn=attention, use_bias=False, decode=False, rngs=rngs
        )
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The same shape, (batch, length, width)."""
        x = x + self.attention(self.norms[0](x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


class Decoder(nnx.Module):
    """A decoder-only Transformer over bytes, for windows of one length; the embeddings also serve as the last layer."""

    def __init__(self, setup: Setup, variant: Variant, seed: int, length: int) -> None:
        rngs, own = nnx.Rngs(seed), nnx.Rngs(seed + 1)
        self.embedding = nnx.Embed(
            256, setup.width, embedding_init=nnx.initializers.normal(setup.width**-0.5), rngs=rngs
        )
        self.positions = variant.embed(setup, own)
        attention = functools.partial(variant.attention, setup, own, length)
        layers = [attention()] * setup.depth if variant.shared else [attention() for _ in range(setup.depth)]
        self.blocks = nnx.List([Block(setup, layer, rngs) for layer in layers])
        self.norm = nnx.LayerNorm(setup.width, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """The logits of the next byte, (batch, length, 256)."""
        x = self.positions(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        return self.embedding.attend(self.norm(x))
