"""xPos against its formula in float64, and the properties it exists for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.quick import quick
from helpers.tiers import compiled_by, slow
from oracles import encodings, rotations, spectra
from posenc_jax._rotary import xpos


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@compiled_by(quick)
@pytest.mark.parametrize(
    ("layout", "base", "gamma"),
    [("half", 512.0, 0.4), ("interleaved", 64, 1.0), slow("half", 64, 1.0), slow("interleaved", 512.0, 0.4)],
)
def test_the_formula(layout, base, gamma, program):
    q, k, p = normal(50, 2, 8), normal(50, 1, 8, seed=1), np.arange(50) * 7 - 100
    xpos = functools.partial(pe.xpos, scale_base=base, gamma=gamma, layout=layout, head_axis=-2)
    got = program(xpos)(q, k, p)
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


@compiled_by(jax.jit)
def test_positions_of_every_kind_count_from_the_origin(program):
    x, p, far = normal(5, 1, 8), np.arange(5), 2_000_000_001
    # 63 positions at two billion, in integers and in floats.
    more, less = 2**31 - 65, 2**31 - 128

    def turned(x, unsigned):
        xpos = functools.partial(pe.xpos, x, x, head_axis=-2)
        return {
            "integers": xpos(p),
            "floats from a float": xpos((p + 2.5).astype(np.float32), origin=2.5),
            "integers + 2": xpos(p + 2),
            "floats + 2": xpos((p + 2).astype(np.float32)),
            "signed": xpos(far + p, origin=far),
            "unsigned": xpos(unsigned, origin=far),
            "an integer from a float": xpos(np.full(5, more), origin=np.float32(less)),
            "a float from an integer": xpos(np.full(5, less, np.float32), origin=np.int32(more)),
            "2³² − 1 after": xpos(np.full(5, 2**31 - 1), origin=-(2**31)),
            "2³² − 1 before": xpos(np.full(5, -(2**31)), origin=2**31 - 1),
        }

    y = jax.device_get(program(turned)(x, jax.device_put((far + p).astype(np.uint32))))
    for of_integers, of_floats in zip(y["integers"], y["floats from a float"], strict=True):
        np.testing.assert_allclose(norms(of_floats), norms(of_integers), rtol=1e-5)  # scaled alike, turned by 2.5 more
    np.testing.assert_array_equal(y["floats + 2"], y["integers + 2"])
    np.testing.assert_array_equal(y["unsigned"], y["signed"])
    ratio = (0.4 / 1.4) ** (63 / 512)
    for name, want in (("an integer from a float", ratio), ("a float from an integer", 1 / ratio)):
        np.testing.assert_allclose((norms(y[name][0]) / norms(x))[..., 0], want, rtol=1e-4, err_msg=name)
    # The query's scale is 0 that far after its origin, and infinite that far before it.
    assert not y["2³² − 1 after"][0].any()
    assert not np.isfinite(y["2³² − 1 before"][0]).all()


def norms(x):
    """The lengths of the pairs, (..., pairs)."""
    return np.hypot(*np.split(np.asarray(x, np.float64), 2, axis=-1))


@compiled_by(jax.jit)
def test_a_16_bit_result_is_rounded_once(program):
    x = normal(64, 2, 16).astype(jnp.bfloat16)
    turned = program(lambda x: pe.xpos(x, x, head_axis=-2))
    for short, full in zip(turned(x), turned(x.astype(np.float32)), strict=True):
        np.testing.assert_array_equal(short, np.asarray(full).astype(jnp.bfloat16))


@pytest.mark.slow
@compiled_by(jax.jit)
def test_a_cached_key_fits_every_later_query(program):
    # The position decides, not the length of the call.
    x, stops = normal(100, 2, 16), (2, 7, 50)
    xpos = functools.partial(pe.xpos, head_axis=-2)
    query, key = jax.device_get(program(xpos)(x, x))
    in_parts = program(lambda x: [xpos(x[:stop], x[:stop]) for stop in stops])(x)
    for stop, (part_of_query, part_of_key) in zip(stops, in_parts, strict=True):
        np.testing.assert_array_equal(part_of_query, query[:stop])
        np.testing.assert_array_equal(part_of_key, key[:stop])
    last, keys = xpos(x[99:], x, 99, key_positions=np.arange(100))
    np.testing.assert_array_equal(last, query[99:])
    np.testing.assert_array_equal(keys, key)


def test_equal_vectors_score_less_the_farther_they_are():
    x = np.ones((2001, 1, 64), np.float32)
    got = scores(x, x, np.arange(2001), np.arange(2001))[0][-1, ::-1]
    envelope = [np.abs(got[i : i + 500]).max() for i in range(0, 2000, 500)]
    assert np.all(np.diff(envelope) < 0)


@compiled_by(jax.jit)
def test_two_to_the_power(program):
    x = np.concatenate([np.linspace(-126, 128, 100_001)[:-1], [0, 1, -1, 127.99999]]).astype(np.float32)
    whole = np.arange(-126, 128, dtype=np.float32)
    beyond = np.array([128, 1e9, np.inf, -127, -1e9, -np.inf, np.nan], np.float32)
    got = np.asarray(program(xpos._exp2)(np.concatenate([x, whole, beyond])))
    got, of_whole, of_beyond = np.split(got, [x.size, x.size + whole.size])
    np.testing.assert_allclose(got.astype(np.float64), np.exp2(x.astype(np.float64)), rtol=2e-7)
    # Not np.exp2, which on some processors is a bit off at 127.
    np.testing.assert_array_equal(of_whole, np.ldexp(np.float32(1), whole.astype(np.int32)))
    np.testing.assert_array_equal(of_beyond, [np.inf, np.inf, np.nan, 0, 0, np.nan, np.nan])


def test_features_beyond_the_width_are_neither_turned_nor_scaled():
    x = normal(5, 2, 10)
    for y in jax.device_get(pe.xpos(x, x, np.arange(500, 505), 4, head_axis=-2)):
        np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
        assert np.abs(y[..., :4] - x[..., :4]).max() > 0.1


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("half", jnp.bfloat16), slow("interleaved", jnp.float16), slow("half", jnp.float16), slow("interleaved", jnp.bfloat16)],
)  # fmt: skip
def test_a_derivative_in_16_bits_is_rounded_once(layout, dtype):
    x, dy, p = normal(2, 9, 4, 8), normal(2, 9, 4, 8, seed=1).astype(dtype), np.arange(9)
    turned = lambda x: pe.xpos(x, x, p, layout=layout, head_axis=-2)[0]  # noqa: E731
    derivative = jax.jit(lambda x, dy: jax.vjp(turned, x)[1](dy)[0])
    got, want = derivative(x.astype(dtype), dy), derivative(x, dy.astype(np.float32))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.asarray(want).astype(dtype))


@compiled_by(jax.jit)
def test_dtypes_axes_and_derivatives(program):
    x = normal(2, 6, 3, 8)
    moved = np.moveaxis(x, 2, 1)
    c = normal(2, 6, 3, 8, seed=2)
    # Linear in the query: the derivative of ⟨y(x), c⟩ at any x gives back ⟨y(x), c⟩ on x.
    product = lambda x: jnp.vdot(pe.xpos(x, x, head_axis=-2)[0], c)  # noqa: E731

    def turned(x, short, moved):
        by_axis = pe.xpos(x, x, head_axis=-2), pe.xpos(moved, moved, head_axis=-3)
        return *by_axis, pe.xpos(short, short, head_axis=-2), jax.value_and_grad(product)(x)

    want, of_moved, of_short, (value, slope) = jax.device_get(program(turned)(x, x.astype(jnp.bfloat16), moved))
    for full, y, short in zip(want, of_moved, of_short, strict=True):
        np.testing.assert_array_equal(np.moveaxis(y, 1, 2), full)
        assert short.dtype == jnp.bfloat16
        np.testing.assert_allclose(short.astype(np.float32), full, rtol=2e-2, atol=2e-2)
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
