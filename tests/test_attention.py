"""Attention by tiles against the dense one: results, every derivative, every mask, and what they cost."""

import functools

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

RNG = np.random.default_rng(0)
BATCH, LENGTH, HEADS, KV_HEADS, WIDTH = 2, 11, 4, 2, 8


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


Q, K, V, W = (normal(BATCH, LENGTH, heads, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
POSITIONS = jnp.arange(LENGTH, dtype=jnp.int32)
SLOPES, RATES = (jnp.asarray(RNG.uniform(0.1, 1.0, HEADS), jnp.float32) for _ in range(2))
MLP = tuple(normal(*shape) for shape in ((5,), (5,), (5, HEADS), (HEADS,)))
BATCHED = jnp.asarray(np.stack([RNG.permutation(LENGTH), 3 + RNG.permutation(LENGTH)]), jnp.int32)
SEGMENTS = jnp.asarray([[3] * 4 + [1] * 7, [0] * 9 + [-5] * 2], jnp.int32)

# name → bias of positions and parameters, the parameters
BIASES = {
    "none": (None, ()),
    "alibi": (pe.alibi, (SLOPES,)),
    "t5": (pe.t5, (normal(32, HEADS),)),
    "kerple_log": (pe.kerple_log, (SLOPES, RATES)),
    "kerple_power": (pe.kerple_power, (SLOPES, RATES)),
    "fire": (lambda i, j, mlp, c: pe.fire(i, j, mlp, c=c, threshold=4.0), (MLP, jnp.float32(0.7))),
    "sandwich": (lambda i, j, w: pe.sandwich(i, j, HEADS, w), (jnp.asarray([1.0, 0.1], jnp.float32),)),
    "one for all heads": (
        lambda i, j, x: -x * abs(i[..., None, :, None] - j[..., None, None, :]).astype(jnp.float32),
        (jnp.float32(0.3),),
    ),
}
NOT_SYMMETRIC = (lambda i, j, x: _column(x) * jnp.where(i[:, None] > j[None], 1.0, -0.5)[None], (SLOPES,))


def _column(x):
    return x.reshape(-1, 1, 1)


def tiled(q, k, v, parameters, bias, **options):
    """The bias closes over its parameters."""
    return pe.attention(q, k, v, bias=bias and (lambda i, j: bias(i, j, *parameters)), **options)


def dense(q, k, v, parameters, bias, *, i=POSITIONS, j=None, segments=None, causal=False, scale=None):
    """`jax.nn.dot_product_attention` with all of the bias and the mask."""
    j = i if j is None else j
    table = bias and bias(i, j, *parameters)
    table = None if table is None else table.reshape((1,) * (4 - table.ndim) + table.shape)
    seen = jnp.ones((1, i.shape[-1], j.shape[-1]), bool)
    if causal:
        seen &= (i[..., :, None] >= j[..., None, :]).reshape(-1, *seen.shape[1:])
    if segments is not None:
        seen = seen & (segments[..., :, None] == segments[..., None, :]).reshape(-1, *seen.shape[1:])
    heads = None if table is None else jnp.broadcast_to(table, (table.shape[0], q.shape[2], *table.shape[2:]))
    return jax.nn.dot_product_attention(q, k, v, bias=heads, mask=seen[:, None], scale=scale)


def check(got, want, tolerance=1e-5):
    """Each array to a tolerance relative to its largest element, of the float32 of both."""
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert [x.shape for x in got] == [x.shape for x in want]
    for x, y in zip(got, want, strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        assert np.max(np.abs(x - y), initial=0) <= tolerance * np.max(np.abs(y), initial=1)


def both(f, *arguments):
    """A result and the derivatives by all arguments."""
    y, pull = jax.vjp(jax.jit(f), *arguments)
    return y, pull(jnp.broadcast_to(W[:, : y.shape[1]], y.shape).astype(y.dtype))


def compare(name, block_size, options=None, reference=None):
    bias, parameters = name if isinstance(name, tuple) else BIASES[name]
    arguments = Q, K, V, parameters
    got = jax.jit(lambda *x: both(functools.partial(tiled, bias=bias, block_size=block_size, **options or {}), *x))(*arguments)  # fmt: skip
    want = both(functools.partial(dense, bias=bias, **reference or {}), *arguments)
    check(got, want)


# Results and derivatives


@pytest.mark.parametrize("name", BIASES)
def test_all_biases_with_positions_of_each_batch_and_segments(name):
    options = dict(query_positions=BATCHED, key_positions=BATCHED, query_segments=SEGMENTS, key_segments=SEGMENTS)
    compare(name, 4, options | {"causal": True}, {"i": BATCHED, "segments": SEGMENTS, "causal": True})


@pytest.mark.parametrize(("block_size", "causal"), [(1, True), (7, False), (7, True), (11, False), (1000, True)])
def test_all_block_sizes(block_size, causal):
    compare("t5" if causal else NOT_SYMMETRIC, block_size, {"causal": causal}, {"causal": causal})


@pytest.mark.parametrize("segments", [SEGMENTS, SEGMENTS[0]], ids=["of each batch", "of all"])
def test_segments(segments):
    compare("none", 4, {"query_segments": segments, "key_segments": segments}, {"segments": segments})


def test_positions_of_one_side_may_be_those_of_all():
    a, b = BATCHED, POSITIONS[::-1] + 2
    for i, j in ((a, b), (b, a)):
        options = {"query_positions": i, "key_positions": j, "causal": True}
        lifted = {"i": jnp.broadcast_to(i, a.shape), "j": jnp.broadcast_to(j, a.shape), "causal": True}
        got = pe.attention(Q, K, V, block_size=4, **options)[:, 2:]
        seen = np.asarray(jnp.any(lifted["i"][:, :, None] >= lifted["j"][:, None], -1))[:, 2:]
        want = dense(Q, K, V, (), None, **lifted)[:, 2:]
        check(got, jnp.where(seen[..., None, None], want, 0))


@pytest.mark.parametrize("scale", [0.0, -3])
def test_scale(scale):
    compare("alibi", 4, {"scale": scale}, {"scale": scale})


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_in_groups_and_other_leading_axes(kv_heads):
    k, v = normal(3, 2, 5, kv_heads, WIDTH), normal(3, 2, 5, kv_heads, WIDTH)
    q, i, j = (
        normal(3, 2, 6, HEADS, WIDTH),
        BATCHED[None, :, :6] % jnp.asarray([[[5]], [[6]], [[7]]], jnp.int32),
        POSITIONS[:5],
    )
    options = {"query_positions": i, "key_positions": j, "bias": lambda i, j: pe.alibi(i, j, SLOPES)}
    got = pe.attention(q, k, v, block_size=4, **options)
    assert got.shape == q.shape
    for a in range(3):
        for b in range(2):
            want = dense(q[a, b][None], k[a, b][None], v[a, b][None], (SLOPES,), pe.alibi, i=i[a, b], j=j)[0]
            check(got[a, b], want)
            one = pe.attention(q[a, b], k[a, b], v[a, b], block_size=4, **options | {"query_positions": i[a, b]})
            check(one, want)


def test_a_step_of_decoding_is_a_row_of_the_whole():
    whole = dense(Q, K, V, (SLOPES,), pe.alibi, causal=True)
    for t in (0, 3, 10):
        options = {"query_positions": jnp.full((BATCH, 1), t), "key_positions": POSITIONS, "causal": True}
        step = tiled(Q[:, t : t + 1], K, V, (SLOPES,), pe.alibi, block_size=4, **options)
        check(step, whole[:, t : t + 1])


def test_far_positions():
    far = POSITIONS + (2**31 - 1 - LENGTH)
    got = tiled(Q, K, V, (SLOPES,), pe.alibi, query_positions=far, key_positions=far, causal=True, block_size=4)
    check(got, tiled(Q, K, V, (SLOPES,), pe.alibi, causal=True, block_size=4), 0)


def test_against_float64_in_numpy():
    q, k, v = (np.asarray(x, float) for x in (Q, K, V))
    want = np.zeros(q.shape)
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(LENGTH):
                seen = np.arange(i + 1)
                scores = k[b, seen, h // 2] @ q[b, i, h] / np.sqrt(WIDTH) - float(SLOPES[h]) * (i - seen)
                weights = np.exp(scores - scores.max())
                want[b, i, h] = weights @ v[b, seen, h // 2] / weights.sum()
    check(tiled(Q, K, V, (SLOPES,), pe.alibi, causal=True, block_size=4), want, 1e-6)
    if jax.config.read("jax_enable_x64"):
        bias = lambda i, j, m: -m.reshape(-1, 1, 1) * jnp.abs(i[:, None] - j[None])[None].astype(m.dtype)  # noqa: E731
        slopes = (SLOPES.astype(np.float64),)
        exact = tiled(*map(jnp.asarray, (q, k, v)), slopes, bias, causal=True, block_size=4)
        assert exact.dtype == np.float64
        check(exact, want, 1e-14)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype):
    # Weights, their cotangents and results are rounded once each: a few units in the last place of the largest.
    low = [x.astype(dtype) for x in (Q, K, V)]
    f = lambda q, k, v, p: tiled(q, k, v, p, pe.alibi, causal=True, block_size=4)  # noqa: E731
    got = both(f, *low, (SLOPES,))
    assert all(x.dtype == dtype for x in jax.tree.leaves(got)[:-1]) and got[1][3][0].dtype == jnp.float32
    want = both(lambda *x: dense(*x, pe.alibi, causal=True), *(x.astype(jnp.float32) for x in low), (SLOPES,))
    check(got, want, 3 * float(jnp.finfo(dtype).eps))


def test_what_sees_nothing_gives_zeros():
    mine, theirs = SEGMENTS.at[:, 4].set(77), SEGMENTS.at[:, 2].set(88)  # query 4, and key 2

    def f(q, k, v, p):
        return tiled(q, k, v, p, pe.alibi, query_segments=mine, key_segments=theirs, causal=True, block_size=4)

    y, (dq, dk, dv, d_slopes) = jax.jit(lambda *x: both(f, *x))(Q, K, V, (SLOPES,))
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in (y, dq, dk, dv, *d_slopes))
    for zero in (y[:, 4], dq[:, 4], dk[:, 2], dv[:, 2]):
        assert not np.any(zero)
    assert np.all(np.any(np.asarray(y), (2, 3)) == (np.arange(LENGTH) != 4))
    nothing = pe.attention(Q, K, V, query_segments=POSITIONS * 0, key_segments=POSITIONS * 0 + 1)
    np.testing.assert_array_equal(nothing, jnp.zeros_like(Q))
    check(pe.attention(Q, K, V, bias=lambda i, j: jnp.full((i.size, j.size), -jnp.inf)), jnp.zeros_like(Q), 0)


@pytest.mark.parametrize("block", [3, 512])
def test_keys_that_are_all_far_away(block):
    """−2³¹·slope, the same for all keys, changes no weight; beside it float32 does not hold ln(keys)."""

    def at(distance):
        i, j = jnp.full(LENGTH, distance, jnp.int32), jnp.zeros(LENGTH, jnp.int32)
        options = {"query_positions": i, "key_positions": j, "causal": True, "block_size": block}
        return both(lambda *qkv: pe.attention(*qkv, bias=lambda i, j: pe.alibi(i, j, HEADS), **options), 0 * Q, K, V)

    far = at(2**31 - 1)
    jax.tree.map(np.testing.assert_array_equal, far, at(0))
    check(far, both(lambda *qkv: dense(*qkv, (), None), 0 * Q, K, V))


# Residuals, by which keys may come in parts

APART = SEGMENTS.at[:, 4].set(77)  # of queries: those numbered 4 see nothing
UNDER_ALIBI = {"bias": lambda i, j: pe.alibi(i, j, SLOPES), "causal": True, "block_size": 4}


def test_residuals_against_float64_in_numpy():
    q, k, slopes = (np.asarray(x, float) for x in (Q, np.repeat(K, 2, 2), SLOPES))
    apart = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))
    scores = np.einsum("bihd,bjhd->bihj", q, k) / np.sqrt(WIDTH) - (apart[:, None] * slopes[:, None])
    seen = (apart >= 0) & (np.asarray(APART)[:, :, None] == np.asarray(SEGMENTS)[:, None])
    want = np.sum(np.where(seen[:, :, None], np.exp(scores), 0), -1)
    want = np.log(want, where=want > 0, out=np.full_like(want, -np.inf))
    options = UNDER_ALIBI | {"query_segments": APART, "key_segments": SEGMENTS}
    y, got = pe.attention(Q, K, V, return_residual=True, **options)
    assert got.dtype == np.float32 and np.all(np.isneginf(got[:, 4])) and np.all(np.isfinite(np.delete(got, 4, 1)))
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(y, pe.attention(Q, K, V, **options))
    low = [x.astype(jnp.bfloat16) for x in (Q[0], K[0], V[0])]  # no leading axis
    y, got = jax.eval_shape(functools.partial(pe.attention, return_residual=True), *low)
    assert y.dtype == jnp.bfloat16 and got.dtype == jnp.float32 and got.shape == (LENGTH, HEADS)


def test_derivatives_of_residuals():
    bias, parameters = BIASES["t5"]

    def tiles(q, k, v, parameters):
        return tiled(q, k, v, parameters, bias, causal=True, block_size=4, return_residual=True)

    def whole(q, k, v, parameters):
        scores = jnp.einsum("bihd,bjhd->bhij", q, jnp.repeat(k, 2, 2)) / np.sqrt(WIDTH).astype(np.float32)
        scores += bias(POSITIONS, POSITIONS, *parameters)[None]
        scores = jnp.where((POSITIONS[:, None] >= POSITIONS[None])[None, None], scores, -jnp.inf)
        y = dense(q, k, v, parameters, bias, causal=True)
        return y, jnp.swapaxes(jax.nn.logsumexp(scores, -1), 1, 2)

    dy = W, W[..., 0] - 2 * W[..., 1]
    got, want = (jax.jit(lambda *x, f=f: jax.vjp(f, *x)[1](dy))(Q, K, V, parameters) for f in (tiles, whole))
    check(got, want)


def test_keys_in_parts():
    first, options = jnp.arange(LENGTH) < 6, UNDER_ALIBI | {"return_residual": True}
    packed = lambda x: {"query_segments": SEGMENTS, "key_segments": jnp.where(x[None], SEGMENTS, 99)}  # noqa: E731

    def merged(*qkv):  # some queries see nothing of one part, and some nothing of the other
        (a, of_a), (b, of_b) = (pe.attention(*qkv, **options, **packed(x)) for x in (first, ~first))
        both = jnp.logaddexp(of_a, of_b)
        return a * jnp.exp(of_a - both)[..., None] + b * jnp.exp(of_b - both)[..., None]

    want = both(lambda *qkv: pe.attention(*qkv, **UNDER_ALIBI, **packed(first | ~first)), Q, K, V)
    check(jax.jit(lambda *x: both(merged, *x))(Q, K, V), want)


def test_large_scores():
    y, (dq, *_) = both(lambda q: pe.attention(1e3 * q, 1e3 * K, V, block_size=4), Q)
    want = dense(1e3 * Q, 1e3 * K, V, (), None)
    check(y, want)
    assert np.all(np.isfinite(dq))
    up = lambda i, j: jnp.float32(1000) + pe.alibi(i, j, SLOPES)  # noqa: E731
    got, want = (both(lambda q, b=b: pe.attention(q, K, V, bias=b, block_size=4), Q) for b in (up, lambda i, j: pe.alibi(i, j, SLOPES)))  # fmt: skip
    check(got, want, 2e-4)  # a score near 1000 has units of 6e-5


def test_a_bias_need_not_be_finite_where_no_position_is():
    i = POSITIONS + 1

    def bias(i, j, slopes):
        return -_column(slopes) * jnp.log(j.astype(jnp.float32))[None, None] / i.astype(jnp.float32)[None, :, None]

    f = lambda *x: tiled(*x, bias, query_positions=i, key_positions=i, causal=True, block_size=4)  # noqa: E731
    want = both(lambda *x: dense(*x, bias, i=i, causal=True), Q, K, V, (SLOPES,))
    check(jax.jit(lambda *x: both(f, *x))(Q, K, V, (SLOPES,)), want)


def test_a_bias_may_be_a_number():
    check(pe.attention(Q, K, V, bias=lambda i, j: 1.0), pe.attention(Q, K, V))


@pytest.mark.parametrize("shape", [(1, LENGTH), (1, 1, LENGTH)])
def test_positions_broadcast_to_the_batch(shape):
    q, k, v = (jnp.stack([x, 2 * x, -x]) for x in (Q, K, V))
    options = {"bias": lambda i, j: pe.alibi(i, j, SLOPES), "causal": True, "block_size": 4}
    i = BATCHED[:1].reshape(shape)
    got = pe.attention(q, k, v, query_positions=i, key_positions=i, **options)
    whole = jnp.broadcast_to(i.reshape(1, 1, LENGTH), (3, 2, LENGTH))
    np.testing.assert_array_equal(got, pe.attention(q, k, v, query_positions=whole, key_positions=whole, **options))
    rows = pe.attention(q, k, v, query_positions=BATCHED, key_positions=BATCHED, **options)
    whole = jnp.broadcast_to(BATCHED, (3, 2, LENGTH))
    np.testing.assert_array_equal(rows, pe.attention(q, k, v, query_positions=whole, key_positions=whole, **options))


def test_empty():
    for queries, keys in ((0, 3), (3, 0), (0, 0)):
        positions = {"query_positions": POSITIONS[:queries], "key_positions": POSITIONS[:keys]}
        f = lambda *x, p=positions: tiled(*x, pe.alibi, causal=True, **p)  # noqa: E731
        y, gradients = both(f, Q[:, :queries], K[:, :keys], V[:, :keys], (SLOPES,))
        assert y.shape == (BATCH, queries, HEADS, WIDTH)
        assert not any(np.any(x) for x in jax.tree.leaves((y, gradients)))
    assert pe.attention(Q[:0], K[:0], V[:0]).shape == (0, LENGTH, HEADS, WIDTH)


# Programs


def loss(q, k, v, parameters, name="alibi", **options):
    return jnp.vdot(tiled(q, k, v, parameters, BIASES[name][0], block_size=4, causal=True, **options), W[: len(q)])


def gradients_of_dense(name="alibi"):
    f = lambda *x: jnp.vdot(dense(*x, BIASES[name][0], causal=True), W)  # noqa: E731
    return jax.grad(f, (0, 1, 2, 3))(Q, K, V, BIASES[name][1])


@pytest.mark.parametrize("name", ["alibi", "t5", "fire"])
def test_parameters_closed_over_in_every_program(name):
    f, arguments = functools.partial(loss, name=name), (Q, K, V, BIASES[name][1])
    want = gradients_of_dense(name)
    check(jax.jit(jax.grad(jax.checkpoint(f), (0, 1, 2, 3)))(*arguments), want)

    def scanned(*arguments):
        return lax.scan(lambda total, x: (total + f(*arguments) * x, None), np.float32(0), np.float32([0.25, 0.75]))[0]

    check(jax.grad(scanned, (0, 1, 2, 3))(*arguments), want)


def test_vmap():
    parameters = jnp.stack([SLOPES, RATES, 2 * SLOPES])
    f = jax.jit(lambda p: jax.grad(loss, (0, 3))(Q, K, V, (p,)))
    check(jax.jit(jax.vmap(f))(parameters), jax.tree.map(lambda *x: jnp.stack(x), *map(f, parameters)))
    i = jnp.stack([POSITIONS, POSITIONS[::-1]])
    rows = jax.vmap(lambda q, k, v, i: tiled(q, k, v, (SLOPES,), pe.alibi, query_positions=i, key_positions=i, causal=True))  # fmt: skip
    check(rows(Q, K, V, i), tiled(Q, K, V, (SLOPES,), pe.alibi, query_positions=i, key_positions=i, causal=True))


def test_integers_closed_over():
    def f(q, shift, slopes):
        return jnp.sum(pe.attention(q, K, V, bias=lambda i, j: pe.alibi(i + shift, j, slopes), block_size=4) * W)

    got = jax.jit(jax.vmap(jax.grad(f, (0, 2)), (None, 0, None)))(Q, jnp.arange(3, dtype=jnp.int32), SLOPES)
    for shift in range(3):
        moved = lambda q, s, n=shift: jnp.sum(W * dense(q, K, V, (s,), lambda i, j, s: pe.alibi(i + n, j, s)))  # noqa: E731
        check(jax.tree.map(lambda x, n=shift: x[n], got), jax.grad(moved, (0, 1))(Q, SLOPES))


def test_a_module_closed_over():
    class Bias(nnx.Module):
        def __init__(self):
            self.slopes = nnx.Param(SLOPES)

        def __call__(self, i, j):
            return pe.alibi(i, j, self.slopes[...])

    f = lambda module: jnp.vdot(pe.attention(Q, K, V, bias=module, causal=True, block_size=4), W)  # noqa: E731
    got = nnx.jit(nnx.grad(f))(Bias())
    check(got["slopes"][...], gradients_of_dense()[3])


def test_derivatives_of_derivatives():
    q, k, v = (x[:1, :5] for x in (Q, K, V))
    second = lambda f: jax.jit(jax.grad(lambda q: jnp.sum(jax.grad(f)(q) ** 2)))(q)  # noqa: E731
    want = second(lambda q: jnp.sum(W[:1, :5] * dense(q, k, v, (SLOPES,), pe.alibi, i=POSITIONS[:5], causal=True)))
    check(second(lambda q: jnp.sum(W[:1, :5] * tiled(q, k, v, (SLOPES,), pe.alibi, block_size=2, causal=True))), want)


@pytest.mark.parametrize(
    ("over", "name"),
    [("batch", "alibi"), ("heads", "one for all heads"), ("queries", "t5"), ("queries", "fire")],
)
def test_derivatives_in_shard_map(over, name):
    # Over queries: keys, parameters and the cotangents of both are one for all devices.
    axis = {"batch": 0, "heads": 2, "queries": 1}[over]
    spec = [P(*[None] * axis, "d")] * 3 if over != "queries" else [P(None, "d"), P(), P()]
    n = 10 if over == "queries" else LENGTH
    q, k, v = Q[:, :n], K[:, :n], V[:, :n]
    bias, parameters = BIASES[name]

    def local(q, k, v, w, parameters):
        i = POSITIONS[:n]
        if over == "queries":
            i = lax.dynamic_slice_in_dim(i, q.shape[1] * lax.axis_index("d"), q.shape[1])
        y = tiled(q, k, v, parameters, bias, query_positions=i, key_positions=POSITIONS[:n], causal=True, block_size=3)
        return lax.psum(jnp.sum(y * w), "d")

    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu"))
    f = jax.shard_map(local, mesh=mesh, in_specs=(*spec, spec[0], P()), out_specs=P())
    got = jax.jit(jax.grad(f, (0, 1, 2, 4)))(q, k, v, W[:, :n], parameters)
    total = lambda *x: jnp.vdot(dense(*x, bias, i=POSITIONS[:n], causal=True), W[:, :n])  # noqa: E731
    check(got, jax.grad(total, (0, 1, 2, 3))(q, k, v, parameters))


@pytest.mark.parametrize("spec", [P("d"), P(None, None, "d")], ids=["batch", "heads"])
def test_on_a_mesh_with_explicit_axes(spec, on_cpu):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu"))
    want = gradients_of_dense()
    with jax.set_mesh(mesh):
        q, k, v, w = (jax.device_put(x, NamedSharding(mesh, spec)) for x in (Q, K, V, W))
        f = lambda *x: jnp.sum(tiled(*x, pe.alibi, causal=True, block_size=4) * w)  # noqa: E731
        got = jax.jit(jax.grad(f, (0, 1, 2, 3)))(q, k, v, (SLOPES,))
    check(got, want)


def test_export_of_any_batch():
    (batch,) = export.symbolic_shape("b")
    f = jax.jit(jax.grad(lambda q, k, v: jnp.sum(tiled(q, k, v, (SLOPES,), pe.alibi, causal=True, block_size=4) ** 2)))
    shapes = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in (Q, K, V)]
    check(export.deserialize(export.export(f)(*shapes).serialize()).call(Q, K, V), f(Q, K, V), 1e-6)


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("name", ["query", "key"])
def test_sizes_must_be_known(name, axis):
    (n,) = export.symbolic_shape("n")
    shapes = {k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in (("query", Q), ("key", K), ("value", V))}
    size = shapes[name].shape
    shapes[name] = jax.ShapeDtypeStruct((*size[:axis], n, *size[axis + 1 :]), Q.dtype)
    with pytest.raises(ValueError, match=f"^attention: {name} must have a known size along axis {axis}, got shape .*n"):
        export.export(jax.jit(pe.attention))(*shapes.values())


