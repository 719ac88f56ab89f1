r"""The facts that make positions work, measured: for each a figure, its limit, and whether it was kept.

What the library is compared with is computed here without it: encodings in decimal arithmetic, buckets in integers,
attention in float64.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import posenc_jax as pe

TWO_PI = decimal.Decimal("6.2831853071795864769252867665590057683943387987502")


def run(width: int, head_dim: int, seed: int) -> list[dict[str, Any]]:
    """All checks, for encodings of this width and heads of this size."""
    sinusoidal = [*permutation(width, seed), rotation(width, seed), offsets(width), *precision(width)]
    rotary = [scores(head_dim, seed), decoding(head_dim, seed)]
    return [*sinusoidal, *rotary, buckets(), tiles(seed), blocks(head_dim, seed)]


def truth(positions: Any, width: int) -> np.ndarray:
    """The encoding of the positions in float64, with the phases reduced in 50 decimal digits."""
    with decimal.localcontext(prec=50):
        omegas = [decimal.Decimal(10_000) ** (decimal.Decimal(-2 * i) / width) for i in range(width // 2)]
        phases = np.array([[float(int(p) * omega % TWO_PI) for omega in omegas] for p in positions])
    return np.stack([np.sin(phases), np.cos(phases)], axis=-1).reshape(len(phases), width)


def float32_phases(positions: Any, width: int) -> jax.Array:
    """The phases as they are usually computed, (..., width/2)."""
    omegas = jnp.exp(jnp.arange(0, width, 2) * -(math.log(10_000.0) / width))
    return jnp.asarray(positions, jnp.float32)[..., None] * omegas


def textbook(position: int, width: int) -> np.ndarray:
    """The encoding as it is usually written, in float32."""
    phases = float32_phases([position], width)
    return np.stack([jnp.sin(phases), jnp.cos(phases)], axis=-1).reshape(1, width)


def textbook_rotary(x: jax.Array, positions: Any) -> jax.Array:
    """Rotary positions as they are usually written, in float32; x is (seq, head_dim)."""
    phases = float32_phases(positions, x.shape[-1])
    (x1, x2), cos, sin = jnp.split(x, 2, axis=-1), jnp.cos(phases), jnp.sin(phases)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


def tens(value: float) -> str:
    """The value as a multiple of a power of ten, 1.2·10⁻⁷."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def check(name: str, figure: str, value: float, passed: bool) -> dict[str, Any]:
    return {"name": name, "figure": figure, "value": float(value), "passed": bool(passed)}


def permutation(width: int, seed: int) -> list[dict[str, Any]]:
    """Permuting the tokens permutes the output of self-attention, unless the tokens carry their positions."""
    source = np.random.default_rng(seed)
    attend = nnx.MultiHeadAttention(4, width, decode=False, rngs=nnx.Rngs(seed))
    x = jnp.asarray(source.normal(size=(1, 16, width)), jnp.float32)
    order = source.permutation(16)

    def difference(f: Callable) -> float:
        return float(jnp.abs(f(x[:, order]) - f(x)[:, order]).max())

    without, having = difference(attend), difference(lambda x: attend(pe.add_sinusoidal(x)))
    return [
        check(
            "Without positions, self-attention is permutation equivariant: permuted tokens, permuted outputs",
            f"largest difference {tens(without)}, at most 10⁻⁵",
            without,
            without <= 1e-5,
        ),
        check(
            "With sinusoidal positions it is not: the order of the tokens matters",
            f"largest difference {having:.2f}, at least 0.01",
            having,
            having >= 1e-2,
        ),
    ]


def rotation(width: int, seed: int) -> dict[str, Any]:
    """Moving by k is a rotation M_k that does not depend on where one stands."""
    low, high = -(2**31), 2**31 - 1
    source = np.random.default_rng(seed)
    p = source.integers(low, high, 500, endpoint=True)
    k = source.integers(np.maximum(low, low - p), np.minimum(high, high - p), endpoint=True)
    encodings, offset = pe.sinusoidal(p.astype(np.int32), width), jnp.asarray(k, jnp.int32)
    by_matrix = jnp.matmul(pe.rotation_matrix(offset, width), encodings[..., None], precision="highest")[..., 0]
    exact = truth(p + k, width)
    worst = max(np.abs(np.asarray(moved) - exact).max() for moved in (by_matrix, pe.shift(encodings, offset, width)))
    return check(
        "PE(p + k) = Mₖ PE(p), by the matrix and without it, for 500 random p and k of all int32",
        f"largest error {tens(worst)}, at most 5·10⁻⁷",
        worst,
        worst <= 5e-7,
    )


