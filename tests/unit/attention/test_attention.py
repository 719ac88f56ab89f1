"""Attention by tiles against the dense formula: results, every derivative and every mask."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export, lax
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.attention import check
from helpers.biases import BIASES as every_bias
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles.attention import dense, may_see
from oracles.biases import alibi, tile

RNG = np.random.default_rng(0)
BATCH, LENGTH, HEADS, KV_HEADS, WIDTH = 2, 11, 4, 2, 8


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


Q, K, V, W = (normal(BATCH, LENGTH, heads, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
POSITIONS = np.arange(LENGTH, dtype=np.int32)
SLOPES, RATES = (RNG.uniform(0.1, 1.0, HEADS).astype(np.float32) for _ in range(2))
MLP = tuple(normal(*shape) for shape in ((5,), (5,), (5, HEADS), (HEADS,)))
BATCHED = np.stack([RNG.permutation(LENGTH), 3 + RNG.permutation(LENGTH)]).astype(np.int32)
SEGMENTS = np.int32([[3] * 4 + [1] * 7, [0] * 9 + [-5] * 2])
APART = np.where(np.arange(LENGTH) == 4, 77, SEGMENTS).astype(np.int32)  # of queries: those numbered 4 see nothing

# name → bias of positions and parameters, the parameters
EVERY = {name: bias.of(HEADS) for name, bias in every_bias.items()} | {
    "alibi": (pe.alibi, (SLOPES,)),
    "fire": (lambda i, j, mlp, c: pe.fire(i, j, mlp, c=c, threshold=4.0), (MLP, np.float32(0.7))),
    "sandwich": (lambda i, j, w: pe.sandwich(i, j, HEADS, w), (np.float32([1.0, 0.1]),)),
}
BIASES = EVERY | {
    "none": (None, ()),
    "one for all heads": (
        lambda i, j, x: -x * abs(i[..., None, :, None] - j[..., None, None, :]).astype(jnp.float32),
        (np.float32(0.3),),
    ),
}
NOT_SYMMETRIC = (lambda i, j, x: _column(x) * jnp.where(i[:, None] > j[None], 1.0, -0.5)[None], (SLOPES,))
FORMULA = "the dense float64 formula"


def _column(x):
    return x.reshape(-1, 1, 1)


def tiled(q, k, v, parameters, bias, **options):
    """The bias closes over its parameters."""
    return pe.attention(q, k, v, bias=bias and (lambda i, j: bias(i, j, *parameters)), **options)


class Exact(NamedTuple):
    y: np.ndarray
    residual: np.ndarray
    by: tuple  # the derivatives by query, key, value and parameters

    @property
    def both(self):
        return self.y, self.by


@functools.cache
def _table_and_derivative(bias):
    """A program for the whole table of a bias and the derivative of its product with a cotangent."""

    def compute(parameters, i, j, cotangent):
        table, pull = jax.vjp(lambda p: bias(i, j, *p), parameters)
        return table, pull(cotangent)[0]

    return quick(compute)


def exact(
    q, k, v, parameters=(), bias=None, *, i=POSITIONS, j=None, segments=None, causal=False, scale=None, dy=W, dl=0.0
):
    """Attention and its derivative by the oracle; only the bias is the library's.

    `segments` are those of both sides, or a pair; `dy` and `dl` the cotangents of the results and of the residuals.
    """
    i, j = (np.asarray(x, np.int32) for x in (i, i if j is None else j))
    table = np.zeros(())
    if bias is not None:
        compute = functools.partial(_table_and_derivative(bias), parameters, i, j)
        table = np.asarray(compute(np.zeros(jax.eval_shape(bias, i, j, *parameters).shape, np.float32))[0], np.float64)
    if segments is not None and not isinstance(segments, tuple):
        segments = segments, segments
    y, residual, back = dense(q, k, v, table, may_see(i, j, causal, segments), scale)
    dq, dk, dv, ds = back(dy, dl)
    if bias is not None:
        dt = ds.sum(tuple(range(ds.ndim - table.ndim)))
        dt = dt.sum(tuple(a for a, n in enumerate(table.shape) if n == 1), keepdims=True).astype(np.float32)
        parameters = compute(dt)[1]
    return Exact(y, residual, (dq, dk, dv, parameters))


def both(f, *arguments):
    """A result and the derivatives by all arguments, as one program."""

    @quick
    def program(*arguments):
        y, pull = jax.vjp(f, *arguments)
        return y, pull(jnp.broadcast_to(W[:, : y.shape[1]], y.shape).astype(y.dtype))

    return program(*arguments)


def compare(name, block_size, options=None, reference=None):
    bias, parameters = name if isinstance(name, tuple) else BIASES[name]
    arguments = Q, K, V, parameters
    got = both(functools.partial(tiled, bias=bias, block_size=block_size, **options or {}), *arguments)
    check(got, exact(*arguments, bias, **reference or {}).both)


# The parameters of several biases. A traced index selects the bias, so one program serves all.
FAMILY = sorted(EVERY)  # as JAX sorts keys
PARAMETERS = {name: BIASES[name][1] for name in FAMILY}


def chosen(n, parameters):
    def of(name):
        def bias(i, j):
            table = BIASES[name][0](i, j, *parameters[name])
            return jnp.broadcast_to(table, (*i.shape[:-1], HEADS, i.shape[-1], j.shape[-1]))

        return bias

    return lambda i, j: lax.switch(n, [of(name) for name in sorted(parameters)], i, j)


def split(name, by_parameters):
    """The derivatives by the parameters of the chosen bias; those by others are 0."""
    for other, leaves in by_parameters.items():
        if other != name:
            assert not any(np.any(np.asarray(x)) for x in jax.tree.leaves(leaves)), other
    return by_parameters[name]


# Results and derivatives


@pytest.mark.slow
def test_the_formula_is_that_of_jax():
    """`exact` against `jax.nn.dot_product_attention` under a dense bias and mask."""
    bias, parameters = BIASES["t5"]
    seen = (BATCHED[:, :, None] >= BATCHED[:, None]) & (SEGMENTS[:, :, None] == SEGMENTS[:, None])

    def by_jax(q, k, v, parameters):
        table = bias(BATCHED, BATCHED, *parameters)
        return jax.nn.dot_product_attention(q, k, v, bias=table, mask=seen[:, None])

    want = exact(Q, K, V, parameters, bias, i=BATCHED, segments=SEGMENTS, causal=True).both
    check(both(by_jax, Q, K, V, parameters), want)


MASKED = {"i": BATCHED, "segments": SEGMENTS, "causal": True}
MASKS = dict(
    query_positions=BATCHED, key_positions=BATCHED, query_segments=SEGMENTS, key_segments=SEGMENTS, causal=True
)


@functools.cache
def family_with_positions_of_each_batch_and_segments():
    def program(n, q, k, v, parameters):
        f = lambda q, k, v, p: pe.attention(q, k, v, bias=chosen(n, p), block_size=4, **MASKS)  # noqa: E731
        y, pull = jax.vjp(f, q, k, v, parameters)
        return y, pull(W)

    return quick(program)


@pytest.mark.parametrize("name", tiered(BIASES, FAMILY))
def test_all_biases_with_positions_of_each_batch_and_segments(name):
    if name not in FAMILY:
        return compare(name, 4, MASKS, MASKED)
    n = np.int32(FAMILY.index(name))
    y, (*by, by_parameters) = family_with_positions_of_each_batch_and_segments()(n, Q, K, V, PARAMETERS)
    bias, parameters = BIASES[name]
    check((y, (*by, split(name, by_parameters))), exact(Q, K, V, parameters, bias, **MASKED).both)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILY)
def test_each_bias_alone_with_positions_of_each_batch_and_segments(name):
    compare(name, 4, MASKS, MASKED)


@pytest.mark.parametrize(
    ("block_size", "causal"),
    [(1, True), slow(7, False), slow(7, True), slow(11, False), slow(1000, True)],
)
def test_all_block_sizes(block_size, causal):
    compare("t5" if causal else NOT_SYMMETRIC, block_size, {"causal": causal}, {"causal": causal})


@pytest.mark.parametrize("segments", [slow(SEGMENTS), SEGMENTS[0]], ids=["of each batch", "of all"])
def test_segments(segments):
    compare("none", 4, {"query_segments": segments, "key_segments": segments}, {"segments": segments})


@pytest.mark.slow
def test_positions_of_one_side_may_be_those_of_all():
    a, b = BATCHED, POSITIONS[::-1] + 2
    for i, j in ((a, b), (b, a)):
        attend = functools.partial(pe.attention, query_positions=i, key_positions=j, causal=True, block_size=4)
        lifted = {"i": np.broadcast_to(i, a.shape), "j": np.broadcast_to(j, a.shape), "causal": True}
        check(quick(attend)(Q, K, V), exact(Q, K, V, **lifted).y)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, -3])
def test_scale(scale):
    compare("alibi", 4, {"scale": scale}, {"scale": scale})


@pytest.mark.parametrize("kv_heads", tiered([1, 2, 4], [2]))
def test_heads_in_groups_and_other_leading_axes(kv_heads):
    k, v = normal(3, 2, 5, kv_heads, WIDTH), normal(3, 2, 5, kv_heads, WIDTH)
    i = BATCHED[None, :, :6] % np.array([[[5]], [[6]], [[7]]], np.int32)
    q, j = normal(3, 2, 6, HEADS, WIDTH), np.arange(5, dtype=np.int32)

    @quick
    def attend(q, k, v, i):
        return tiled(q, k, v, (SLOPES,), pe.alibi, query_positions=i, key_positions=j, block_size=4)

    got = np.asarray(attend(q, k, v, i))
    assert got.shape == q.shape
    for a in range(3):
        for b in range(2):
            want = exact(q[a, b][None], k[a, b][None], v[a, b][None], (SLOPES,), pe.alibi, i=i[a, b], j=j, dy=0 * q[a, b][None]).y[0]  # fmt: skip
            check(got[a, b], want, against=f"{FORMULA} of batch {a}, {b}")
            check(attend(q[a, b], k[a, b], v[a, b], i[a, b]), want, against=f"{FORMULA} of batch {a}, {b} alone")


def test_a_step_of_decoding_is_a_row_of_the_whole():
    whole = exact(Q, K, V, (SLOPES,), pe.alibi, causal=True).y

    @quick
    def step(q, t):
        return tiled(
            q, K, V, (SLOPES,), pe.alibi, query_positions=t, key_positions=POSITIONS, causal=True, block_size=4
        )

    for t in (0, 3, 10):
        got = step(Q[:, t : t + 1], np.full((BATCH, 1), t, np.int32))
        check(got, whole[:, t : t + 1], against=f"row {t} of {FORMULA}")


def test_far_positions():
    @quick
    def attend(i):
        return tiled(Q, K, V, (SLOPES,), pe.alibi, query_positions=i, key_positions=i, causal=True, block_size=4)

    near, far = attend(POSITIONS), attend(POSITIONS + np.int32(2**31 - 1 - LENGTH))
    check(near, exact(Q, K, V, (SLOPES,), pe.alibi, causal=True).y)
    check(far, near, 0, against="the same at positions from 0")


def test_against_float64_in_numpy():
    q, k, v = (x.astype(float) for x in (Q, K, V))
    want = dense(q, k, v, alibi(tile(POSITIONS, POSITIONS), SLOPES), np.tri(LENGTH, dtype=bool)).y
    attend = quick(functools.partial(tiled, bias=pe.alibi, causal=True, block_size=4))
    check(attend(Q, K, V, (SLOPES,)), want, 1e-6)
    if jax.config.read("jax_enable_x64"):
        bias = lambda i, j, m: -m.reshape(-1, 1, 1) * jnp.abs(i[:, None] - j[None])[None].astype(m.dtype)  # noqa: E731
        slopes = (SLOPES.astype(np.float64),)
        doubled = tiled(q, k, v, slopes, bias, causal=True, block_size=4)
        assert doubled.dtype == np.float64
        check(doubled, want, 1e-14)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, slow(jnp.float16)])
def test_half_precision(dtype):
    # Weights, their cotangents and results are rounded once each: a few units in the last place of the largest.
    low = [x.astype(dtype) for x in (Q, K, V)]
    got = both(lambda q, k, v, p: tiled(q, k, v, p, pe.alibi, causal=True, block_size=4), *low, (SLOPES,))
    assert all(x.dtype == dtype for x in jax.tree.leaves(got)[:-1]) and got[1][3][0].dtype == jnp.float32
    check(got, exact(*low, (SLOPES,), pe.alibi, causal=True).both, 3 * float(jnp.finfo(dtype).eps))


def test_what_sees_nothing_gives_zeros():
    theirs = np.where(np.arange(LENGTH) == 2, 88, SEGMENTS).astype(np.int32)  # query 4, and key 2

    def f(q, k, v, p):
        return tiled(q, k, v, p, pe.alibi, query_segments=APART, key_segments=theirs, causal=True, block_size=4)

    y, (dq, dk, dv, (d_slopes,)) = jax.tree.map(np.asarray, both(f, Q, K, V, (SLOPES,)))
    for name, x in {"y": y, "dq": dq, "dk": dk, "dv": dv, "d_slopes": d_slopes}.items():
        assert np.all(np.isfinite(x)), name
    for name, zero in {"y": y[:, 4], "dq": dq[:, 4], "dk": dk[:, 2], "dv": dv[:, 2]}.items():
        assert not np.any(zero), name
    assert np.all(np.any(y, (2, 3)) == (np.arange(LENGTH) != 4))
    hidden = {"query_segments": POSITIONS * 0, "key_segments": POSITIONS * 0 + 1}
    low = {"bias": lambda i, j: jnp.full((i.size, j.size), -jnp.inf)}
    attend = quick(lambda *x: (pe.attention(*x, **hidden), pe.attention(*x, **low)))
    np.testing.assert_array_equal(attend(Q, K, V), np.zeros((2, *Q.shape)))


@pytest.mark.parametrize("block", [3, slow(512)])
def test_keys_that_are_all_far_away(block):
    """−2³¹·slope, the same for all keys, changes no weight; beside it float32 does not hold ln(keys)."""

    @quick
    def at(distance):
        i, j = jnp.full(LENGTH, distance, jnp.int32), 0 * POSITIONS
        options = {"query_positions": i, "key_positions": j, "causal": True, "block_size": block}
        f = lambda *qkv: pe.attention(*qkv, bias=lambda i, j: pe.alibi(i, j, HEADS), **options)  # noqa: E731
        y, pull = jax.vjp(f, 0 * Q, K, V)
        return y, pull(W)

    far = at(np.int32(2**31 - 1))
    jax.tree.map(np.testing.assert_array_equal, far, at(np.int32(0)))
    want = exact(0 * Q, K, V)
    check(far, (want.y, want.by[:3]))


# Residuals, by which keys may come in parts

UNDER_ALIBI = {"bias": lambda i, j: pe.alibi(i, j, SLOPES), "causal": True, "block_size": 4}
APART_UNDER_ALIBI = UNDER_ALIBI | {"query_segments": APART, "key_segments": SEGMENTS}


@pytest.mark.slow
def test_residuals_against_float64_in_numpy():
    seen = np.tri(LENGTH, dtype=bool) & (APART[:, :, None] == SEGMENTS[:, None])
    want = dense(Q, K, V, alibi(tile(POSITIONS, POSITIONS), SLOPES), seen[:, None])
    y, got = map(np.asarray, quick(functools.partial(pe.attention, return_residual=True, **APART_UNDER_ALIBI))(Q, K, V))
    check(y, want.y)
    assert got.dtype == np.float32 and np.all(np.isneginf(got[:, 4])) and np.all(np.isfinite(np.delete(got, 4, 1)))
    assert_within(got, want.residual, 2e-6, against="the logarithm of the float64 sum")
    low = [jax.ShapeDtypeStruct(x.shape[1:], jnp.bfloat16) for x in (Q, K, V)]  # no leading axis
    y, got = jax.eval_shape(functools.partial(pe.attention, return_residual=True), *low)
    assert y.dtype == jnp.bfloat16 and got.dtype == jnp.float32 and got.shape == (LENGTH, HEADS)


@pytest.mark.slow
def test_results_beside_residuals_are_those_alone():
    alone = jax.jit(functools.partial(pe.attention, **APART_UNDER_ALIBI))(Q, K, V)
    y, _ = jax.jit(functools.partial(pe.attention, return_residual=True, **APART_UNDER_ALIBI))(Q, K, V)
    np.testing.assert_array_equal(y, alone)


@pytest.mark.slow
def test_derivatives_of_residuals():
    bias, parameters = BIASES["t5"]
    dy, dl = W, W[..., 0] - 2 * W[..., 1]

    @quick
    def pulled(*arguments):
        f = functools.partial(tiled, bias=bias, causal=True, block_size=4, return_residual=True)
        return jax.vjp(f, *arguments)[1]((dy, dl))

    want = exact(Q, K, V, parameters, bias, causal=True, dy=dy, dl=dl).by
    check(pulled(Q, K, V, parameters), want)


def test_keys_in_parts():
    first, options = np.arange(LENGTH) < 6, UNDER_ALIBI | {"return_residual": True}
    packed = lambda x: {"query_segments": SEGMENTS, "key_segments": np.where(x[None], SEGMENTS, 99)}  # noqa: E731

    def merged(*qkv):  # some queries see nothing of one part, and some nothing of the other
        (a, of_a), (b, of_b) = (pe.attention(*qkv, **options, **packed(x)) for x in (first, ~first))
        together = jnp.logaddexp(of_a, of_b)
        return a * jnp.exp(of_a - together)[..., None] + b * jnp.exp(of_b - together)[..., None]

    want = exact(Q, K, V, (SLOPES,), pe.alibi, segments=SEGMENTS, causal=True)
    check(both(merged, Q, K, V), (want.y, want.by[:3]))


@pytest.mark.slow
def test_large_scores():
    large = [1000 * x for x in (Q, K)]
    y, pull = jax.vjp(lambda q: pe.attention(q, large[1], V, block_size=4), large[0])  # op by op, as by an eager `vjp`
    want = exact(*large, V)
    check(y, want.y)
    assert_within(pull(W)[0], want.by[0], 2e-3, against=FORMULA)  # keys of 3000 times roundings of sums of a few units
    up = lambda i, j: jnp.float32(1000) + pe.alibi(i, j, SLOPES)  # noqa: E731
    got = both(lambda q: pe.attention(q, K, V, bias=up, block_size=4), Q)
    want = exact(Q, K, V, (SLOPES,), pe.alibi)
    check(got, (want.y, want.by[:1]), 2e-4)  # a score near 1000 has units of 6e-5


@pytest.mark.slow
def test_large_scores_in_one_program():
    times = np.float32(1000)
    y, (by_q,) = both(lambda q: pe.attention(times * q, times * K, V, block_size=4), Q)
    want = exact(times * Q, times * K, V)
    check(y, want.y)
    assert_within(by_q, times * want.by[0], times * 2e-3, against=FORMULA)


def test_a_bias_need_not_be_finite_where_no_position_is():
    i = POSITIONS + 1

    def bias(i, j, slopes):
        return -_column(slopes) * jnp.log(j.astype(jnp.float32))[None, None] / i.astype(jnp.float32)[None, :, None]

    options = {"query_positions": i, "key_positions": i, "causal": True, "block_size": 4}
    got = both(functools.partial(tiled, bias=bias, **options), Q, K, V, (SLOPES,))
    check(got, exact(Q, K, V, (SLOPES,), bias, i=i, causal=True).both)


def test_a_bias_may_be_a_number():
    check(quick(functools.partial(pe.attention, bias=lambda i, j: 1.0))(Q, K, V), exact(Q, K, V).y)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, LENGTH), (1, 1, LENGTH), (2, LENGTH)])
def test_positions_broadcast_to_the_batch(shape):
    q, k, v = (np.stack([x, 2 * x, -x]) for x in (Q, K, V))
    attend = jax.jit(lambda i: pe.attention(q, k, v, query_positions=i, key_positions=i, **UNDER_ALIBI))
    i = BATCHED[: 2 if shape[0] == 2 else 1].reshape(shape)
    np.testing.assert_array_equal(attend(i), attend(np.broadcast_to(i, (3, 2, LENGTH))))


@pytest.mark.parametrize(("queries", "keys"), [slow(0, 3), (3, 0), slow(0, 0)])
def test_empty(queries, keys):
    positions = {"query_positions": POSITIONS[:queries], "key_positions": POSITIONS[:keys]}
    f = functools.partial(tiled, bias=pe.alibi, causal=True, **positions)
    y, gradients = both(f, Q[:, :queries], K[:, :keys], V[:, :keys], (SLOPES,))
    assert y.shape == (BATCH, queries, HEADS, WIDTH)
    assert not any(np.any(np.asarray(x)) for x in jax.tree.leaves((y, gradients)))


def test_empty_sequences_and_batches():
    for batch, queries, keys in ((BATCH, 0, 3), (BATCH, 0, 0), (0, LENGTH, LENGTH)):
        positions = {"query_positions": POSITIONS[:queries], "key_positions": POSITIONS[:keys]}
        f = functools.partial(tiled, bias=pe.alibi, causal=True, **positions)
        y = jax.eval_shape(f, Q[:batch, :queries], K[:batch, :keys], V[:batch, :keys], (SLOPES,))
        assert y.shape == (batch, queries, HEADS, WIDTH)


# Programs


def loss(q, k, v, parameters, name="alibi", **options):
    return jnp.vdot(tiled(q, k, v, parameters, BIASES[name][0], block_size=4, causal=True, **options), W[: len(q)])


def exact_gradients(name="alibi", parameters=None):
    bias, of_name = BIASES[name]
    return exact(Q, K, V, of_name if parameters is None else parameters, bias, causal=True).by


@pytest.mark.parametrize("name", tiered(["alibi", "t5", "fire"], ["t5"]))
def test_parameters_closed_over_in_every_program(name):
    of_name = functools.partial(loss, name=name)

    def scanned(*arguments):
        step = lambda total, x: (total + of_name(*arguments) * x, None)  # noqa: E731
        return lax.scan(step, np.float32(0), np.float32([0.25, 0.75]))[0]

    programs = {"jax.checkpoint": jax.checkpoint(of_name), "jax.lax.scan": scanned}
    by = quick(lambda *x: {name: jax.grad(f, (0, 1, 2, 3))(*x) for name, f in programs.items()})
    for program, gradients in by(Q, K, V, BIASES[name][1]).items():
        check(gradients, exact_gradients(name), against=f"in {program}, {FORMULA}")


def test_vmap():
    parameters = np.stack([SLOPES, RATES, 2 * SLOPES])
    got = quick(jax.vmap(jax.jit(lambda p: jax.grad(loss, (0, 3))(Q, K, V, (p,)))))(parameters)
    want = [exact_gradients(parameters=(p,)) for p in parameters]
    check(got, (np.stack([x[0] for x in want]), (np.stack([x[3][0] for x in want]),)))
    i = np.stack([POSITIONS, POSITIONS[::-1]])
    rows = jax.vmap(lambda q, k, v, i: tiled(q, k, v, (SLOPES,), pe.alibi, query_positions=i, key_positions=i, causal=True))  # fmt: skip
    check(quick(rows)(Q, K, V, i), exact(Q, K, V, (SLOPES,), pe.alibi, i=i, causal=True).y)


def test_integers_closed_over():
    def f(q, shift, slopes):
        return jnp.sum(pe.attention(q, K, V, bias=lambda i, j: pe.alibi(i + shift, j, slopes), block_size=4) * W)

    got = quick(jax.vmap(jax.grad(f, (0, 2)), (None, 0, None)))(Q, np.arange(3, dtype=np.int32), SLOPES)
    got = jax.tree.map(np.asarray, got)
    for shift in range(3):
        want = exact(Q, K, V, (SLOPES,), pe.alibi, i=POSITIONS + shift, j=POSITIONS).by
        check([x[shift] for x in got], [want[0], want[3][0]], against=f"at a shift of {shift}, {FORMULA}")


@pytest.mark.slow
def test_a_module_closed_over():
    class Bias(nnx.Module):
        def __init__(self):
            self.slopes = nnx.Param(SLOPES)

        def __call__(self, i, j):
            return pe.alibi(i, j, self.slopes[...])

    f = lambda module: jnp.vdot(pe.attention(Q, K, V, bias=module, causal=True, block_size=4), W)  # noqa: E731
    got = nnx.jit(nnx.grad(f))(Bias())
    check(got["slopes"][...], exact_gradients()[3][0])


@pytest.mark.slow
def test_derivatives_of_derivatives():
    q, k, v, w = (x[:1, :5].astype(np.float64) for x in (Q, K, V, W))
    f = lambda x: jnp.sum(W[:1, :5] * tiled(x, K[:1, :5], V[:1, :5], (SLOPES,), pe.alibi, block_size=2, causal=True))  # noqa: E731  # fmt: skip
    got = quick(jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2)))(Q[:1, :5])
    # The gradient of |g|² is 2 H g; H g is the derivative of g along g.
    gradient = lambda x: exact(x, k, v, (SLOPES,), pe.alibi, i=POSITIONS[:5], causal=True, dy=w).by[0]  # noqa: E731
    g = gradient(q)
    check(got, (gradient(q + 1e-5 * g) - gradient(q - 1e-5 * g)) / 1e-5, against=f"differences of {FORMULA}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over", "name"), [("batch", "alibi"), ("heads", "one for all heads"), ("queries", "t5"), ("queries", "fire")]
)
def test_derivatives_in_shard_map(over, name):
    # Over queries: keys, parameters and the cotangents of both are one for all devices.
    axis = {"batch": 0, "heads": 2, "queries": 1}[over]
    spec = [P(*[None] * axis, "d")] * 3 if over != "queries" else [P(None, "d"), P(), P()]
    n = 10 if over == "queries" else LENGTH
    q, k, v, w = (x[:, :n] for x in (Q, K, V, W))
    bias, parameters = BIASES[name]

    def local(q, k, v, w, parameters):
        i = POSITIONS[:n]
        if over == "queries":
            i = lax.dynamic_slice_in_dim(i, q.shape[1] * lax.axis_index("d"), q.shape[1])
        y = tiled(q, k, v, parameters, bias, query_positions=i, key_positions=POSITIONS[:n], causal=True, block_size=3)
        return lax.psum(jnp.sum(y * w), "d")

    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu"))
    f = jax.shard_map(local, mesh=mesh, in_specs=(*spec, spec[0], P()), out_specs=P())
    got = quick(jax.grad(f, (0, 1, 2, 4)))(q, k, v, w, parameters)
    check(got, exact(q, k, v, parameters, bias, i=POSITIONS[:n], causal=True, dy=w).by)


def test_minus_infinity_in_a_bias_hides_a_key():
    """Results and gradients, of the bias too, are those of a mask; where nothing is seen they are 0."""
    hidden = (np.arange(LENGTH)[:, None] + 2 * np.arange(LENGTH)) % 3 == 0
    hidden[4] = True

    def masked(i, j, slopes):
        hides = ((i[..., :, None] + 2 * j[..., None, :]) % 3 == 0) | (i[..., :, None] == 4)
        return jnp.where(hides[..., None, :, :], -jnp.inf, pe.alibi(i, j, slopes))

    got = both(functools.partial(tiled, bias=masked, block_size=4), Q, K, V, (SLOPES,))
    table = alibi(tile(POSITIONS, POSITIONS), SLOPES)
    y, _, back = dense(Q, K, V, table, ~hidden)
    dq, dk, dv, ds = back(W)
    by_slopes = (ds * table / np.float64(SLOPES)[:, None, None]).sum((0, 2, 3))
    check(got, (y, (dq, dk, dv, (by_slopes,))))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [P("d"), P(None, None, "d")], ids=["batch", "heads"])
def test_on_a_mesh_with_explicit_axes(spec, on_cpu):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu"))
    want = exact_gradients()
    with jax.set_mesh(mesh):
        q, k, v, w = (jax.device_put(x, NamedSharding(mesh, spec)) for x in (Q, K, V, W))
        f = lambda *x: jnp.sum(tiled(*x, pe.alibi, causal=True, block_size=4) * w)  # noqa: E731
        got = quick(jax.grad(f, (0, 1, 2, 3)))(q, k, v, (SLOPES,))
    check(got, want)


def gradient_of_squares(q, k, v):
    return jax.grad(lambda *x: jnp.sum(tiled(*x, (SLOPES,), pe.alibi, causal=True, block_size=4) ** 2))(q, k, v)


def of_any_batch():
    (batch,) = export.symbolic_shape("b")
    return [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in (Q, K, V)]


def test_any_batch():
    shapes = of_any_batch()
    assert jax.eval_shape(gradient_of_squares, *shapes).shape == shapes[0].shape


@pytest.mark.slow
def test_export_of_any_batch():
    exported = export.export(jax.jit(gradient_of_squares))(*of_any_batch())
    got = export.deserialize(exported.serialize()).call(Q, K, V)
    y = exact(Q, K, V, (SLOPES,), pe.alibi, causal=True).y
    check(got, exact(Q, K, V, (SLOPES,), pe.alibi, causal=True, dy=2 * y).by[0], 1e-6)


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_sizes_must_be_known(name, axis):
    (n,) = export.symbolic_shape("n")
    shapes = {k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in (("query", Q), ("key", K), ("value", V))}
    size = shapes[name].shape
    shapes[name] = jax.ShapeDtypeStruct((*size[:axis], n, *size[axis + 1 :]), Q.dtype)
    with pytest.raises(ValueError, match=f"^attention: {name} must have a known size along axis {axis}, got shape .*n"):
        export.export(jax.jit(pe.attention))(*shapes.values())


def test_a_repeated_call_is_not_traced_again():
    f = quick(lambda q, k, v: pe.attention(q, k, v, bias=functools.partial(pe.alibi, heads=HEADS)))
    f(Q, K, V)
    jax.eval_shape(functools.partial(pe.attention, causal=True), Q, K, V)
    with jax.no_tracing():
        f(Q, K, V)


@pytest.mark.parametrize("name", tiered(["alibi", "t5"], ["t5"]))
def test_biases_serve_kernels_that_ask_for_a_tile(name):
    bias, (parameter,) = BIASES[name]

    def kernel(q, k, parameter, out):
        i, j = (pl.program_id(axis) * 4 + lax.iota(jnp.int32, 4) for axis in range(2))
        scores = lax.dot_general(q[...], k[...], (((2,), (2,)), ((0,), (0,))))
        out[...] = scores + bias(i, j, parameter[...])

    q, k = (normal(HEADS, 12, WIDTH) for _ in range(2))
    side = lambda axis: pl.BlockSpec((HEADS, 4, WIDTH), lambda *at: (0, at[axis], 0))  # noqa: E731
    whole = pl.BlockSpec(parameter.shape, lambda *at: (0,) * parameter.ndim)
    tile = pl.BlockSpec((HEADS, 4, 4), lambda i, j: (0, i, j))
    shape = jax.ShapeDtypeStruct((HEADS, 12, 12), jnp.float32)
    got = pl.pallas_call(kernel, shape, grid=(3, 3), in_specs=[side(0), side(1), whole], out_specs=tile, interpret=True)
    p = np.arange(12, dtype=np.int32)
    want = np.einsum("hqd,hkd->hqk", *np.float64((q, k))) + np.asarray(bias(p, p, parameter))
    check(got(q, k, parameter), want, against="the product and the whole bias")


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"query": Q.astype(np.int32)}, TypeError, "attention: query must be a float array of shape .* got int32"),
        ({"key": [1.0]}, TypeError, "attention: key must be a float array of shape"),
        ({"key": K.astype(np.float16)}, TypeError, "attention: key must have the dtype of query, float32, got float16"),
        ({"value": V.astype(np.float16)}, TypeError, "attention: value must have the dtype of query"),
        ({"query": Q[0, 0]}, ValueError, r"attention: query must have shape \(..., queries, heads, head_dim\), got"),
        ({"key": K[:1]}, ValueError, "attention: key must have the leading axes and the head_dim of query"),
        ({"key": K[..., :7], "value": V[..., :7]}, ValueError, "attention: key must have the leading axes and the head_"),
        ({"value": V[:, 1:]}, ValueError, r"attention: value must have the axes of key but for the last, shape \(2, 11, 2, 8\), got \(2, 10"),
        ({"query": Q[:, :, :3]}, ValueError, "attention: the heads of query must be a multiple .* got 3 and 2"),
        ({"key": K[:, :, :0], "value": V[:, :, :0]}, ValueError, "attention: the heads of query must be a multiple"),
        ({"query": Q[..., :0], "key": K[..., :0], "value": V[..., :0]}, ValueError, "head_dim and value_dim must be at least 1, got 0"),
        ({"bias": SLOPES}, TypeError, "attention: bias must be a function of positions, got float32"),
        ({"bias": lambda i, j: (i, j)}, TypeError, r"bias must give one float array, got int32\[11\], int32\[11\]"),
        ({"bias": lambda i, j: i[:, None] - j[None]}, TypeError, r"bias must give one float array, got int32\[11,11\]"),
        ({"bias": lambda i, j: pe.alibi(i, j, 3)}, ValueError, r"attention: bias of shape \(3, 11, 11\) must broadcast to"),
        ({"bias": lambda i, j: jnp.ones((12, 12)), "block_size": 4}, ValueError, r"attention: bias of shape \(12, 12\)"),
        ({"block_size": 0}, ValueError, "attention: block_size must be at least 1, got 0"),
        ({"block_size": 2.0}, TypeError, "attention: block_size must be an integer"),
        ({"causal": 1}, TypeError, "attention: causal must be True or False"),
        ({"return_residual": 1}, TypeError, "attention: return_residual must be True or False"),
        ({"scale": "a"}, TypeError, "attention: scale must be a number"),
        ({"scale": np.inf}, ValueError, "attention: scale must be finite"),
        ({"query_positions": POSITIONS}, ValueError, "attention: query_positions and key_positions must be given together"),
        ({"key_segments": POSITIONS}, ValueError, "attention: query_segments and key_segments must be given together"),
        ({"query": Q[:, 1:], "causal": True}, ValueError, "attention: query_positions and key_positions must be given for 10"),
        ({"query": Q[:, 1:], "bias": pe.alibi}, ValueError, "attention: query_positions and key_positions must be given for"),
        ({"query_positions": POSITIONS[1:], "key_positions": POSITIONS}, ValueError, r"attention: query_positions must have shape \(..., 11\), got \(10,\)"),
        ({"query_positions": POSITIONS, "key_positions": POSITIONS[None, None]}, ValueError, r"attention: key_positions of shape \(1, 1, 11\) must broadcast to key without heads, shape \(2, 11\)"),
        ({"query_segments": SEGMENTS, "key_segments": SEGMENTS[:, 1:]}, ValueError, "attention: key_segments must have shape"),
        ({"mask": np.ones((1, 1, 1, LENGTH), np.int32)}, TypeError, "attention: mask must be an array of booleans, True where a query sees a key, got int32"),
        ({"mask": np.zeros((1, 1, 1, LENGTH), np.float32)}, TypeError, "attention: mask must be an array of booleans, .*; an additive mask is a bias, got float32"),
        ({"mask": np.ones((BATCH, LENGTH), bool)}, ValueError, r"attention: mask must have the axes \(..., heads, queries, keys\), each 1 or that of \(2, 4, 11, 11\), got \(2, 11\); for \(batch, keys\) pass mask\[:, None, None, :\]"),
        ({"mask": np.ones((BATCH, KV_HEADS, 1, LENGTH), bool)}, ValueError, r"attention: mask must have the axes .* got \(2, 2, 1, 11\)$"),
        ({"mask": [[True]]}, TypeError, "attention: mask must be an array of booleans"),
        ({"query_segments": W[0, 0], "key_segments": SEGMENTS}, TypeError, "attention: query_segments must be an integer array"),
        ({"key_order": POSITIONS, "causal": True}, ValueError, "attention: query_order and key_order must be given together"),
        ({"query_order": POSITIONS, "key_order": POSITIONS}, ValueError, "attention: causal must be True if query_order and key_order are given, got False"),
        ({"query_order": W[0, 0], "key_order": POSITIONS, "causal": True}, TypeError, "attention: query_order must be an integer array"),
        ({"query_order": POSITIONS[1:], "key_order": POSITIONS, "causal": True}, ValueError, r"attention: query_order must have shape \(..., 11\)"),
        ({"query_positions": W[0, 0], "key_positions": POSITIONS}, TypeError, "attention: query_positions must be an integer array"),
    ],
)  # fmt: skip
def test_bad_input(change, error, match):
    with pytest.raises(error, match=match):
        pe.attention(**{"query": Q, "key": K, "value": V} | change)
