"""Arrays on a mesh of devices: what JAX must be told of them, on Explicit axes and inside `shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def sharding(spec: Iterable[Any], *arrays: jax.Array) -> NamedSharding | None:
    """That spec on the mesh of some arrays, for operations that must be told on Explicit axes; else None."""
    mesh, explicit = _mesh(arrays)
    return NamedSharding(mesh, PartitionSpec(*spec)) if explicit else None


def sharded_as(like: Any, f: Callable[..., Any], *arguments: Any) -> Any:
    """f(*arguments), each result and what leads to it sharded as the arrays of its list in `like`."""
    _, explicit = _mesh(jax.tree.leaves((like, arguments)))
    specs = jax.tree.map(_spec, like, is_leaf=lambda x: isinstance(x, list))
    return (jax.sharding.auto_axes(f, axes=explicit, out_sharding=specs) if explicit else f)(*arguments)


def _spec(arrays: Sequence[jax.Array]) -> PartitionSpec:
    """The axes of a mesh along which one of some arrays is sharded."""
    specs = (jax.typeof(x).sharding.spec for x in arrays)
    return PartitionSpec(*(next(filter(None, names), None) for names in zip(*specs, strict=True)))


def _mesh(arrays: Iterable[jax.Array]) -> tuple[Any, tuple[Any, ...]]:
    """The mesh that arrays are on, if one of them is, and the names of its Explicit axes."""
    meshes = [jax.typeof(x).sharding.mesh for x in arrays]
    mesh = next((mesh for mesh in meshes if not mesh.empty), meshes[0])
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return mesh, tuple(name for name, kind in kinds if kind == AxisType.Explicit)


def varying(x: jax.Array) -> frozenset[Any]:
    """The manual axes of a mesh along which x varies."""
    return jax.typeof(x).manual_axis_type.varying


def vary(x: jax.Array, axes: frozenset[Any]) -> jax.Array:
    """The same, as varying along these axes too."""
    missing = axes - varying(x)
    return lax.pcast(x, tuple(missing), to="varying") if missing else x


def cotangent_of(primal: Any, cotangent: jax.Array) -> jax.Array:
    """A cotangent summed over the manual axes along which its primal does not vary, and sharded as that is."""
    axes = varying(cotangent) - primal.manual_axis_type.varying
    cotangent = lax.psum(cotangent, tuple(axes)) if axes else cotangent
    spec = primal.sharding.spec
    return cotangent if jax.typeof(cotangent).sharding.spec == spec else jax.sharding.reshard(cotangent, spec)
