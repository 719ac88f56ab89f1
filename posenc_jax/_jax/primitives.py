"""JAX primitives and their types. No other module imports `jax.interpreters`.

A primitive here has a type, a program for each platform, and a rule for `jax.vmap`. Its tangent is that of its program,
unless `set_jvp` gives it another; `set_transpose` gives it a transpose. A tangent of None is zero. No other module
calls methods of types that JAX does not document.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

# `jax.extend.core` has this class too, but imports Pallas, which takes as long as this library (JAX 0.10 and 0.12).
# tests/properties/test_package.py::test_importing_brings_in_nothing_heavy
_Primitive = type(lax.add_p)


def primitive(
    name: str,
    type_of: Callable[..., Any],
    programs: Mapping[str | None, Callable[..., Any]],
    mapped: Callable[..., Any],
    *,
    parameters: tuple[str, ...],
    several: bool = False,
    kernels: Collection[str] = (),
) -> Any:
    """Makes a primitive.

    Args:
      name: its name in programs.
      type_of: type_of(*operand_types, **parameters) is the type of the result.
      programs: the program of each platform; None stands for the platforms not named.
      mapped: mapped(primitive, axis_data, axes, *operands, **parameters) binds the primitive under one more `jax.vmap`.
        The new axis is the first of the results, and of the operands for which axes holds 0 and not None.
      parameters: the names of the parameters, which are hashable.
      several: whether there are several results, a list.
      kernels: the platforms whose program XLA cannot partition.
    """
    new = _Primitive(name)
    new.multiple_results = several
    jitted = jax.jit(new.bind, static_argnames=parameters)

    def evaluate(*operands: Any, **static: Any) -> Any:
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            # `jitted` would call `bind`, which calls this function. The CPU's program is right on every platform.
            return programs[None](*operands, **static)
        return jitted(*operands, **static)

    def batch(axis_data: Any, operands: Sequence[Any], axes: Sequence[Any], **static: Any) -> tuple[Any, Any]:
        if all(axis is None for axis in axes):  # JAX calls this rule for any operands under a named axis
            axis, y = None, new.bind(*operands, **static)
        else:
            firsts = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
            axis, y = 0, mapped(new, axis_data, [None if axis is None else 0 for axis in axes], *firsts, **static)
        return y, [axis] * len(y) if several else axis

    new.def_impl(evaluate)
    new.def_abstract_eval(type_of)
    batching.fancy_primitive_batchers[new] = batch
    for platform, program in programs.items():
        rule = mlir.lower_fun(program, multiple_results=several)
        rule = _for_one_device(name, rule) if platform in kernels else rule
        mlir.register_lowering(new, rule, platform, inline=False)  # equal calls share one function
    set_jvp(new, lambda *both, **static: differentiated(functools.partial(programs[None], **static), *both))
    return new


def _for_one_device(name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering rule that raises unless the program is for one device, or for each device of a `shard_map`."""

    def lower(context: Any, *operands: Any, **static: Any) -> Any:
        axes = context.module_context.axis_context
        manual, mesh = getattr(axes, "manual_axes", frozenset()), getattr(axes, "mesh", None)
        if mesh is not None and manual != frozenset(mesh.axis_names) or getattr(axes, "num_devices", 1) > 1:
            raise ValueError(f"{name} runs on one device: wrap it in jax.shard_map over all axes of the mesh")
        # Pallas's loops keep no axes along which their bounds vary, and raise where these have some.
        types = [type(x)(x.shape, x.dtype) for x in context.avals_in]
        return rule(context.replace(avals_in=types), *operands, **static)

    return lower


def set_jvp(of: Any, rule: Callable[..., tuple[Any, Any]]) -> None:
    """rule(primals, tangents, **parameters) is the result and its tangent."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
        y, dy = rule(primals, [None if isinstance(t, ad.Zero) else t for t in tangents], **parameters)
        if of.multiple_results:
            pairs = zip(y, dy, strict=True)
            dy = [ad.Zero(jax.typeof(out).to_tangent_aval()) if t is None else t for out, t in pairs]
        return y, dy

    ad.primitive_jvps[of] = jvp


def set_transpose(of: Any, rule: Callable[..., list[Any]]) -> None:
    """rule(cotangent, *operands, **parameters) is a cotangent, or None, for each operand; see `unknown`."""

    def transpose(dy: Any, *operands: Any, **parameters: Any) -> list[Any]:
        if of.multiple_results:
            return rule([*map(ad.instantiate_zeros, dy)], *operands, **parameters)
        return [None] * len(operands) if isinstance(dy, ad.Zero) else rule(dy, *operands, **parameters)

    ad.primitive_transposes[of] = transpose


def unknown(operand: Any) -> Any:
    """The type of an operand whose cotangent a transpose computes; None for one whose value is known."""
    return operand.aval if ad.is_undefined_primal(operand) else None


def optional_tangents(has_tangent: Sequence[bool], tangents: Iterable[Any]) -> list[Any]:
    """The tangent of each operand, or None for one without, from the tangents of those that have one."""
    remaining = iter(tangents)
    return [next(remaining) if has else None for has in has_tangent]


def differentiated(program: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The result of a program and its tangent; a tangent of None is zero."""
    by_index = {i: t for i, t in enumerate(tangents) if t is not None}

    def differentiable(*values: Any) -> Any:
        operands = dict(enumerate(primals)) | dict(zip(by_index, values, strict=True))
        return program(*operands.values())

    return jax.jvp(differentiable, [primals[i] for i in by_index], [*by_index.values()])


def evaluated(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation of a jaxpr, whose derivatives are those of a `jax.custom_jvp` if it calls one."""
    results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return results if eqn.primitive.multiple_results else [results]


_INTERNED: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def interned(jaxpr: Any) -> Any:
    """The first of equal jaxprs, so that primitives with equal ones share their rules and their function.

    Jaxprs are equal if their equations are: primitives, parameters by `==`, operands and types. JAX caches what a
    function that is called again traces to, so the jaxprs in parameters are often the same objects. A jaxpr with a
    parameter that cannot be hashed is its own.
    """
    names: dict[Any, int] = {}

    def name(x: Any) -> Any:
        if hasattr(x, "val"):  # a literal; zeros have signs
            return x.aval, np.asarray(x.val).tobytes()
        return names.setdefault(x, len(names)), x.aval

    operands = (len(jaxpr.constvars), *map(name, (*jaxpr.constvars, *jaxpr.invars)))
    equations = [
        (eqn.primitive, tuple(eqn.params.items()), eqn.ctx, *map(name, (*eqn.invars, *eqn.outvars)))
        for eqn in jaxpr.eqns
    ]
    key = operands, *equations, tuple(map(name, jaxpr.outvars))
    try:
        return _INTERNED.setdefault(key, jaxpr)
    except TypeError:
        return jaxpr


def retyped(x: Any, shape: Sequence[Any], *, dtype: Any = None, spec: Any = None, sharding: Any = None) -> Any:
    """The type x with another shape, and another dtype, partitions or sharding if they are given; not weak."""
    dtype, sharding = dtype or x.dtype, sharding or x.sharding
    if spec is not None:
        sharding = sharding.update(spec=sharding.spec.update(partitions=tuple(spec)))
    return x.update(shape=tuple(shape), dtype=dtype, weak_type=False, sharding=sharding)


def varying(x: jax.Array) -> frozenset[Any]:
    """The manual axes of a mesh along which x varies."""
    return jax.typeof(x).manual_axis_type.varying
