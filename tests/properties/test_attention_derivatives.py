"""Derivatives of attention of every order and in every mode, beside JAX's own of the dense formula, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import posenc_jax as pe
from helpers.attention import AT, CASES, NAMES, THERE, check, dense, drawn, outputs, tiled
from helpers.quick import quick
from helpers.tiers import slow, tiered

ARRAYS, ALONG, WAY = drawn(0), drawn(1), drawn(2)
ALL = tuple(range(len(NAMES)))


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def functions(name):
    return outputs(functools.partial(tiled, name)), outputs(functools.partial(dense, name))


def loss_of(f):
    return lambda *x: sum(jnp.sum(jnp.sin(y.astype(np.promote_types(y.dtype, np.float32)))) for y in f(*x))


def dot(a, b):
    return sum(map(jnp.vdot, a, b))


def hessian(f, mode):
    """The Hessian of a loss along a direction, in each order of modes."""
    loss = loss_of(f)
    gradient = jax.grad(loss, ALL)
    if mode == "forward over reverse":
        return lambda x, v: jax.jvp(gradient, x, v)[1]
    if mode == "reverse over reverse":
        return lambda x, v: jax.grad(lambda *x: dot(gradient(*x), v), ALL)(*x)
    return lambda x, v: jax.grad(lambda *x: jax.jvp(loss, x, v)[1], ALL)(*x)


HESSIANS = ["forward over reverse", "reverse over reverse", "reverse over forward"]


def first(f):
    def of(x, v):
        y, along = jax.jvp(f, x, v)
        cotangents = jax.tree.map(jnp.cos, y)
        back = jax.vjp(f, *x)[1](cotangents)
        return y, along, back, dot(cotangents, along) - dot(back, v)

    return of


def compare(of, name, *arguments, tolerance=1e-10, program=quick):
    ours, theirs = functions(name)
    check(program(of(ours))(*arguments), quick(of(theirs))(*arguments), tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_first_derivatives_in_both_modes(name):
    compare(first, name, ARRAYS, ALONG)


@pytest.mark.parametrize("mode", tiered(HESSIANS, [next(iter(HESSIANS))]))
@pytest.mark.parametrize("name", tiered(CASES, ["everything"]))
def test_second_derivatives(name, mode):
    ours, theirs = functions(name)
    want = quick(hessian(theirs, HESSIANS[0]))(ARRAYS, ALONG)
    check(quick(hessian(ours, mode))(ARRAYS, ALONG), want, 1e-10)


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), slow(7, 5), (0, 5), slow(1, 4), slow(6, 6)])
def test_uneven_lengths_under_a_large_bias(queries, keys):
    """e³⁰⁰ is beyond float32: what fills up a block of queries must not have it as a weight, nor a derivative of it."""
    rng = np.random.default_rng(queries)
    drawn = [rng.normal(size=(2, 1, n, 2, 4)).astype(np.float32) for n in (queries, keys, keys)]
    (q, dq), (k, dk), (v, dv) = drawn
    slopes, along = np.float32([[300, -300], [0.3, 0.2]]) / keys
    x, d = (q, k, v, slopes), (dq, dk, dv, along)
    bias = lambda s: lambda i, j: s[:, None, None] * (j[None, None] + 1).astype(s.dtype)  # noqa: E731

    def ours(q, k, v, s):
        where = {
            "query_positions": np.arange(queries, dtype=np.int32),
            "key_positions": np.arange(keys, dtype=np.int32),
        }
        return [pe.attention(q, k, v, bias=bias(s), block_size=3, **where)]

    def theirs(q, k, v, s):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2 + bias(s)(np.arange(queries), np.arange(keys))[None]
        return [jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)]

    def both(f):
        return quick(lambda x, d: (first(f)(x, d)[1:3], jax.jvp(jax.grad(loss_of(f), range(4)), x, d)[1]))

    got, want = both(ours)(x, d), both(theirs)(*jax.tree.map(np.float64, (x, d)))
    check(got, want, 3e-4)  # scores around 300


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_forward_over_forward(name):
    compare(lambda f: lambda x, v, u: jax.jvp(lambda *x: jax.jvp(f, x, v)[1], x, u), name, ARRAYS, ALONG, WAY)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_third_derivatives(name):
    """Along one direction, of the Hessian along another."""
    of = lambda f: lambda x, v, u: jax.jvp(lambda *x: hessian(f, HESSIANS[0])(x, v), x, u)[1]  # noqa: E731
    compare(of, name, ARRAYS, ALONG, WAY)


@pytest.mark.slow
@pytest.mark.parametrize("operands", [["value", "slopes", "sinks"], ["query", "key", "scale"]])
def test_each_operand_alone(operands):
    """What does not move has a tangent of None, and no cotangent."""
    ours, theirs = functions("everything")
    moving = [NAMES.index(name) for name in operands]

    def alone(x, v, n):
        f = lambda a: ours(*x[:n], a, *x[n + 1 :])  # noqa: E731
        y, along = jax.jvp(f, (x[n],), (v[n],))
        return along, jax.vjp(f, x[n])[1](jax.tree.map(jnp.cos, y))[0]

    def beside_zeros(x, v):
        zeros = [*map(jnp.zeros_like, x)]
        y, back = jax.vjp(theirs, *x)
        along = [jax.jvp(theirs, x, (*zeros[:n], v[n], *zeros[n + 1 :]))[1] for n in moving]
        cotangents = back(jax.tree.map(jnp.cos, y))
        return [(t, cotangents[n]) for t, n in zip(along, moving, strict=True)]

    got = quick(lambda x, v: [alone(x, v, n) for n in moving])(ARRAYS, ALONG)
    for name, a, b in zip(operands, got, quick(beside_zeros)(ARRAYS, ALONG), strict=True):
        check(a, b, 1e-10, f"JAX's derivative by {name} alone")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_linearize(name):
    of = lambda f: lambda x, v: jax.linearize(f, *x)[1](*v)  # noqa: E731
    compare(of, name, ARRAYS, ALONG)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "everything"])
def test_jacobians_in_both_modes(name):
    def of(f, jac):
        small = lambda s, c: f(*ARRAYS[:4], s, c)[0][:, :3, :2]  # noqa: E731
        return jac(small, (0, 1))(*ARRAYS[4:])

    ours, theirs = functions(name)
    forward, backward = (quick(functools.partial(of, ours, jac))() for jac in (jax.jacfwd, jax.jacrev))
    check(forward, backward, 1e-12, against="reverse mode")
    check(forward, quick(functools.partial(of, theirs, jax.jacrev))(), 1e-10)


@pytest.mark.parametrize("program", [slow(lambda f: f), quick], ids=["eagerly", "jit"])
def test_no_derivative_by_positions_and_segments(program):
    """Integers have tangents of `float0`, which are passed over."""
    f = lambda q, i: tiled("plain", q, *ARRAYS[1:], i=i)[0]  # noqa: E731
    i = np.arange(7, dtype=np.int32)
    still = np.zeros(7, jax.dtypes.float0)
    both = lambda q, t: [jax.jvp(f, (q, i), (t, still))[1], jax.jvp(lambda q: f(q, i), (q,), (t,))[1]]  # noqa: E731
    check(*program(both)(ARRAYS[0], ALONG[0]), 1e-10)
    by_q, by_i = jax.eval_shape(jax.grad(lambda q, i: jnp.sum(f(q, i)), (0, 1), allow_int=True), ARRAYS[0], i)
    assert by_q.shape == ARRAYS[0].shape and by_i.dtype == jax.dtypes.float0


# Inside other transformations


def scanned(f):
    """Twice, with the first result's sum in the query of the second."""

    def of(q, *rest):
        def layer(q, _):
            y = f(q, *rest)
            return q + 0.1 * jnp.sum(y[0], -1, keepdims=True), y

        return jax.tree.map(lambda y: y[-1], lax.scan(layer, q, None, 2)[1])

    return of


