"""Attention with most of its options at once, split over devices, has the results and derivatives of one device.

- On Explicit axes, batch and heads may be split; results are sharded like the query, cotangents like their arrays.
  (properties/test_attention_on_explicit_axes.py: what devices send each other, and what else may be split.)
- Arguments must be sharded like query or key (whichever they belong to) or not at all; otherwise an error names them.
- In `jax.shard_map`, queries may be split too. The cotangent of a replicated array is the sum over all devices.
- Besides meshes: a gradient exports for any batch size; other sizes must be known.
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
from helpers.attention import BATCH, HEADS, KV_HEADS, attend, random_arrays
from helpers.attention import check as assert_close

pytestmark = pytest.mark.usefixtures("on_cpu")
D, H = "devices", "heads"  # the axes of the mesh; the first splits the batch or the queries
LENGTH = 8
POSITIONS = np.arange(LENGTH, dtype=np.int32)
CASE = {  # `helpers.attention` explains the keys: "scale" is the shape of an array, "i" and "j" are positions
    "window": (5, None),
    "causal": True,
    "cap": 2.0,
    "bias": True,
    "sinks": True,
    "scale": (LENGTH, 1),
    "i": POSITIONS,
    "j": POSITIONS,
    "mask": POSITIONS[None, None, None] % 4 > 0,
    "data": ((BATCH, HEADS), (BATCH, KV_HEADS), (1, KV_HEADS)),  # (batch, heads) of a, of b, of g
}
X = random_arrays(CASE)
# Eight queries instead of seven, so that two devices can split them; "a" is the data of queries.
X |= {name: np.concatenate([X[name], X[name][:, :1] / 2], 1) for name in ("query", "a")}
# How arrays are sharded: batch and heads are split, and arrays without these axes are replicated.
SPECS = dict.fromkeys(X, P()) | dict.fromkeys(("query", "key", "value", "a", "b"), P(D, None, H))
SPECS |= {"g": P(None, None, H)}


def attend_case(x):
    return attend(CASE, x)


def loss(x, f=attend_case):
    """The sum of the sines of what f returns."""
    return sum(jnp.sum(jnp.sin(y)) for y in f(x))


def results_and_gradient(x):
    return attend_case(x), jax.grad(loss)(x)


@functools.cache
def one_device():
    return jax.jit(results_and_gradient)(X)


def mesh_of(kind):
    return jax.make_mesh((2, 2), (D, H), axis_types=(kind,) * 2, devices=jax.devices("cpu")[:4])


def test_explicit_axes_keep_shardings_and_results():
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        x = {name: jax.device_put(a, NamedSharding(jax.sharding.get_mesh(), SPECS[name])) for name, a in X.items()}
        types = jax.eval_shape(results_and_gradient, x)
        result_specs, gradient_specs = jax.tree.map(lambda y: y.sharding.spec, types)
        query_spec = jax.typeof(x["query"]).sharding.spec
        assert result_specs == (query_spec, P(*query_spec[:-1]))  # of results and of residuals
        assert gradient_specs == {name: jax.typeof(a).sharding.spec for name, a in x.items()}
        got = jax.jit(results_and_gradient)(x)
    assert_close(got, one_device(), 2e-5, "one device")  # sums in another order


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=str)
def test_a_mapped_axis_may_be_split_by_spmd_axis_name(kind):
    rows = {name: np.stack([a, -a]) for name, a in X.items()}
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        x = {name: jax.device_put(a, NamedSharding(mesh, P(D))) for name, a in rows.items()}
        got = jax.jit(jax.vmap(results_and_gradient, spmd_axis_name=D))(x)
    for y in jax.tree.leaves(got):
        assert y.sharding.spec[0] == D
    want = jax.jit(jax.vmap(results_and_gradient))(rows)
    assert_close(jax.device_get(got), want, 2e-5, "one device")


ONES = np.ones((BATCH, LENGTH, HEADS, 4), np.float32)


# An argument, its array, a sharding that differs from that of query or key, and what it must be sharded like.
@pytest.mark.parametrize(
    ("name", "array", "spec", "like"),
    [
        ("sinks", ONES[0, 0, :, 0], P(D), "the heads of query"),
        ("scale", ONES[0, :, :, 0], P(H, None), "query"),
        ("query_data", ONES, P(H), "query"),
        ("query_data", ONES, P(None, None, None, H), "query"),
        ("key_data", ONES[..., 0], P(None, D), "key"),
        ("mask", np.ones((BATCH, HEADS, LENGTH, LENGTH), bool), P(None, None, H), "query"),
        ("query_positions", np.stack([POSITIONS, POSITIONS]), P(H, None), "query"),
    ],
)
def test_arguments_must_be_sharded_like_query_or_key(name, array, spec, like):
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        x, options = jax.device_put(ONES, P(D, None, H)), {name: jax.device_put(array, spec)}
        options |= {"key_positions": POSITIONS} if name == "query_positions" else {}
        f = functools.partial(pe.attention, bias=(lambda i, j, a, b: None) if "data" in name else None)
        match = f"^attention: {name} must be sharded on Explicit axes of a mesh as {like} is, .*, or not at all, got P"
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(lambda x, options: f(x, x, x, **options), x, options)


def test_in_shard_map_split_queries_and_heads_give_the_same():
    specs = SPECS | {"query": P(None, D, H), "a": P(None, D, H), "scale": P(D), "slopes": P(H), "sinks": P(H)}
    specs |= dict.fromkeys(("key", "value", "b"), P(None, None, H))

    def part(x):
        """What one device computes: its queries, at their positions, with all keys."""
        n = x["query"].shape[1]
        positions = lax.dynamic_slice_in_dim(jnp.asarray(POSITIONS), lax.axis_index(D) * n, n)
        return attend(CASE, x, query_positions=positions)

    out = (specs["query"], specs["query"])
    mapped = jax.shard_map(part, mesh=mesh_of(AxisType.Auto), in_specs=(specs,), out_specs=out)
    got = jax.jit(lambda x: (mapped(x), jax.grad(lambda x: loss(x, mapped))(x)))(X)
    assert_close(got, one_device(), 2e-5, "one device")


def test_devices_that_see_different_tiles_sum_the_gradient_of_a_shared_parameter():
    """Each tile sums the cotangent of slopes over devices: if one device skipped it, the other would wait for ever."""
    q, slopes = X["query"], X["slopes"]
    positions = np.stack([POSITIONS, 4 * POSITIONS[::-1]]).astype(np.int32)

    def total(slopes, q, i):
        bias = lambda i, j: pe.alibi(i, j, slopes)  # noqa: E731
        # keys at 3·i leave most tiles empty, on each device others
        options = {"causal": True, "window": (2, None), "query_positions": i, "key_positions": 3 * i, "block_size": 2}
        return jnp.sum(jnp.sin(pe.attention(q, q, q, bias=bias, **options)))

    local = lambda slopes, q, i: jax.grad(total)(slopes, q, i[0])  # noqa: E731
    mesh = jax.make_mesh((2,), (D,), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:2])
    got = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P(), P(D), P(D)), out_specs=P()))(slopes, q, positions)
    alone = jax.jit(jax.grad(total))
    want = sum(np.asarray(alone(slopes, q[d : d + 1], positions[d])) for d in range(2))
    assert_close(got, want, 2e-5, "one after the other")


def test_a_gradient_can_be_exported_for_any_batch():
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
