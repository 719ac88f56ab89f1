r"""Functions with derivatives of their own, in forward and in reverse mode.

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

from posenc_jax._jax.primitives import differentiated, primitive, retyped, set_jvp, set_transpose
from posenc_jax._jax.workarounds import compiled

Function = Callable[..., Sequence[Any]]
_STATIC = "settings", "levels", "moving"


class Level(NamedTuple):
    """One `jax.vmap`: the names of its axis, and 0 for the operands that it maps along their first axis, else None."""

    axes: tuple[int | None, ...]
    axis_name: Any
    spmd_axis_name: Any


class Kernels(NamedTuple):
    """What computes cotangents, as the `transpose` of an operation does, but has no derivative."""

    programs: Mapping[str | None, Function]  # that of each platform; only the one of None can be partitioned by XLA
    hold: Callable[[Any, tuple[bool, ...]], bool]  # (settings, moving) → whether they can compute this


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
      tangent: tangent(settings, operands, outputs, tangents) are the tangents of all outputs but the last. A tangent is
        None if its operand does not move.
      transpose: transpose(settings, operands, outputs, cotangents, moving) are the cotangents of the operands that
        move, from those of all outputs but the last.
      cuda: computes the outputs on NVIDIA GPUs, as a kernel that XLA cannot partition; None for `compute`.
      kernels: compute the cotangents instead of `transpose`, except where these are differentiated in turn.
    """

    def compute_tangent(settings: Any, *x: Any, moving: tuple[bool, ...]) -> Sequence[Any]:
        operands, outputs, moved = _groups(x, moving)
        tangents = iter(moved)
        return tangent(settings, operands, outputs, [next(tangents) if moves else None for moves in moving])

    def types_of_tangent(settings: Any, *x: Any, moving: tuple[bool, ...]) -> Sequence[Any]:
        return _groups(x, moving)[1][:-1]

    function = _primitive(name, types, {None: compute} | ({"cuda": cuda} if cuda else {}))
    derivative = _primitive(f"{name}_derivative", types_of_tangent, {None: compute_tangent})

    def jvp(primals: Any, tangents: Any, *, settings: Any, levels: tuple[Level, ...]) -> tuple[Any, Any]:
        moving, moved = tuple(t is not None for t in tangents), [t for t in tangents if t is not None]
        y = function.bind(*primals, settings=settings, levels=levels)
        moved_axes = [[axis for axis, moves in zip(of.axes, moving, strict=True) if moves] for of in levels]
        levels = tuple(
            of._replace(axes=(*of.axes, *(0 for _ in y), *axes)) for of, axes in zip(levels, moved_axes, strict=True)
        )
        dy = derivative.bind(*primals, *y, *moved, settings=settings, levels=levels, moving=moving)
        return y, [*dy, None]

    run_transpose = _transpose(name, transpose, kernels)

    def transposed(
        cotangents: Any, *x: Any, moving: tuple[bool, ...], levels: tuple[Level, ...], settings: Any
    ) -> list[Any]:
        m = len(x) - sum(moving)
        inputs = tuple(of._replace(axes=(*of.axes[:m], *(0 for _ in cotangents))) for of in levels)
        static = {"moving": moving, "levels": inputs, "results": tuple(of.axes[m:] for of in levels)}
        return [None] * m + list(run_transpose(*x[:m], *cotangents, settings=settings, **static))

    set_jvp(function, jvp)
    set_transpose(derivative, transposed)
    return lambda settings, *operands: function.bind(*operands, settings=settings, levels=())


