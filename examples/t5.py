r"""T5's encoder in Flax NNX: one learned bias of relative positions, shared by all layers.

Scores are $q_i \cdot k_j + b_h(i, j)$, where `T5Bias` has a number $b$ for each head and each bucket of distances;
nothing else says where a token stands. All layers take the bias of one table, as in T5, and `pe.attention` computes
it tile by tile, so no array of queries by keys exists. T5 has no factor $1/\sqrt{d}$ in its scores (`scale=1.0`), no
bias in its projections, and norms without a mean. `load` takes the weights of a checkpoint of transformers:

    checkpoint = transformers.T5EncoderModel.from_pretrained(folder)
    weights = {name: x.numpy() for name, x in checkpoint.state_dict().items()}
    config = checkpoint.config
    model = nnx.jit(load(weights, config.num_heads, config.relative_attention_max_distance))

The program trains an encoder to name the token two places before each token, a task of relative positions. On
sequences of four times the length it makes mistakes: no distance of the training fell into the far buckets, whose
numbers are still random.

    python examples/t5.py [--steps N] [--implementation mosaic_gpu]

It prints losses, then the share that is right at 16 and at 64 tokens, and takes a quarter of a minute on two cores.
With `mosaic_gpu`, kernels for a Hopper GPU compute attention in bfloat16, and the gradients, among them that of the
table.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020, section 2.1.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import posenc_jax as pe
from posenc_jax.nnx import T5Bias


def linear(inputs: int, outputs: int, deviation: float, rngs: nnx.Rngs) -> nnx.Linear:
    """A projection as T5 has it: without a bias, normal with a deviation of its own."""
    return nnx.Linear(inputs, outputs, use_bias=False, kernel_init=nnx.initializers.normal(deviation), rngs=rngs)


class Attention(nnx.Module):
    """Attention under a bias that is given; `implementation` is that of `pe.attention`."""

    def __init__(self, width: int, heads: int, head_dim: int, implementation: str | None = None, *, rngs: nnx.Rngs):
        self.heads, self.implementation, inner = heads, implementation, heads * head_dim
        self.q = linear(width, inner, (width * head_dim) ** -0.5, rngs)
        self.k, self.v = (linear(width, inner, width**-0.5, rngs) for _ in range(2))
        self.o = linear(inner, width, inner**-0.5, rngs)

    def __call__(self, x: jax.Array, mask: jax.Array, bias: T5Bias) -> jax.Array:
        dtype = jnp.bfloat16 if self.implementation == "mosaic_gpu" else x.dtype  # the kernel needs 16 bits
        q, k, v = (f(x).reshape(*x.shape[:2], self.heads, -1).astype(dtype) for f in (self.q, self.k, self.v))
        segments = {"query_segments": mask, "key_segments": mask}
        y = pe.attention(q, k, v, bias=bias, scale=1.0, implementation=self.implementation, **segments)
        return self.o(y.reshape(*x.shape[:2], -1).astype(x.dtype))


class Perceptron(nnx.Module):
    """One hidden layer: ReLU, or GELU times a gate as in T5 1.1."""

    def __init__(self, width: int, hidden: int, gated: bool, *, rngs: nnx.Rngs):
        self.wi, self.wo = linear(width, hidden, width**-0.5, rngs), linear(hidden, width, hidden**-0.5, rngs)
        self.gate = linear(width, hidden, width**-0.5, rngs) if gated else None

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.wo(nnx.relu(self.wi(x)) if self.gate is None else nnx.gelu(self.gate(x)) * self.wi(x))


class Block(nnx.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        hidden: int,
        gated: bool,
        implementation: str | None,
        *,
        rngs: nnx.Rngs,
    ):
        self.norm1, self.norm2 = (nnx.RMSNorm(width, epsilon=1e-6, rngs=rngs) for _ in range(2))
        self.attention = Attention(width, heads, head_dim, implementation, rngs=rngs)
        self.perceptron = Perceptron(width, hidden, gated, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array, bias: T5Bias) -> jax.Array:
        x = x + self.attention(self.norm1(x), mask, bias)
        return x + self.perceptron(self.norm2(x))


class Encoder(nnx.Module):
    """Tokens (batch, seq) and a mask of those that are no padding, to features (batch, seq, width)."""

    def __init__(
        self,
        vocabulary: int,
        width: int = 64,
        heads: int = 4,
        head_dim: int = 16,
        hidden: int = 128,
        layers: int = 2,
        *,
        gated: bool = False,
        num_buckets: int = 32,
        max_distance: int = 128,
        implementation: str | None = None,
        rngs: nnx.Rngs,
    ):
        self.embed = nnx.Embed(vocabulary, width, embedding_init=nnx.initializers.normal(1.0), rngs=rngs)
        self.bias = T5Bias(heads, num_buckets=num_buckets, max_distance=max_distance, rngs=rngs)  # of all layers
        settings = width, heads, head_dim, hidden, gated, implementation
        self.blocks = nnx.List([Block(*settings, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.RMSNorm(width, epsilon=1e-6, rngs=rngs)

    def __call__(self, tokens: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        mask = jnp.ones(tokens.shape, jnp.int32) if mask is None else mask  # padding sees nothing but padding
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask, self.bias)
        return self.norm(x)


def load(weights: Mapping[str, np.ndarray], heads: int, max_distance: int) -> Encoder:
    """The encoder with the weights of a checkpoint: what a T5 of transformers has in its `state_dict()`, as arrays.

    The sizes are those of the arrays; `heads` and `max_distance` (`relative_attention_max_distance`) are in the config.
    """
    names = [name for name in weights if name.startswith("encoder.block.")]
    layers = 1 + max(int(name.split(".")[2]) for name in names)
    first, gated = "encoder.block.0.layer.", any(".wi_1." in name for name in names)
    table = weights[first + "0.SelfAttention.relative_attention_bias.weight"]
    hidden, width = weights[first + f"1.DenseReluDense.{'wi_1' if gated else 'wi'}.weight"].shape
    head_dim = len(weights[first + "0.SelfAttention.q.weight"]) // heads
    sizes = len(weights["shared.weight"]), width, heads, head_dim, hidden, layers
    buckets = {"num_buckets": len(table), "max_distance": max_distance}
    model = Encoder(*sizes, gated=gated, **buckets, rngs=nnx.Rngs(0))

    model.embed.embedding[...], model.bias.embedding[...] = weights["shared.weight"], table
    model.norm.scale[...] = weights["encoder.final_layer_norm.weight"]
    for i, block in enumerate(model.blocks):
        at = f"encoder.block.{i}.layer."
        block.norm1.scale[...], block.norm2.scale[...] = (weights[f"{at}{n}.layer_norm.weight"] for n in (0, 1))
        for name in "qkvo":
            getattr(block.attention, name).kernel[...] = weights[f"{at}0.SelfAttention.{name}.weight"].T
        parts = {"wi": "wi_1", "gate": "wi_0", "wo": "wo"} if gated else {"wi": "wi", "wo": "wo"}
        for ours, theirs in parts.items():
            getattr(block.perceptron, ours).kernel[...] = weights[f"{at}1.DenseReluDense.{theirs}.weight"].T
    return model


def logits(model: Encoder, tokens: jax.Array) -> jax.Array:
    """Scores of the vocabulary at each place, by the embeddings and T5's factor."""
    x = model(tokens)
    return model.embed.attend(x * x.shape[-1] ** -0.5)


