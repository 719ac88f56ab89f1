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

from posenc_jax import _check
from posenc_jax._distance import difference
from posenc_jax._phase import product
from posenc_jax._turn import Settings, turn
from posenc_jax.frequencies import Frequencies, Layout, dim_of
from posenc_jax.rotary import inputs, placed

# 2^f for 0 ≤ f < 1 is Σ cᵢ fⁱ within 1.4e-8 of its value; all coefficients are positive.
_EXP2 = tuple(np.float32(c) for c in (1, 0.69314706, 0.24022931, 0.05548528, 0.0096754516, 0.0012467846, 0.00021612915))


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
    where = "xpos"
    scale_base, gamma = _check.positive(where, "scale_base", scale_base), _check.positive(where, "gamma", gamma)
    steepest = -math.log2(gamma / (1 + gamma)) / scale_base  # of j = 0
    if steepest * 2**32 > float(np.finfo(np.float32).max):
        message = f"give exponents at a distance of 2³² that fit into float32, got {scale_base} and {gamma}"
        raise ValueError(f"{where}: scale_base and gamma must {message}")
    key_name = "positions" if key_positions is None else "key_positions"
    key_positions = positions if key_positions is None else key_positions
    arguments = (
        (inputs(where, query, positions, frequencies, layout, head_axis, "first", "query"), 1),
        (inputs(where, key, key_positions, frequencies, layout, head_axis, "first", "key", key_name), -1),
    )
    for (_, _, spectrum, _), _ in arguments:
        if isinstance(spectrum, Frequencies) and spectrum.num_axes > 1:
            raise ValueError(f"{where}: frequencies must have one axis, got {spectrum.num_axes}")
    origin = jnp.asarray(_check.array(where, "origin", origin))
    if origin.ndim:
        raise ValueError(f"{where}: origin must be a scalar, got shape {origin.shape}")
    settings = {"scale_base": scale_base, "gamma": gamma, "layout": layout}
    turned_query, turned_key = (
        _xpos(x, positions, spectrum, origin, head_axis=axis, sign=sign, **settings)
        for (x, positions, spectrum, axis), sign in arguments
    )
    return turned_query, turned_key


@functools.partial(jax.jit, static_argnames=("head_axis", "sign", "scale_base", "gamma", "layout"), inline=True)
def _xpos(x, positions, frequencies, origin, *, head_axis, sign, scale_base, gamma, layout):
    positions, inside, dim = placed(x, positions, head_axis), _check.inside(x), dim_of(frequencies)
    n = dim // 2
    decays = [sign * math.log2((j / n + gamma) / (1 + gamma)) / scale_base for j in range(n)]
    columns = np.repeat(decays, 2) if layout == "interleaved" else np.tile(decays, 2)
    columns = np.pad(columns, (0, x.shape[-1] - dim)).astype(np.float32)
    distance = _distance(positions, origin)
    turned: Any = turn(Settings(layout, result=np.dtype(inside)), x, positions, frequencies)
    return _scaled(turned, distance, _check.align(columns, x.ndim)).astype(x.dtype)


def _distance(positions, origin):
    """How far positions are from the origin, in float32: of integers, or of what is nearest to floats, rounded once."""
    (whole, rest), (start, less) = (_whole(x) for x in (positions, origin))
    apart, before = difference(whole, start)
    apart = apart.astype(jnp.float32)
    return jnp.where(before, -apart, apart) + (rest - less)


def _whole(x):
    """An int32 and what is left; where that wraps, the waves are NaN already."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x.astype(jnp.int32), np.float32(0)
    nearest = jnp.round(x)
    return nearest.astype(jnp.int32), (x - nearest).astype(jnp.float32)


@jax.checkpoint  # else scales of x's size are kept for the derivative
def _scaled(x, distance, decays):
    scale = _exp2(product(distance, decays))
    return x * scale.astype(x.dtype)


def _exp2(x):
    """2^x in float32, the same bits in every program (as in `_phase`, no product meets an addition)."""
    whole = jnp.floor(x)
    f = x - whole
    y = jnp.full_like(f, _EXP2[-1])
    for c in _EXP2[-2::-1]:
        y = jnp.abs(f * y) + c  # positive, so that |a·b| is the product
    power = (jnp.clip(whole, -127, 128).astype(jnp.int32) + 127) << 23  # the bits of 2^whole, of 0 and of ∞
    return y * lax.bitcast_convert_type(power, jnp.float32)
