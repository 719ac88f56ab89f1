r"""Functions with custom derivatives, in forward and in reverse mode.

An operation has three programs: one computes $y = f(x)$, the second the tangent $\dot y = J(x)\,\dot x$, the third the
transpose of the tangent, $\bar x = J(x)^\top \bar y$. `jax.custom_vjp` has no forward mode. With `jax.custom_jvp`,
JAX would derive the transpose from the tangent, and store what the third program recomputes. Derivatives of higher
order are those of the programs.

$f$ and its tangent are primitives of JAX. `jax.vmap` records which operands it maps, and the programs run under
`jax.vmap` in turn.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from posenc_jax._jax.primitives import differentiated, optional_tangents, primitive, retyped, set_jvp, set_transpose
from posenc_jax._jax.workarounds import compiled

Function = Callable[..., Sequence[Any]]
_STATIC = "settings", "levels", "has_tangent", "result_axes"


class Level(NamedTuple):
    """One `jax.vmap`."""

    axes: tuple[int | None, ...]  # for each operand, 0 if it is mapped along its first axis, else None
    axis_name: Any
    spmd_axis_name: Any


class Kernels(NamedTuple):
    """Programs that compute cotangents, as the `transpose` of an operation does, but have no derivative."""

    programs: Mapping[str | None, Function]  # by platform; XLA can partition only the program of None
    support: Callable[[Any, tuple[bool, ...]], bool]  # (settings, has_tangent) → whether the programs can compute this


def operation(
    name: str,
    *,
    types: Function,
    compute: Function,
    tangent: Function,
    transpose: Function,
    cuda: Function | None = None,
    kernels: Kernels | None = None,
) -> Function:
    """Makes a function of (settings, *operands) that returns several outputs; settings are hashable.

    Args:
      name: the name of the primitive.
      types: types(settings, *operand_types) are those of the outputs.
      compute: compute(settings, *operands) are the outputs. The last one counts as a constant.
      tangent: tangent(settings, operands, outputs, tangents) are the tangents of all outputs but the last. The tangent
        of an operand is None if it has none.
      transpose: transpose(settings, operands, outputs, cotangents, has_tangent) are the cotangents of the operands that
        have a tangent, from the cotangents of all outputs but the last.
      cuda: computes the outputs on NVIDIA GPUs, as a kernel that XLA cannot partition; None for `compute`.
      kernels: compute the cotangents instead of `transpose`, except where these are differentiated in turn.
    """

    def compute_tangent(settings: Any, *x: Any, has_tangent: tuple[bool, ...]) -> Sequence[Any]:
        operands, outputs, tangents = _split(x, has_tangent)
        return tangent(settings, operands, outputs, optional_tangents(has_tangent, tangents))

    def types_of_tangent(settings: Any, *x: Any, has_tangent: tuple[bool, ...]) -> Sequence[Any]:
        return _split(x, has_tangent)[1][:-1]

    function = _primitive(name, types, {None: compute} | ({"cuda": cuda} if cuda else {}))
    derivative = _primitive(f"{name}_derivative", types_of_tangent, {None: compute_tangent})

    def jvp(primals: Any, tangents: Any, *, settings: Any, levels: tuple[Level, ...]) -> tuple[Any, Any]:
        has_tangent = tuple(t is not None for t in tangents)
        tangents = [t for t in tangents if t is not None]
        y = function.bind(*primals, settings=settings, levels=levels)

        def with_tangents(level: Level) -> Level:
            axes = (axis for axis, has in zip(level.axes, has_tangent, strict=True) if has)
            return level._replace(axes=(*level.axes, *(0 for _ in y), *axes))

        levels = tuple(map(with_tangents, levels))
        dy = derivative.bind(*primals, *y, *tangents, settings=settings, levels=levels, has_tangent=has_tangent)
        return y, [*dy, None]

    run_transpose = _transpose(name, transpose, kernels)

    def transposed(
        cotangents: Any, *x: Any, has_tangent: tuple[bool, ...], levels: tuple[Level, ...], settings: Any
    ) -> list[Any]:
        m = len(x) - sum(has_tangent)
        result_axes = tuple(level.axes[m:] for level in levels)
        levels = tuple(level._replace(axes=(*level.axes[:m], *(0 for _ in cotangents))) for level in levels)
        static = {"settings": settings, "levels": levels, "has_tangent": has_tangent, "result_axes": result_axes}
        return [None] * m + list(run_transpose(*x[:m], *cotangents, **static))

    set_jvp(function, jvp)
    set_transpose(derivative, transposed)
    return lambda settings, *operands: function.bind(*operands, settings=settings, levels=())


def _transpose(name: str, transpose: Function, kernels: Kernels | None) -> Function:
    """The function that an operation calls in reverse mode, of operands, outputs and cotangents of the outputs.

    Its `levels` begin with those of the tangent; for each of these, `result_axes` has the axes of the tangents, which
    are those of their cotangents.
    """

    def flat(program: Function) -> Function:
        def run(settings: Any, *x: Any, has_tangent: tuple[bool, ...]) -> Sequence[Any]:
            n = len(has_tangent)
            m = n + (len(x) - n + 1) // 2  # the last output has no cotangent
            return program(settings, x[:n], x[n:m], x[m:], has_tangent)

        return run

    @compiled(f"{name}_transpose", inline=False, static_argnames=_STATIC)
    def by_xla(*x: Any, settings: Any, **static: Any) -> Sequence[Any]:
        return _run(flat(transpose), settings, *x, **static)

    if kernels is None:
        return by_xla

    def types(settings: Any, *x: Any, has_tangent: tuple[bool, ...]) -> list[Any]:
        return [retyped(a, a.shape) for a, has in zip(x, has_tangent, strict=False) if has]

    programs = {platform: flat(program) for platform, program in kernels.programs.items()}
    by_kernels = _primitive(f"{name}_transpose", types, programs)

    def jvp(primals: Any, tangents: Any, **static: Any) -> tuple[Any, Any]:
        return differentiated(functools.partial(by_xla, **static), primals, tangents)

    set_jvp(by_kernels, jvp)

    def run(*x: Any, settings: Any, has_tangent: tuple[bool, ...], **static: Any) -> Sequence[Any]:
        program = by_kernels.bind if kernels.support(settings, has_tangent) else by_xla
        return program(*x, settings=settings, has_tangent=has_tangent, **static)

    return run


def _split(x: Sequence[Any], has_tangent: tuple[bool, ...]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The operands of a function, its outputs, and the tangents of the operands that have one."""
    n, m = len(has_tangent), len(x) - sum(has_tangent)
    return x[:n], x[n:m], x[m:]


