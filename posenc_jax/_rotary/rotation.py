r"""Pairs of features, the formula that rotates them, and a rotation as one value, which its lowerings read.

With $c = a\cos\omega p$ and $s = a\sin\omega p$ for the frequency of a pair and the position of a vector, the forward
rotation is

$$y_1 = x_1 c - x_2 s, \qquad y_2 = x_2 c + x_1 s$$

and the backward rotation uses $-s$.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._frequencies.angles import Angles, SinCosTable, features, is_shared, pair_sines
from posenc_jax._jax import sharding, workarounds
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.workarounds import Target


class RotationSettings(NamedTuple):
    """Which features of x form pairs, and in which direction they rotate."""

    layout: Layout
    last: bool = False  # whether the last features rotate instead of the first
    backward: bool = False
    batch: int = 0  # how many leading axes `jax.vmap` added
    result: np.dtype | None = None  # the dtype of the result; None for the dtype of x


def rotate_members(
    x1: jax.Array, x2: jax.Array, sin_cos: Sequence[jax.Array], target: Target, *, backward: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The formula: rotates the first and the second members of pairs by sines and cosines."""
    sine, cosine = (each.astype(x1.dtype) for each in sin_cos)
    # Backward, the sine changes its sign; a GPU's compiler would store a negated sine beside the table.
    add, subtract = (lax.sub, lax.add) if backward else (lax.add, lax.sub)
    y1 = subtract(target.product(x1, cosine), target.product(x2, sine))
    y2 = add(target.product(x2, cosine), target.product(x1, sine))
    return y1, y2


def two_products(x: jax.Array, partner: jax.Array, cosine: jax.Array, sine: jax.Array, target: Target) -> jax.Array:
    """The formula for either member of a pair and its partner; the sine of first members is negated."""
    return target.product(x, cosine) + target.product(partner, sine)


