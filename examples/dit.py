r"""A small diffusion transformer (DiT) in Flax NNX: two times, positions on a grid, and a MeanFlow step by `jax.jvp`.

On the path $z_t = (1 - t)\,x + t\,e$ from an image $x$ to noise $e$ the velocity is $v = e - x$. MeanFlow learns the
mean velocity $u(z_t, r, t)$ from $r$ to $t$, with which one step makes an image, $x = e - u(e, 0, 1)$. Its derivative
along the flow says what to learn:

$$u(z_t, r, t) = v - (t - r)\,\frac{d}{dt} u(z_t, r, t), \qquad
  \frac{d}{dt} u = v \cdot \partial_z u + \partial_t u .$$

That derivative is one `jax.jvp` with the tangents $(v, 0, 1)$, through the embedding of the times and through every
rotation and attention. Queries and keys of patches turn by row and column (2-D RoPE); the times scale and shift
features (adaLN-Zero).

Images are blobs at random places. The program prints the error while it trains, then draws samples of one step as
text.

    python examples/dit.py [--steps N]

It takes half a minute on two cores.

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023; Geng et al., "Mean Flows for One-step Generative
Modeling", 2025, algorithm 1.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax

import posenc_jax as pe

SIDE, PATCH = 8, 2  # pixels


class Block(nnx.Module):
    """Attention and a perceptron, each between a scale and shift, and a gate, which the times decide."""

    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs):
        self.frequencies = pe.axial(width // heads, 2, 100.0)
        zeros = nnx.initializers.zeros
        self.modulation = nnx.Linear(width, 6 * width, kernel_init=zeros, rngs=rngs)  # so a block begins as identity
        self.norm = nnx.LayerNorm(width, use_bias=False, use_scale=False, rngs=rngs)
        self.qkv = nnx.LinearGeneral(width, (3, heads, width // heads), rngs=rngs)
        self.out = nnx.LinearGeneral((heads, width // heads), width, axis=(-2, -1), rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array, positions: jax.Array, condition: jax.Array) -> jax.Array:
        scale1, shift1, gate1, scale2, shift2, gate2 = jnp.split(self.modulation(condition)[:, None], 6, axis=-1)
        q, k, v = jnp.moveaxis(self.qkv(self.norm(x) * (1 + scale1) + shift1), -3, 0)
        q, k = (pe.rotary(y, positions, self.frequencies, head_axis=-2) for y in (q, k))
        x = x + gate1 * self.out(jax.nn.dot_product_attention(q, k, v))
        return x + gate2 * self.down(nnx.gelu(self.up(self.norm(x) * (1 + scale2) + shift2)))


class DiT(nnx.Module):
    """Images (batch, height, width) and two times (batch,) from 0 to 1, to a velocity of the shape of the images."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 3, *, rngs: nnx.Rngs):
        self.patches = nnx.Linear(PATCH**2, width, rngs=rngs)
        self.times = nnx.Linear(2 * width, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, use_bias=False, use_scale=False, rngs=rngs)
        self.out = nnx.Linear(width, PATCH**2, kernel_init=nnx.initializers.zeros, rngs=rngs)

    def __call__(self, z: jax.Array, r: jax.Array, t: jax.Array) -> jax.Array:
        batch, rows, columns = z.shape[0], z.shape[1] // PATCH, z.shape[2] // PATCH
        tiles = z.reshape(batch, rows, PATCH, columns, PATCH).swapaxes(2, 3)
        x = self.patches(tiles.reshape(batch, rows * columns, PATCH**2))
        # A scale of 1000, as for noise levels, would make the derivative by t as large.
        embedded = [pe.timestep_embedding(time, x.shape[-1], scale=10.0) for time in (t, t - r)]
        condition = nnx.silu(self.times(jnp.concatenate(embedded, axis=-1)))
        positions = pe.grid_positions((rows, columns))
        for block in self.blocks:
            x = block(x, positions, condition)
        tiles = self.out(self.norm(x)).reshape(batch, rows, columns, PATCH, PATCH)
        return tiles.swapaxes(2, 3).reshape(z.shape)


def along_flow(model: DiT, z: jax.Array, r: jax.Array, t: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean velocity u(z, r, t), and its derivative by t along the flow, on which z moves with velocity v."""
    return jax.jvp(model, (z, r, t), (v, jnp.zeros_like(r), jnp.ones_like(t)))


def meanflow_loss(model: DiT, images: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The loss, whose weights are the paper's with p = 1, and the squared error itself."""
    noise_key, time_key, same_key = jax.random.split(key, 3)
    noise = jax.random.normal(noise_key, images.shape)
    r, t = jnp.sort(jax.random.uniform(time_key, (2, len(images))), axis=0)
    r = jnp.where(jax.random.bernoulli(same_key, 0.75, r.shape), t, r)  # mostly the velocity at one time
    z = images + t[:, None, None] * (noise - images)
    u, derivative = along_flow(model, z, r, t, noise - images)
    target = lax.stop_gradient(noise - images - (t - r)[:, None, None] * derivative)
    error = jnp.mean((u - target) ** 2, axis=(1, 2))
    return jnp.mean(error / lax.stop_gradient(error + 1e-3)), jnp.mean(error)


def sample(model: DiT, noise: jax.Array) -> jax.Array:
    """Images of one step from noise (batch, height, width)."""
    ends = jnp.zeros(len(noise)), jnp.ones(len(noise))
    return noise - model(noise, *ends)


def made_images(key: jax.Array, number: int) -> jax.Array:
    """Blobs of height 2 and deviation 1.2 pixels on a ground of −1, (number, SIDE, SIDE)."""
    centres = jax.random.uniform(key, (number, 2, 1), minval=1.5, maxval=SIDE - 2.5)
    row, column = jnp.moveaxis(jnp.exp(-((jnp.arange(SIDE) - centres) ** 2) / (2 * 1.2**2)), 1, 0)
    return 2 * row[:, :, None] * column[:, None, :] - 1


@nnx.jit
def train_step(model: DiT, optimizer: nnx.Optimizer, key: jax.Array) -> jax.Array:
    image_key, loss_key = jax.random.split(key)
    (_, error), gradient = nnx.value_and_grad(meanflow_loss, has_aux=True)(model, made_images(image_key, 64), loss_key)
    optimizer.update(model, gradient)
    return error


def train(steps: int, *, seed: int = 0, every: int = 0) -> tuple[DiT, list[float]]:
    """A trained model and its squared errors; `every` so many steps their mean since the last is printed."""
    model = DiT(rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    errors = []
    for step, key in enumerate(jax.random.split(jax.random.key(seed), steps)):
        errors.append(train_step(model, optimizer, key))
        if every and (step + 1) % every == 0:
            print(f"step {step + 1:4}: squared error {sum(map(float, errors[-every:])) / every:.3f}", flush=True)
    return model, [float(error) for error in errors]


def drawn(images: jax.Array) -> str:
    """Images side by side as text."""
    shades = " .:-=+*#%@"
    levels = jnp.clip((images + 1) / 2 * len(shades), 0, len(shades) - 1).astype(int).tolist()
    return "\n".join(
        "   ".join("".join(2 * shades[x] for x in row) for row in rows) for rows in zip(*levels, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="of training")
    model, _ = train(parser.parse_args().steps, every=50)
    print("made, and below it samples of one step:")
    print(drawn(made_images(jax.random.key(1), 4)), "\n")
    print(drawn(sample(model, jax.random.normal(jax.random.key(2), (4, SIDE, SIDE)))))


if __name__ == "__main__":
    main()