def _transpose(name: str, transpose: Function, kernels: Kernels | None) -> Function:
    """The function of the operands, the outputs and their cotangents that an operation calls in reverse mode.

    Its `levels` begin with those of the tangent, of which `results` are the axes of the cotangents.
    """

    def grouped(program: Function) -> Function:
        def run(settings: Any, *x: Any, moving: tuple[bool, ...]) -> Sequence[Any]:
            n = len(moving)
            m = n + (len(x) - n + 1) // 2  # the last output has no cotangent
            return program(settings, x[:n], x[n:m], x[m:], moving)

        return run

    @compiled(f"{name}_transpose", static_argnames=(*_STATIC, "results"))
    def by_xla(*x: Any, settings: Any, **static: Any) -> Sequence[Any]:
        return _run(grouped(transpose), settings, *x, **static)

    if kernels is None:
        return by_xla

    def types(settings: Any, *x: Any, moving: tuple[bool, ...]) -> list[Any]:
        return [retyped(a, a.shape) for a, moves in zip(x, moving, strict=False) if moves]

    programs = {platform: grouped(program) for platform, program in kernels.programs.items()}
    by_kernels = _primitive(f"{name}_transpose", types, programs)
    set_jvp(by_kernels, lambda *moves, **static: differentiated(functools.partial(by_xla, **static), *moves))

    def run(*x: Any, settings: Any, moving: tuple[bool, ...], **static: Any) -> Sequence[Any]:
        of = by_kernels.bind if kernels.hold(settings, moving) else by_xla
        return of(*x, settings=settings, moving=moving, **static)

    return run


def _groups(x: Sequence[Any], moving: tuple[bool, ...]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The operands of a function, its outputs, and the tangents of the operands that move."""
    n, m = len(moving), len(x) - sum(moving)
    return x[:n], x[n:m], x[m:]


def _primitive(name: str, types: Function, programs: Mapping[str | None, Function]) -> Any:
    """A primitive with programs `program(settings, *operands)`, which `jax.vmap` maps as the levels say."""

    @jax.named_scope(f"posenc_jax.{name}")
    def run(program: Function, *operands: Any, settings: Any, **static: Any) -> Sequence[Any]:
        return _run(program, settings, *operands, **static)

    def type_of(
        *operands: Any, settings: Any, levels: tuple[Level, ...], results: Sequence[Any] = (), **static: Any
    ) -> Sequence[Any]:
        rows, single = [], list(operands)
        for level in reversed(levels[len(results) :]):
            of = next(x for x, axis in zip(single, level.axes, strict=True) if axis == 0)
            rows.append((of.shape[0], of.sharding.spec[0]))
            single = [x if axis is None else _row(x) for x, axis in zip(single, level.axes, strict=True)]
        return [_rows(x, rows) for x in types(settings, *single, **static)]

    def mapped(of: Any, data: Any, axes: Any, *operands: Any, levels: tuple[Level, ...], **static: Any) -> Any:
        level = Level(tuple(axes), data.name, data.spmd_name)
        return of.bind(*operands, levels=(*levels, level), **static)

    runs = {platform: functools.partial(run, program) for platform, program in programs.items()}
    kernels = [platform for platform in programs if platform]
    return primitive(name, type_of, runs, mapped, parameters=(*_STATIC, "results"), several=True, kernels=kernels)


def _run(
    program: Function,
    settings: Any,
    *operands: Any,
    levels: Sequence[Level],
    results: Sequence[tuple[int | None, ...] | None] = (),
    **static: Any,
) -> Sequence[Any]:
    """Runs a program under one `jax.vmap` for each level, and sums the results that are None in its `results`."""
    f: Function = lambda *x: list(program(settings, *x, **static))  # noqa: E731
    for level, wanted in itertools.zip_longest(levels, results):
        f = _mapped(f, level, wanted)
    return f(*operands)


def _mapped(f: Function, level: Level, wanted: tuple[int | None, ...] | None) -> Function:
    """Maps f over a level, and sums the results that are None in `wanted`."""
    mapped = jax.vmap(f, in_axes=level.axes, axis_name=level.axis_name, spmd_axis_name=level.spmd_axis_name)
    if wanted is None:
        return mapped
    return lambda *x: [y if axis == 0 else jnp.sum(y, 0) for y, axis in zip(mapped(*x), wanted, strict=True)]


def _row(x: Any) -> Any:
    """The type of one row of x."""
    return retyped(x, x.shape[1:], spec=x.sharding.spec[1:])


def _rows(x: Any, rows: list[tuple[Any, Any]]) -> Any:
    """The type of rows of x, given their number and sharding along each axis."""
    shape, spec = zip(*rows, strict=True) if rows else ((), ())
    return retyped(x, (*shape, *x.shape), spec=(*spec, *x.sharding.spec))
