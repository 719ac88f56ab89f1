"""Attention with every option on meshes: what is split there gives the results and derivatives of one device.

- On Explicit axes, batch and heads may be split, and results and cotangents keep the sharding of their arrays.
- Arrays that belong to the query are sharded like it or whole, or the error says so.
- In `jax.shard_map`, queries may be split too, and what is whole gets the sum of the cotangents of all devices, once.
- A gradient exports for any batch; other sizes must be known.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.attention import BATCH, HEADS, KV_HEADS, attend, check, drawn
from helpers.tiers import slow

pytestmark = pytest.mark.usefixtures("on_cpu")
D, H = "data", "heads"
LENGTH = 8
AT = np.arange(LENGTH, dtype=np.int32)
CASE = {
    "window": (5, None), "causal": True, "cap": 2.0, "bias": True, "sinks": True, "scale": (LENGTH, 1), "i": AT,
    "j": AT,
    "mask": AT[None, None, None] % 4 > 0, "data": ((BATCH, HEADS), (BATCH, KV_HEADS), (1, KV_HEADS)),
}  # fmt: skip
ROWS = P(D, None, H)
SPECS = dict.fromkeys(("query", "key", "value", "a", "b"), ROWS) | {"slopes": P(H), "sinks": P(H)}
SPECS |= {"g": P(None, None, H), "scale": P(), "w": P()}


def drawn_here(seed, case=CASE):
    """Eight queries."""
    x = drawn(case, seed)
    return x | {name: np.concatenate([x[name], x[name][:, :1] / 2], 1) for name in ("query", "a") if name in x}


X = drawn_here(0)


def loss(x, f=None):
    return sum(jnp.sum(jnp.sin(y)) for y in (f(x) if f else attend(CASE, x)))


@functools.cache
def one_device():
    y, pull = jax.vjp(jax.jit(functools.partial(attend, CASE)), X)
    return y, pull(jax.tree.map(jnp.cos, y))[0]


def mesh_of(kind):
    return jax.make_mesh((2, 2), (D, H), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:4])


def placed(x, specs):
    mesh = jax.sharding.get_mesh()
    return {name: jax.device_put(a, NamedSharding(mesh, specs.get(name, P()))) for name, a in x.items()}


@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        (AxisType.Explicit, ("sinks", "slopes")),
        slow(AxisType.Explicit, ("key", "value")),
        slow(AxisType.Auto, ()),
    ],
)
def test_on_a_mesh(kind, whole):
    specs = {name: spec for name, spec in SPECS.items() if name not in whole}
    with jax.set_mesh(mesh_of(kind)):
        x = placed(X, specs)
        f = lambda x: (attend(CASE, x), jax.grad(loss)(x))  # noqa: E731
        if kind == AxisType.Explicit:
            y, by = jax.tree.map(lambda y: y.sharding.spec, jax.eval_shape(f, x))
            of_query = jax.typeof(x["query"]).sharding.spec
            assert y == (of_query, P(*of_query[:-1]))
            assert by == {name: jax.typeof(a).sharding.spec for name, a in x.items()}
        got = jax.jit(f)(x)
    check(got, one_device(), 2e-5, "one device")


@pytest.mark.parametrize(
    ("name", "spec", "like"),
    [
        ("sinks", P(D), "the heads of query"),
        ("scale", P(H, None), "query"),
        ("query_data", P(H), "query"),
        ("query_data", P(None, None, None, H), "query"),
        ("key_data", P(None, D), "key"),
        ("mask", P(None, None, H), "query"),
        ("query_positions", P(H, None), "query"),
    ],
)
def test_what_belongs_to_the_query_is_sharded_like_it(name, spec, like):
    x = np.ones((BATCH, LENGTH, HEADS, 4), np.float32)
    given = {
        "sinks": np.ones(HEADS, np.float32),
        "scale": np.ones((LENGTH, HEADS), np.float32),
        "query_data": np.ones((BATCH, LENGTH, HEADS, 2), np.float32),
        "key_data": np.ones((BATCH, LENGTH, HEADS), np.float32),
        "mask": np.ones((BATCH, HEADS, LENGTH, LENGTH), bool),
        "query_positions": np.stack([AT, AT]),
    }
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        x = jax.device_put(x, ROWS)
        options = {name: jax.device_put(given[name], spec)}
        if name == "query_positions":
            options["key_positions"] = AT
        f = functools.partial(pe.attention, bias=(lambda i, j, a, b: 0.0) if "data" in name else None)
        match = f"^attention: {name} must be sharded on Explicit axes of a mesh as {like} is, .*, or not at all, got P"
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(lambda x, options: f(x, x, x, **options), x, options)


# In shard_map


@pytest.mark.parametrize("inside", [False, slow(True)])
def test_queries_and_heads_in_shard_map(inside):
    """The derivative is taken outside, or inside, of a loss that is summed over devices."""
    specs = SPECS | {"query": P(None, D, H), "a": P(None, D, H), "scale": P(D)}
    specs |= {name: P(None, None, H) for name in ("key", "value", "b", "g")}
    rows = specs["query"]

    def here(x):
        n = x["query"].shape[1]
        return attend(CASE, x, query_positions=lax.dynamic_slice_in_dim(jnp.asarray(AT), lax.axis_index(D) * n, n))

    if inside:
        local = lambda x: (here(x), jax.grad(lambda x: lax.psum(loss(x, here), (D, H)))(x))  # noqa: E731
        out = (rows, rows), specs
    else:
        local, out = here, (rows, rows)
    mapped = jax.shard_map(local, mesh=mesh_of(AxisType.Auto), in_specs=(specs,), out_specs=out)
    f = mapped if inside else lambda x: (mapped(x), jax.grad(lambda x: loss(x, mapped))(x))
    check(jax.jit(f)(X), one_device(), 2e-5, "one device")


def test_tiles_are_not_skipped_where_devices_would_wait():
    """A whole parameter's cotangent is summed in every tile, so each device must visit the same tiles."""
    q, slopes = X["query"], X["slopes"]
    here = np.stack([AT, 4 * AT[::-1]]).astype(np.int32)  # the two devices see different tiles

    def total(slopes, q, i):
        bias = lambda i, j: pe.alibi(i, j, slopes)  # noqa: E731
        options = {"causal": True, "window": (2, None), "query_positions": i, "key_positions": 3 * i, "block_size": 2}
        return jnp.sum(jnp.sin(pe.attention(q, q, q, bias=bias, **options)))

    local = lambda slopes, q, i: jax.grad(total)(slopes, q, i[0])  # noqa: E731
    mesh = jax.make_mesh((2,), (D,), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:2])
    got = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P(), P(D), P(D)), out_specs=P()))(slopes, q, here)
    each = jax.jit(jax.grad(total))
    check(got, sum(np.asarray(each(slopes, q[d : d + 1], here[d])) for d in range(2)), 2e-5, "one after the other")


# Exports


def test_a_gradient_exports_for_any_batch():
    (n,) = export.symbolic_shape("n")
    batch = {"query", "key", "value", "a", "b"}
    types = {
        name: jax.ShapeDtypeStruct((n, *a.shape[1:]) if name in batch else a.shape, a.dtype) for name, a in X.items()
    }
    exported = export.export(jax.jit(jax.grad(loss)), platforms=["cpu", "cuda", "tpu"])(types)
    assert [y.shape for y in exported.out_avals] == [y.shape for y in exported.in_avals]


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_other_sizes_must_be_known(name, axis):
    (n,) = export.symbolic_shape("n")
    shapes = {name: list(X[name].shape) for name in ("query", "key", "value")}
    shapes[name][axis] = n
    with pytest.raises(ValueError, match=f"^attention: {name} must have a known size along axis {axis}, got shape .*n"):
        jax.eval_shape(pe.attention, *(jax.ShapeDtypeStruct(tuple(s), np.float32) for s in shapes.values()))
