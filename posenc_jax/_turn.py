r"""A rotation as one linear operation, with its derivative and its transpose, for `rotary`, `xpos` and `shift`.

`_turn_forms.reference` is the formula. With the amplitude $a$ and the angles $\theta = \omega p$ of the pairs, it is

$$y = a\,R(\theta)\,x,$$

linear in $x$; its transpose $a\,R(-\theta)$ is the same rotation backward. Let $J$ be a quarter turn, which takes the
pair $(x_1, x_2)$ to $(-x_2, x_1)$. The derivative

$$dy = a\,R(\theta)\,(dx + Jx\,d\theta), \qquad d\theta = \omega\,dp + p\,d\omega,$$

is linear in $dx$, $dp$ and $d\omega$. Its transpose takes the cotangent $\bar y$, with $g = a\,R(-\theta)\,\bar y$, to

$$\bar x = g, \qquad \bar\theta = g \cdot Jx = g_2 x_1 - g_1 x_2, \qquad \bar p = \sum \omega\,\bar\theta, \qquad
  \bar\omega = \sum p\,\bar\theta.$$

A backward rotation has $-\theta$ for $\theta$, and therefore $-J$ for $J$.

The rotation and its derivative are primitives of JAX, because `jax.custom_vjp` has no forward mode, and derivatives of
the formula itself store waves for every feature of x. Both have forward and reverse mode, in any order. The derivative
in x alone stores only what the angles are made of.

The operands are x (..., features), positions (..., axes) and, unless the frequencies are static, ω (..., axes·pairs),
with $\theta = \sum \omega_c p_c$ over the axes. They have one rank, and their leading axes broadcast, so `jax.vmap`
adds an axis to each and repeats nothing.

Without frequencies, the second operand holds waves (..., 2·pairs), the sines and then the cosines. The rotation is
linear in them too: its derivative is $dy = R(w)\,dx + R(dw)\,x$, and its transpose takes $\bar y$ to
$\bar s = \bar y_2 x_1 - \bar y_1 x_2$ and $\bar c = \bar y_1 x_1 + \bar y_2 x_2$.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from posenc_jax import _mesh, _xla
from posenc_jax._arrays import align, compute_dtype
from posenc_jax._frequencies import Frequencies, Spectrum
from posenc_jax._turn_forms import TurnSettings, margin, partners, rotated_on, rotates, signs, split
from posenc_jax._waves import coordinates, expand, num_features

_rotation, _derivative = _xla.Primitive("rotation"), _xla.Primitive("rotation_derivative")
_STATIC = "settings", "static", "moving"


def turn(settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum | None) -> jax.Array:
    """Rotates the pairs of x (..., features) by positions (..., axes), which have x's rank and broadcast to it.

    A width of 0 turns nothing, and gives x the sharding that a rotation gives it.
    """
    if not num_features(positions, frequencies):
        return _mesh.agreeing((x, positions))[0].astype(settings.result or x.dtype)
    if frequencies is None or isinstance(frequencies, Frequencies):
        return _bind(_rotation, x, positions, settings=settings, static=frequencies)
    return _bind(_rotation, x, positions, align(frequencies, x.ndim), settings=settings, static=None)


def _bind(primitive: Any, *operands: jax.Array, **parameters: Any) -> jax.Array:
    return primitive.bind(*_mesh.agreeing(operands), **parameters)


def _type(*operands: Any, settings: TurnSettings, **_: Any) -> Any:
    """The type of the result."""
    x = operands[0]
    rows = jnp.broadcast_shapes(*(operand.shape[:-1] for operand in operands))
    sharding = _mesh.common_sharding(operands)
    shape, dtype = (*rows, x.shape[-1]), settings.result or x.dtype
    return x.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def _unpack(
    operands: Sequence[Any], static: Frequencies | None, moving: Sequence[bool] = (False,) * 3
) -> tuple[list[Any], list[Any]]:
    """x, positions and frequencies, and the tangents that follow them, None for what does not move."""
    learned = static is None and len(operands) > 2
    primals = [*operands[:2], operands[2] if learned else static]
    tangents = iter(operands[2 + learned :])
    return primals, [next(tangents) if moves else None for moves in moving]


def _rotate(platform: str, *operands: Any, settings: TurnSettings, static: Frequencies | None) -> jax.Array:
    """a·R(θ)x, in the form that the platform takes."""
    primals, _ = _unpack(operands, static)
    return rotated_on(platform, settings, *primals)


# The derivative, of operands and then the tangents of those that move


@_xla.compiled("rotation_derivative", static_argnames=_STATIC)
def _rotate_tangent(
    *operands: Any, settings: TurnSettings, static: Frequencies | None, moving: tuple[bool, ...]
) -> jax.Array:
    """a·R(θ)(dx + Jx·dθ), rounded once."""
    (x, positions, frequencies), (dx, d_positions, d_frequencies) = _unpack(operands, static, moving)
    dtype, dim = compute_dtype(x), num_features(positions, frequencies)
    d_theta = []
    if d_positions is not None:
        along = d_positions.astype(dtype)
        along = [coordinates(along, static.axes)] if static else _by_axis(along, positions)
        d_theta += [w * d for w, d in zip(_angular(frequencies, positions, dtype), along, strict=True)]
    if d_frequencies is not None:
        pairs = _by_axis(positions.astype(dtype), positions), _by_axis(d_frequencies.astype(dtype), positions)
        d_theta += [p * d for p, d in zip(*pairs, strict=True)]
    d_theta = expand(sum(d_theta[1:], d_theta[0]), settings.layout, dim, margin(settings, x, dim))
    tangent = _quarter_turn(settings, x, dim).astype(dtype) * d_theta
    if dim < x.shape[-1]:  # 0·∞ would be NaN
        tangent = jnp.where(rotates(settings, x, dim), tangent, 0)
    if dx is not None:
        tangent += dx.astype(dtype)
    return turn(settings._replace(result=np.dtype(settings.result or x.dtype)), tangent, positions, frequencies)


def _by_axis(x: jax.Array, positions: jax.Array) -> list[jax.Array]:
    """Splits the last axis of x into one part for each coordinate of the positions."""
    axes = positions.shape[-1]
    return [x] if axes == 1 else jnp.split(x, axes, axis=-1)


def _angular(frequencies: Spectrum, positions: jax.Array, dtype: Any) -> list[jax.Array]:
    """ω in this dtype and the rank of positions: one array for each coordinate, or one alone for static frequencies."""
    if isinstance(frequencies, Frequencies):
        return [align(jnp.asarray(frequencies.angular).astype(dtype), positions.ndim)]
    return _by_axis(frequencies.astype(dtype), positions)


def _quarter_turn(settings: TurnSettings, x: jax.Array, dim: int) -> jax.Array:
    """Jx, or −Jx for a backward rotation; arbitrary where nothing rotates."""
    return partners(settings, x, dim) * signs(settings, x, dim).astype(x.dtype)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    moved = [t for t in tangents if not isinstance(t, ad.Zero)]
    moving = (*(not isinstance(t, ad.Zero) for t in tangents), False)[:3]
    y = _bind(_rotation, *primals, **parameters)
    if not any(moving[1:]):
        return y, _bind(_rotation, *moved, *primals[1:], **parameters)
    if len(primals) == 2 and parameters["static"] is None:
        return y, _tangent_by_waves(*primals, *tangents, **parameters)
    return y, _bind(_derivative, *primals, *moved, moving=moving, **parameters)


def _tangent_by_waves(x: Any, waves: Any, dx: Any, d_waves: Any, *, settings: TurnSettings, static: None) -> jax.Array:
    """R(w)dx + R(dw)x, rounded once; a dx that is zero adds nothing."""
    dim = waves.shape[-1]
    if dim < x.shape[-1]:  # features that pass through do not depend on waves
        x = jnp.where(rotates(settings, x, dim), x, np.zeros((), x.dtype))
    if isinstance(dx, ad.Zero):
        return _bind(_rotation, x, d_waves, settings=settings, static=static)
    wide = settings._replace(result=np.dtype(compute_dtype(x)))
    terms = [_bind(_rotation, *pair, settings=wide, static=static) for pair in ((dx, waves), (x, d_waves))]
    return (terms[0] + terms[1]).astype(settings.result or x.dtype)


def _jvp_of_derivative(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    # Differentiates the program: to differentiate its primitive, JAX would call this rule again.
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]

    def program(*moved: Any) -> jax.Array:
        operands = list(primals)
        for i, operand in zip(moving, moved, strict=True):
            operands[i] = operand
        return _rotate_tangent(*operands, **parameters)

    return jax.jvp(program, [primals[i] for i in moving], [tangents[i] for i in moving])


# The transposes. Each is compiled, for the same bits under `jax.jit` and outside it.


def _transpose(dy: Any, x: Any, *angle: Any, settings: TurnSettings, static: Frequencies | None) -> list[Any]:
    if isinstance(dy, ad.Zero):
        return [None] * (1 + len(angle))
    if not ad.is_undefined_primal(x):
        return [None, _cotangent_of_waves(dy, x, settings=settings, like=angle[0].aval)]
    back = _rotate_back(dy, *angle, settings=settings, static=static, like=x.aval)
    return [back, *(None for _ in angle)]


@_xla.compiled("rotation_transpose", static_argnames=("settings", "static", "like"))
def _rotate_back(*operands: Any, settings: TurnSettings, static: Frequencies | None, like: Any) -> jax.Array:
    """a·R(−θ)ȳ for operands that begin with ȳ, summed to the type `like`."""
    primals, _ = _unpack(operands, static)
    return _sum_to(like, turn(settings._replace(backward=not settings.backward, result=like.dtype), *primals))


@_xla.compiled("rotation_waves_transpose", static_argnames=("settings", "like"))
def _cotangent_of_waves(dy: jax.Array, x: jax.Array, *, settings: TurnSettings, like: Any) -> jax.Array:
    """The cotangents of the sines and the cosines, of the type `like`."""
    dtype, dim = compute_dtype(x), like.shape[-1]
    dy, shared = dy.astype(dtype), _broadcast_axes(like)
    sine = _sum_of_theta(settings, dy * partners(settings, x, dim).astype(dtype), dim, shared)
    cosine = sum(_sum_of_pairs(settings, dy * x.astype(dtype), dim, shared))
    return _sum_to(like, jnp.concatenate([sine, cosine], axis=-1)).astype(like.dtype)


def _sum_of_pairs(
    settings: TurnSettings, products: jax.Array, dim: int, axes: list[int]
) -> tuple[jax.Array, jax.Array]:
    """Sums over these axes, for the first and for the second features of the pairs."""
    # Sums before splitting into pairs, because only a small array is cheap to split.
    summed, (before, after) = jnp.sum(products, axis=axes, keepdims=True), margin(settings, products, dim)
    return split(summed[..., before : products.shape[-1] - after], settings.layout)


def _sum_of_theta(settings: TurnSettings, products: jax.Array, dim: int, axes: list[int]) -> jax.Array:
    """The sum over these axes of the cotangents of θ, from the products with partners."""
    first, second = _sum_of_pairs(settings, products, dim, axes)
    return first - second if settings.backward else second - first


def _transpose_derivative(
    dy: Any, *operands: Any, settings: TurnSettings, static: Frequencies | None, moving: tuple[bool, ...]
) -> list[Any]:
    if isinstance(dy, ad.Zero):
        return [None] * len(operands)
    _, tangents = _unpack(operands, static, moving)
    wanted = tuple(t.aval if ad.is_undefined_primal(t) else None for t in tangents)
    primals = operands[: 3 if static is None else 2]
    cotangents = _cotangents(dy, *primals, settings=settings, static=static, wanted=wanted)
    return [None for _ in primals] + [c for c, moves in zip(cotangents, moving, strict=True) if moves]


@_xla.compiled("rotation_derivative_transpose", static_argnames=("settings", "static", "wanted"))
def _cotangents(
    dy: Any, *operands: Any, settings: TurnSettings, static: Frequencies | None, wanted: tuple[Any, ...]
) -> list[Any]:
    """The cotangents of dx, dp and dω, of the types in `wanted`, or None where that is None."""
    (x, positions, frequencies), _ = _unpack(operands, static)
    dtype, dim = compute_dtype(x), num_features(positions, frequencies)
    back = settings._replace(backward=not settings.backward, result=np.dtype(dtype))
    g = turn(back, dy, positions, frequencies)
    products = g * partners(settings, x, dim).astype(dtype)

    def of_x(like: Any) -> jax.Array:
        return _sum_to(like, g)

    def of_positions(like: Any) -> jax.Array:
        # Sums first over axes along which neither the position nor ω varies.
        shared = [axis for axis in _broadcast_axes(like) if static or frequencies.shape[axis] == 1]
        theta = _sum_of_theta(settings, products, dim, shared)
        rows = [theta * angular for angular in _angular(frequencies, positions, dtype)]
        if static:
            masks = (align((np.array(static.axes) == c).astype(dtype), x.ndim) for c in range(like.shape[-1]))
            rows = [rows[0] * mask for mask in masks]
        return _sum_to(like, jnp.stack([jnp.sum(row, axis=-1) for row in rows], -1))

    def of_frequencies(like: Any) -> jax.Array:
        # Sums over all axes at once, so that devices exchange one row instead of one row per position.
        along, axes = _by_axis(positions.astype(dtype), positions), _broadcast_axes(like)
        by_axis = [_sum_of_theta(settings, products * p, dim, axes) for p in along]
        return by_axis[0] if len(by_axis) == 1 else jnp.concatenate(by_axis, axis=-1)

    rules = zip(wanted, (of_x, of_positions, of_frequencies), strict=True)
    return [None if like is None else rule(like).astype(like.dtype) for like, rule in rules]


def _broadcast_axes(like: Any) -> list[int]:
    """The axes before the last along which an operand may be broadcast: those of size 1."""
    return [axis for axis, n in enumerate(like.shape[:-1]) if isinstance(n, int) and n == 1]


def _sum_to(like: Any, x: jax.Array) -> jax.Array:
    """Sums over the axes along which an operand was broadcast."""
    axes = [axis for axis in _broadcast_axes(like) if x.shape[axis] != 1]
    return jnp.sum(x, axis=axes, keepdims=True) if axes else x


# The other rules


def _register(primitive: Any, programs: Mapping[str | None, Callable[..., jax.Array]]) -> None:
    """Gives a primitive its type, and its program for each platform; None stands for the platforms not named."""
    compiled = jax.jit(primitive.bind, static_argnames=_STATIC)

    def evaluate(*operands: jax.Array, **parameters: Any) -> jax.Array:
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            # `compiled` would call `bind`, which calls this function. The CPU's program is right on every platform.
            return programs[None](*operands, **parameters)
        return compiled(*operands, **parameters)

    def batch(
        _: Any, operands: Sequence[Any], axes: Sequence[Any], settings: TurnSettings, **parameters: Any
    ) -> tuple[Any, int | None]:
        if all(axis is None for axis in axes):  # JAX calls this rule for any operands under a named axis
            return _bind(primitive, *operands, settings=settings, **parameters), None
        pairs = zip(operands, axes, strict=True)
        batched = (x[None] if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in pairs)
        settings = settings._replace(batch=settings.batch + 1)
        return _bind(primitive, *batched, settings=settings, **parameters), 0

    primitive.def_impl(evaluate)
    primitive.def_abstract_eval(_type)
    batching.fancy_primitive_batchers[primitive] = batch
    for platform, program in programs.items():
        mlir.register_lowering(primitive, mlir.lower_fun(program, multiple_results=False), platform=platform)


_KINDS = {None: "cpu", "tpu": "tpu", "cuda": "gpu", "rocm": "gpu"}
_register(_rotation, {platform: functools.partial(_rotate, kind) for platform, kind in _KINDS.items()})
_register(_derivative, {None: _rotate_tangent})
ad.primitive_jvps.update({_rotation: _jvp, _derivative: _jvp_of_derivative})
ad.primitive_transposes.update({_rotation: _transpose, _derivative: _transpose_derivative})
