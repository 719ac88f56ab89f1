"""Mesh helpers: shardings on Explicit axes, and variation along the manual axes of `shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def sharding(spec: Iterable[Any], *arrays: jax.Array) -> NamedSharding | None:
    """`NamedSharding` of `spec` on the arrays' mesh if it has Explicit axes, else None."""
    mesh, explicit = _mesh(arrays)
    return NamedSharding(mesh, PartitionSpec(*spec)) if explicit else None


def sharded_as(like: Any, f: Callable[..., Any], *arguments: Any) -> Any:
    """Runs f under `auto_axes`; output i is sharded like the arrays in `like[i]`."""
    _, explicit = _mesh(jax.tree.leaves((like, arguments)))
    specs = jax.tree.map(_spec, like, is_leaf=lambda x: isinstance(x, list))
    return (jax.sharding.auto_axes(f, axes=explicit, out_sharding=specs) if explicit else f)(*arguments)


def _spec(arrays: Sequence[jax.Array]) -> PartitionSpec:
    """Shards each axis like the first array that shards it."""
    specs = (jax.typeof(x).sharding.spec for x in arrays)
    return PartitionSpec(*(next(filter(None, names), None) for names in zip(*specs, strict=True)))


def _mesh(arrays: Iterable[jax.Array]) -> tuple[Any, tuple[Any, ...]]:
    """The first nonempty mesh of the arrays, and the names of its Explicit axes."""
    meshes = [jax.typeof(x).sharding.mesh for x in arrays]
    mesh = next((mesh for mesh in meshes if not mesh.empty), meshes[0])
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return mesh, tuple(name for name, kind in kinds if kind == AxisType.Explicit)


def count_along(x: jax.Array, axis: int) -> jax.Array:
    """Counts 0, 1, 2, … along an axis of x, at x's rank, sharded like that axis on Explicit axes."""
    shape = [n if i == axis else 1 for i, n in enumerate(x.shape)]
    spec = (s if i == axis else None for i, s in enumerate(jax.typeof(x).sharding.spec))
    return lax.broadcasted_iota(jnp.int32, shape, axis, out_sharding=sharding(spec, x))


def spec_of_keys(x: jax.Array, query: jax.Array) -> PartitionSpec:
    """How to shard keys or values (..., keys, heads, head_dim) like a query; a single head only along the batch."""
    *batch, _, heads, _ = jax.typeof(query).sharding.spec
    return PartitionSpec(*batch, None, heads if x.shape[-2] > 1 else None, None)


def resharded(x: jax.Array, spec: PartitionSpec, like: jax.Array) -> jax.Array:
    """`x` sharded by `spec` on the Explicit axes of another array's mesh."""
    return x if jax.typeof(x).sharding.spec == spec else jax.sharding.reshard(x, sharding(spec, like))


def varying(x: jax.Array) -> frozenset[Any]:
    """The manual axes of a mesh along which x varies."""
    return jax.typeof(x).manual_axis_type.varying


def vary(x: jax.Array, axes: frozenset[Any]) -> jax.Array:
    """Marks x as varying along these manual axes too."""
    missing = axes - varying(x)
    return lax.pcast(x, tuple(missing), to="varying") if missing else x


def agreeing(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Arrays of one rank that broadcast to each other, made to vary alike and to be sharded alike up to the last axis.

    Operands of a primitive must be: then its result has their common type, and the sum over devices that belongs to the
    derivative by a replicated operand is the transpose of `pcast` or `reshard`.
    """
    axes, common = frozenset[Any]().union(*map(varying, arrays)), common_sharding(map(jax.typeof, arrays))
    result = []
    for x in arrays:
        own = jax.typeof(x).sharding.spec
        rows = (mine if n == 1 else spec for n, mine, spec in zip(x.shape[:-1], own, common.spec, strict=False))
        spec = PartitionSpec(*rows, own[-1])
        result.append(vary(x if spec == own else jax.sharding.reshard(x, NamedSharding(common.mesh, spec)), axes))
    return result


def common_sharding(types: Iterable[Any]) -> NamedSharding:
    """The sharding of the first type, with the leading axes along which only other types are sharded."""
    first, *others = (t.sharding for t in types)
    rows = zip(*(s.spec[:-1] for s in (first, *others)), strict=True)
    mesh = next((s.mesh for s in (first, *others) if not s.mesh.empty), first.mesh)
    return NamedSharding(mesh, PartitionSpec(*(next(filter(None, names), None) for names in rows), first.spec[-1]))


def cotangent_of(primal: Any, cotangent: jax.Array) -> jax.Array:
    """Sums the cotangent over manual axes along which the primal does not vary, and shards it like the primal."""
    axes = varying(cotangent) - primal.manual_axis_type.varying
    cotangent = lax.psum(cotangent, tuple(axes)) if axes else cotangent
    spec = primal.sharding.spec
    return cotangent if jax.typeof(cotangent).sharding.spec == spec else jax.sharding.reshard(cotangent, spec)