def offsets(width: int) -> dict[str, Any]:
    """The dot product of two encodings is the sum of cos ω_i k, wherever the first one stands."""
    k = np.arange(513)
    curve = np.asarray(pe.offset_similarity(k, width), np.float64)
    worst = 0.0
    for start in (0, 1000, 1_000_000, 2**31 - 1 - 512):
        encodings = np.asarray(pe.sinusoidal((start + k).astype(np.int32), width), np.float64)
        worst = max(worst, np.abs(encodings @ encodings[0] - curve).max())
    limit = 2e-7 * width  # each of the d products within 2e-7
    return check(
        "PE(p) · PE(p + k) is the same from p = 0, 1000, 10⁶ and 2³¹ − 513, for k from 0 to 512",
        f"largest difference {tens(worst)}, at most {tens(limit)}",
        worst,
        worst <= limit,
    )


def precision(width: int) -> list[dict[str, Any]]:
    """The encoding is right far out, where float32 phases are not."""
    found = []
    for label, position in {"10⁶": 10**6, "2³¹ − 1": 2**31 - 1}.items():
        exact = truth([position], width)
        ours = np.abs(np.asarray(pe.sinusoidal(np.array([position], np.int32), width)) - exact).max()
        usual = np.abs(textbook(position, width) - exact).max()
        figure = f"largest error {tens(ours)}, at most 9·10⁻⁸; the usual float32 formula: {usual:#.2g}"
        found.append(check(f"The encoding of position {label}", figure, ours, ours <= 9e-8))
        found[-1]["float32_formula"] = float(usual)
    return found


def scores(head_dim: int, seed: int) -> dict[str, Any]:
    """The score of a rotated query and a rotated key does not depend on where the two stand, but on how far apart."""
    query, key = jax.random.normal(jax.random.key(seed), (2, 512, head_dim))
    lengths = np.linalg.norm(query, axis=-1)[:, None] * np.linalg.norm(key, axis=-1)

    def difference(rotate: Callable) -> float:
        near, far = (
            np.asarray(rotate(query, positions), np.float64) @ np.asarray(rotate(key, positions), np.float64).T
            for positions in (np.arange(start, start + 512, dtype=np.int32) for start in (3, 2_000_000_000))
        )
        return (np.abs(far - near) / lengths).max()

    ours = difference(lambda x, positions: pe.rotary(x, positions, head_axis=None))
    usual = difference(textbook_rotary)
    found = check(
        "Rotary scores of 512 queries and 512 keys are the same from position 3 and from 2,000,000,000",
        f"largest difference {tens(ours)} of |q||k|, at most 1.2·10⁻⁶; the usual float32 formula: {usual:#.2g}",
        ours,
        ours <= 1.2e-6,  # each of the four vectors within 3e-7 of its length
    )
    return found | {"float32_formula": float(usual)}


def decoding(head_dim: int, seed: int) -> dict[str, Any]:
    """Keys that are rotated one by one, as in generation, are those of the whole sequence."""
    keys = jax.random.normal(jax.random.key(seed), (2, 64, 4, head_dim))
    different = 0
    for start in (0, 2_000_000_000):
        positions = np.arange(start, start + 64, dtype=np.int32)
        whole = pe.rotary(keys, positions, head_axis=-2)
        steps = [pe.rotary(keys[:, i : i + 1], positions[i : i + 1], head_axis=-2) for i in range(64)]
        different += int((np.asarray(whole).view(np.int32) != np.concatenate(steps, axis=1).view(np.int32)).sum())
    return check(
        "Rotary decode steps, one position each, give the same bits as the whole sequence",
        f"{different} of {2 * keys.size:,} numbers differ, none may",
        different,
        different == 0,
    )


