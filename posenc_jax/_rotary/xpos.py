r"""xPos: rotary embeddings whose scores decay with distance."""

from __future__ import annotations

import math
from types import NoneType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from posenc_jax._frequencies.angles import Angles
from posenc_jax._frequencies.frequencies import AnyFrequencies, Frequencies
from posenc_jax._frequencies.parser import dim_of, one_axis
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.calls import parsed_once
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import invalid, public
from posenc_jax._jax.workarounds import compiled, positive_product, product
from posenc_jax._numerics.distances import difference
from posenc_jax._rotary.parser import parse_rotary
from posenc_jax._rotary.primitive import apply_rotation
from posenc_jax._rotary.rotary import expand_positions
from posenc_jax._rotary.rotation import RotationSettings

# 2^f = Σ cᵢ fⁱ for 0 ≤ f < 1, to a relative error of 1.2e-8 (`benchmarks/fits.py`). All coefficients are positive.
_EXP2 = tuple(np.float32(c) for c in (1, 0.69314706, 0.24022931, 0.05548528, 0.0096754516, 0.0012467846, 0.00021612915))


@public
@parsed_once(
    integers=["positions", "key_positions"],
    frequencies=(Frequencies, int, NoneType),
    head_axis=(int, tuple, NoneType),
    scale_base=(int, float),
    gamma=(int, float),
    layout=(str,),
)
def xpos(
    query: ArrayLike,
    key: ArrayLike,
    positions: ArrayLike | None = None,
    frequencies: Frequencies | int | jax.Array | None = None,
    *,
    head_axis: int | tuple[int, ...] | None,
    key_positions: ArrayLike | None = None,
    origin: ArrayLike = 0,
    scale_base: float = 512.0,
    gamma: float = 0.4,
    layout: Layout = "half",
) -> tuple[jax.Array, jax.Array]:
    r"""Rotary embedding with decay (xPos): the score of a query at $p$ and a key at $q$ shrinks as $p - q$ grows.

    Pair $j$ of $n$ is rotated as in `rotary`. In queries it is then multiplied by $\zeta_j^{(p - o)/b}$, and in keys by
    $\zeta_j^{-(q - o)/b}$, where

    $$\zeta_j = \frac{j/n + \gamma}{1 + \gamma}$$

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> x = jnp.ones((1, 600, 2, 64))
      >>> query, key = pe.xpos(x, x, head_axis=-2)
      >>> near, far = (jnp.vdot(query[0, 599, 0], key[0, i, 0]) for i in (598, 0))
      >>> bool(far < near)
      True

    Args:
      query: float array of shape (..., seq, heads, head_dim).
      key: float array with the same axes; its length and its number of heads may differ.
      positions: positions of the queries, and of the keys too unless `key_positions` are given. Integer or float32
        array that broadcasts to (..., seq); `None` means 0, 1, 2, ….
      frequencies: `Frequencies`, a width or a float array, with a single axis; see `rotary`. Features beyond the width
        are neither rotated nor scaled.
      key_positions: positions of the keys.
      origin: $o$, the position at which the scale is 1, an integer or float32 scalar.
      scale_base: $b$, the number of positions over which pair $j$ decays by the factor $\zeta_j$.
      gamma: $\gamma$, positive. A smaller value gives a steeper decay.
      layout: "half" or "interleaved"; see `rotary`.
      head_axis: the axis of the heads; see `rotary`.

    Returns:
      The rotated and scaled query and key, with their shapes and dtypes. The scale has a relative error of at most
      2e-5. Differentiable, like `rotary`.

    Raises:
      TypeError: if a setting is not a number, or for the same reasons as in `rotary`.
      ValueError: if the frequencies have several axes, if scale_base or gamma is not positive, if together they give
        exponents beyond float32, or for the same reasons as in `rotary`.

    Notes:
      - In a score, both scales multiply to $\zeta_j^{(p - q)/b}$. The origin cancels, so cached keys stay valid for all
        later queries. xPos is for causal attention, $p \ge q$.
      - The scales fit into float32 for $|p - o| \le 88\,b/\ln(1/\zeta_0)$: by default, within 36,000 positions of the
        origin. Farther away, one of the two scales becomes infinite and the other becomes zero. For longer sequences,
        choose an origin near the tokens that attend to each other.

    Reference:
      Sun et al., "A Length-Extrapolatable Transformer", 2023, section 2.2. The origin is fixed here; the authors' code
      uses the middle of each call's sequence.
    """
    scale_base, gamma = _checked_decay(scale_base, gamma)
    queries = parse_rotary(query, positions, frequencies, layout, head_axis, name="query")
    name = "positions" if key_positions is None else "key_positions"
    key_positions = positions if key_positions is None else key_positions
    keys = parse_rotary(key, key_positions, frequencies, layout, head_axis, name="key", positions_name=name)
    one_axis(queries[2])
    origin = checks.zero_dimensional("origin", origin)
    settings = {"scale_base": scale_base, "gamma": gamma, "layout": layout}
    rotated_query, rotated_key = (
        _xpos(x, positions, frequencies, origin, heads=heads, sign=sign, **settings)
        for (x, positions, frequencies, heads), sign in ((queries, 1), (keys, -1))
    )
    return rotated_query, rotated_key


