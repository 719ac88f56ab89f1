"""How exact and how fast rotary embeddings are: `python benchmarks/rotary.py [--rounds N] [--json PATH]`.

Exact: pairs beside the truth of `reference.py`, and scores q·k at offsets from 3 and from 2,000,000,000. Fast: as in
`speed.py`, multiples of one elementwise copy of the array in the same run; beside it what models usually have, the
halves concatenated with float32 phases, and `flax.nnx.RoPE` where flax has it.
"""

import argparse
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from reference import check_sample, geometric_turns, markdown, true_waves
from speed import HEAD, interleaved, progress, row, summary

import posenc_jax as pe

SHAPE, STEP = (1, 4096, 32, 128), (32, 1, 32, 128)
BOUND, SCORES = 3e-7, 1e-5


def textbook(x, positions=None, base=10_000.0):
    """What libraries do: float32 phases, and halves that are concatenated."""
    half = x.shape[-1] // 2
    positions = jnp.arange(x.shape[-3]) if positions is None else positions
    angular = (base ** (-np.arange(half) / half)).astype(np.float32)
    phase = (positions[..., None].astype(jnp.float32) * angular)[..., None, :]
    sine, cosine, (first, second) = jnp.sin(phase), jnp.cos(phase), jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1).astype(x.dtype)


def pairs_of(x, layout):
    x, half = np.asarray(x, np.float64), x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:] if layout == "half" else x[..., 0::2] + 1j * x[..., 1::2]


def worst_pair(dim, base, layout, rng, rotate):
    """The largest error of a pair over its length, at random int32 positions and the ends."""
    edges = [0, 1, 2, 65_535, 65_536, 2**31 - 1, -1, -(2**31)]
    positions = np.concatenate([edges, rng.integers(-(2**31), 2**31, 2000)]).astype(np.int32)
    x = rng.normal(size=(len(positions), 1, dim)).astype(np.float32)
    waves = true_waves(positions, geometric_turns(dim, base))
    check = check_sample(positions, dim, base, waves, 40, rng)
    assert check < 1e-15, check
    pairs = pairs_of(x, layout)
    got = pairs_of(rotate(x, positions, pe.geometric(dim, base), layout), layout)
    return np.max(np.abs(got - pairs * (waves[1] + 1j * waves[0])[:, None]) / np.abs(pairs))


def exactness():
    """Rows of a table, and whether each is within its bound."""
    rng, rows, figures = np.random.default_rng(0), [], {}
    ours = lambda x, p, f, layout: pe.rotary(x, p, f, layout=layout)  # noqa: E731
    for layout in ("half", "interleaved"):
        for dim, base in ((64, 1e4), (128, 5e5), (256, 1e6)):
            progress(f"pairs, {layout}, width {dim}")
            name = f"pair, {layout}, width {dim}, base {base:,.0f}"
            figures[name] = (worst_pair(dim, base, layout, rng, ours), BOUND)
    wrong = worst_pair(
        128, 1e4, "half", rng, lambda x, p, f, layout: textbook(jnp.asarray(x)[:, None], p[:, None])[:, 0]
    )
    figures["pair, textbook float32"] = (wrong, None)
    q, k = (rng.normal(size=(64, 8, 128)).astype(np.float32) for _ in range(2))
    offsets = np.arange(64)[:, None]
    for name, rotate in (
        ("ours", lambda x, p: pe.rotary(x, p)),
        ("textbook float32", lambda x, p: textbook(jnp.asarray(x), p)),
    ):

        def scores(start, rotate=rotate):
            # Every query of 64 positions with every key, by offset: the score of (i, j) at i − j.
            turned = (np.asarray(rotate(v, start + offsets[:, 0]), np.float64) for v in (q, k))
            return np.einsum("ihd,jhd->hij", *turned)

        size = np.einsum("ih,jh->hij", *(np.linalg.norm(v, axis=-1) for v in (q, k)))
        apart = np.max(np.abs(scores(2_000_000_000) - scores(3)) / size)
        figures[f"score at 3 and at 2,000,000,000, over |q||k|, {name}"] = (apart, SCORES if name == "ours" else None)
    for name, (error, bound) in figures.items():
        verdict = "" if bound is None else ("met" if error <= bound else "MISSED")
        rows.append([name, f"{error:.1e}", "" if bound is None else f"≤ {bound:.0e}", verdict])
    return rows, figures


def both(function):
    """Forward and backward, with a cotangent of its own; both results are written."""

    def run(arguments):
        y, back = jax.vjp(function, arguments[0])
        return y, back(arguments[1])[0]

    return run


def speed(dtype, layout, rounds):
    name = f"{jnp.dtype(dtype).name}, {layout}"
    progress(name)
    x = jax.random.normal(jax.random.key(0), SHAPE, jnp.float32).astype(dtype)
    one = jnp.ones((), dtype)
    copies = {"copy (x + 1)": lambda a: a[0] + one, "copy again": lambda a: a[0] + one}
    rotary = lambda x, **options: pe.rotary(x, layout=layout, **options)  # noqa: E731
    functions = copies | {
        "rotary": lambda a: rotary(a[0]),
        "rotary, forward and backward": both(rotary),
        "rotary, 64 of 128 features": lambda a: rotary(a[0], frequencies=64),
        "rotary, 96 of 128 features": lambda a: rotary(a[0], frequencies=96),
    }
    if layout == "half":
        functions |= {"textbook": lambda a: textbook(a[0]), "textbook, forward and backward": both(textbook)}
        if hasattr(nnx, "RoPE"):
            rope = nnx.RoPE()
            functions["flax.nnx.RoPE"] = lambda a: jax.vmap(rope, in_axes=-2, out_axes=-2)(a[0]).astype(dtype)
    targets = {"rotary": 1.25, "rotary, forward and backward": 2.6}
    stage = f"{SHAPE}, {name}"
    return summary(stage, *interleaved(functions, (x, x), rounds), list(copies), targets)


def decode(dtype, rounds):
    progress(f"decode step, {jnp.dtype(dtype).name}")
    x = jax.random.normal(jax.random.key(0), STEP, jnp.float32).astype(dtype)
    positions = 1000 + 77 * jnp.arange(STEP[0], dtype=jnp.int32)[:, None]
    functions = {"textbook": lambda a: textbook(*a), "rotary": lambda a: pe.rotary(*a)}
    functions["rotary, interleaved"] = lambda a: pe.rotary(*a, layout="interleaved")
    stage = f"decode step {STEP}, {jnp.dtype(dtype).name}"
    targets = {"rotary": 1.0, "rotary, interleaved": 1.0}
    return summary(stage, *interleaved(functions, (x, positions), rounds), ["textbook"], targets)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    rows, figures = exactness()
    print(markdown(["largest error", "", "target", ""], rows) + "\n")
    timed = [
        f for d in (jnp.float32, jnp.bfloat16) for lay in ("half", "interleaved") for f in speed(d, lay, options.rounds)
    ]
    timed += [f for d in (jnp.float32, jnp.bfloat16) for f in decode(d, options.rounds)]
    device = jax.devices()[0]
    name = f"JAX {jax.__version__}, {device.platform}, {device.device_kind}, {os.cpu_count()} CPU cores"
    print(f"{name}; medians of {options.rounds} interleaved rounds:\n")
    print(markdown(HEAD, [row(figure) for figure in timed]))
    if options.json:
        errors = {key: float(error) for key, (error, _) in figures.items()}
        with open(options.json, "w") as file:
            json.dump({"device": name, "errors": errors, "figures": timed}, file, indent=1)


if __name__ == "__main__":
    main()