def _primitive(name: str, types: Function, programs: Mapping[str | None, Function]) -> Any:
    """A primitive with programs `program(settings, *operands)`, which `jax.vmap` maps as the levels say."""

    @jax.named_scope(f"posenc_jax.{name}")
    def run(program: Function, *operands: Any, settings: Any, **static: Any) -> Sequence[Any]:
        return _run(program, settings, *operands, **static)

    def type_of(
        *operands: Any, settings: Any, levels: tuple[Level, ...], result_axes: Sequence[Any] = (), **static: Any
    ) -> Sequence[Any]:
        mapped_axes, rows = [], list(operands)
        for level in reversed(levels[len(result_axes) :]):
            first = next(x for x, axis in zip(rows, level.axes, strict=True) if axis == 0)
            mapped_axes.append((first.shape[0], first.sharding.spec[0]))
            rows = [x if axis is None else _row(x) for x, axis in zip(rows, level.axes, strict=True)]
        return [_with_axes(x, mapped_axes) for x in types(settings, *rows, **static)]

    def mapped(bound: Any, axis_data: Any, axes: Any, *operands: Any, levels: tuple[Level, ...], **static: Any) -> Any:
        level = Level(tuple(axes), axis_data.name, axis_data.spmd_name)
        return bound.bind(*operands, levels=(*levels, level), **static)

    runs = {platform: functools.partial(run, program) for platform, program in programs.items()}
    kernels = [platform for platform in programs if platform]
    return primitive(name, type_of, runs, mapped, parameters=_STATIC, several=True, kernels=kernels)


def _run(
    program: Function,
    settings: Any,
    *operands: Any,
    levels: Sequence[Level],
    result_axes: Sequence[tuple[int | None, ...] | None] = (),
    **static: Any,
) -> Sequence[Any]:
    """Runs a program under one `jax.vmap` for each level, and sums the results whose axis is None."""
    f: Function = lambda *x: list(program(settings, *x, **static))  # noqa: E731
    for level, axes in itertools.zip_longest(levels, result_axes):
        f = _mapped(f, level, axes)
    return f(*operands)


def _mapped(f: Function, level: Level, result_axes: tuple[int | None, ...] | None) -> Function:
    """Maps f over a level, and sums the results whose axis is None."""
    mapped = jax.vmap(f, in_axes=level.axes, axis_name=level.axis_name, spmd_axis_name=level.spmd_axis_name)
    if result_axes is None:
        return mapped
    return lambda *x: [y if axis == 0 else jnp.sum(y, 0) for y, axis in zip(mapped(*x), result_axes, strict=True)]


def _row(x: Any) -> Any:
    """The type of one row of x."""
    return retyped(x, x.shape[1:], spec=x.sharding.spec[1:])


def _with_axes(x: Any, axes: list[tuple[Any, Any]]) -> Any:
    """The type of x with further leading axes, given the size and the sharding of each."""
    shape, spec = zip(*axes, strict=True) if axes else ((), ())
    return retyped(x, (*shape, *x.shape), spec=(*spec, *x.sharding.spec))
