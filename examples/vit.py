r"""A small vision transformer in Flax NNX, with rotary or sinusoidal positions, at two resolutions.

A patch is at a row $r$ and a column $c$, and half of the feature pairs belong to each. With RoPE they turn queries
and keys in every layer, and scores depend on the differences of rows and of columns alone; with sinusoids $PE(r, c)$
is added to the patches once. The class token comes first, at $(0, 0)$: RoPE does not turn it, and no encoding is
added to it.

Each image holds two marks, and its label says on which side of the first the second is: left, right, above or below.
The model is trained on grids of 5 × 5 patches and evaluated on larger ones, which it has never seen: no weight
depends on the size of the grid, and no table ends. Some of the accuracy is lost there, with either kind of positions.

    python examples/vit.py [--positions {rope,sincos}] [--steps N]

It prints losses, then the share of images named right on four grids, and takes some ten seconds for each kind of
positions on two cores.

Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021; Heo et al., "Rotary Position Embedding for Vision
Transformer", 2024.
"""

from __future__ import annotations

import argparse
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import posenc_jax as pe

Positions = Literal["rope", "sincos"]
PATCH = 4  # pixels along a side


class Block(nnx.Module):
    """Attention and a perceptron, each after a norm; the queries and keys turn if there are frequencies."""

    def __init__(self, width: int, heads: int, frequencies: pe.Frequencies | None, *, rngs: nnx.Rngs):
        self.frequencies = frequencies
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.qkv = nnx.LinearGeneral(width, (3, heads, width // heads), rngs=rngs)
        self.out = nnx.LinearGeneral((heads, width // heads), width, axis=(-2, -1), rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        q, k, v = jnp.moveaxis(self.qkv(self.norm1(x)), -3, 0)  # (batch, tokens, heads, head_dim) each
        if self.frequencies is not None:
            q, k = (pe.rotary(y, positions, self.frequencies, head_axis=-2) for y in (q, k))
        x = x + self.out(jax.nn.dot_product_attention(q, k, v))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class ViT(nnx.Module):
    """Images (batch, height, width, 1) to logits; sides are multiples of `PATCH`, and may differ from call to call."""

    def __init__(
        self,
        positions: Positions,
        classes: int = 4,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        *,
        rngs: nnx.Rngs,
    ):
        self.frequencies = pe.axial(width, 2, 100.0) if positions == "sincos" else None
        turning = pe.axial(width // heads, 2, 100.0) if positions == "rope" else None
        self.patches = nnx.Conv(1, width, (PATCH, PATCH), strides=PATCH, padding="VALID", rngs=rngs)
        self.class_token = nnx.Param(0.02 * jax.random.normal(rngs.params(), (width,)))
        self.blocks = nnx.List([Block(width, heads, turning, rngs=rngs) for _ in range(layers)])
        self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patches(images)
        batch, rows, columns, width = x.shape
        x = x.reshape(batch, rows * columns, width)
        if self.frequencies is not None:
            x = x + pe.sinusoidal(pe.grid_positions((rows, columns)), self.frequencies)
        x = jnp.concatenate([jnp.broadcast_to(self.class_token[...], (batch, 1, width)), x], axis=1)
        positions = pe.grid_positions((rows, columns), leading=1)
        for block in self.blocks:
            x = block(x, positions)
        return self.head(self.norm(x[:, 0]))


def made_images(random: np.random.Generator, number: int, grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Images with two marks in one row or column of patches, and the side on which the second is, 0 to 3."""
    images = random.normal(scale=0.1, size=(number, grid[0], PATCH, grid[1], PATCH)).astype(np.float32)
    marks = np.stack([np.eye(PATCH), np.eye(PATCH)[::-1]])
    labels = random.integers(4, size=number)
    for image, label in zip(images, labels, strict=True):
        axis, after = divmod(label, 2)  # columns differ, or rows
        places = np.tile(random.integers(grid), (2, 1))
        first, second = random.choice(grid[1 - axis], 2, replace=False)
        places[:, 1 - axis] = sorted((first, second), reverse=not after)
        for mark, (row, column) in zip(marks, places, strict=True):
            image[row, :, column] += mark
    return images.reshape(number, grid[0] * PATCH, grid[1] * PATCH, 1), labels


@nnx.jit
def train_step(model: ViT, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> jax.Array:
    def loss(model: ViT) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    value, gradient = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradient)
    return value


@nnx.jit
def correct(model: ViT, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The share of labels that the model gets right."""
    return (model(images).argmax(-1) == labels).mean()


def train(positions: Positions, steps: int, *, seed: int = 0, every: int = 0) -> tuple[ViT, list[float]]:
    """A model trained on grids of 5 × 5 patches, and its losses; `every` so many steps the loss is printed."""
    model, random = ViT(positions, rngs=nnx.Rngs(seed)), np.random.default_rng(seed)
    rate = optax.warmup_cosine_decay_schedule(0, 2e-3, min(50, steps // 3), steps)
    optimizer = nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param)
    losses = []
    for step in range(steps):
        losses.append(train_step(model, optimizer, *made_images(random, 64, (5, 5))))
        if every and step % every == 0:
            print(f"  step {step:4}: loss {losses[-1]:.3f}", flush=True)
    return model, [float(loss) for loss in losses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--positions", choices=("rope", "sincos"), help="one of the two; both if it is not given")
    parser.add_argument("--steps", type=int, default=150, help="of training")
    args = parser.parse_args()
    for positions in (args.positions,) if args.positions else ("rope", "sincos"):
        print(positions)
        model, _ = train(positions, args.steps, every=25)
        for grid in ((5, 5), (5, 8), (8, 5), (8, 8)):
            share = correct(model, *made_images(np.random.default_rng(1), 500, grid))
            print(f"  {grid[0]:2} × {grid[1]:2} patches: {share:.1%} right")


if __name__ == "__main__":
    main()
