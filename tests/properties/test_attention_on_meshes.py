"""Attention and its derivatives of both orders on meshes: `shard_map`, Explicit and Auto axes; and exported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.attention import NAMES, check
from helpers.quick import quick
from helpers.tiers import slow, tiered

pytestmark = pytest.mark.usefixtures("on_cpu")
D, H = "data", "heads"
BATCH, LENGTH, HEADS = 2, 8, 4
SHAPES = (BATCH, LENGTH, HEADS, 4), (BATCH, LENGTH, 2, 4), (BATCH, LENGTH, 2, 3), (HEADS,), (HEADS,), (LENGTH, 1)
ALL = tuple(range(len(NAMES)))
AT = np.arange(LENGTH, dtype=np.int32)
MASK = np.arange(LENGTH)[None, None, None] % 4 > 0


def drawn(seed, shapes=SHAPES, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)


def attend(q, k, v, slopes, sinks, scale, i=AT, j=AT):
    """Every option, with residuals."""
    bias = lambda i, j: -slopes.reshape(-1, 1, 1) * abs(i[None, :, None] - j[None, None]).astype(slopes.dtype)  # noqa: E731
    return pe.attention(
        q, k, v, bias=bias, sinks=sinks, scale=scale, window=(5, None), causal=True, logits_soft_cap=2.0, block_size=3,
        query_positions=i, key_positions=j, return_residual=True, mask=MASK,
    )  # fmt: skip


def loss_of(f):
    return lambda *x: sum(jnp.sum(jnp.sin(y)) for y in f(*x))


def derivatives(f, order=2):
    """Results, tangents and gradients; with the second order, the Hessian along a direction too."""
    gradient = jax.grad(loss_of(f), ALL)
    return lambda x, v: (*jax.jvp(f, x, v), *([gradient(*x)] if order == 1 else jax.jvp(gradient, x, v)))


def mesh_of(kind, shape=(2, 2)):
    return jax.make_mesh(shape, (D, H), axis_types=(kind,) * 2, devices=jax.devices("cpu")[: shape[0] * shape[1]])


on_one_device = quick(derivatives(attend))


# How query, key, value, slopes, sinks and scale are split
ROWS, OF_HEADS = P(D, None, H), P(None, None, H)
LAYOUTS = {
    "batch": ((P(D),) * 3 + (P(), P(), P()), SHAPES),
    "heads": ((OF_HEADS,) * 3 + (P(H), P(H), P()), SHAPES),
    "both": ((ROWS,) * 3 + (P(H), P(H), P()), SHAPES),
    "whole parameters": ((ROWS, ROWS, ROWS, P(H), P(), P()), SHAPES),
    "whole keys": ((ROWS, P(), P(), P(H), P(H), P()), SHAPES),
    "one key head": ((ROWS, P(D), P(), P(H), P(), P()), (SHAPES[0], (BATCH, LENGTH, 1, 4), (BATCH, LENGTH, 1, 3), *SHAPES[3:])),
    "scale of all": ((ROWS, ROWS, ROWS, P(H), P(H), ROWS), (*SHAPES[:5], SHAPES[0][:3])),
}  # fmt: skip


def placed(mesh, arrays, specs):
    return tuple(jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(arrays, specs, strict=True))


@pytest.mark.parametrize(
    ("layout", "kind", "order"),
    [
        ("whole parameters", AxisType.Explicit, 1),
        *(slow(layout, kind, 2) for layout in LAYOUTS for kind in (AxisType.Explicit, AxisType.Auto)),
    ],
    ids=str,
)
def test_on_a_mesh(layout, kind, order):
    specs, shapes = LAYOUTS[layout]
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        x, v = (placed(mesh, drawn(seed, shapes), specs) for seed in (0, 1))
        if kind == AxisType.Explicit:
            types = jax.eval_shape(derivatives(attend, order), x, v)
            y, along, *gradients = ([s.sharding.spec for s in t] for t in types)
            want = tuple(jax.typeof(x[0]).sharding.spec)
            assert y == along == [P(*want), P(*want[:-1])]
            assert gradients == [[jax.typeof(a).sharding.spec for a in x]] * order
        got = quick(derivatives(attend, order))(x, v)
    want = on_one_device(drawn(0, shapes), drawn(1, shapes))
    check(got, want[: 2 + order], 2e-5, "one device")


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["both", "whole parameters"])
def test_eagerly_on_a_mesh(layout):
    specs, _ = LAYOUTS[layout]
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        x, v = (placed(mesh, drawn(seed), specs) for seed in (0, 1))
        got = derivatives(attend)(x, v)
    check(got, on_one_device(drawn(0), drawn(1)), 2e-5, "one device")


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("sinks", P(D), r"sinks must be sharded on Explicit axes of a mesh as the heads of query is, P\('heads',\), or not at all"),
        ("scale", P(D, None), r"scale must be sharded on Explicit axes of a mesh as query is, .*, or not at all"),
        ("scale", P(None, H), r"scale must be sharded on Explicit axes of a mesh as query is, .*, or not at all"),
    ],
)  # fmt: skip
def test_what_must_be_sharded_as_the_query(name, spec, message):
    shapes, n = list(SHAPES), NAMES.index(name)
    shapes[5] = LENGTH, HEADS
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        specs = [ROWS if name == "sinks" else P(D)] * 3 + [P()] * 3
        specs[n] = spec
        x = placed(mesh, drawn(0, shapes), specs)
        for f in (attend, jax.jit(attend)):
            with pytest.raises(ValueError, match=f"^attention: {message}, got P"):
                f(*x)


@pytest.mark.parametrize("spec", [P(D, H), slow(P(None, H))], ids=str)
def test_a_mask_may_be_sharded_as_the_query(spec):
    q, k, v, *_ = drawn(0)
    mask = np.random.default_rng(2).random((BATCH if spec[0] else 1, HEADS, LENGTH, LENGTH)) < 0.7
    f = lambda *x: pe.attention(*x[:3], mask=x[3], block_size=3)  # noqa: E731
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        x = placed(mesh, (q, k, v, mask), (ROWS, ROWS, ROWS, spec))
        got = quick(f)(*x)
        with pytest.raises(
            ValueError, match="mask must be sharded on Explicit axes of a mesh as query is, .*, or not at all"
        ):
            f(*x[:3], jax.device_put(mask, P(None, None, H)))
    check(got, quick(f)(q, k, v, mask), 1e-6, "one device")


# In shard_map: what is whole there gets the sum of all devices' cotangents, once

MANUAL = {
    "batch": ((P(D), P(D), P(D), P(), P(), P()), (D,)),
    "heads": ((OF_HEADS, OF_HEADS, OF_HEADS, P(H), P(H), P()), (H,)),
    "batch and heads": ((ROWS, ROWS, ROWS, P(H), P(H), P()), (D, H)),
    "queries": ((P(None, D), P(), P(), P(), P(), P(D)), (D,)),
    "queries and heads": ((P(None, D, H), OF_HEADS, OF_HEADS, P(H), P(H), P(D)), (D, H)),
}


def inside(layout):
    """`attend` in shard_map, with positions of the part of the queries that is here."""
    specs, _ = MANUAL[layout]
    split = specs[0] + (None,) * 3
    rows = P(*split[:3])

    def local(q, *rest):
        i = jnp.asarray(AT)
        if split[1]:
            i = lax.dynamic_slice_in_dim(i, lax.axis_index(D) * q.shape[1], q.shape[1])
        return attend(q, *rest, i=i)

    return jax.shard_map(local, mesh=mesh_of(AxisType.Auto), in_specs=specs, out_specs=(rows, rows))


@pytest.mark.parametrize(("layout", "order"), [("queries and heads", 1), *(slow(layout, 2) for layout in MANUAL)])
def test_derivatives_of_shard_map(layout, order):
    got = quick(derivatives(inside(layout), order))(drawn(0), drawn(1))
    check(got, on_one_device(drawn(0), drawn(1))[: 2 + order], 2e-5, "one device")


@pytest.mark.slow
@pytest.mark.parametrize("layout", MANUAL)
def test_derivatives_in_shard_map(layout):
    """The derivative is taken inside, where a loss is summed over devices."""
    specs, axes = MANUAL[layout]
    split = specs[0] + (None,) * 3

    def local(x, v):
        def f(q, *rest):
            i = jnp.asarray(AT)
            if split[1]:
                i = lax.dynamic_slice_in_dim(i, lax.axis_index(D) * q.shape[1], q.shape[1])
            return attend(q, *rest, i=i)

        loss = lambda *x: lax.psum(loss_of(f)(*x), axes)  # noqa: E731
        gradient = jax.grad(loss, ALL)
        return gradient(*x), jax.jvp(gradient, x, v)[1], jax.jvp(loss, x, v)

    g = jax.shard_map(local, mesh=mesh_of(AxisType.Auto), in_specs=(specs, specs), out_specs=(specs, specs, P()))
    gradient, second, (value, along) = jax.device_get(quick(g)(drawn(0), drawn(1)))
    y, _, want, of_want = jax.device_get(on_one_device(drawn(0), drawn(1)))
    check((gradient, second), (want, of_want), 2e-5, "one device")
    np.testing.assert_allclose(value, sum(np.sum(np.sin(a)) for a in y), rtol=1e-4)
    np.testing.assert_allclose(along, sum(np.sum(a * b) for a, b in zip(want, drawn(1), strict=True)), rtol=1e-4)


@pytest.mark.parametrize("batch", [BATCH, slow(1)])
@pytest.mark.parametrize("alone", ["varies", slow("is whole")])
@pytest.mark.parametrize("name", tiered(["query", "value", "slopes", "sinks", "scale"], ["sinks"]))
def test_one_operand_that_varies_or_is_whole(name, alone, batch):
    """What is whole on all devices gets the sum of their cotangents."""
    devices, n = 4, NAMES.index(name)
    shapes = [(batch, *s[1:]) if i < 3 else s for i, s in enumerate(SHAPES)]
    x = [np.stack([a, 2 * a, 0.5 * a, -a]) for a in drawn(0, shapes)]  # one for each device
    mesh = jax.make_mesh((devices,), (D,), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:devices])
    varies = [(i == n) == (alone == "varies") for i in ALL]
    own = tuple(a if vary else a[0] for a, vary in zip(x, varies, strict=True))
    specs = tuple(P(D) if vary else P() for vary in varies)

    def mapped(*x):
        def local(*x):
            return jax.tree.map(
                lambda y: y[None], attend(*(a[0] if vary else a for a, vary in zip(x, varies, strict=True)))
            )

        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(D))(*x)

    got = quick(derivatives(mapped, 1))(own, own)
    parts = [tuple(a[d] if vary else a for a, vary in zip(own, varies, strict=True)) for d in range(devices)]
    each = [jax.device_get(on_one_device(x, x)) for x in parts]
    y, along, gradient, _ = jax.tree.map(lambda *each: np.stack(each), *each)
    gradient = [g if vary else g.sum(0) for g, vary in zip(gradient, varies, strict=True)]
    check(got, (y, along, gradient), 2e-5, "one after the other")


def test_tiles_are_not_skipped_where_devices_would_wait():
    """A whole parameter's cotangent is summed in every tile, so each device must visit the same tiles."""

    def total(q, slopes, here):
        bias = lambda i, j: -slopes.reshape(-1, 1, 1) * abs(i[None, :, None] - j[None, None]).astype(jnp.float32)  # noqa: E731
        y = pe.attention(q, q, q, bias=bias, causal=True, window=(2, None), block_size=2, query_positions=here, key_positions=here * 3)  # fmt: skip
        return jnp.sum(jnp.sin(y))

    def local(q, slopes, here):
        return jax.grad(total, 1)(q, slopes, here[0]), jax.jvp(lambda s: total(q, s, here[0]), (slopes,), (slopes,))[1][
            None
        ]

    mesh = jax.make_mesh((2,), (D,), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:2])
    (q,), slopes = drawn(0, [(2, LENGTH, HEADS, 4)]), np.float32([0.1, 0.2, 0.3, 0.4])
    here = np.stack([AT, 4 * AT[::-1]]).astype(np.int32)  # the two devices see different tiles
    f = jax.shard_map(local, mesh=mesh, in_specs=(P(D), P(), P(D)), out_specs=(P(), P(D)))
    got, along = quick(f)(q, slopes, here)
    each = [np.asarray(quick(jax.grad(total, 1))(q[d : d + 1], slopes, here[d])) for d in range(2)]
    check(got, each[0] + each[1], 2e-5, "one after the other")
    check(along, np.stack([np.vdot(a, slopes) for a in each]), 2e-5, "one after the other")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=str)
