"""Derivatives of `attention` beyond the first, in each mode.

- In float64, results are within 1e-14 of the formula, Hessian-vector products within 1e-10 of differences of its
  gradient.
- A derivative may be by one array alone. Integer positions have none.
- `jax.vmap` over any of the arrays composes with derivatives.
- Tangents keep their precision beside masked keys, keys with huge scores, and an offset that all keys share.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.attention import (
    BATCH,
    FORMULA,
    KEY_AT,
    KV_HEADS,
    QUERIES,
    QUERY_AT,
    attend,
    check,
    derivative_along,
    exact,
    random_arrays,
)
from helpers.slow import slow
from oracles.attention import dense

SEGMENTS = np.int32([[0] * 4 + [1] * 3, [5] * 7]), np.int32([[0] * 5 + [1] * 3, [5] * 6 + [2] * 2])
EVERYTHING = {  # `helpers.attention` explains the keys of a case
    "window": (5, None),
    "causal": True,
    "cap": 1.5,
    "sinks": True,
    "bias": True,
    "segments": SEGMENTS,
    "scale": (QUERIES, 1),
    "data": ((BATCH, 1), (1, KV_HEADS), (BATCH, KV_HEADS)),
}
# The arrays, and a direction for derivatives.
X, V = (random_arrays(EVERYTHING, seed, np.float64) for seed in (0, 1))
DIFFERENCES = f"differences of {FORMULA}"


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def results(x):
    """Results and residuals of `attention`; with sinks, all are finite."""
    return attend(EVERYTHING, x)


def loss(x):
    return sum(jnp.sum(jnp.sin(y)) for y in results(x))


def exact_gradient(x):
    """The gradient of `loss` by the formula."""
    y, residual, _ = exact(EVERYTHING, x)
    return exact(EVERYTHING, x, np.cos(y), np.cos(residual))[2]


def dot(a, b):
    return sum(jnp.vdot(a[name], b[name]) for name in b)


HESSIANS = {  # the Hessian of `loss` at x times v, by each order of modes
    "forward over reverse": lambda x, v: jax.jvp(jax.grad(loss), (x,), (v,))[1],
    "reverse over reverse": lambda x, v: jax.grad(lambda x: dot(jax.grad(loss)(x), v))(x),
    "reverse over forward": lambda x, v: jax.grad(lambda x: jax.jvp(loss, (x,), (v,))[1])(x),
}


@pytest.mark.parametrize("mode", ["forward over reverse", slow("reverse over reverse"), slow("reverse over forward")])
def test_hessian_vector_products_are_differences_of_the_gradient(mode):
    check(jax.jit(HESSIANS[mode])(X, V), derivative_along(exact_gradient, X, V), 1e-10, DIFFERENCES)


@pytest.mark.parametrize("name", ["value", slow("slopes"), "b"])
def test_derivatives_may_be_by_one_array_alone(name):
    """The other arrays are constants, for which JAX passes no tangent."""

    @jax.jit
    def tangents_and_cotangent(a):
        f = lambda a: results(X | {name: a})  # noqa: E731
        y, tangents = jax.jvp(f, (a,), (V[name],))
        return tangents, jax.vjp(f, a)[1](jax.tree.map(jnp.cos, y))[0]

    tangents, cotangent = tangents_and_cotangent(X[name])
    others_fixed = {other: 0 * v for other, v in V.items()} | {name: V[name]}
    check(tangents, derivative_along(lambda x: exact(EVERYTHING, x)[:2], X, others_fixed), 1e-10, DIFFERENCES)
    check(cotangent, exact_gradient(X)[name], 1e-10)


def test_integer_positions_have_no_derivative():
    """JAX gives integers tangents of the dtype `float0`, which `attention` ignores; cotangents are `float0` too."""
    f = lambda q, i: jnp.sum(attend({}, X | {"query": q}, query_positions=i)[0])  # noqa: E731
    float0 = np.zeros(QUERIES, jax.dtypes.float0)

    @jax.jit
    def both(q, t):
        return jax.jvp(f, (q, QUERY_AT), (t, float0))[1], jax.grad(f, (0, 1), allow_int=True)(q, QUERY_AT)

    along_t, (by_q, by_i) = both(X["query"], V["query"])
    check(along_t, np.vdot(by_q, V["query"]), 1e-10, "the cotangent")
    assert by_i.dtype == jax.dtypes.float0


def test_any_array_may_be_mapped():
    """An array that is not mapped gets the sum of all rows' cotangents; a mapped gradient has one for each row."""
    axes = {"key": -1, "value": 0, "a": 1, "g": 0, "sinks": 1}  # the mapped axis of each mapped array
    rows = [X | {name: f * X[name] + f - 1 for name in axes} for f in (1, 0.5, -1)]
    x = X | {name: np.stack([row[name] for row in rows], axis) for name, axis in axes.items()}
    in_axes = ({name: axes.get(name) for name in X},)

    @jax.jit
    def both(x):
        y, pull = jax.vjp(jax.vmap(results, in_axes), x)
        return y, pull(jax.tree.map(jnp.cos, y))[0], jax.vmap(jax.grad(loss), in_axes)(x)

    gradients = [exact_gradient(row) for row in rows]
    stacked = {name: np.stack([each[name] for each in gradients]) for name in X}
    summed = {name: np.moveaxis(d, 0, axes[name]) if name in axes else d.sum(0) for name, d in stacked.items()}
    want = tuple(np.stack(each) for each in zip(*(exact(EVERYTHING, row)[:2] for row in rows), strict=True))
    y, *got_gradients = both(x)
    check(y, want, 1e-14)
    check(got_gradients, [summed, stacked], 1e-10)


