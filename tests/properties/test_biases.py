"""What holds for every attention bias: tiles, batches and programs give the same, and derivatives are right."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import posenc_jax as pe
from helpers.biases import BIASES, CASES, FAR, HEADS, NEAR, RATE, SCALE, facts
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles.biases import bucket, exact_tile

RNG = np.random.default_rng(0)
GIVEN = {name: parameters for name, (_, parameters) in CASES.items()}
PROGRAMS = pytest.mark.parametrize("program", [jax.jit, slow(lambda f: f)], ids=["jit", "eager"])


def sides(name, *positions):
    """Positions, without their signs where a bias counts them from 0."""
    return [p & p.dtype.type(2**31 - 1) for p in positions] if facts(name).absolute else positions


def every(q, k, given):
    """All biases by name, in one program."""
    return {name: f(*sides(name, q, k), *given[name]) for name, (f, _) in CASES.items()}


def check(got, want, name):
    """Bits, or but for the last where the compiler orders a sum or chooses how to divide."""
    if facts(name).rounded:
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=4e-6, err_msg=name)
    else:
        np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize("program", [quick, slow(lambda f: f)], ids=["jit", "eager"])
def test_every_bias_has_the_values_of_its_formula(program):
    """Near 0 and at the ends of int32; what only one bias promises stands in tests/unit/biases."""
    each = {name: bias.beside(HEADS) for name, bias in BIASES.items()}
    values = program(lambda q, k: {name: call(*sides(name, q, k)) for name, (call, *_) in each.items()})
    for q, k in ((NEAR, NEAR[::-1]), (FAR, FAR[::-1])):
        for name, got in jax.device_get(values(q, k)).items():
            at, distance, after = exact_tile(*sides(name, q, k))
            atol = 2e-5 if BIASES[name].rounded else 0
            np.testing.assert_allclose(got, each[name][1](distance, at, after), rtol=6e-7, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("program", "of_tile"),
    [(jax.jit, jax.jit), slow(lambda f: f, jax.jit), slow(lambda f: f, lambda f: f)],
    ids=["jit", "tiles by jit", "eager"],
)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [slow(slice(3, 4), slice(5, 6)), (slice(2, 9), slice(1, 9)), slow(slice(0, 2), slice(None))],
    ids=["one", "seven by eight", "two rows"],
)
def test_a_tile_has_the_bits_of_that_tile_of_the_whole(rows, columns, program, of_tile):
    for q, k in ((NEAR, NEAR[::-1]), (FAR, FAR[::-1])):  # of one shape, so that the programs are the same
        whole = jax.device_get(program(every)(q, k, GIVEN))
        tile = of_tile(every)(q[rows], k[columns], GIVEN)
        for name, want in whole.items():
            assert want.shape == (HEADS, len(q), len(k)) and want.dtype == np.float32, name
            check(tile[name], want[:, rows, columns], name)


def of_each_batch(whole):
    """Tiles (2, 3, heads, 4, 9) of biases between 24 queries and the first 18 of as many keys."""
    return np.stack([[whole[:, 12 * i + 4 * j :][:, :4, 9 * i : 9 * i + 9] for j in range(3)] for i in range(2)])


@PROGRAMS
def test_positions_of_each_batch(program):
    whole = jax.device_get(program(every)(NEAR, NEAR, GIVEN))
    got = program(every)(NEAR.reshape(2, 3, 4), NEAR[:18].reshape(2, 1, 9), GIVEN)
    for name in CASES:
        check(got[name], of_each_batch(whole[name]), name)


def vmapped(q, k, given):
    return jax.vmap(jax.vmap(every, (0, None, None)), (0, 0, None))(q, k, given)


def scanned(q, k, given):
    rows = lambda q, k: lax.scan(lambda _, q: (0, every(q, k, given)), 0, q)[1]  # noqa: E731
    return lax.scan(lambda _, qk: (0, rows(*qk)), 0, (q, k))[1]


@pytest.mark.slow
@pytest.mark.parametrize("program", [vmapped, scanned])
def test_positions_of_each_batch_in_other_programs(program):
    got = jax.jit(program)(NEAR.reshape(2, 3, 4), NEAR[:18].reshape(2, 9), GIVEN)
    for name, want in jax.device_get(jax.jit(every)(NEAR, NEAR, GIVEN)).items():
        check(got[name], of_each_batch(want), name)


def test_decode_steps_in_a_scan():
    @jax.jit
    def decode(first, k, given):
        step = lambda t, _: (t + 1, every(t[None], k, given))  # noqa: E731
        return lax.scan(step, first, length=24)[1]

    got = decode(np.int32(1500), NEAR, GIVEN)
    for name, want in jax.device_get(jax.jit(every)(np.arange(1500, 1524, dtype=np.int32), NEAR, GIVEN)).items():
        check(np.swapaxes(np.asarray(got[name])[:, :, 0], 0, 1), want, name)


def test_no_queries_or_no_keys():
    for n, m in ((0, 4), (4, 0), (0, 0)):
        shapes = {name: x.shape for name, x in jax.eval_shape(every, NEAR[:n], NEAR[:m], GIVEN).items()}
        assert shapes == dict.fromkeys(CASES, (HEADS, n, m))


@pytest.mark.slow
def test_programs_of_no_queries_or_no_keys():
    for n, m in ((0, 4), (4, 0), (0, 0)):
        assert {x.shape for x in jax.jit(every)(NEAR[:n], NEAR[:m], GIVEN).values()} == {(HEADS, n, m)}


@PROGRAMS
def test_translations_change_nothing(program):
    whole = jax.device_get(program(every)(NEAR, NEAR, GIVEN))
    moved = jax.device_get(program(every)(NEAR + 2_000_000_000, NEAR + 2_000_000_000, GIVEN))
    for name, want in whole.items():
        if facts(name).absolute:
            assert np.max(np.abs(moved[name] - want)) > 0.1  # it depends on how far the query has come
        else:
            check(moved[name], want, name)
        if not facts(name).absolute and not facts(name).sided:
            check(want, np.swapaxes(want, 1, 2), name)


@pytest.mark.parametrize("program", [quick, slow(lambda f: f)], ids=["jit", "eager"])
def test_float_positions_and_dtypes(program):
    names = [name for name in CASES if not facts(name).absolute and not facts(name).sided]
    halves, floats = NEAR.astype(np.float32) + np.float32(0.5), NEAR.astype(np.float32)
    some = program(lambda q, k: {name: CASES[name][0](q, k, *GIVEN[name]) for name in names})
    both, mixed, of_floats = some(halves, halves), some(NEAR, halves), some(floats, halves)
    want = jax.device_get(jax.jit(every)(NEAR, NEAR, GIVEN))
    for name in names:
        np.testing.assert_allclose(both[name], want[name], atol=1e-5, err_msg=name)
        np.testing.assert_allclose(mixed[name], of_floats[name], err_msg=name)
    low = jax.eval_shape(lambda scale: pe.kerple_log(NEAR, NEAR, scale, RATE), SCALE.astype(jnp.bfloat16))
    assert low.dtype == jnp.float32


@pytest.mark.parametrize("name", tiered(CASES, ["alibi", "t5"]))
def test_positions_of_any_integer_dtype(name):
    f, parameters = CASES[name]
    want = np.asarray(f(NEAR, NEAR, *parameters))
    for dtype in (np.int16, np.uint16, np.int64, np.uint32):
        got = f(NEAR.astype(dtype), NEAR, *parameters)
        np.testing.assert_array_equal(got, want, err_msg=str(np.dtype(dtype)))


@PROGRAMS
@pytest.mark.parametrize("dtype", [np.uint32, slow(np.int64 if jax.config.jax_enable_x64 else np.int32)])
def test_traced_wide_integers(dtype, program):
    wide = NEAR.astype(dtype)
    want, got = program(every)(NEAR, NEAR, GIVEN), quick(every)(wide, wide, GIVEN)
    for name in CASES:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6, atol=4e-6, err_msg=name)


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


def test_derivatives_by_parameters_are_finite_and_right():
    q = k = np.array([0, 1, 5, 5, 300], np.int32)  # distance 0 and keys after the query among them
    weights = RNG.normal(size=(HEADS, 5, 5)).astype(np.float32)
    learned = {name: parameters for name, parameters in GIVEN.items() if parameters}

    @quick
    def losses_and_gradients(given):
        loss = lambda f, parameters: jnp.vdot(f(q, k, *parameters), weights)  # noqa: E731
        return {name: jax.value_and_grad(partial(loss, CASES[name][0]))(given[name]) for name in learned}

    for name, (_, gradient) in jax.device_get(losses_and_gradients(learned)).items():
        leaves, tree = jax.tree.flatten(learned[name])
        for i, (g, p) in enumerate(zip(jax.tree.leaves(gradient), leaves, strict=True)):
            assert np.all(np.isfinite(g)) and np.any(g), (name, i)
            step = 1e-3 if np.ndim(p) else 0.02 * p
            direction = step * RNG.normal(size=np.shape(p)).astype(np.float32)
            ends = []
            for sign in (1, -1):
                moved = tree.unflatten([x + sign * direction if j == i else x for j, x in enumerate(leaves)])
                ends.append(float(losses_and_gradients(learned | {name: moved})[name][0]))
            difference, atol = (ends[0] - ends[1]) / 2, 2e-3 * step * np.linalg.norm(g)
            np.testing.assert_allclose(np.vdot(g, direction), difference, rtol=2e-2, atol=atol, err_msg=f"{name}, {i}")


@pytest.mark.parametrize(
    "name", tiered([name for name, parameters in GIVEN.items() if parameters and name != "t5, causal"], ["t5"])
)
def test_on_a_mesh_with_explicit_axes(name, on_cpu):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu"))
    f, parameters = CASES[name]
    q, k = np.arange(8, dtype=np.int32), np.arange(6, dtype=np.int32)
    w = RNG.normal(size=(HEADS, 8, 6)).astype(np.float32)
    grad = quick(jax.grad(lambda p, q, k, w: jnp.sum(w * f(q, k, *p))))
    want = grad(parameters, q, k, w)
    with jax.set_mesh(mesh):
        put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))  # noqa: E731
        got = grad(parameters, put(q, "x"), k, put(w, None, "x"))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_derivatives_by_positions_are_finite():
    q = np.array([0.0, 1.5, 2.0, 700.0], np.float32)
    cases = {name: case for name, case in CASES.items() if not facts(name).sided}

    @quick
    def gradients(q, k):
        return {
            name: jax.grad(lambda q, k, f=f, rest=parameters: jnp.sum(f(q, k, *rest)), (0, 1))(q, k)
            for name, (f, parameters) in cases.items()
        }

    for name, pair in gradients(q, q).items():
        assert len(pair) == 2 and np.all(np.isfinite(pair)), name


@pytest.mark.parametrize("program", [quick, slow(lambda f: f)], ids=["jit", "eager"])
def test_derivative_by_a_position_of_a_power(program):
    power = lambda p: pe.kerple_power(p, *np.float32([[1.0], [2.0], [0.5]]))[0, 0, 0]  # noqa: E731
    np.testing.assert_allclose(program(jax.grad(power))(np.float32([5.0])), [-0.5], rtol=1e-6)
