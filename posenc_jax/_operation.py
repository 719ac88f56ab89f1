r"""Functions with derivatives of their own, in forward and in reverse mode.

An operation has three programs: one computes $y = f(x)$, the second the tangent $\dot y = J(x)\,\dot x$, the third the
transpose of the tangent, $\bar x = J(x)^\top \bar y$. `jax.custom_vjp` has no forward mode. With `jax.custom_jvp`,
JAX would derive the transpose from the tangent, and store what the third program recomputes. Derivatives of higher
order are those of the programs.

$f$ and its tangent are primitives of JAX. `jax.vmap` records which operands it maps, and the programs run under
`jax.vmap` in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from posenc_jax._xla import Primitive, compiled

Program = Callable[..., Sequence[Any]]
_STATIC = "settings", "levels", "moving"


class Level(NamedTuple):
    """One `jax.vmap`: the names of its axis, and 0 for the operands that it maps along their first axis, else None."""

    axes: tuple[int | None, ...]
    axis_name: Any
    spmd_axis_name: Any


def operation(name: str, *, types: Program, compute: Program, tangent: Program, transpose: Program) -> Program:
    """Makes a function of (settings, *operands) that returns several outputs; settings are hashable.

    Args:
      name: the name of the primitive.
      types: types(settings, *operand_types) are those of the outputs.
      compute: compute(settings, *operands) are the outputs. The last one counts as a constant.
      tangent: tangent(settings, operands, outputs, tangents) are the tangents of all outputs but the last. A tangent is
        None if its operand does not move.
      transpose: transpose(settings, operands, outputs, cotangents, moving) are the cotangents of the operands that
        move, from those of all outputs but the last.
    """

    def compute_tangent(settings: Any, *x: Any, moving: tuple[bool, ...]) -> Sequence[Any]:
        operands, outputs, moved = _groups(x, moving)
        tangents = iter(moved)
        return tangent(settings, operands, outputs, [next(tangents) if moves else None for moves in moving])

    def types_of_tangent(settings: Any, *x: Any, moving: tuple[bool, ...]) -> Sequence[Any]:
        return _groups(x, moving)[1][:-1]

    function = _primitive(name, types, compute)
    derivative = _primitive(f"{name}_derivative", types_of_tangent, compute_tangent)

    def jvp(primals: Any, tangents: Any, *, settings: Any, levels: tuple[Level, ...]) -> tuple[Any, Any]:
        moving = tuple(not isinstance(t, ad.Zero) for t in tangents)
        moved = [t for t in tangents if not isinstance(t, ad.Zero)]
        y = function.bind(*primals, settings=settings, levels=levels)
        moved_axes = [[axis for axis, moves in zip(of.axes, moving, strict=True) if moves] for of in levels]
        levels = tuple(
            of._replace(axes=(*of.axes, *(0 for _ in y), *axes)) for of, axes in zip(levels, moved_axes, strict=True)
        )
        dy = derivative.bind(*primals, *y, *moved, settings=settings, levels=levels, moving=moving)
        return y, [*dy, ad.Zero(jax.typeof(y[-1]).to_tangent_aval())]

    def jvp_of_derivative(primals: Any, tangents: Any, *, settings: Any, **static: Any) -> tuple[Any, Any]:
        # Differentiates the program: to differentiate its primitive, JAX would call this rule again.
        moved = {i: t for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)}

        def program(*values: Any) -> Sequence[Any]:
            x = dict(enumerate(primals)) | dict(zip(moved, values, strict=True))
            return _run(compute_tangent, settings, *x.values(), **static)

        return jax.jvp(program, [primals[i] for i in moved], list(moved.values()))

    @compiled(f"{name}_transpose", static_argnames=_STATIC)
    def run_transpose(
        known: Any, cotangents: Any, *, settings: Any, levels: tuple[Level, ...], moving: tuple[bool, ...]
    ) -> Sequence[Any]:
        n, m = len(moving), len(known)

        def program(settings: Any, *x: Any) -> Sequence[Any]:
            return transpose(settings, x[:n], x[n:m], x[m:], moving)

        inputs = [of._replace(axes=(*of.axes[:m], *(0 for _ in cotangents))) for of in levels]
        return _run(program, settings, *known, *cotangents, levels=inputs, results=[of.axes[m:] for of in levels])

    def transposed(cotangents: Any, *x: Any, moving: tuple[bool, ...], **static: Any) -> list[Any]:
        known = x[: len(x) - sum(moving)]
        return [None] * len(known) + list(
            run_transpose(known, [*map(ad.instantiate_zeros, cotangents)], moving=moving, **static)
        )

    ad.primitive_jvps.update({function: jvp, derivative: jvp_of_derivative})
    ad.primitive_transposes[derivative] = transposed
    return lambda settings, *operands: function.bind(*operands, settings=settings, levels=())


def _groups(x: Sequence[Any], moving: tuple[bool, ...]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The operands of a function, its outputs, and the tangents of the operands that move."""
    n, m = len(moving), len(x) - sum(moving)
    return x[:n], x[n:m], x[m:]


