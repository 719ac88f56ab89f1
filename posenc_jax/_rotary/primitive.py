r"""A rotation as one linear operation, with its derivative and its transpose, for `rotary`, `xpos` and `shift`.

`rotation` has the formula. With the amplitude $a$ and the angles $\theta = \omega p$ of the pairs, it is

$$y = a\,R(\theta)\,x,$$

linear in $x$; its transpose $a\,R(-\theta)$ is the same rotation backward. Let $J$ be the rotation by 90°, which takes
a pair $(x_1, x_2)$ to $(-x_2, x_1)$. The derivative

$$dy = a\,R(\theta)\,(dx + Jx\,d\theta), \qquad d\theta = \omega\,dp + p\,d\omega,$$

is linear in $dx$, $dp$ and $d\omega$. Its transpose takes the cotangent $\bar y$, with $g = a\,R(-\theta)\,\bar y$, to

$$\bar x = g, \qquad \bar\theta = g \cdot Jx = g_2 x_1 - g_1 x_2, \qquad \bar p = \sum \omega\,\bar\theta, \qquad
  \bar\omega = \sum p\,\bar\theta.$$

A backward rotation has $-\theta$ for $\theta$, and therefore $-J$ for $J$.

The derivative of the derivative is that of its program, `_rotate_tangent`, which ends in a rotation again.

The rotation and its derivative are primitives of JAX, because `jax.custom_vjp` has no forward mode, and derivatives of
the formula itself store sines and cosines for every feature of x. Both have forward and reverse mode, in any order. The
derivative in x alone stores only what the angles are made of.

The operands are x and the arrays of its `Angles`, with $\theta = \sum \omega_c p_c$ over the axes. They have one rank,
and their leading axes broadcast, so `jax.vmap` adds an axis to each and repeats nothing. The parameter `structure`
says how they make up the angles, and holds static frequencies.

A rotation by `SinCosTable` is linear in them too: its derivative is $dy = R(w)\,dx + R(dw)\,x$, and its transpose takes
$\bar y$ to $\bar s = \bar y_2 x_1 - \bar y_1 x_2$ and $\bar c = \bar y_1 x_1 + \bar y_2 x_2$.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax._frequencies.angles import Angles, SinCosTable, coordinates, expand
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._jax import sharding, workarounds
from posenc_jax._jax.arrays import align
from posenc_jax._jax.bilinear import bilinear_jvp, bind, broadcast_axes, broadcasting_primitive, sum_to
from posenc_jax._jax.primitives import optional_tangents, set_jvp, set_transpose, unknown
from posenc_jax._rotary.lowerings import lowering_of
from posenc_jax._rotary.rotation import Rotation, RotationSettings, split


class _ByOperand(NamedTuple):
    """Something of each operand of a rotation by `Angles`, such as its tangent; None where there is none."""

    x: Any = None
    positions: Any = None
    frequencies: Any = None  # None if they are static


def apply_rotation(settings: RotationSettings, x: jax.Array, angles: Angles | SinCosTable) -> jax.Array:
    """Rotates the pairs of x (..., features) by angles, whose arrays have x's rank and broadcast to it.

    A width of 0 rotates nothing, and gives x the sharding that a rotation gives it.
    """
    arrays, structure = jax.tree.flatten(angles)
    operands = sharding.agreeing([x, *(align(array, x.ndim) for array in arrays)])
    if not angles.dim:
        return operands[0].astype(settings.result or x.dtype)
    return _rotation.bind(*operands, settings=settings, structure=structure)


def _program(platform: str, x: Any, *arrays: Any, settings: RotationSettings, structure: Any) -> jax.Array:
    """a·R(θ)x, by the lowering that the platform takes."""
    r = Rotation(settings, x, structure.unflatten(arrays), workarounds.TARGETS[platform]).broadcast()
    return lowering_of(platform, r)(r)


# The derivative, whose operands are those of the rotation and then the tangents of those that have one


@workarounds.compiled("rotation_derivative", static_argnames=("settings", "structure", "has_tangent"))
def _rotate_tangent(
    *operands: Any, settings: RotationSettings, structure: Any, has_tangent: tuple[bool, ...]
) -> jax.Array:
    """a·R(θ)(dx + Jx·dθ), rounded once."""
    n = len(has_tangent)
    (x, *arrays), d = operands[:n], _ByOperand(*optional_tangents(has_tangent, operands[n:]))
    angles: Angles = structure.unflatten(arrays)
    r = Rotation(settings, x, angles)
    d_theta = []
    if d.positions is not None:
        coordinate = d.positions.astype(r.dtype)
        static = _static_frequencies(angles)
        columns = [coordinates(coordinate, static.axes)] if static else _by_axis(angles, coordinate)
        d_theta += [w * dp for w, dp in zip(_angular(angles, r.dtype), columns, strict=True)]
    if d.frequencies is not None:
        pairs = (_by_axis(angles, each.astype(r.dtype)) for each in (angles.positions, d.frequencies))
        d_theta += [p * dw for p, dw in zip(*pairs, strict=True)]
    d_theta = expand(sum(d_theta[1:], d_theta[0]), settings.layout, r.dim, r.margin)
    perpendicular = r.partners() * r.signs.astype(x.dtype)  # Jx, or −Jx backward; arbitrary where nothing rotates
    tangent = perpendicular.astype(r.dtype) * d_theta
    if not r.rotates_all:  # 0·∞ would be NaN
        tangent = jnp.where(r.rotates, tangent, 0)
    if d.x is not None:
        tangent += d.x.astype(r.dtype)
    return apply_rotation(settings._replace(result=np.dtype(settings.result or x.dtype)), tangent, angles)


def _static_frequencies(angles: Angles) -> Frequencies | None:
    """The frequencies of angles, unless they are an array."""
    return angles.frequencies if isinstance(angles.frequencies, Frequencies) else None


def _by_axis(angles: Angles, array: jax.Array) -> list[jax.Array]:
    """Splits the last axis of an array into one part for each coordinate of the positions."""
    axes = angles.positions.shape[-1]
    return [array] if axes == 1 else jnp.split(array, axes, axis=-1)


def _angular(angles: Angles, dtype: np.dtype) -> list[jax.Array]:
    """ω in this dtype: one array for each coordinate, or one alone for static frequencies."""
    if isinstance(angles.frequencies, Frequencies):
        return [align(jnp.asarray(angles.frequencies.angular).astype(dtype), angles.positions.ndim)]
    return _by_axis(angles, angles.frequencies.astype(dtype))


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, settings: RotationSettings, structure: Any
) -> tuple[Any, Any]:
    angles, has_tangent = structure.unflatten(primals[1:]), tuple(t is not None for t in tangents)
    if any(has_tangent[1:]) and not isinstance(angles, SinCosTable):
        y = bind(_rotation, *primals, settings=settings, structure=structure)
        static = {"settings": settings, "structure": structure, "has_tangent": has_tangent}
        return y, bind(_derivative, *primals, *(t for t in tangents if t is not None), **static)

    def rotate(*operands: Any, result: Any) -> jax.Array:
        return bind(_rotation, *operands, settings=settings._replace(result=result), structure=structure)

    r = Rotation(settings, primals[0], angles)
    dtypes = {"result": settings.result, "compute_dtype": r.dtype}
    return bilinear_jvp(rotate, primals, tangents, **dtypes, multiplied=r.rotates)


# The transposes. Each is compiled, for the same bits under `jax.jit` and outside it.


def _transpose(dy: Any, x: Any, *arrays: Any, settings: RotationSettings, structure: Any) -> list[Any]:
    if (like := unknown(x)) is None:
        return [None, _cotangent_of_table(dy, x, settings=settings, like=unknown(arrays[0]))]
    return [_rotate_back(dy, *arrays, settings=settings, structure=structure, like=like), *(None for _ in arrays)]


@workarounds.compiled("rotation_transpose", static_argnames=("settings", "structure", "like"))
def _rotate_back(dy: Any, *arrays: Any, settings: RotationSettings, structure: Any, like: Any) -> jax.Array:
    """a·R(−θ)ȳ, summed to the type `like`."""
    settings = settings._replace(backward=not settings.backward, result=like.dtype)
    return sum_to(like, apply_rotation(settings, dy, structure.unflatten(arrays)))


@workarounds.compiled("rotation_table_transpose", static_argnames=("settings", "like"))
def _cotangent_of_table(dy: jax.Array, x: jax.Array, *, settings: RotationSettings, like: Any) -> jax.Array:
    """The cotangents of the sines and the cosines, of the type `like`."""
    r, shared = Rotation(settings, x, SinCosTable(like)), broadcast_axes(like)
    dy = dy.astype(r.dtype)
    sine = _sum_of_theta(r, dy * r.partners().astype(r.dtype), shared)
    cosine = sum(_sum_of_pairs(r, dy * x.astype(r.dtype), shared))
    return sum_to(like, jnp.concatenate([sine, cosine], axis=-1)).astype(like.dtype)


def _sum_of_pairs(r: Rotation, products: jax.Array, axes: list[int]) -> tuple[jax.Array, jax.Array]:
    """Sums over these axes, for the first and for the second features of the pairs."""
    # Sums before splitting into pairs, because only a small array is cheap to split.
    summed, (before, after) = jnp.sum(products, axis=axes, keepdims=True), r.margin
    return split(summed[..., before : r.width - after], r.settings.layout)


def _sum_of_theta(r: Rotation, products: jax.Array, axes: list[int]) -> jax.Array:
    """The sum over these axes of the cotangents of θ, from the products with partners."""
    first, second = _sum_of_pairs(r, products, axes)
    return first - second if r.settings.backward else second - first


def _transpose_derivative(
    dy: Any, *operands: Any, settings: RotationSettings, structure: Any, has_tangent: tuple[bool, ...]
) -> list[Any]:
    n = len(has_tangent)
    likes = _ByOperand(*optional_tangents(has_tangent, map(unknown, operands[n:])))
    cotangents = _cotangents(dy, *operands[:n], settings=settings, structure=structure, likes=likes)
    return [None] * n + [c for c, has in zip(cotangents, has_tangent, strict=False) if has]


@workarounds.compiled("rotation_derivative_transpose", static_argnames=("settings", "structure", "likes"))
def _cotangents(
    dy: Any, x: Any, *arrays: Any, settings: RotationSettings, structure: Any, likes: _ByOperand
) -> list[Any]:
    """The cotangents of dx, dp and dω, of the types in `likes`, or None where that is None."""
    angles: Angles = structure.unflatten(arrays)
    r, static = Rotation(settings, x, angles), _static_frequencies(angles)
    g = apply_rotation(settings._replace(backward=not settings.backward, result=r.dtype), dy, angles)
    products = g * r.partners().astype(r.dtype)

    def of_positions(like: Any) -> jax.Array:
        # Sums first over axes along which neither the position nor ω varies.
        shared = [axis for axis in broadcast_axes(like) if static or arrays[1].shape[axis] == 1]
        theta = _sum_of_theta(r, products, shared)
        rows = [theta * angular for angular in _angular(angles, r.dtype)]
        if static:
            masks = (align((np.array(static.axes) == c).astype(r.dtype), x.ndim) for c in range(like.shape[-1]))
            rows = [rows[0] * mask for mask in masks]
        return sum_to(like, jnp.stack([jnp.sum(row, axis=-1) for row in rows], -1))

    def of_frequencies(like: Any) -> jax.Array:
        # Sums over all axes at once, so that devices exchange one row instead of one row per position.
        columns, axes = _by_axis(angles, angles.positions.astype(r.dtype)), broadcast_axes(like)
        by_axis = [_sum_of_theta(r, products * p, axes) for p in columns]
        return by_axis[0] if len(by_axis) == 1 else jnp.concatenate(by_axis, axis=-1)

    rules = (lambda like: sum_to(like, g), of_positions, of_frequencies)
    return [None if like is None else rule(like).astype(like.dtype) for like, rule in zip(likes, rules, strict=True)]


def _dtype(x: Any, *, settings: RotationSettings, **_: Any) -> Any:
    """The dtype of the result."""
    return settings.result or x.dtype


def _under_vmap(*, settings: RotationSettings, **static: Any) -> dict[str, Any]:
    """The parameters under one more `jax.vmap`."""
    return {"settings": settings._replace(batch=settings.batch + 1), **static}


_KINDS = {None: "cpu", "tpu": "tpu", "cuda": "gpu", "rocm": "gpu"}
_programs = {platform: functools.partial(_program, kind) for platform, kind in _KINDS.items()}
_primitive = functools.partial(broadcasting_primitive, dtype=_dtype, mapped=_under_vmap)
_rotation = _primitive("rotation", _programs, parameters=("settings", "structure"))
_parameters = "settings", "structure", "has_tangent"
_derivative = _primitive("rotation_derivative", {None: _rotate_tangent}, parameters=_parameters)
set_jvp(_rotation, _jvp)
set_transpose(_rotation, _transpose)
set_transpose(_derivative, _transpose_derivative)