# Precision of tangents


def tangent(q, k, v, t, **options):
    """The tangent of the results for t, a tangent of the queries."""
    return jax.jvp(functools.partial(pe.attention, key=k, value=v, **options), (q,), (t,))[1]


def exact_tangent(q, k, v, t, **options):
    """The same by differences of the formula."""
    return derivative_along(lambda x: dense(x["q"], k, v, **options).y, {"q": np.float64(q)}, {"q": np.float64(t)})


def test_block_padding_has_no_part_in_derivatives_under_a_large_bias():
    """The bias of padding may reach 300, and e³⁰⁰ is beyond float32: padding must not have that weight."""
    rng = np.random.default_rng(5)
    q, k, v, w = (rng.normal(size=(1, n, 2, 4)).astype(np.float32) for n in (5, 7, 7, 5))
    slopes, positions = np.float32([300, -300]) / 7, np.arange(7, dtype=np.int32) + 1

    def f(q, slopes):
        bias = lambda i, j: slopes[:, None, None] * j[None, None].astype(slopes.dtype)  # noqa: E731
        where = {"query_positions": positions[:5], "key_positions": positions}
        return pe.attention(q, k, v, bias=bias, block_size=3, **where)

    gradient = jax.grad(lambda *x: jnp.sum(f(*x) * w), (0, 1))
    got = jax.jit(lambda *x: jax.jvp(gradient, x, x))(q, slopes)

    def gradient_of_formula(x):
        dq, *_, ds = dense(x["q"], k, v, x["slopes"][:, None, None] * positions).back(w)
        return dq, (ds * positions).sum((0, 2, 3))

    x = {"q": np.float64(q), "slopes": np.float64(slopes)}
    check(got, (gradient_of_formula(x), derivative_along(gradient_of_formula, x, x, 1e-5)), 3e-4)


def test_masked_keys_have_no_part_in_tangents():
    """Keys that no query sees may hold any finite numbers, as in a cache that is not full yet."""
    x, t = random_arrays({}), random_arrays({}, 1)["query"]
    of = jax.jit(
        functools.partial(tangent, query_positions=QUERY_AT - 5, key_positions=KEY_AT, causal=True, block_size=3)
    )
    filled = np.where((KEY_AT < 5)[:, None, None], x["key"], np.float32(1e3))  # no query is after position 3
    got, want = (of(x["query"], key, x["value"], t) for key in (filled, x["key"]))
    check(got, want, 1e-6, "other masked keys")


def test_keys_with_scores_around_minus_1e38_have_no_part_in_tangents():
    """No mask hides these keys; their weights are 0."""
    q, k, v, t = (np.abs(np.random.default_rng(n).normal(size=(1, 6, 1, 4)).astype(np.float32)) for n in range(4))
    k[:, 4:] = -1e38
    got = jax.jit(functools.partial(tangent, scale=1.0, block_size=2))(q, k, v, t)
    check(got, exact_tangent(q, k[:, :4], v[:, :4], t, scale=1.0), 1e-6, f"{FORMULA} without them")


def test_tangents_in_16_bits_with_a_common_offset():
    """Real keys have a mean, here 30. It adds the same number to all scores of a query, which changes no weight."""
    q, k, v, t = (np.random.default_rng(n).normal(size=(1, 64, 2, 16)) for n in range(4))
    narrow = [x.astype(jnp.bfloat16) for x in (q, k + 30, v, np.abs(t))]
    of, want = jax.jit(functools.partial(tangent, block_size=8)), exact_tangent(*narrow)
    check(of(*(x.astype(np.float32) for x in narrow)), want, 5e-5)  # float32; scores are around 100
    check(of(*narrow), want, 0.01)  # bfloat16
