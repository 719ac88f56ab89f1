r"""A rotation as one linear operation, with its derivative and its transpose, for `rotary`, `xpos` and `shift`.

`_turn_forms.reference` is the formula: with an amplitude $a$ and the angle $\theta = \omega p$ of each pair,

$$y = a\,R(\theta)\,x.$$

It is linear in $x$, and its transpose is the same rotation backward, $a\,R(-\theta)$. With $J$ a quarter turn, which
takes a pair $(x_1, x_2)$ to $(-x_2, x_1)$, the derivative is

$$dy = a\,R(\theta)\,(dx + Jx\,d\theta), \qquad d\theta = \omega\,dp + p\,d\omega,$$

linear in $dx$, $dp$ and $d\omega$. Its transpose gives the cotangents, where $g = a\,R(-\theta)\,\bar y$:

$$\bar x = g, \qquad \bar\theta = g \cdot Jx, \qquad \bar p = \sum \omega\,\bar\theta, \qquad
  \bar\omega = \sum p\,\bar\theta.$$

A backward turn has $-\theta$ for $\theta$, and so $-J$ for $J$.

Both are primitives of JAX, so that a rotation has forward and reverse mode in any order, and no rule is lost under
another transformation. The derivative in $x$ alone stores only positions. The operands are x (..., features), positions
(..., axes) and, if frequencies are an array, ω (..., pairs), all of one rank; axes of size 1 broadcast.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from posenc_jax import _mesh
from posenc_jax._arrays import align, compute_dtype
from posenc_jax._frequencies import Frequencies, Spectrum, dim_of
from posenc_jax._turn_forms import TurnSettings, margin, partners, split, turned_on
from posenc_jax._waves import coordinates, expand

_turn, _derivative = Primitive("turn"), Primitive("turn_derivative")


def turn(settings: TurnSettings, x: jax.Array, positions: jax.Array, frequencies: Spectrum) -> jax.Array:
    """Rotates the pairs of x (..., features) by positions (..., axes), which have x's rank and broadcast to it."""
    if isinstance(frequencies, Frequencies):
        return _bind(_turn, (x, positions), settings=settings, spectrum=frequencies)
    return _bind(_turn, (x, positions, align(frequencies, x.ndim)), settings=settings, spectrum=None)


def _bind(primitive: Primitive, operands: Sequence[jax.Array], **parameters: Any) -> jax.Array:
    return primitive.bind(*_mesh.agreeing(operands), **parameters)


def _type(*types: Any, settings: TurnSettings, **_: Any) -> Any:
    """The type of the result: x's, with the axes along which other operands are longer or sharded."""
    x = types[0]
    rows = functools.reduce(jax.numpy.broadcast_shapes, (t.shape[:-1] for t in types))
    mesh = next((t.sharding for t in types if any(t.sharding.spec)), x.sharding)
    return x.update(
        shape=(*rows, x.shape[-1]),
        dtype=settings.result or x.dtype,
        weak_type=False,
        sharding=mesh.update(spec=_mesh.common_spec(types)),
    )


def _rotation(platform: str, x: jax.Array, *angle: jax.Array, settings: TurnSettings, spectrum: Any) -> jax.Array:
    """a·R(θ)x as the platform computes it."""
    rows = functools.reduce(jnp.broadcast_shapes, (array.shape[:-1] for array in (x, *angle)))
    x = jnp.broadcast_to(x, (*rows, x.shape[-1]))
    return turned_on(platform, settings, x, angle[0], spectrum or angle[1])


# The derivative


def _tangent(*operands: jax.Array, settings: TurnSettings, spectrum: Any, moving: tuple[bool, ...]) -> jax.Array:
    """a·R(θ)(dx + Jx·dθ), for the operands that move and then their tangents; rounded once."""
    x, positions, frequencies, tangents = _unpack(operands, spectrum, moving)
    dx, d_positions, d_frequencies = tangents
    dtype, dim = compute_dtype(x), dim_of(frequencies)
    terms = []
    if d_positions is not None:
        d_coordinates = coordinates(d_positions.astype(dtype), spectrum.axes if spectrum else 0)
        terms.append(_angular(frequencies, x) * d_coordinates)
    if d_frequencies is not None:
        terms.append(positions.astype(dtype) * d_frequencies.astype(dtype))
    around = margin(settings, x, dim)
    d_theta = expand(sum(terms[1:], terms[0]), settings.layout, dim, around)
    moved = _quarter_turn(settings, x, dim).astype(dtype) * d_theta
    if any(around):  # 0·∞ would not be 0
        moved = jnp.where(align(np.pad(np.ones(dim, bool), around), x.ndim), moved, 0)
    if dx is not None:
        moved += dx.astype(dtype)
    return turn(settings._replace(result=np.dtype(settings.result or x.dtype)), moved, positions, frequencies)


def _unpack(operands: Sequence[Any], spectrum: Any, moving: tuple[bool, ...]) -> tuple[Any, Any, Any, list[Any]]:
    """x, positions, frequencies, and the tangents of the three, None for what does not move."""
    x, positions, *angular = operands[: len(moving)]
    given = iter(operands[len(moving) :])
    tangents = [next(given) if moves else None for moves in (*moving, False)[:3]]
    return x, positions, spectrum or angular[0], tangents


def _angular(frequencies: Spectrum, x: jax.Array) -> jax.Array:
    """ω in x's compute dtype and rank."""
    angular = frequencies.angular if isinstance(frequencies, Frequencies) else frequencies
    return align(jnp.asarray(angular).astype(compute_dtype(x)), x.ndim)


