r"""A small video diffusion transformer in Flax NNX, with Wan 2.1's positions: why long videos repeat, and RIFLEx.

A patch of a video has a frame, a row and a column, and each of them rotates its share of the pairs of queries and keys:
of a head of width $d$, $2 \lfloor d / 6 \rfloor$ features rotate by row, as many by column, the others by frame. The
time of flow matching scales and shifts features (adaLN-Zero).

In videos of 24 frames a blob crosses the image once, to the right, and may enter or leave at any frame. The trained
model then makes videos of 60 frames. In these the blob returns about every 29 frames, the period of one temporal pair.
RIFLEx slows that pair alone, to 0.9 cycles per video. The blob then crosses once, at less than half of its speed and
not always in one row. No other pair, slowed alone, has this effect; linear scaling of all temporal pairs has it too.

    python examples/video.py [--steps N] [--figure FILE.png]

It prints the error while it trains, how alike frames far apart are (0.95 becomes 0.13), and videos as text, time to the
right. It takes one to two minutes on two cores. The figure, which needs matplotlib, shows frames side by side.

Wan Team, "Wan: Open and Advanced Large-Scale Video Generative Models", 2025; Zhao et al., "RIFLEx: A Free Lunch for
Length Extrapolation in Video Diffusion Transformers", 2025, equations 7 and 8.
"""

from __future__ import annotations

import argparse
import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax

import posenc_jax as pe

FRAMES, LONG = 24, 60  # of training, of the longer videos
SIDE, PATCH = 8, 4  # pixels
HEAD_DIM = 32
SHIFT = 1.0  # of the logits of times towards noise, where the place of the blob is decided