POLICIES = jax.checkpoint_policies
TRANSFORMS = {
    "scan": scanned,
    "remat": jax.checkpoint,
    "remat that saves dots": functools.partial(jax.checkpoint, policy=POLICIES.dots_saveable),
    "remat that saves all": functools.partial(jax.checkpoint, policy=POLICIES.everything_saveable),
    "remat that saves nothing": functools.partial(jax.checkpoint, policy=POLICIES.nothing_saveable),
    "scan of remat": lambda f: scanned(jax.checkpoint(f)),
    "jit in jit": jax.jit,
    "cond": lambda f: lambda *x: lax.cond(x[4][0] < 1e9, f, lambda *x: jax.tree.map(jnp.zeros_like, f(*x)), *x),
}


def both_orders(transform):
    def of(f):
        g = transform(f)
        return lambda x, v: (first(g)(x, v), hessian(g, HESSIANS[0])(x, v))

    return of


def test_first_derivatives_in_a_scan_of_remat():
    compare(lambda f: first(TRANSFORMS["scan of remat"](f)), "everything", ARRAYS, ALONG)


@pytest.mark.slow
@pytest.mark.parametrize("how", TRANSFORMS)
def test_inside_other_transformations(how):
    compare(both_orders(TRANSFORMS[how]), "everything", ARRAYS, ALONG)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_eagerly(name):
    compare(first, name, ARRAYS, ALONG, program=lambda f: f)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "everything"])