def test_a_mapped_axis_that_is_split(kind):
    """`jax.vmap` of a gradient over an axis that a mesh splits, by `spmd_axis_name`."""
    x = [np.stack([a, -a, 2 * a, 0.5 * a]) if i in (0, 3, 4) else a for i, a in enumerate(drawn(0))]
    axes = (0, None, None, 0, 0, None)
    f = jax.vmap(lambda *x: derivatives(attend, 1)(x, x), axes, spmd_axis_name=D)
    mesh = mesh_of(kind, (4, 1))
    with jax.set_mesh(mesh):
        split = placed(mesh, x, [P(D) if a == 0 else P() for a in axes])
        got = quick(f)(*split)
        for y in jax.tree.leaves(got) if kind == AxisType.Explicit else ():
            assert jax.typeof(y).sharding.spec[0] == D
    got = jax.device_get(got)
    for n in range(4):
        one = tuple(a if axis is None else a[n] for a, axis in zip(x, axes, strict=True))
        check(jax.tree.map(lambda y, n=n: y[n], got), on_one_device(one, one)[:3], 2e-5, f"row {n} alone")


@pytest.mark.slow
def test_a_bias_may_name_a_mapped_axis():
    def gradient(q, k, v, row=None):
        def f(q, k, v):
            slope = (lax.axis_index("rows") if row is None else row).astype(jnp.float32)
            bias = lambda i, j: -slope * abs(i[:, None] - j[None]).astype(jnp.float32)  # noqa: E731
            return pe.attention(q, k, v, bias=bias, block_size=3)

        return f(q, k, v), jax.grad(loss_of(lambda *x: [f(*x)]), (0, 1))(q, k, v)

    x = drawn(0)[:3]
    got = jax.device_get(quick(jax.vmap(gradient, axis_name="rows"))(*x))
    alone = quick(gradient)
    for row in range(BATCH):
        want = alone(*(a[row] for a in x), np.int32(row))
        check(jax.tree.map(lambda y, row=row: y[row], got), want, 2e-5, f"row {row} alone")


# Exports


def exported(f, x):
    """For a CPU, CUDA and TPUs, with any batch."""
    (n,) = export.symbolic_shape("n")
    types = [jax.ShapeDtypeStruct((n, *a.shape[1:]) if i < 3 else a.shape, a.dtype) for i, a in enumerate(x)]
    return export.export(jax.jit(f), platforms=["cpu", "cuda", "tpu"])(*types)


def test_a_gradient_exports():
    x = drawn(0)
    whole = exported(jax.grad(loss_of(attend), ALL), x)
    assert [y.shape for y in whole.out_avals] == [y.shape for y in whole.in_avals]


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("order", ["gradient", "hessian"])
def test_export_for_every_platform(order, wide):
    with jax.enable_x64(wide):
        x = drawn(0, dtype=np.float64 if wide else np.float32)
        gradient = jax.grad(loss_of(attend), ALL)
        f = gradient if order == "gradient" else lambda *x: jax.jvp(gradient, x, x)[1]
        got = export.deserialize(exported(f, x).serialize()).call(*x)
        check(got, quick(f)(*x), 2e-5, "not exported")