def _checked_decay(scale_base: Any, gamma: Any) -> tuple[float, float]:
    """Checks that both are positive and that all exponents fit into float32."""
    scale_base, gamma = checks.positive("scale_base", scale_base), checks.positive("gamma", gamma)
    steepest = -math.log2(gamma / (1 + gamma)) / scale_base  # pair 0
    if steepest * 2**32 > float(np.finfo(np.float32).max):
        message = "scale_base and gamma must give exponents at a distance of 2³² that fit into float32"
        raise invalid(f"{message}, got {scale_base} and {gamma}")
    return scale_base, gamma


@compiled("xpos", static_argnames=("heads", "sign", "scale_base", "gamma", "layout"))
def _xpos(
    x: jax.Array,
    positions: jax.Array | None,
    frequencies: AnyFrequencies,
    origin: jax.Array,
    *,
    heads: tuple[int, ...],
    sign: int,
    scale_base: float,
    gamma: float,
    layout: Layout,
) -> jax.Array:
    angles, dim = Angles(expand_positions(x, positions, heads), frequencies), dim_of(frequencies)
    if not dim:
        return apply_rotation(RotationSettings(layout), x, angles)
    n = dim // 2
    decays = [sign * math.log2((j / n + gamma) / (1 + gamma)) / scale_base for j in range(n)]
    columns = np.repeat(decays, 2) if layout == "interleaved" else np.tile(decays, 2)
    columns = np.pad(columns, (0, x.shape[-1] - dim)).astype(np.float32)
    distance = _distance(angles.positions, origin)
    rotated: Any = apply_rotation(RotationSettings(layout, result=np.dtype(compute_dtype(x))), x, angles)
    return _scaled(rotated, distance, align(columns, x.ndim)).astype(x.dtype)


def _distance(positions: jax.Array, origin: jax.Array) -> jax.Array:
    """The signed distance from the origin in float32; integer parts are subtracted exactly and rounded once."""
    (nearest, rest), (nearest_origin, rest_of_origin) = (_integer_part(x) for x in (positions, origin))
    distance, negative = difference(nearest, nearest_origin)
    distance = distance.astype(jnp.float32)
    return jnp.where(negative, -distance, distance) + (rest - rest_of_origin)


def _integer_part(x: jax.Array) -> tuple[Any, Any]:
    """The nearest int32 and the rest. Where the cast wraps, sines and cosines are already NaN."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x.astype(jnp.int32), np.float32(0)
    nearest = jnp.round(x)
    return nearest.astype(jnp.int32), (x - nearest).astype(jnp.float32)


@jax.checkpoint  # otherwise the backward pass would store scales of x's size
def _scaled(x: jax.Array, distance: jax.Array, decays: Any) -> jax.Array:
    scale = _exp2(product(distance, decays))
    return x * scale.astype(x.dtype)


def _exp2(x: jax.Array) -> jax.Array:
    """2^x in float32."""
    floor = jnp.floor(x)
    f = x - floor
    y = jnp.full_like(f, _EXP2[-1])
    for c in _EXP2[-2::-1]:
        y = positive_product(f, y) + c
    power = (jnp.clip(floor, -127, 128).astype(jnp.int32) + 127) << 23  # the bits of 2^floor; 0 or ∞ out of range
    return y * lax.bitcast_convert_type(power, jnp.float32)