def test_without_jit(name):
    ours, theirs = functions(name)
    with jax.disable_jit():
        got = first(ours)(ARRAYS, ALONG)
    check(got, quick(first(theirs))(ARRAYS, ALONG), 1e-10)


# Batches: which operands are mapped

MAPS = {
    "all": (0, 0, 0, 0, 0, 0),
    "query": (0, None, None, None, None, None),
    "key": (None, 1, None, None, None, None),
    "value, sinks": (None, None, 0, None, 1, None),
    "slopes": (None, None, None, 0, None, None),
    "sinks": (None, None, None, None, 0, None),
    "scale": (None, None, None, None, None, 2),
    "key, value, slopes": (None, -1, 0, 1, None, None),
}


def batch_of(arrays, axes):
    return tuple(x if a is None else np.stack([x, 1 - x, 0.5 * x], a) for x, a in zip(arrays, axes, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("mapped", MAPS)
def test_any_operand_may_be_mapped(mapped):
    """The derivative of the mapped function: what is not mapped gets the sum of the cotangents of all."""
    axes = MAPS[mapped]
    compare(lambda f: first(jax.vmap(f, axes)), "everything", batch_of(ARRAYS, axes), batch_of(ALONG, axes))


@pytest.mark.slow
@pytest.mark.parametrize("mapped", MAPS)
def test_derivatives_may_be_mapped(mapped):
    """The mapped derivative, of second order too: what is not mapped gets a cotangent for each."""
    axes = MAPS[mapped]
    of = lambda f: jax.vmap(both_orders(lambda g: g)(f), (axes, axes))  # noqa: E731
    compare(of, "everything", batch_of(ARRAYS, axes), batch_of(ALONG, axes))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "everything"])
def test_maps_of_maps(name):
    """Over queries, over parameters of the bias and sinks, and a derivative between the two."""
    axes = (0, None, None, 0, 0, None)
    some = (None, None, None, 0, 0, None)
    of = lambda f: jax.vmap(first(jax.vmap(f, some)), ((0, *(None for _ in some[1:])),) * 2)  # noqa: E731
    compare(of, name, batch_of(ARRAYS, axes), batch_of(ALONG, axes))


@pytest.mark.slow
def test_tangents_and_cotangents_alone_may_be_mapped():
    def of(f):
        def run(x, v, u):
            along = jax.vmap(lambda v: jax.jvp(f, x, (v, *ALONG[1:]))[1])(v)
            back = jax.vmap(lambda u: jax.vjp(f, *x)[1]((u, jnp.zeros(f(*x)[1].shape))))(u)
            return along, back

        return run

    u = np.random.default_rng(3).normal(size=(3, *ARRAYS[0].shape[:3], ARRAYS[2].shape[-1]))
    compare(of, "everything", ARRAYS, batch_of(ALONG, (0,) + (None,) * 5)[0], u)