def _primitive(name: str, types: Program, program: Program) -> Any:
    """A primitive with the program `program(settings, *operands)`, which `jax.vmap` maps as the levels say."""
    primitive = Primitive(name)
    primitive.multiple_results = True

    def run(*operands: Any, settings: Any, **static: Any) -> Sequence[Any]:
        return _run(program, settings, *operands, **static)

    def evaluate(*operands: Any, **static: Any) -> Sequence[Any]:
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return run(*operands, **static)  # `bind` would call this function again
        return jitted(*operands, **static)

    def type_of(*operands: Any, settings: Any, levels: tuple[Level, ...], **static: Any) -> Sequence[Any]:
        rows, single = [], list(operands)
        for level in reversed(levels):
            of = next(x for x, axis in zip(single, level.axes, strict=True) if axis == 0)
            rows.append((of.shape[0], of.sharding.spec[0]))
            single = [x if axis is None else _row(x) for x, axis in zip(single, level.axes, strict=True)]
        return [_rows(x, rows) for x in types(settings, *single, **static)]

    def batch(
        data: Any, operands: Any, axes: Any, *, levels: tuple[Level, ...], **static: Any
    ) -> tuple[Any, list[Any]]:
        if all(axis is None for axis in axes):  # JAX calls this rule for any operands under a named axis
            results = primitive.bind(*operands, levels=levels, **static)
            return results, [None] * len(results)
        level = Level(tuple(None if axis is None else 0 for axis in axes), data.name, data.spmd_name)
        batched = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
        results = primitive.bind(*batched, levels=(*levels, level), **static)
        return results, [0] * len(results)

    jitted = jax.jit(jax.named_scope(f"posenc_jax.{name}")(primitive.bind), static_argnames=_STATIC)
    primitive.def_impl(evaluate)
    primitive.def_abstract_eval(type_of)
    batching.fancy_primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(jax.named_scope(f"posenc_jax.{name}")(run), multiple_results=True))
    return primitive


def _run(
    program: Program,
    settings: Any,
    *operands: Any,
    levels: Sequence[Level],
    results: Sequence[tuple[int | None, ...] | None] = (),
    **static: Any,
) -> Sequence[Any]:
    """Runs a program under one `jax.vmap` for each level, and sums the results that are None in its `results`."""
    f: Program = lambda *x: list(program(settings, *x, **static))  # noqa: E731
    for level, wanted in itertools.zip_longest(levels, results):
        f = _mapped(f, level, wanted)
    return f(*operands)


def _mapped(f: Program, level: Level, wanted: tuple[int | None, ...] | None) -> Program:
    """Maps f over a level, and sums the results that are None in `wanted`."""
    mapped = jax.vmap(f, in_axes=level.axes, axis_name=level.axis_name, spmd_axis_name=level.spmd_axis_name)
    if wanted is None:
        return mapped
    return lambda *x: [y if axis == 0 else jnp.sum(y, 0) for y, axis in zip(mapped(*x), wanted, strict=True)]


def _row(x: Any) -> Any:
    """The type of one row of x."""
    return x.update(shape=x.shape[1:], sharding=x.sharding.update(spec=PartitionSpec(*x.sharding.spec[1:])))


def _rows(x: Any, rows: list[tuple[Any, Any]]) -> Any:
    """The type of rows of x, given their number and sharding along each axis."""
    shape, spec = zip(*rows, strict=True) if rows else ((), ())
    sharding = x.sharding.update(spec=PartitionSpec(*spec, *x.sharding.spec))
    return x.update(shape=(*shape, *x.shape), sharding=sharding)