def test_a_repeated_call_is_not_traced_again():
    f = jax.jit(lambda q, k, v: pe.attention(q, k, v, bias=functools.partial(pe.alibi, heads=HEADS)))
    f(Q, K, V)
    pe.attention(Q, K, V, causal=True)
    with jax.no_tracing():
        f(Q, K, V)


@pytest.mark.parametrize("name", ["alibi", "t5"])
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
    p = jnp.arange(12, dtype=jnp.int32)
    check(got(q, k, parameter), jnp.einsum("hqd,hkd->hqk", q, k) + bias(p, p, parameter))


# What it costs


def temporaries(length, backward):
    x = jax.ShapeDtypeStruct((1, length, 8, 64), jnp.bfloat16)
    f = functools.partial(pe.attention, bias=functools.partial(pe.alibi, heads=8), causal=True)
    g = (lambda q, k, v, dy: jax.vjp(f, q, k, v)[1](dy)) if backward else (lambda q, k, v, dy: f(q, k, v))
    return jax.jit(g).lower(x, x, x, x).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("backward", [False, True])
def test_memory_grows_with_the_length(backward):
    lengths = 4096, 32_768, 65_536
    found = [temporaries(n, backward) for n in lengths]
    assert found[1] <= 0.05 * 8 * 32_768**2 * 2  # of the bytes of a dense bias
    assert found[1] <= 8.001 * found[0] and found[2] <= 2.001 * found[1]