def wan_frequencies(head_dim: int, length: int = 0, period: int = 0) -> pe.Frequencies:
    """Of frame, row and column, as in Wan 2.1: each spectrum is geometric, of base 10,000.

    With a length, RIFLEx slows the pair of time whose period is closest to the given one.
    """
    side = 2 * (head_dim // 6)
    time = pe.geometric(head_dim - 2 * side)
    if length:
        time = pe.riflex(time, length, pair=abs(time.wavelengths - period).argmin())
    return pe.axial((time, side, side))


class Block(nnx.Module):
    """Attention and a perceptron, each between a scale and shift, and a gate, which the time decides."""

    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs):
        zeros = nnx.initializers.zeros
        self.modulation = nnx.Linear(width, 6 * width, kernel_init=zeros, rngs=rngs)  # so a block begins as identity
        self.norm = nnx.LayerNorm(width, use_bias=False, use_scale=False, rngs=rngs)
        self.qkv = nnx.LinearGeneral(width, (3, heads, width // heads), rngs=rngs)
        self.norm_q, self.norm_k = (nnx.RMSNorm(width // heads, rngs=rngs) for _ in range(2))
        self.out = nnx.LinearGeneral((heads, width // heads), width, axis=(-2, -1), rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array, positions: jax.Array, frequencies: pe.Frequencies, time: jax.Array) -> jax.Array:
        scale1, shift1, gate1, scale2, shift2, gate2 = jnp.split(self.modulation(time)[:, None], 6, axis=-1)
        q, k, v = jnp.moveaxis(self.qkv(self.norm(x) * (1 + scale1) + shift1), -3, 0)
        rotate = functools.partial(pe.rotary, frequencies=frequencies, layout="interleaved", head_axis=-2)
        q, k = rotate(self.norm_q(q), positions), rotate(self.norm_k(k), positions)
        x = x + gate1 * self.out(jax.nn.dot_product_attention(q, k, v))
        return x + gate2 * self.down(nnx.gelu(self.up(self.norm(x) * (1 + scale2) + shift2)))


class VideoDiT(nnx.Module):
    """Videos (batch, frames, height, width) and times (batch,) from 0 to 1, to a velocity of the videos' shape."""

    def __init__(self, heads: int = 2, layers: int = 3, *, rngs: nnx.Rngs):
        width = heads * HEAD_DIM
        self.patches, self.time = nnx.Linear(PATCH**2, width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, use_bias=False, use_scale=False, rngs=rngs)
        self.out = nnx.Linear(width, PATCH**2, kernel_init=nnx.initializers.zeros, rngs=rngs)

    def __call__(self, z: jax.Array, t: jax.Array, frequencies: pe.Frequencies) -> jax.Array:
        batch, frames, rows, columns = (*z.shape[:2], z.shape[2] // PATCH, z.shape[3] // PATCH)
        tiles = z.reshape(batch, frames, rows, PATCH, columns, PATCH).swapaxes(3, 4)
        x = self.patches(tiles.reshape(batch, frames * rows * columns, PATCH**2))
        time = nnx.silu(self.time(pe.timestep_embedding(t, x.shape[-1], scale=1000.0)))
        positions = pe.grid_positions((frames, rows, columns))
        for block in self.blocks:
            x = block(x, positions, frequencies, time)
        tiles = self.out(self.norm(x)).reshape(batch, frames, rows, columns, PATCH, PATCH)
        return tiles.swapaxes(3, 4).reshape(z.shape)


def made_videos(key: jax.Array, number: int) -> jax.Array:
    """A blob of height 2 on a ground of −1 that crosses the image in FRAMES frames, (number, FRAMES, SIDE, SIDE)."""
    row_key, time_key = jax.random.split(key)
    row = jax.random.uniform(row_key, (number, 1, 1, 1), minval=0.5, maxval=SIDE - 1.5)
    middle = jax.random.uniform(time_key, (number, 1, 1, 1), maxval=FRAMES - 1.0)  # the frame when it is half-way
    column = (SIDE - 1) / 2 + (jnp.arange(FRAMES)[:, None, None] - middle) * SIDE / FRAMES
    pixel = jnp.arange(SIDE)
    return 2 * jnp.exp(-((pixel[:, None] - row) ** 2 + (pixel - column) ** 2) / 2) - 1


@nnx.jit
def train_step(model: VideoDiT, optimizer: nnx.Optimizer, key: jax.Array) -> jax.Array:
    """Flow matching: the velocity e − x on the path (1 − t) x + t e from a video x to noise e."""
    video_key, noise_key, time_key = jax.random.split(key, 3)
    videos = made_videos(video_key, 16)
    noise = jax.random.normal(noise_key, videos.shape)
    t = jax.nn.sigmoid(SHIFT + jax.random.normal(time_key, (len(videos), 1, 1, 1)))

    def loss(model: VideoDiT) -> jax.Array:
        velocity = model(videos + t * (noise - videos), t[:, 0, 0, 0], wan_frequencies(HEAD_DIM))
        return jnp.mean((velocity - (noise - videos)) ** 2)

    value, gradient = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradient)
    return value


def train(steps: int, *, seed: int = 0, every: int = 0) -> VideoDiT:
    """A trained model; `every` so many steps the mean of the errors since the last is printed."""
    model = VideoDiT(rngs=nnx.Rngs(seed))
    rate = optax.warmup_cosine_decay_schedule(0, 3e-3, min(50, steps // 3), steps)
    optimizer, errors = nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param), []
    for step, key in enumerate(jax.random.split(jax.random.key(seed), steps)):
        errors.append(train_step(model, optimizer, key))
        if every and (step + 1) % every == 0:
            print(f"step {step + 1:4}: squared error {sum(map(float, errors[-every:])) / every:.3f}", flush=True)
    return model


@functools.partial(nnx.jit, static_argnames=("frequencies", "steps"))
def sample(model: VideoDiT, noise: jax.Array, frequencies: pe.Frequencies, steps: int = 40) -> jax.Array:
    """Videos from noise (batch, frames, height, width), by Euler's method."""
    uniform = np.linspace(1, 0, steps + 1, dtype=np.float32)
    times = jnp.asarray(uniform / (uniform + (1 - uniform) * math.exp(-SHIFT)))

    def step(z: jax.Array, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        now, then = ends
        return z + (then - now) * model(z, jnp.full(len(z), now), frequencies), None

    return lax.scan(step, noise, (times[:-1], times[1:]))[0]


def repetition(videos: jax.Array) -> tuple[float, int]:
    """The greatest likeness of frames at least FRAMES apart, 1 if all are equal, and how many frames they are apart."""

    def likeness(lag: int) -> float:  # the cosine between them, measured from the ground
        x, y = np.asarray(videos[:, :-lag]) + 1, np.asarray(videos[:, lag:]) + 1
        return float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))

    return max((likeness(lag), lag) for lag in range(FRAMES, LONG - FRAMES // 2))


def drawn(video: jax.Array) -> str:
    """The brightest pixel of each column as text, columns downward and frames to the right."""
    shades = " .:-=+*#%@"
    levels = jnp.clip((video.max(axis=1) + 1) / 2 * len(shades), 0, len(shades) - 1).astype(int).T.tolist()
    return "\n".join("".join(shades[x] for x in row) for row in levels)


def save_figure(path: Path, videos: dict[str, jax.Array], every: int = 4) -> None:
    """Every so many frames side by side: the first two videos of each name."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only for those who ask for it

    figure = Figure(figsize=(12, 4), layout="constrained")
    rows = [(name, video) for name, both in videos.items() for video in both[:2]]
    for axes, (name, video) in zip(figure.subplots(len(rows), 1), rows, strict=True):
        frames = np.pad(video[::every], ((0, 0), (0, 0), (0, 1)), constant_values=1)  # a bright line between two
        axes.imshow(np.concatenate(list(frames), axis=1), vmin=-1, vmax=1, cmap="gray")
        axes.set(xticks=[], yticks=[], ylabel=name)
    figure.supxlabel(f"frames 0, {every}, {2 * every}, …")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000, help="of training")
    parser.add_argument("--figure", type=Path, help="a file for whole frames")
    args = parser.parse_args()
    model, plain = train(args.steps, every=100), wan_frequencies(HEAD_DIM)
    noise = jax.random.normal(jax.random.key(1), (16, LONG, SIDE, SIDE))
    videos = {"plain": sample(model, noise, plain)}
    longer = wan_frequencies(HEAD_DIM, LONG, period=repetition(videos["plain"])[1])
    videos["RIFLEx"] = sample(model, noise, longer)
    for name, made in videos.items():
        print("{}: frames are most alike, {:.2f}, {} apart".format(name, *repetition(made)))
        print("\n\n".join(map(drawn, made[:3])))
    if args.figure:
        save_figure(args.figure, videos)


if __name__ == "__main__":
    main()