def buckets() -> dict[str, Any]:
    """The bucket of a distance in T5's bias is the one of the definition, also where a bucket begins."""
    distances, different, usual = np.arange(100_001), 0, 0
    for count, furthest in ((32, 128), (48, 81)):
        near = np.array([bucket(d, count, furthest) for d in range(furthest)])
        right = np.concatenate([near, np.full(distances.size - furthest, count - 1)])
        table = jnp.arange(count, dtype=jnp.float32)[:, None]
        found = pe.t5(np.zeros(1, int), -distances, table, bidirectional=False, max_distance=furthest)
        different += int((np.asarray(found)[0, 0] != right).sum())
        usual += int((textbook_bucket(distances, count, furthest) != right).sum())
    found = check(
        "T5’s buckets at distances 0 to 100,000 are those of the definition, for 32 of them up to 128 and 48 up to 81",
        f"{different} distances differ, none may; with the usual float32 logarithm: {usual}",
        different,
        different == 0,
    )
    return found | {"float32_formula": usual}


def bucket(distance: int, count: int, furthest: int) -> int:
    """For distances below the furthest: ln(d/e) / ln(max/e) · steps ≥ k is d^steps · e^k ≥ max^k · e^steps."""
    exact = count // 2
    steps = count - exact
    log = (distance**steps * exact**k >= furthest**k * exact**steps for k in range(1, steps))
    return distance if distance < exact else exact + sum(log)


def textbook_bucket(distances: Any, count: int, furthest: int) -> np.ndarray:
    """The buckets as they are usually computed, with a logarithm in float32."""
    exact = count // 2
    scaled = jnp.log(jnp.asarray(distances, jnp.float32) / exact) / math.log(furthest / exact) * (count - exact)
    log = exact + np.asarray(jnp.maximum(scaled, 0)).astype(int)
    return np.where(distances < exact, distances, np.minimum(log, count - 1))


def tiles(seed: int) -> dict[str, Any]:
    """A tile of a bias that depends on distances alone is the same wherever it lies."""
    low, high = np.arange(256, dtype=np.int32), np.arange(2**31 - 256, 2**31).astype(np.int32)
    table, (p, a) = jax.random.normal(jax.random.key(seed), (32, 4)), jnp.array([[0.5, 1, 1.5, 2], [0.1, 0.3, 0.6, 1]])
    biases = [lambda i, j: pe.alibi(i, j, 4), lambda i, j: pe.t5(i, j, table), lambda i, j: pe.kerple_log(i, j, p, a)]

    def differ(f: Callable, there: np.ndarray) -> int:
        return int((np.asarray(f(low, low)).view(np.int32) != np.asarray(f(there, there)).view(np.int32)).sum())

    different = sum(differ(f, high) for f in biases)
    slopes = jnp.array([-0.25, -0.0625, -0.015625, -0.00390625])[:, None, None]
    usual = differ(lambda i, j: slopes * jnp.abs(jnp.float32(i)[:, None] - jnp.float32(j)), high)
    found = check(
        "The biases of ALiBi, T5 and KERPLE at positions up to 2³¹ − 1 have the bits of those from 0 on",
        f"{different} of {3 * 4 * 256 * 256:,} numbers differ, none may; ALiBi with positions in float32: {usual:,}",
        different,
        different == 0,
    )
    return found | {"float32_formula": usual}


def blocks(head_dim: int, seed: int) -> dict[str, Any]:
    """Attention in blocks, which never has the whole bias, is attention with the whole bias."""
    length, heads, block = 200, 8, 64
    q, k, v = jax.random.normal(jax.random.key(seed), (3, length, heads, head_dim))

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return pe.attention(q, k, v, bias=lambda i, j: pe.alibi(i, j, heads), causal=True, block_size=block)

    with_bias = np.asarray(jax.jit(attend)(q, k, v))
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    distance = np.arange(length)[:, None] - np.arange(length)
    bias = -(2.0 ** -np.arange(1, heads + 1))[:, None, None] * distance
    weights = np.exp(np.einsum("ihd,jhd->hij", q, k) / head_dim**0.5 + np.where(distance < 0, -np.inf, bias))
    exact = np.einsum("hij,jhd->ihd", weights / weights.sum(axis=-1, keepdims=True), v)
    worst = np.abs(with_bias - exact).max()
    return check(
        f"Attention in blocks of {block} with ALiBi is that in float64 with the whole bias, {length} queries and keys",
        f"largest difference {tens(worst)}, at most 2·10⁻⁶",
        worst,
        worst <= 2e-6,
    )
