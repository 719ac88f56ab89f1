"""What holds for every attention bias: tiles, batches and programs give the same, and derivatives are right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import posenc_jax as pe
from helpers.biases import CASES, FAR, HEADS, NEAR, RATE, SCALE
from helpers.tiers import tiered
from oracles.biases import bucket

RNG = np.random.default_rng(0)


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return CASES[request.param]


def check(got, want, name=""):
    """Bits, or but for the last where the compiler orders a sum or chooses how to divide."""
    if name in ("fire", "sandwich"):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=4e-6)
    else:
        np.testing.assert_array_equal(got, want)


def test_a_tile_has_the_bits_of_that_tile_of_the_whole(case, request):
    f, parameters = case
    name, tile = request.node.callspec.params["case"], jax.jit(f)
    for q, k in ((NEAR, NEAR[::-1]), (FAR, FAR[::-1])):  # of one shape, so that the programs are the same
        if name.startswith("fire"):
            q, k = abs(q), abs(k)
        whole = np.asarray(f(q, k, *parameters))
        assert whole.shape == (HEADS, len(q), len(k)) and whole.dtype == np.float32
        for rows, columns in ((slice(3, 4), slice(5, 6)), (slice(2, 9), slice(1, 9)), (slice(0, 2), slice(None))):
            check(tile(q[rows], k[columns], *parameters), whole[:, rows, columns], name)


def test_positions_of_each_batch_and_in_other_programs(case, request):
    f, parameters = case
    name, q, k = request.node.callspec.params["case"], NEAR.reshape(2, 3, 4), NEAR[:18].reshape(2, 1, 9)
    want = np.stack([[np.asarray(f(q[i, j], k[i, 0], *parameters)) for j in range(3)] for i in range(2)])
    check(f(q, k, *parameters), want, name)
    check(jax.jit(jax.vmap(jax.vmap(lambda q, k: f(q, k, *parameters), (0, None))))(q, k[:, 0]), want, name)
    scanned = jax.lax.scan(lambda _, q: (0, f(q, k[0, 0], *parameters)), 0, q[0])[1]
    check(scanned, want[0], name)
    shapes = (0, 4), (4, 0), (0, 0)
    empty = jax.jit(lambda *parameters: [f(NEAR[:n], NEAR[:m], *parameters) for n, m in shapes])(*parameters)
    assert [x.shape for x in empty] == [(HEADS, *shape) for shape in shapes]


def test_translations_change_nothing(case, request):
    name = request.node.callspec.params["case"]
    f, parameters = case
    want = np.asarray(f(NEAR, NEAR, *parameters))
    moved = np.asarray(f(NEAR + 2_000_000_000, NEAR + 2_000_000_000, *parameters))
    if name == "fire":
        assert np.max(np.abs(moved - want)) > 0.1  # it depends on how far the query has come
    else:
        check(moved, want, name)
    if "t5" not in name and name not in ("fire", "relative"):
        check(want, np.swapaxes(want, 1, 2), name)


def test_float_positions_and_dtypes():
    halves = NEAR.astype(np.float32) + np.float32(0.5)
    for f, parameters in (CASES[name] for name in ("alibi", "kerple_log", "kerple_power", "sandwich")):
        np.testing.assert_allclose(f(halves, halves, *parameters), f(NEAR, NEAR, *parameters), atol=1e-5)
        np.testing.assert_allclose(f(NEAR, halves, *parameters), f(NEAR.astype(np.float32), halves, *parameters))
    for dtype in (np.int16, np.uint16, np.int64, np.uint32):
        for f, parameters in CASES.values():
            np.testing.assert_array_equal(f(NEAR.astype(dtype), NEAR, *parameters), f(NEAR, NEAR, *parameters))
    low = pe.kerple_log(NEAR, NEAR, SCALE.astype(jnp.bfloat16), RATE)
    assert low.dtype == jnp.float32


def test_traced_wide_integers():
    every = jax.jit(lambda q, given: {name: f(q, q, *given[name]) for name, (f, _) in CASES.items()})
    for dtype in (np.uint32, np.int64 if jax.config.jax_enable_x64 else np.int32):
        got = every(NEAR.astype(dtype), {name: parameters for name, (_, parameters) in CASES.items()})
        for name, (f, parameters) in CASES.items():
            want = f(NEAR, NEAR, *parameters)
            np.testing.assert_allclose(got[name], want, rtol=1e-6, atol=4e-6, err_msg=f"{name}, {dtype}")


def test_wide_positions():
    if not jax.config.read("jax_enable_x64"):
        pytest.skip("float64 and int64 positions need x64: nox -s x64")
    far = jnp.array([2.0**30 + 0.5]), jnp.array([2.0**30 + 0.25])
    assert pe.alibi(*far, jnp.array([1.0], jnp.float32))[0, 0, 0] == -0.25
    table = np.arange(32, dtype=np.float32)[:, None]
    row = jax.jit(lambda d: pe.t5(d, d - d, table, bidirectional=False, max_distance=2**40)[0, :, 0])
    distances = [2**34, 2**39 + 1, 2**40 - 1, 2**40, 2**62]
    assert row(jnp.array(distances)).tolist() == [bucket(d, 32, 2**40) for d in distances]


# Derivatives


def test_derivatives_by_parameters_are_finite_and_right(case):
    f, parameters = case
    if not parameters:
        return
    q = k = np.array([0, 1, 5, 5, 300], np.int32)  # distance 0 and keys after the query among them
    weights = RNG.normal(size=(HEADS, 5, 5)).astype(np.float32)
    loss_and_gradient = jax.jit(jax.value_and_grad(lambda parameters: jnp.vdot(f(q, k, *parameters), weights)))
    loss, gradient = lambda parameters: loss_and_gradient(parameters)[0], loss_and_gradient(parameters)[1]
    for i, (g, p) in enumerate(zip(*map(jax.tree.leaves, (gradient, parameters)), strict=True)):
        assert np.all(np.isfinite(g)) and np.any(g)
        step = 1e-3 if np.ndim(p) else 0.02 * p
        direction = step * RNG.normal(size=np.shape(p)).astype(np.float32)
        leaves, tree = jax.tree.flatten(parameters)
        ends = [loss(tree.unflatten([x + s * direction if j == i else x for j, x in enumerate(leaves)])) for s in (1, -1)]  # fmt: skip
        np.testing.assert_allclose(np.vdot(g, direction), (ends[0] - ends[1]) / 2, rtol=2e-2, atol=2e-3 * step * np.linalg.norm(g))  # fmt: skip


@pytest.mark.parametrize(
    "name", tiered(["alibi, slopes", "t5", "relative", "kerple_log", "kerple_power", "fire"], ["t5", "fire"])
)
def test_on_a_mesh_with_explicit_axes(name, on_cpu):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu"))
    f, parameters = CASES[name]
    q, k, w = jnp.arange(8, dtype=jnp.int32), jnp.arange(6, dtype=jnp.int32), RNG.normal(size=(HEADS, 8, 6))
    grad = jax.jit(jax.grad(lambda p, q, k, w: jnp.sum(w * f(q, k, *p))))
    want = grad(parameters, q, k, jnp.asarray(w, jnp.float32))
    with jax.set_mesh(mesh):
        put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))  # noqa: E731
        got = grad(parameters, put(q, "x"), k, put(jnp.asarray(w, jnp.float32), None, "x"))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_derivatives_by_positions_are_finite():
    q = np.array([0.0, 1.5, 2.0, 700.0], np.float32)
    cases = {name: CASES[name] for name in ("alibi, slopes", "kerple_log", "kerple_power", "fire", "sandwich")}

    @jax.jit
    def gradients(q, k):
        return {
            name: jax.grad(lambda q, k, f=f, rest=parameters: jnp.sum(f(q, k, *rest)), (0, 1))(q, k)
            for name, (f, parameters) in cases.items()
        }

    for name, pair in gradients(q, q).items():
        assert len(pair) == 2 and np.all(np.isfinite(pair)), name
    power = lambda p: pe.kerple_power(p, *np.float32([[1.0], [2.0], [0.5]]))[0, 0, 0]  # noqa: E731
    slope = jax.grad(power)(jnp.array([5.0]))  # op by op
    np.testing.assert_allclose(slope, [-0.5], rtol=1e-6)
