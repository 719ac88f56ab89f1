r"""Rotary embeddings whose scores decay with the distance (xPos)."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from posenc_jax import _arguments, _checks
from posenc_jax._arrays import align, compute_dtype
from posenc_jax._checks import public, require
from posenc_jax._distance import difference
from posenc_jax._frequencies import Frequencies, Layout, dim_of, one_axis
from posenc_jax._rotary import placed
from posenc_jax._turn import TurnSettings, turn
from posenc_jax._xla import product

# 2^f for 0 ≤ f < 1 is Σ cᵢ fⁱ within 1.4e-8 of its value. All coefficients are positive.
_EXP2 = tuple(np.float32(c) for c in (1, 0.69314706, 0.24022931, 0.05548528, 0.0096754516, 0.0012467846, 0.00021612915))


@public
def xpos(
    query: ArrayLike,
    key: ArrayLike,
    positions: ArrayLike | None = None,
    frequencies: Frequencies | int | jax.Array | None = None,
    *,
    key_positions: ArrayLike | None = None,
    origin: ArrayLike = 0,
    scale_base: float = 512.0,
    gamma: float = 0.4,
    layout: Layout = "half",
    head_axis: int | None = -2,
) -> tuple[jax.Array, jax.Array]:
    r"""Rotary embedding with a decay: the scores of queries at $p$ and keys at $q$ shrink as $p - q$ grows.

    Pair $j$ of $n$ is turned as by `rotary`, and scaled by $\zeta_j^{(p - o)/b}$ in queries and $\zeta_j^{-(q - o)/b}$
    in keys, with

    $$\zeta_j = \frac{j/n + \gamma}{1 + \gamma}$$

    so that their product carries $\zeta_j^{(p - q)/b}$: the origin $o$ drops out, and keys in a cache fit all later
    queries. It is for causal attention, $p \ge q$.

    Float32 holds the scales within $|p - o| \le 88\,b/\ln(1/\zeta_0)$ of the origin, 36,000 by default. Beyond, the
    scale of a query or key becomes infinite and that of the other zero: choose an origin near the window that attends.

    Args:
      query: floats of shape (..., seq, heads, head_dim).
      key: floats of such a shape, possibly of another length and number of heads.
      positions: of the queries, and of the keys unless `key_positions` are given; as for `rotary`, of one coordinate.
      frequencies: as for `rotary`, of one axis. Features beyond their width are neither turned nor scaled.
      key_positions: of the keys.
      origin: the position of scale 1, an integer or float scalar.
      scale_base: $b$, positions for a decay by $\zeta_j$.
      gamma: $\gamma$, positive; the smaller, the steeper.
      layout: as for `rotary`.
      head_axis: as for `rotary`.

    Returns:
      The rotated and scaled query and key, of their shapes and dtypes. The scale is right to 2e-5 of its value.
      Differentiable in reverse mode, as `rotary` is.

    Raises:
      TypeError: as `rotary`; if a setting is not a number.
      ValueError: as `rotary`; if the frequencies have several axes, scale_base or gamma is not positive, or
        together they give exponents beyond float32.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> x = jnp.ones((1, 600, 2, 64))
      >>> query, key = pe.xpos(x, x)
      >>> near, far = (jnp.vdot(query[0, 599, 0], key[0, i, 0]) for i in (598, 0))
      >>> bool(far < near)
      True

    Reference:
      Sun et al., "A Length-Extrapolatable Transformer", 2022, section 2.2; the origin is fixed where the authors' code
      takes the middle of the call's length.
    """
    scale_base, gamma = _rate(scale_base, gamma)
    spelled = {"layout": layout, "head_axis": head_axis}
    queries = _arguments.rotated(query, positions, frequencies, **spelled, name="query")
    name = "positions" if key_positions is None else "key_positions"
    key_positions = positions if key_positions is None else key_positions
    keys = _arguments.rotated(key, key_positions, frequencies, **spelled, name="key", positions_name=name)
    one_axis(queries[2])
    origin = _checks.zero_dimensional("origin", jnp.asarray(_checks.array("origin", origin)))
    settings = {"scale_base": scale_base, "gamma": gamma, "layout": layout}
    turned_query, turned_key = (
        _xpos(x, positions, spectrum, origin, head_axis=axis, sign=sign, **settings)
        for (x, positions, spectrum, axis), sign in ((queries, 1), (keys, -1))
    )
    return turned_query, turned_key


def _rate(scale_base: Any, gamma: Any) -> tuple[float, float]:
    """Both as positive numbers that give no exponent beyond float32."""
    scale_base, gamma = _checks.positive("scale_base", scale_base), _checks.positive("gamma", gamma)
    steepest = -math.log2(gamma / (1 + gamma)) / scale_base  # of j = 0
    fits = steepest * 2**32 <= float(np.finfo(np.float32).max)
    message = "scale_base and gamma must give exponents at a distance of 2³² that fit into float32, got {} and {}"
    require(fits, message, scale_base, gamma)
    return scale_base, gamma


@functools.partial(jax.jit, static_argnames=("head_axis", "sign", "scale_base", "gamma", "layout"), inline=True)
def _xpos(
    x: jax.Array,
    positions: jax.Array | None,
    frequencies: Frequencies | jax.Array,
    origin: jax.Array,
    *,
    head_axis: int | None,
    sign: int,
    scale_base: float,
    gamma: float,
    layout: Layout,
) -> jax.Array:
    positions, inside, dim = placed(x, positions, head_axis), compute_dtype(x), dim_of(frequencies)
    n = dim // 2
    decays = [sign * math.log2((j / n + gamma) / (1 + gamma)) / scale_base for j in range(n)]
    columns = np.repeat(decays, 2) if layout == "interleaved" else np.tile(decays, 2)
    columns = np.pad(columns, (0, x.shape[-1] - dim)).astype(np.float32)
    distance = _distance(positions, origin)
    turned: Any = turn(TurnSettings(layout, result=np.dtype(inside)), x, positions, frequencies)
    return _scaled(turned, distance, align(columns, x.ndim)).astype(x.dtype)


def _distance(positions: jax.Array, origin: jax.Array) -> jax.Array:
    """The signed distance of positions from the origin in float32; that of their integer parts is rounded once."""
    (nearest, rest), (start, less) = (_integer_part(x) for x in (positions, origin))
    apart, before = difference(nearest, start)
    apart = apart.astype(jnp.float32)
    return jnp.where(before, -apart, apart) + (rest - less)


def _integer_part(x: jax.Array) -> tuple[Any, Any]:
    """The nearest int32 and the rest. Where that wraps, the waves are NaN already."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x.astype(jnp.int32), np.float32(0)
    nearest = jnp.round(x)
    return nearest.astype(jnp.int32), (x - nearest).astype(jnp.float32)


@jax.checkpoint  # the derivative would otherwise keep scales of x's size
def _scaled(x: jax.Array, distance: jax.Array, decays: Any) -> jax.Array:
    scale = _exp2(product(distance, decays))
    return x * scale.astype(x.dtype)


def _exp2(x: jax.Array) -> jax.Array:
    """2^x in float32 with the same bits in every program (see `_xla.rounded_product`)."""
    floor = jnp.floor(x)
    f = x - floor
    y = jnp.full_like(f, _EXP2[-1])
    for c in _EXP2[-2::-1]:
        y = jnp.abs(f * y) + c  # positive, so |a·b| is the product
    power = (jnp.clip(floor, -127, 128).astype(jnp.int32) + 127) << 23  # the bits of 2^floor, of 0 and of ∞
    return y * lax.bitcast_convert_type(power, jnp.float32)
