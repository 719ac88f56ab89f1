r"""A rotation as one linear operation, with its derivative and its transpose, for `rotary`, `xpos` and `shift`.

`rotation` has the formula. With the amplitude $a$ and the angles $\theta = \omega p$ of the pairs, it is

$$y = a\,R(\theta)\,x,$$

linear in $x$; its transpose $a\,R(-\theta)$ is the same rotation backward. Let $J$ be a quarter cycle, which takes the
pair $(x_1, x_2)$ to $(-x_2, x_1)$. The derivative

$$dy = a\,R(\theta)\,(dx + Jx\,d\theta), \qquad d\theta = \omega\,dp + p\,d\omega,$$

is linear in $dx$, $dp$ and $d\omega$. Its transpose takes the cotangent $\bar y$, with $g = a\,R(-\theta)\,\bar y$, to

$$\bar x = g, \qquad \bar\theta = g \cdot Jx = g_2 x_1 - g_1 x_2, \qquad \bar p = \sum \omega\,\bar\theta, \qquad
  \bar\omega = \sum p\,\bar\theta.$$

A backward rotation has $-\theta$ for $\theta$, and therefore $-J$ for $J$.

The derivative of the derivative is that of its program, `_rotate_tangent`, which ends in a rotation again.

The rotation and its derivative are primitives of JAX, because `jax.custom_vjp` has no forward mode, and derivatives of
the formula itself store waves for every feature of x. Both have forward and reverse mode, in any order. The derivative
in x alone stores only what the angles are made of.

The operands are x and the arrays of its `Angles`, with $\theta = \sum \omega_c p_c$ over the axes. They have one rank,
and their leading axes broadcast, so `jax.vmap` adds an axis to each and repeats nothing. The parameter `structure`
says how they make up the angles, and holds static frequencies.

A rotation by `SinCosTable` is linear in them too: its derivative is $dy = R(w)\,dx + R(dw)\,x$, and its transpose takes
$\bar y$ to $\bar s = \bar y_2 x_1 - \bar y_1 x_2$ and $\bar c = \bar y_1 x_1 + \bar y_2 x_2$.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax._frequencies.angles import Angles, SinCosTable, coordinates, expand
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._jax import sharding, workarounds
from posenc_jax._jax.arrays import align
from posenc_jax._jax.primitives import primitive, retyped, set_jvp, set_transpose, unknown
from posenc_jax._rotary.lowerings import lowering_of
from posenc_jax._rotary.rotation import Rotation, RotationSettings, split


def apply_rotation(settings: RotationSettings, x: jax.Array, angles: Angles | SinCosTable) -> jax.Array:
    """Rotates the pairs of x (..., features) by angles, whose arrays have x's rank and broadcast to it.

    A width of 0 rotates nothing, and gives x the sharding that a rotation gives it.
    """
    if not angles.dim:
        return sharding.agreeing((x, angles[0]))[0].astype(settings.result or x.dtype)
    arrays, structure = jax.tree.flatten(angles)
    return _bind(_rotation, x, *(align(array, x.ndim) for array in arrays), settings=settings, structure=structure)


def _bind(of: Any, *operands: jax.Array, **parameters: Any) -> jax.Array:
    return of.bind(*sharding.agreeing(operands), **parameters)


def _type(*operands: Any, settings: RotationSettings, **_: Any) -> Any:
    """The type of the result."""
    x = operands[0]
    rows = jnp.broadcast_shapes(*(operand.shape[:-1] for operand in operands))
    dtype, common = settings.result or x.dtype, sharding.common_sharding(operands)
    return retyped(x, (*rows, x.shape[-1]), dtype=dtype, sharding=common)


def _mapped(of: Any, _: Any, axes: Any, *operands: Any, settings: RotationSettings, **parameters: Any) -> Any:
    batched = (x[None] if axis is None else x for x, axis in zip(operands, axes, strict=True))
    return _bind(of, *batched, settings=settings._replace(batch=settings.batch + 1), **parameters)


def _program(platform: str, x: Any, *arrays: Any, settings: RotationSettings, structure: Any) -> jax.Array:
    """a·R(θ)x, in the form that the platform takes."""
    r = Rotation(settings, x, structure.unflatten(arrays), workarounds.TARGETS[platform]).broadcast()
    return lowering_of(platform, r)(r)


# The derivative, of operands and then the tangents of those that move


@workarounds.compiled("rotation_derivative", static_argnames=("settings", "structure", "moving"))
def _rotate_tangent(*operands: Any, settings: RotationSettings, structure: Any, moving: tuple[bool, ...]) -> jax.Array:
    """a·R(θ)(dx + Jx·dθ), rounded once."""
    n, moved = len(moving), iter(operands[len(moving) :])
    angles: Angles = structure.unflatten(operands[1:n])
    r = Rotation(settings, operands[0], angles)
    dx, d_positions, d_frequencies = (*(next(moved) if moves else None for moves in moving), None)[:3]
    d_theta = []
    if d_positions is not None:
        along = d_positions.astype(r.dtype)
        static = angles.frequencies if isinstance(angles.frequencies, Frequencies) else None
        along = [coordinates(along, static.axes)] if static else _by_axis(angles, along)
        d_theta += [w * d for w, d in zip(_angular(angles, r.dtype), along, strict=True)]
    if d_frequencies is not None:
        pairs = (_by_axis(angles, each.astype(r.dtype)) for each in (angles.positions, d_frequencies))
        d_theta += [p * d for p, d in zip(*pairs, strict=True)]
    d_theta = expand(sum(d_theta[1:], d_theta[0]), settings.layout, r.dim, r.margin)
    perpendicular = r.partners() * r.signs.astype(r.x.dtype)  # Jx, or −Jx backward; arbitrary where nothing rotates
    tangent = perpendicular.astype(r.dtype) * d_theta
    if not r.whole:  # 0·∞ would be NaN
        tangent = jnp.where(r.rotates, tangent, 0)
    if dx is not None:
        tangent += dx.astype(r.dtype)
    return apply_rotation(settings._replace(result=np.dtype(settings.result or r.x.dtype)), tangent, angles)


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
    static = {"settings": settings, "structure": structure}
    y, moved = _bind(_rotation, *primals, **static), [t for t in tangents if t is not None]
    if all(t is None for t in tangents[1:]):  # x alone
        return y, _bind(_rotation, *moved, *primals[1:], **static)
    if isinstance(structure.unflatten(primals[1:]), SinCosTable):
        return y, _tangent_by_table(*primals, *tangents, **static)
    return y, _bind(_derivative, *primals, *moved, moving=tuple(t is not None for t in tangents), **static)


def _tangent_by_table(
    x: Any, table: Any, dx: Any, d_table: Any, *, settings: RotationSettings, structure: Any
) -> jax.Array:
    """R(w)dx + R(dw)x, rounded once; a dx of None adds nothing."""
    r = Rotation(settings, x, SinCosTable(table))
    if not r.whole:  # features that pass through do not depend on waves
        x = jnp.where(r.rotates, x, np.zeros((), x.dtype))
    if dx is None:
        return _bind(_rotation, x, d_table, settings=settings, structure=structure)
    wide = settings._replace(result=r.dtype)
    terms = [_bind(_rotation, *pair, settings=wide, structure=structure) for pair in ((dx, table), (x, d_table))]
    return r.result(terms[0] + terms[1])


# The transposes. Each is compiled, for the same bits under `jax.jit` and outside it.


def _transpose(dy: Any, x: Any, *arrays: Any, settings: RotationSettings, structure: Any) -> list[Any]:
    if (like := unknown(x)) is None:
        return [None, _cotangent_of_table(dy, x, settings=settings, like=unknown(arrays[0]))]
    return [_rotate_back(dy, *arrays, settings=settings, structure=structure, like=like), *(None for _ in arrays)]


@workarounds.compiled("rotation_transpose", static_argnames=("settings", "structure", "like"))
def _rotate_back(dy: Any, *arrays: Any, settings: RotationSettings, structure: Any, like: Any) -> jax.Array:
    """a·R(−θ)ȳ, summed to the type `like`."""
    settings = settings._replace(backward=not settings.backward, result=like.dtype)
    return _sum_to(like, apply_rotation(settings, dy, structure.unflatten(arrays)))


@workarounds.compiled("rotation_waves_transpose", static_argnames=("settings", "like"))
def _cotangent_of_table(dy: jax.Array, x: jax.Array, *, settings: RotationSettings, like: Any) -> jax.Array:
    """The cotangents of the sines and the cosines, of the type `like`."""
    r, shared = Rotation(settings, x, SinCosTable(like)), _broadcast_axes(like)
    dy = dy.astype(r.dtype)
    sine = _sum_of_theta(r, dy * r.partners().astype(r.dtype), shared)
    cosine = sum(_sum_of_pairs(r, dy * x.astype(r.dtype), shared))
    return _sum_to(like, jnp.concatenate([sine, cosine], axis=-1)).astype(like.dtype)


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
    dy: Any, *operands: Any, settings: RotationSettings, structure: Any, moving: tuple[bool, ...]
) -> list[Any]:
    primals, moved = operands[: len(moving)], iter(operands[len(moving) :])
    wanted = tuple(unknown(next(moved)) if moves else None for moves in moving)
    cotangents = _cotangents(dy, *primals, settings=settings, structure=structure, wanted=wanted)
    return [None for _ in primals] + [c for c, moves in zip(cotangents, moving, strict=True) if moves]


@workarounds.compiled("rotation_derivative_transpose", static_argnames=("settings", "structure", "wanted"))
def _cotangents(
    dy: Any, x: Any, *arrays: Any, settings: RotationSettings, structure: Any, wanted: tuple[Any, ...]
) -> list[Any]:
    """The cotangents of dx, dp and dω, of the types in `wanted`, or None where that is None."""
    angles: Angles = structure.unflatten(arrays)
    r, static = (
        Rotation(settings, x, angles),
        angles.frequencies if isinstance(angles.frequencies, Frequencies) else None,
    )
    g = apply_rotation(settings._replace(backward=not settings.backward, result=r.dtype), dy, angles)
    products = g * r.partners().astype(r.dtype)

    def of_positions(like: Any) -> jax.Array:
        # Sums first over axes along which neither the position nor ω varies.
        shared = [axis for axis in _broadcast_axes(like) if static or arrays[1].shape[axis] == 1]
        theta = _sum_of_theta(r, products, shared)
        rows = [theta * angular for angular in _angular(angles, r.dtype)]
        if static:
            masks = (align((np.array(static.axes) == c).astype(r.dtype), x.ndim) for c in range(like.shape[-1]))
            rows = [rows[0] * mask for mask in masks]
        return _sum_to(like, jnp.stack([jnp.sum(row, axis=-1) for row in rows], -1))

    def of_frequencies(like: Any) -> jax.Array:
        # Sums over all axes at once, so that devices exchange one row instead of one row per position.
        along, axes = _by_axis(angles, angles.positions.astype(r.dtype)), _broadcast_axes(like)
        by_axis = [_sum_of_theta(r, products * p, axes) for p in along]
        return by_axis[0] if len(by_axis) == 1 else jnp.concatenate(by_axis, axis=-1)

    rules = zip(wanted, (lambda like: _sum_to(like, g), of_positions, of_frequencies), strict=False)
    return [None if like is None else rule(like).astype(like.dtype) for like, rule in rules]


def _broadcast_axes(like: Any) -> list[int]:
    """The axes before the last along which an operand may be broadcast: those of size 1."""
    return [axis for axis, n in enumerate(like.shape[:-1]) if isinstance(n, int) and n == 1]


def _sum_to(like: Any, x: jax.Array) -> jax.Array:
    """Sums over the axes along which an operand was broadcast."""
    axes = [axis for axis in _broadcast_axes(like) if x.shape[axis] != 1]
    return jnp.sum(x, axis=axes, keepdims=True) if axes else x


_KINDS = {None: "cpu", "tpu": "tpu", "cuda": "gpu", "rocm": "gpu"}
_programs = {platform: functools.partial(_program, kind) for platform, kind in _KINDS.items()}
_rotation = primitive("rotation", _type, _programs, _mapped, parameters=("settings", "structure"))
_parameters = "settings", "structure", "moving"
_derivative = primitive("rotation_derivative", _type, {None: _rotate_tangent}, _mapped, parameters=_parameters)
set_jvp(_rotation, _jvp)
set_transpose(_rotation, _transpose)
set_transpose(_derivative, _transpose_derivative)
