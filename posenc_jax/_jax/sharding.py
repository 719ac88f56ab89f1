"""Mesh helpers: shardings on Explicit axes, and variation along the manual axes of `shard_map`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid
from posenc_jax._jax.primitives import varying


def named_sharding(spec: Iterable[Any], *arrays: jax.Array) -> NamedSharding | None:
    """`NamedSharding` of `spec` on the arrays' mesh if it has Explicit axes, else None."""
    mesh, explicit = _mesh(map(jax.typeof, arrays))
    return NamedSharding(mesh, PartitionSpec(*spec)) if explicit else None


def sharded_as(like: Any, f: Callable[..., Any], *arguments: Any) -> Any:
    """Runs f under `auto_axes`; output i is sharded like the arrays in `like[i]`."""
    _, explicit = _mesh(map(jax.typeof, jax.tree.leaves((like, arguments))))
    specs = jax.tree.map(lambda x: _spec(map(jax.typeof, x)), like, is_leaf=lambda x: isinstance(x, list))
    return (jax.sharding.auto_axes(f, axes=explicit, out_sharding=specs) if explicit else f)(*arguments)


def _spec(types: Iterable[Any]) -> PartitionSpec:
    """Shards each axis like the first type that shards it."""
    specs = (t.sharding.spec for t in types)
    return PartitionSpec(*(next(filter(None, names), None) for names in zip(*specs, strict=True)))


def _mesh(types: Iterable[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The first nonempty mesh of the types, and the names of its Explicit axes."""
    meshes = [t.sharding.mesh for t in types]
    mesh = next((mesh for mesh in meshes if not mesh.empty), meshes[0])
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return mesh, tuple(name for name, kind in kinds if kind == AxisType.Explicit)


def count_along(x: jax.Array, axis: int) -> jax.Array:
    """Counts 0, 1, 2, … along an axis of x, at x's rank, sharded like that axis on Explicit axes."""
    shape = [n if i == axis else 1 for i, n in enumerate(x.shape)]
    spec = (s if i == axis else None for i, s in enumerate(jax.typeof(x).sharding.spec))
    return lax.broadcasted_iota(jnp.int32, shape, axis, out_sharding=named_sharding(spec, x))


def sharded_as_query(name: str, x: jax.Array, query: jax.Array) -> jax.Array:
    """Keys or values (..., keys, heads, width), resharded like the query; a single head only along the batch."""
    *batch, _, heads, _ = jax.typeof(query).sharding.spec
    spec = PartitionSpec(*batch, None, heads if x.shape[-2] > 1 else None, None)
    checks.sharded_like(name, jax.typeof(x).sharding.spec, "query", spec)
    shards = math.prod(jax.typeof(query).sharding.mesh.shape[axis] for axis in jax.tree.leaves(spec[-2]))
    if x.shape[-2] % shards:
        message = f"as many as query's are split into on Explicit axes of a mesh, {shards}, or a multiple, or one"
        raise invalid(f"the heads of {name} must be {message}, got {x.shape[-2]}")
    return resharded(x, spec, query)


def resharded(x: jax.Array, spec: PartitionSpec, *like: jax.Array) -> jax.Array:
    """`x` sharded by `spec` on the Explicit axes of the mesh of other arrays."""
    return x if jax.typeof(x).sharding.spec == spec else jax.sharding.reshard(x, named_sharding(spec, *like))


def vary(x: jax.Array, axes: frozenset[Any]) -> jax.Array:
    """Marks x as varying along these manual axes too."""
    missing = axes - varying(x)
    return lax.pcast(x, tuple(missing), to="varying") if missing else x


def vary_like(x: Any, like: Any) -> Any:
    """Marks the arrays of x as varying along all manual axes along which an array of `like` varies."""
    axes = frozenset[Any]().union(*map(varying, jax.tree.leaves(like)))
    return jax.tree.map(lambda array: vary(array, axes), x)


def recomputed(like: jax.Array | list[jax.Array], f: Callable[..., jax.Array], *arguments: Any) -> jax.Array:
    """f(*arguments), sharded like `like`, arrays of the result's rank. Reverse mode stores only the arguments."""
    like = like if isinstance(like, list) else [like]
    # Arguments vary like the result before f broadcasts them, so that devices exchange sums of the arguments' shapes.
    return sharded_as(like, jax.checkpoint(f, prevent_cse=False), *vary_like(arguments, like))


def agreeing(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Makes arrays of one rank vary along the same manual axes, and shards them alike along their leading axes.

    An axis of size 1 and the last axis keep their sharding. JAX makes the operands of its own operations agree, but not
    those of a new primitive. The transposes of `pcast` and `reshard` sum the derivative by a replicated operand over
    devices.
    """
    axes, common = frozenset[Any]().union(*map(varying, arrays)), _spec(map(jax.typeof, arrays))
    result = []
    for x in arrays:
        spec = jax.typeof(x).sharding.spec
        leading = (name if n == 1 else shared for n, name, shared in zip(x.shape[:-1], spec, common, strict=False))
        result.append(vary(resharded(x, PartitionSpec(*leading, spec[-1]), *arrays), axes))
    return result


def common_sharding(types: Sequence[Any]) -> NamedSharding:
    """Shards the leading axes like the first type that shards each, and the last axis like the first type."""
    return NamedSharding(_mesh(types)[0], PartitionSpec(*_spec(types)[:-1], types[0].sharding.spec[-1]))