def _quarter_turn(settings: TurnSettings, x: jax.Array, dim: int) -> jax.Array:
    """Jx: of a pair (x₁, x₂), −x₂ and x₁; of a backward turn −Jx. What does not rotate gives anything."""
    index = np.arange(dim)
    is_second = index % 2 if settings.layout == "interleaved" else index // (dim // 2)
    sign = np.pad(np.where(is_second == settings.backward, -1, 1), margin(settings, x, dim))
    return partners(settings, x, dim) * align(sign.astype(x.dtype), x.ndim)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    y = _bind(_turn, primals, **parameters)
    moving = tuple(not isinstance(t, ad.Zero) for t in tangents)
    if not any(moving[1:]):  # linear in x
        return y, _bind(_turn, (tangents[0], *primals[1:]), **parameters)
    moved = [t for t, moves in zip(tangents, moving, strict=True) if moves]
    return y, _bind(_derivative, (*primals, *moved), moving=moving, **parameters)


def _jvp_of_tangent(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]

    def program(*moved: Any) -> jax.Array:
        operands = dict(enumerate(primals)) | dict(zip(moving, moved, strict=True))
        return _tangent(*operands.values(), **parameters)

    return jax.jvp(program, [primals[i] for i in moving], [tangents[i] for i in moving])


# The transpose


def _transpose(dy: Any, x: Any, *angle: Any, settings: TurnSettings, spectrum: Any) -> list[Any]:
    if isinstance(dy, ad.Zero):
        return [None] * (1 + len(angle))
    back = settings._replace(backward=not settings.backward, result=x.aval.dtype)
    return [_sum_to(x.aval, turn(back, dy, angle[0], spectrum or angle[1])), *(None for _ in angle)]


def _transpose_tangent(
    dy: Any, *operands: Any, settings: TurnSettings, spectrum: Any, moving: tuple[bool, ...]
) -> list[Any]:
    rest, linear = [None] * len(moving), operands[len(moving) :]
    if isinstance(dy, ad.Zero):
        return rest + [None] * len(linear)
    x, positions, frequencies, tangents = _unpack(operands, spectrum, moving)
    dtype, dim = compute_dtype(x), dim_of(frequencies)
    back = settings._replace(backward=not settings.backward, result=np.dtype(dtype))
    g = turn(back, dy, positions, frequencies)
    products = g * partners(settings, x, dim).astype(dtype)

    def slopes(products: jax.Array, axes: list[int]) -> jax.Array:
        # Sums before splitting into pairs, because only a small array is cheap to split.
        summed, (before, after) = jnp.sum(products, axis=axes, keepdims=True), margin(settings, x, dim)
        first, second = split(summed[..., before : x.shape[-1] - after], settings.layout)
        return first - second if settings.backward else second - first

    def by_x(like: Any) -> jax.Array:
        return _sum_to(like, g).astype(like.dtype)

    def by_positions(like: Any) -> jax.Array:
        # Sums over what shares a position, but not over what has frequencies of its own.
        shared = _ones(like) if spectrum else [axis for axis in _ones(like) if frequencies.shape[axis] == 1]
        rows = slopes(products, shared) * _angular(frequencies, x)
        axes = np.array(spectrum.axes if spectrum else [0] * (dim // 2))
        masks = (align((axes == axis).astype(dtype), x.ndim) for axis in range(like.shape[-1]))
        rows = jnp.stack([jnp.sum(rows * mask, axis=-1) for mask in masks], -1)
        return _sum_to(like, rows).astype(like.dtype)

    def by_frequencies(like: Any) -> jax.Array:
        # Sums over all axes at once, so that devices exchange one row instead of one row per position.
        return slopes(products * positions.astype(dtype), _ones(like)).astype(like.dtype)

    rules = zip(tangents, (by_x, by_positions, by_frequencies), strict=True)
    return rest + [rule(t.aval) if ad.is_undefined_primal(t) else None for t, rule in rules if t is not None]


def _ones(like: Any) -> list[int]:
    """The axes of size 1 of an operand (..., columns)."""
    return [axis for axis, n in enumerate(like.shape[:-1]) if isinstance(n, int) and n == 1]


def _sum_to(like: Any, x: jax.Array) -> jax.Array:
    """Sums over the axes along which an operand was broadcast."""
    axes = [axis for axis in _ones(like) if x.shape[axis] != 1]
    return jnp.sum(x, axis=axes, keepdims=True) if axes else x


# The other rules


def _batch(primitive: Primitive, operands: Sequence[Any], axes: Sequence[Any], **parameters: Any) -> tuple[Any, int]:
    moved = [x[None] if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
    return _bind(primitive, moved, **parameters), 0


def _register(primitive: Primitive, program: Any, jvp: Any, transpose: Any, names: tuple[str, ...]) -> None:
    """Gives a primitive its rules; `program` takes a platform and operands, `names` are those of its parameters."""

    @functools.partial(jax.jit, static_argnames=names)
    def evaluated(*operands: jax.Array, **parameters: Any) -> jax.Array:
        return primitive.bind(*operands, **parameters)

    primitive.def_impl(evaluated)
    primitive.def_abstract_eval(_type)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)
    for platform, room in ((None, "cpu"), ("tpu", "tpu"), ("cuda", "gpu"), ("rocm", "gpu")):
        rule = mlir.lower_fun(functools.partial(program, room), multiple_results=False)
        mlir.register_lowering(primitive, rule, platform=platform)


_register(_turn, _rotation, _jvp, _transpose, ("settings", "spectrum"))
_register(
    _derivative, lambda _, *operands, **parameters: _tangent(*operands, **parameters),
    _jvp_of_tangent, _transpose_tangent, ("settings", "spectrum", "moving"),
)  # fmt: skip