def test_a_tile_in_which_nothing_is_seen_costs_nothing():
    x = jax.ShapeDtypeStruct((1, 64, 1, 8), jnp.float32)
    count = lambda **options: str(jax.make_jaxpr(functools.partial(pe.attention, block_size=8, **options))(x, x, x)).count("cond[")  # noqa: E731  # fmt: skip
    assert count(causal=True) == 1 and count() == 0
    apart = jnp.arange(64, dtype=jnp.int32) // 16
    assert count(query_segments=apart, key_segments=apart) == 1


def test_blocks_are_even():
    x = jax.ShapeDtypeStruct((1, 520, 1, 8), jnp.float32)
    text = str(jax.make_jaxpr(pe.attention)(x, x, x))
    assert "260,260]" in text and "512" not in text


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"query": Q.astype(jnp.int32)}, TypeError, "attention: query must be a float array of shape .* got int32"),
        ({"key": [1.0]}, TypeError, "attention: key must be a float array of shape"),
        ({"key": K.astype(jnp.float16)}, TypeError, "attention: key must have the dtype of query, float32, got float16"),
        ({"value": V.astype(jnp.float16)}, TypeError, "attention: value must have the dtype of query"),
        ({"query": Q[0, 0]}, ValueError, r"attention: query must have shape \(..., queries, heads, head_dim\), got"),
        ({"key": K[:1]}, ValueError, "attention: key must have the leading axes and the head_dim of query"),
        ({"key": K[..., :7], "value": V[..., :7]}, ValueError, "attention: key must have the leading axes and the head_"),
        ({"value": V[:, 1:]}, ValueError, r"attention: value must have the shape of key, \(2, 11, 2, 8\), got \(2, 10"),
        ({"query": Q[:, :, :3]}, ValueError, "attention: the heads of query must be a multiple .* got 3 and 2"),
        ({"key": K[:, :, :0], "value": V[:, :, :0]}, ValueError, "attention: the heads of query must be a multiple"),
        ({"query": Q[..., :0], "key": K[..., :0], "value": V[..., :0]}, ValueError, "head_dim must be at least 1, got 0"),
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
        ({"query_segments": W[0, 0], "key_segments": SEGMENTS}, TypeError, "attention: query_segments must be an integer array"),
        ({"query_positions": W[0, 0], "key_positions": POSITIONS}, TypeError, "attention: query_positions must be an integer array"),
    ],
)  # fmt: skip
def test_bad_input(change, error, match):
    with pytest.raises(error, match=match):
        pe.attention(**{"query": Q, "key": K, "value": V} | change)
