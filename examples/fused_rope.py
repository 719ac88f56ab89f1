r"""QK-norm and RoPE in one Pallas kernel, with exact phases: one read and one write of the queries and keys.

Each head $x$ of the queries and keys at position $p$ is normalized and then rotated:

$$y = R(\omega p)\, \frac{x}{\sqrt{\tfrac1d \sum_i x_i^2 + \epsilon}} \odot w .$$

A block of positions computes its cosines and sines once, for all heads of q and k. The kernel reads no table of them:
its operands are the positions and the phase constants of the frequencies, six rows of integers. So it is right at every
int32 position, and elsewhere in the model `pe.rotary` gives the same rotation.

    python examples/fused_rope.py

It prints the largest differences of queries and keys from `pe.rotary` after a norm, after seven seconds on two cores:
1.6e-02 and 0. A few of a million numbers round to bfloat16 the other way, and its last place from 2 to 4 is 1.6e-02.
Here the kernel runs in interpret mode. It compiles for TPUs v5e and v6e (tests/devices/compile/test_own_kernels.py);
benchmarks/schedules.py counts its instructions. It is forward only: training needs a `jax.custom_vjp` around it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

import posenc_jax as pe
from posenc_jax import kernels


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Normalizes vectors by their root mean square, in float32."""
    x, weight = x.astype(jnp.float32), weight.reshape((1,) * (x.ndim - 1) + (-1,))
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def kernel(
    q: Any, k: Any, q_weight: Any, k_weight: Any, positions: Any, constants: Any, q_out: Any, k_out: Any, *, eps: float
) -> None:
    """A block of positions: q and k are (block, heads, head_dim), weights (1, head_dim), positions (1, block)."""
    column = positions[...].reshape(-1, 1)
    cosine, sine = (wave[:, None] for wave in kernels.cos_sin(column, constants[...]))  # (block, 1, head_dim)
    for x, weight, out in ((q, q_weight, q_out), (k, k_weight, k_out)):
        normal = rms_norm(x[...], weight[...], eps)
        out[...] = kernels.rotate(normal, cosine, sine, "half").astype(out.dtype)


def fused(
    q: jax.Array,
    k: jax.Array,
    q_weight: jax.Array,
    k_weight: jax.Array,
    positions: jax.Array,
    frequencies: pe.Frequencies,
    *,
    eps: float = 1e-6,
    block: int = 128,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Normalizes and rotates q and k, (batch, seq, heads, head_dim), at positions (batch, seq), in one kernel.

    Each has a weight (head_dim,). The block, a number of positions, must divide the length.
    """
    batch, length = positions.shape
    if length % block:
        raise ValueError(f"fused: the block, {block}, must divide the length, {length}")
    constants = kernels.phase_constants(frequencies, "half")
    rows = positions.reshape(batch, length // block, 1, block)
    tile = lambda x: pl.BlockSpec((None, block, *x.shape[2:]), lambda b, i: (b, i, 0, 0))  # noqa: E731
    whole = lambda x: pl.BlockSpec(x.shape, lambda b, i: (0, 0))  # noqa: E731
    weights = q_weight[None], k_weight[None]
    call = pl.pallas_call(
        functools.partial(kernel, eps=eps),
        [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k)],
        grid=(batch, length // block),
        in_specs=[
            *map(tile, (q, k)),
            *map(whole, weights),
            pl.BlockSpec((None, None, 1, block), lambda b, i: (b, i, 0, 0)),
            whole(constants),
        ],
        out_specs=[*map(tile, (q, k))],
        interpret=interpret,
    )
    q, k = call(q, k, *weights, rows, constants)
    return q, k


def plain(
    q: jax.Array,
    k: jax.Array,
    q_weight: jax.Array,
    k_weight: jax.Array,
    positions: jax.Array,
    frequencies: pe.Frequencies,
    *,
    eps: float = 1e-6,
) -> tuple[jax.Array, jax.Array]:
    """The same by `pe.rotary`, for XLA to compile."""
    rotated = [
        pe.rotary(rms_norm(x, weight, eps), positions, frequencies, head_axis=-2).astype(x.dtype)
        for x, weight in ((q, q_weight), (k, k_weight))
    ]
    return rotated[0], rotated[1]


def main(length: int = 512, heads: tuple[int, int] = (8, 2), head_dim: int = 128) -> None:
    """Two packed sequences in bfloat16, the second far from the origin: the largest differences."""
    keys = jax.random.split(jax.random.key(0), 4)
    sizes = zip(keys[:2], heads, strict=True)
    q, k = (jax.random.normal(key, (2, length, n, head_dim), jnp.bfloat16) for key, n in sizes)
    weights = [1 + 0.1 * jax.random.normal(key, (head_dim,)) for key in keys[2:]]
    positions = jnp.arange(length, dtype=jnp.int32) + jnp.array([[0], [2_000_000_000]], jnp.int32)
    arguments = q, k, *weights, positions
    frequencies = pe.geometric(head_dim, 500_000.0)
    both = zip(
        jax.jit(functools.partial(fused, frequencies=frequencies, interpret=True))(*arguments),
        jax.jit(functools.partial(plain, frequencies=frequencies))(*arguments),
        strict=True,
    )
    for name, (got, want) in zip(("q", "k"), both, strict=True):
        difference = jnp.max(jnp.abs(got.astype(jnp.float32) - want.astype(jnp.float32)))
        print(f"{name}, {got.dtype} {got.shape}: largest difference from pe.rotary(rms_norm({name})) {difference:.1e}")


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