@nnx.jit
def train_step(model: Encoder, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    def loss(model: Encoder) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits(model, tokens)[:, 2:], tokens[:, :-2]).mean()

    value, gradient = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradient)
    return value


@nnx.jit
def correct(model: Encoder, tokens: jax.Array) -> jax.Array:
    """The share of tokens, from the third on, whose second before is named."""
    return (logits(model, tokens)[:, 2:].argmax(-1) == tokens[:, :-2]).mean()


def train(
    steps: int, *, seed: int = 0, every: int = 0, batch: int = 64, **settings: Any
) -> tuple[Encoder, list[float]]:
    """A model trained on random sequences of 16 tokens, and its losses; `every` so many steps the loss is printed."""
    model, random = Encoder(32, **settings, rngs=nnx.Rngs(seed)), np.random.default_rng(seed)
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    losses = []
    for step in range(steps):
        losses.append(train_step(model, optimizer, random.integers(32, size=(batch, 16))))
        if every and step % every == 0:
            print(f"step {step:4}: loss {losses[-1]:.3f}", flush=True)
    return model, [float(loss) for loss in losses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150, help="of training")
    parser.add_argument("--implementation", choices=["xla", "mosaic_gpu"], help="of attention (default: xla)")
    options = parser.parse_args()
    model, _ = train(options.steps, every=25, implementation=options.implementation)
    for length in (16, 64):
        share = correct(model, np.random.default_rng(1).integers(32, size=(64, length)))
        print(f"{length} tokens: {share:.1%} right")


if __name__ == "__main__":
    main()
