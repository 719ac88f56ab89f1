"""xPos against its formula in float64, and the properties it exists for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from oracles import encodings, rotations, spectra
from posenc_jax import _xpos


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("base", "gamma"), [(512.0, 0.4), (64, 1.0)])
def test_the_formula(layout, base, gamma):
    q, k, p = normal(50, 2, 8), normal(50, 1, 8, seed=1), np.arange(50) * 7 - 100
    got = pe.xpos(q, k, p, scale_base=base, gamma=gamma, layout=layout, head_axis=-2)
    for y, x, sign in zip(got, (q, k), (1, -1), strict=True):
        waves = encodings.waves(p[:, None], spectra.geometric(8, 10_000))
        want = rotations.xpos(x, *waves, sign * p[:, None], layout, base, gamma)
        np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-6 * np.abs(want).max())


def scores(q, k, query_positions, key_positions, **settings):
    q, k = pe.xpos(q, k, query_positions, key_positions=key_positions, **({"head_axis": -2} | settings))
    return np.einsum("qhd,khd->hqk", np.asarray(q, np.float64), np.asarray(k, np.float64))


def test_scores_depend_on_the_offset_alone():
    q, k, p = normal(30, 1, 16), normal(30, 1, 16, seed=1), np.arange(30)
    want = scores(q, k, p, p)
    for start, origin in ((5000, 0), (5000, 5000), (2_000_000_000, 2_000_000_010), (-(2**31), -(2**31) + 3)):
        np.testing.assert_allclose(scores(q, k, start + p, start + p, origin=origin), want, rtol=1e-4, atol=2e-4)
    assert np.abs(scores(q, k, p + 1, p) - want).max() > 0.1


def test_positions_of_every_kind_count_from_the_origin():
    x, p, far = normal(5, 1, 8), np.arange(5), 2_000_000_001
    want = pe.xpos(x, x, p, head_axis=-2)
    for y, full in zip(pe.xpos(x, x, (p + 2.5).astype(np.float32), origin=2.5, head_axis=-2), want, strict=True):
        norms = lambda v: np.linalg.norm(pairs_of(v), axis=-2)  # noqa: E731
        np.testing.assert_allclose(norms(y), norms(full), rtol=1e-5)  # scaled the same, turned by 2.5 more
    for y, full in zip(
        pe.xpos(x, x, (p + 2).astype(np.float32), head_axis=-2), pe.xpos(x, x, p + 2, head_axis=-2), strict=True
    ):
        np.testing.assert_array_equal(y, full)
    known, traced = (
        pe.xpos(x, x, far + p, origin=far, head_axis=-2),
        jax.jit(lambda p: pe.xpos(x, x, p, origin=far, head_axis=-2))(jnp.asarray(far + p, jnp.uint32)),
    )
    for one, other in zip(known, traced, strict=True):
        np.testing.assert_array_equal(one, other)
    # Integers from a float, and floats from an integer, of 63 positions at two billion.
    for p, origin in ((np.int32(2**31 - 65), np.float32(2**31 - 128)), (np.float32(2**31 - 128), np.int32(2**31 - 65))):
        query, key = pe.xpos(x[:1], x[:1], p, origin=origin, head_axis=-2)
        norms = lambda v: np.linalg.norm(pairs_of(v), axis=-2)[0, 0, 0]  # noqa: E731
        ratio = (0.4 / 1.4) ** (63 / 512)
        assert norms(query) / norms(x[:1]) == pytest.approx(ratio if origin < p else 1 / ratio, rel=1e-4)
    # 2³² − 1 positions apart: the query's scale is 0, that of a query before its origin is infinite.
    ends = 2**31 - 1, -(2**31)
    one = np.ones((1, 8), np.float32)
    assert not np.asarray(pe.xpos(one, one, ends[0], origin=ends[1], head_axis=None)[0]).any()
    assert not np.isfinite(pe.xpos(one, one, ends[1], origin=ends[0], head_axis=None)[0]).all()


def pairs_of(x):
    return np.stack(np.split(np.asarray(x, np.float64), 2, axis=-1), -2)


def test_a_16_bit_result_is_rounded_once():
    x = jnp.asarray(normal(64, 2, 16)).astype(jnp.bfloat16)
    for short, full in zip(
        pe.xpos(x, x, head_axis=-2), pe.xpos(x.astype(jnp.float32), x.astype(jnp.float32), head_axis=-2), strict=True
    ):
        np.testing.assert_array_equal(short, full.astype(jnp.bfloat16))


def test_a_cached_key_fits_every_later_query():
    # The position decides, not the length of the call.
    x = normal(100, 2, 16)
    whole = jax.device_get(pe.xpos(x, x, head_axis=-2))
    for stop in (1, 7, 50):
        for part, full in zip(pe.xpos(x[:stop], x[:stop], head_axis=-2), whole, strict=True):
            np.testing.assert_array_equal(part, full[:stop])
    query, key = pe.xpos(x[99:], x, 99, key_positions=np.arange(100), head_axis=-2)
    np.testing.assert_array_equal(query, whole[0][99:])
    np.testing.assert_array_equal(key, whole[1])


def test_equal_vectors_score_less_the_farther_they_are():
    x = np.ones((2001, 1, 64), np.float32)
    got = scores(x, x, np.arange(2001), np.arange(2001))[0][-1, ::-1]
    envelope = [np.abs(got[i : i + 500]).max() for i in range(0, 2000, 500)]
    assert np.all(np.diff(envelope) < 0)


def test_two_to_the_power():
    x = np.concatenate([np.linspace(-126, 128, 100_001)[:-1], [0, 1, -1, 127.99999]]).astype(np.float32)
    got = np.asarray(jax.jit(_xpos._exp2)(x), np.float64)
    np.testing.assert_allclose(got, np.exp2(x.astype(np.float64)), rtol=2e-7)
    whole = np.arange(-126, 128, dtype=np.float32)
    # Not np.exp2, which on some processors is a bit off at 127.
    np.testing.assert_array_equal(_xpos._exp2(whole), np.ldexp(np.float32(1), whole.astype(np.int32)))
    beyond = np.array([128, 1e9, np.inf, -127, -1e9, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(_xpos._exp2(beyond), [np.inf, np.inf, np.nan, 0, 0, np.nan, np.nan])


def test_features_beyond_the_width_are_neither_turned_nor_scaled():
    x = normal(5, 2, 10)
    for y in pe.xpos(x, x, np.arange(500, 505), 4, head_axis=-2):
        np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
        assert np.abs(np.asarray(y)[..., :4] - x[..., :4]).max() > 0.1


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_derivative_in_16_bits_is_rounded_once(layout, dtype):
    x, dy, p = normal(2, 9, 4, 8), jnp.asarray(normal(2, 9, 4, 8, seed=1), dtype), np.arange(9)
    turned = lambda x: pe.xpos(x, x, p, layout=layout, head_axis=-2)[0]  # noqa: E731
    derivative = jax.jit(lambda x, dy: jax.vjp(turned, x)[1](dy)[0])
    got, want = derivative(x.astype(dtype), dy), derivative(x, dy.astype(jnp.float32))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want.astype(dtype))


def test_dtypes_axes_and_derivatives():
    x = normal(2, 6, 3, 8)
    want = pe.xpos(x, x, head_axis=-2)
    for y, full in zip(pe.xpos(x.astype(jnp.bfloat16), x.astype(jnp.bfloat16), head_axis=-2), want, strict=True):
        assert y.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(y, np.float32), full, rtol=2e-2, atol=2e-2)
    moved = np.moveaxis(x, 2, 1)
    for y, full in zip(pe.xpos(moved, moved, head_axis=-3), want, strict=True):
        np.testing.assert_array_equal(np.moveaxis(np.asarray(y), 1, 2), full)
    # Linear in the query: the derivative of ⟨y(x), c⟩ at any x gives back ⟨y(x), c⟩ on x.
    c = normal(2, 6, 3, 8, seed=2)
    product = lambda x: jnp.vdot(pe.xpos(x, x, head_axis=-2)[0], c)  # noqa: E731
    value, slope = jax.jit(jax.value_and_grad(product))(x)
    np.testing.assert_allclose(np.vdot(slope, x), value, rtol=1e-5)


X = np.zeros((5, 3, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.xpos(X, X, np.arange(4), head_axis=-2), ValueError, r"xpos: positions of shape \(4,\) must broadcast to query without"),
        (lambda: pe.xpos(X, X[:2], np.arange(5), head_axis=-2), ValueError, r"xpos: positions of shape \(5,\) must broadcast to key without"),
        (lambda: pe.xpos(X, X, None, key_positions=np.arange(4), head_axis=-2), ValueError, r"xpos: key_positions of shape \(4,\) must broadcast to key"),
        (lambda: pe.xpos(X, X, np.zeros((5, 2), int), pe.axial(8, 2), head_axis=-2), ValueError, "xpos: frequencies must have one axis, got 2"),
        (lambda: pe.xpos(X, X, scale_base=1e-39, head_axis=-2), ValueError, "xpos: scale_base and gamma must give exponents at a distance of 2³² that fit into float32, got 1e-39 and 0.4$"),
        (lambda: pe.xpos(X, X, scale_base=2e-29, head_axis=-2), ValueError, "xpos: scale_base and gamma must give exponents at a distance of 2³²"),
        (lambda: pe.xpos(X, X, scale_base=2e-36, gamma=1e-300, head_axis=-2), ValueError, "xpos: scale_base and gamma must .*, got 2e-36 and 1e-300$"),
        (lambda: pe.xpos(X, X, scale_base=0, head_axis=-2), ValueError, "xpos: scale_base must be positive, got 0"),
        (lambda: pe.xpos(X, X, gamma=-1, head_axis=-2), ValueError, "xpos: gamma must be positive, got -1"),
        (lambda: pe.xpos(X, X, gamma="1", head_axis=-2), TypeError, "xpos: gamma must be a number, got str '1'"),  # type: ignore
        (lambda: pe.xpos(X, X, origin=np.arange(2), head_axis=-2), ValueError, r"xpos: origin must be a scalar, got shape \(2,\)"),
        (lambda: pe.xpos(X, X.astype(int), head_axis=-2), TypeError, "xpos: key must be a float array"),
        (lambda: pe.xpos(X, X, None, 10, head_axis=-2), ValueError, "xpos: frequencies of width 10 must fit into head_dim, query has shape"),
        (lambda: pe.xpos(X, X, head_axis=-1), ValueError, "xpos: head_axis must be an axis of query other than its last"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