# Lower precision


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("wide", [False, True])
def test_tangents_in_other_dtypes(dtype, wide):
    """Those of the same numbers, to a few roundings; the parameters may stay in float32."""
    ours, theirs = functions("everything")
    low = lambda x: (*(a.astype(dtype) for a in x[:3]), *(a.astype(np.float32) for a in x[3:]))  # noqa: E731
    x, v = low(ARRAYS), low(ALONG)
    up = lambda x: tuple(np.float64(a) for a in x)  # noqa: E731
    both = lambda f: quick(lambda x, v: (jax.jvp(f, x, v)[1], hessian(f, HESSIANS[0])(x, v)))  # noqa: E731
    want = both(theirs)(up(x), up(v))
    with jax.enable_x64(wide):
        (y, residual), h = both(ours)(x, v)
    assert y.dtype == dtype and residual.dtype == np.float32
    assert [a.dtype for a in h] == [a.dtype for a in x]
    eps = float(jnp.finfo(dtype).eps)
    check(((y, residual), h), want, 12 * eps if dtype != jnp.float32 else 2e-5)


@pytest.mark.parametrize("size", [1e3, slow(1e20)])
def test_masked_keys_have_no_part_in_tangents(size):
    """Keys that no query sees may be anything finite, as in a cache that is not full yet."""
    q, k, v, *_ = (x.astype(np.float32) for x in ARRAYS)
    t, far = ALONG[0].astype(np.float32), k.copy()
    far[:, 5:] = size

    @quick
    def tangent(k):
        f = lambda q: pe.attention(q, k, v, query_positions=AT - 5, key_positions=THERE, causal=True, block_size=3)  # noqa: E731
        return jax.jvp(f, (q,), (t,))[1]

    check(tangent(far), np.asarray(tangent(k)), 1e-6, "other masked keys")


@pytest.mark.parametrize(("first", "low"), [(0, 0), slow(8, 0), slow(8, -12), slow(24, -5)])
@pytest.mark.parametrize("size", [slow(10), 30])
def test_tangents_in_16_bits_with_a_common_offset(first, low, size):
    """Real keys have means, which change all scores of a query alike and so no weight; the first may have another."""
    q, k, v, t = (np.random.default_rng(n).normal(size=(1, 64, 2, 16)) for n in range(4))
    k[:, first:] += size
    narrow = [x.astype(jnp.bfloat16) for x in (q, k, v, np.abs(t))]

    @quick
    def tangents(arrays, first, low):
        bias = lambda i, j: jnp.broadcast_to(jnp.where(j < first, low, 0), (len(i), len(j)))  # noqa: E731
        attend = functools.partial(pe.attention, bias=bias, block_size=8)
        return [jax.jvp(lambda q: attend(q, k, v), (q,), (t,))[1] for q, k, v, t in arrays]  # noqa: B023

    each = [[x.astype(dtype) for x in narrow] for dtype in (np.float64, np.float32, jnp.bfloat16)]
    want, of_float32, of_bfloat16 = tangents(each, np.int32(first), np.float32(low))
    check(of_float32, want, 5e-5, "float64")  # scores around 100
    check(of_bfloat16, want, 0.01, "float64")


def test_keys_whose_scores_overflow_have_no_part_in_tangents():
    """They are seen, with weights of 0."""
    q, k, v, t = (np.abs(np.random.default_rng(n).normal(size=(1, 6, 1, 4)).astype(np.float32)) for n in range(4))
    far = k.copy()
    far[:, 4:] = -1e38
    tangent = quick(lambda q, k, v, t: jax.jvp(lambda q: pe.attention(q, k, v, scale=1.0, block_size=2), (q,), (t,))[1])
    check(tangent(q, far, v, t), np.asarray(tangent(q, k[:, :4], v[:, :4], t)), 1e-6, "without them")
