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

pytestmark = pytest.mark.usefixtures("on_cpu")
D, H = "data", "heads"
LENGTH = 8
AT = np.arange(LENGTH, dtype=np.int32)
CASE = {
    **{"window": (5, None), "causal": True, "cap": 2.0, "bias": True, "sinks": True, "scale": (LENGTH, 1)},
    **{"i": AT, "j": AT, "mask": AT[None, None, None] % 4 > 0},
    "data": ((BATCH, HEADS), (BATCH, KV_HEADS), (1, KV_HEADS)),
}
X = drawn(CASE)
X |= {name: np.concatenate([X[name], X[name][:, :1] / 2], 1) for name in ("query", "a")}  # eight queries
# Sinks and slopes of heads are whole.
SPECS = dict.fromkeys(X, P()) | dict.fromkeys(("query", "key", "value", "a", "b"), P(D, None, H))
SPECS |= {"g": P(None, None, H)}


def loss(x, f=None):
    return sum(jnp.sum(jnp.sin(y)) for y in (f(x) if f else attend(CASE, x)))


def results_and_gradient(x):
    return attend(CASE, x), jax.grad(loss)(x)


@functools.cache
def one_device():
    return jax.jit(results_and_gradient)(X)


def mesh_of(kind):
    return jax.make_mesh((2, 2), (D, H), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:4])


def test_on_explicit_axes():
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        x = {name: jax.device_put(a, NamedSharding(jax.sharding.get_mesh(), SPECS[name])) for name, a in X.items()}
        y, by = jax.tree.map(lambda y: y.sharding.spec, jax.eval_shape(results_and_gradient, x))
        of_query = jax.typeof(x["query"]).sharding.spec
        assert y == (of_query, P(*of_query[:-1]))
        assert by == {name: jax.typeof(a).sharding.spec for name, a in x.items()}
        got = jax.jit(results_and_gradient)(x)
    check(got, one_device(), 2e-5, "one device")


Y = np.ones((BATCH, LENGTH, HEADS, 4), np.float32)


@pytest.mark.parametrize(
    ("name", "array", "spec", "like"),
    [
        ("sinks", Y[0, 0, :, 0], P(D), "the heads of query"),
        ("scale", Y[0, :, :, 0], P(H, None), "query"),
        ("query_data", Y, P(H), "query"),
        ("query_data", Y, P(None, None, None, H), "query"),
        ("key_data", Y[..., 0], P(None, D), "key"),
        ("mask", np.ones((BATCH, HEADS, LENGTH, LENGTH), bool), P(None, None, H), "query"),
        ("query_positions", np.stack([AT, AT]), P(H, None), "query"),
    ],
)
def test_what_belongs_to_the_query_is_sharded_like_it(name, array, spec, like):
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        y, options = jax.device_put(Y, P(D, None, H)), {name: jax.device_put(array, spec)}
        options |= {"key_positions": AT} if name == "query_positions" else {}
        f = functools.partial(pe.attention, bias=(lambda i, j, a, b: 0.0) if "data" in name else None)
        match = f"^attention: {name} must be sharded on Explicit axes of a mesh as {like} is, .*, or not at all, got P"
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(lambda y, options: f(y, y, y, **options), y, options)


def test_queries_and_heads_in_shard_map():
    specs = SPECS | {"query": P(None, D, H), "a": P(None, D, H), "scale": P(D), "slopes": P(H), "sinks": P(H)}
    specs |= dict.fromkeys(("key", "value", "b"), P(None, None, H))

    def here(x):
        n = x["query"].shape[1]
        return attend(CASE, x, query_positions=lax.dynamic_slice_in_dim(jnp.asarray(AT), lax.axis_index(D) * n, n))

    out = (specs["query"], specs["query"])
    mapped = jax.shard_map(here, mesh=mesh_of(AxisType.Auto), in_specs=(specs,), out_specs=out)
    got = jax.jit(lambda x: (mapped(x), jax.grad(lambda x: loss(x, mapped))(x)))(X)
    check(got, one_device(), 2e-5, "one device")


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


def test_a_gradient_exports_for_any_batch():
    (n,) = export.symbolic_shape("n")
    shapes = {
        name: (n, *a.shape[1:]) if name in ("query", "key", "value", "a", "b") else a.shape for name, a in X.items()
    }
    types = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
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