def is_second(layout: Layout, dim: int) -> np.ndarray:
    """Whether a feature is the second of its pair, (dim,)."""
    index = np.arange(dim)
    return (index % 2 if layout == "interleaved" else index // (dim // 2)) == 1


def split(x: jax.Array, layout: Layout, *, keepdims: bool = False) -> tuple[jax.Array, jax.Array]:
    """The first and the second feature of each pair, in the compute dtype; with `keepdims`, behind an axis of one."""
    axis, shape = (x.ndim - 1, (2, x.shape[-1] // 2)) if layout == "half" else (x.ndim, (x.shape[-1] // 2, 2))
    pairs = x.reshape(*x.shape[:-1], *shape)
    first, second = (lax.index_in_dim(pairs, i, axis, keepdims).astype(compute_dtype(x)) for i in range(2))
    return first, second


@dataclasses.dataclass(frozen=True)
class Rotation:
    """The rotation of x by angles, and what decides about its lowering. It holds tracers, so it ends with their trace.

    x and the angles have one rank, and their leading axes broadcast. `broadcast` comes before a lowering; the rules of
    derivatives use x as it is.
    """

    settings: RotationSettings
    x: jax.Array  # (..., features)
    angles: Angles | SinCosTable
    target: Target = workarounds.CPU

    def broadcast(self) -> Rotation:
        """The rotation of x broadcast to the leading axes of the angles."""
        arrays = self.x, *jax.tree.leaves(self.angles)
        rows = jnp.broadcast_shapes(*(array.shape[:-1] for array in arrays))
        x = sharding.agreeing((jnp.broadcast_to(self.x, (*rows, self.width)), *arrays[1:]))[0]
        return dataclasses.replace(self, x=x)

    @property
    def width(self) -> int:
        """The number of features of x."""
        return self.x.shape[-1]

    @property
    def dim(self) -> int:
        """The number of features that rotate."""
        return self.angles.dim

    @property
    def margin(self) -> tuple[int, int]:
        """The number of features before and after those that rotate."""
        rest = self.width - self.dim
        return (rest, 0) if self.settings.last else (0, rest)

    @property
    def dtype(self) -> np.dtype:
        """The dtype in which products and sums are computed."""
        return np.dtype(compute_dtype(self.x))

    def result(self, y: jax.Array) -> jax.Array:
        """y, rounded to the dtype of the result."""
        return y.astype(self.settings.result or self.x.dtype)

    # Features, of x's rank

    @property
    def rotates(self) -> np.ndarray:
        """Whether each feature rotates. Lowerings select x where it does not: it must pass with its bits."""
        return align(np.pad(np.ones(self.dim, bool), self.margin), self.x.ndim)

    @property
    def signs(self) -> np.ndarray:
        """The sign of each feature's partner, −1 and 1 for a pair, or 1 and −1 for a backward rotation."""
        sign = np.where(is_second(self.settings.layout, self.dim) != self.settings.backward, 1, -1)
        return align(np.pad(sign, self.margin), self.x.ndim)

    def partners(self) -> jax.Array:
        """The partner of each feature that rotates, from two padded reads and a select."""
        layout, unpadded = self.settings.layout, [(0, 0, 0)] * (self.x.ndim - 1)
        distance = self.dim // 2 if layout == "half" else 1
        # Feature i − offset of x at i
        before, after = (
            lax.pad(self.x, np.zeros((), self.x.dtype), [*unpadded, (offset, -offset, 0)])
            for offset in (distance, -distance)
        )
        return jnp.where(align(np.pad(is_second(layout, self.dim), self.margin), self.x.ndim), before, after)

    # Sines and cosines

    def sin_cos(self, *, stored: bool = False) -> list[jax.Array]:
        """The sines and the cosines, each (..., pairs); the compiler is told to store what vectors share."""
        if isinstance(self.angles, SinCosTable):
            return jnp.split(self.angles.table, 2, axis=-1)
        if stored and self.shares_table:
            return jnp.split(self.target.stored(features(self.angles, "half")), 2, axis=-1)
        return [pair_sines(self.angles, quarter) for quarter in np.arange(2, dtype=np.int32)]

    def sin_cos_of_all_pairs(self) -> list[jax.Array]:
        """`sin_cos`, stored, with zeros for the pairs of interleaved features that do not rotate."""
        around = [(0, 0, 0)] * (self.x.ndim - 1) + [(self.margin[0] // 2, self.margin[1] // 2, 0)]
        return [lax.pad(each, np.zeros((), each.dtype), around) for each in self.sin_cos(stored=True)]

    # What decides about the lowering

    @property
    def shares_table(self) -> bool:
        """Whether a table of sines and cosines pays: at least four vectors share each of its rows."""
        return is_shared(self.x, self.angles)

    @property
    def is_narrow(self) -> bool:
        """Whether x is in 16 bits or fewer, and products and sums are not."""
        return self.x.dtype != self.dtype

    @property
    def is_half(self) -> bool:
        """Whether the layout is that of halves."""
        return self.settings.layout == "half"

    @property
    def rotates_all(self) -> bool:
        """Whether all features rotate."""
        return self.width == self.dim

    @property
    def has_adjacent_pairs(self) -> bool:
        """Whether features are interleaved and even in number."""
        return not self.is_half and self.width % 2 == 0

    @property
    def num_slices(self) -> float:
        """Into how many equal slices x is cut so that no slice holds both members of a pair."""
        if self.is_half:
            return self.width // math.gcd(self.dim // 2, self.width)
        return 2 if self.has_adjacent_pairs else math.inf

    @property
    def has_32_bit_pairs(self) -> bool:
        """Whether each pair is 32 adjacent bits, in x and in the result."""
        return self.has_adjacent_pairs and self.x.dtype.itemsize == 2 and self.settings.result in (None, self.x.dtype)

    @property
    def fills_tpu_lanes(self) -> bool:
        """Whether a TPU puts positions on the 128 lanes of its registers, and the halves of x in different ones."""
        has_128_positions = any(isinstance(n, int) and n >= 128 for n in self.angles[0].shape[:-1])
        return self.is_half and self.width < 128 and self.width % 16 == 0 and has_128_positions

    @property
    def loops_over_pairs(self) -> bool:
        """Whether XLA:CPU can loop over pairs by themselves, without storing more than a table."""
        stores_a_table_at_most = self.shares_table or not workarounds.unit_axes(self.x, self.settings.batch)
        return workarounds.KEEPS_BARRIERS and stores_a_table_at_most
