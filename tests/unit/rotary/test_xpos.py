"""`xpos` rotates queries and keys and scales them by powers of their distance from an origin.

- It is the formula, in either layout, with any scale_base and gamma. Features beyond the width keep their bits.
- Distances are exact wherever positions and origin are, in integers and in floats.
- The power of two that makes the scale is right to 2e-7, and 0 or infinite out of range.
- Products are float32 and rounded once, in the derivative too.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_rounded_once, assert_within
from helpers.differences import stored
from oracles import encodings, rotations, spectra
from posenc_jax._rotary import xpos

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def decayed(*arguments, **settings):
    """`xpos` in one program; positions are traced."""
    return jax.device_get(jax.jit(functools.partial(pe.xpos, head_axis=-2, **settings))(*arguments))


@pytest.mark.parametrize(("layout", "base", "gamma"), [("half", 512.0, 0.4), ("interleaved", 64, 1.0)])
def test_it_is_the_formula(layout, base, gamma):
    q, k, p = normal(50, 2, 10), normal(50, 1, 10), np.arange(50, dtype=np.int32) * 7 - 100
    settings = {"frequencies": 8, "layout": layout, "scale_base": base, "gamma": gamma}
    got = decayed(q, k, p, **settings, key_positions=p[::-1], origin=5)
    for y, x, at, sign in zip(got, (q, k), (p, p[::-1]), (1, -1), strict=True):
        sin_cos = encodings.waves(at[:, None], spectra.geometric(8, 10_000))
        want = rotations.xpos(x[..., :8], *sin_cos, sign * (at[:, None] - 5), layout, base, gamma)
        assert_within(y[..., :8], want, 2e-5 * np.abs(want) + 2e-6 * np.abs(want).max(), against="float64")
        np.testing.assert_array_equal(y[..., 8:], x[..., 8:])


def test_positions_count_from_zero_and_keys_share_them():
    x = normal(5, 1, 8)
    both = jax.jit(lambda x: [pe.xpos(x, x, p, head_axis=-2) for p in (None, np.arange(5))])
    np.testing.assert_array_equal(*both(x))


NEAR, FAR = 2**31 - 128, 2**31 - 65  # float32 holds NEAR, but rounds FAR


@pytest.mark.parametrize(
    ("positions", "origin", "distance"),
    [
        (np.full(5, FAR), np.float32(NEAR), 63),
        (np.full(5, NEAR, np.float32), np.int32(FAR), -63),
        (np.full(5, FAR).astype(np.uint32), FAR - 63, 63),
        (np.full(5, 4.25, np.float32), -60, 64.25),
    ],
    ids=["float origin", "float position", "unsigned", "fractions"],
)
def test_distances_from_the_origin_are_exact(positions, origin, distance):
    x = normal(5, 1, 8)
    query, _ = decayed(x, x, positions, origin=origin)
    # the first pair decays most
    lengths, before = (np.abs(rotations.as_complex(y, "half"))[..., 0] for y in (query, x))
    want = before * np.float64(0.4 / 1.4) ** (distance / 512)
    assert_within(lengths, want, 1e-4 * want, against="float64")


def test_far_before_the_origin_a_query_is_infinite_and_a_key_zero():
    query, key = decayed(*[normal(5, 1, 8)] * 2, np.full(5, -(2**31)), origin=2**31 - 1)
    assert not np.isfinite(query).any() and not key.any()


def test_exp2_is_right_to_2e_7_and_exact_at_integers():
    x = np.concatenate([np.linspace(-126, 128, 100_001)[:-1], [0, 1, -1, 127.99999]]).astype(np.float32)
    whole, beyond = np.arange(-126, 128, dtype=np.float32), np.float32([128, 1e9, -127, -1e9, np.inf, np.nan])
    got = np.asarray(jax.jit(xpos._exp2)(np.concatenate([x, whole, beyond])), np.float64)
    got, of_whole, of_beyond = np.split(got, [x.size, x.size + whole.size])
    assert_within(got, np.exp2(np.float64(x)), 2e-7 * np.exp2(np.float64(x)), against="float64")
    np.testing.assert_array_equal(of_whole, np.ldexp(1.0, whole.astype(int)))  # NumPy's exp2 may be a bit off
    np.testing.assert_array_equal(of_beyond, [np.inf, np.inf, 0, 0, np.nan, np.nan])


def test_a_16_bit_result_and_its_derivative_are_rounded_once():
    def result_and_derivative(x, dy):
        y, back = jax.vjp(lambda x: pe.xpos(x, x, np.arange(9), head_axis=-2)[0], x)
        return y, back(dy)

    assert_rounded_once(result_and_derivative, *normal(2, 9, 4, 8).astype(jnp.bfloat16))


def test_the_derivative_in_x_stores_positions_and_distances_alone():
    x = jax.ShapeDtypeStruct((2, 256, 8, 64), jnp.bfloat16)
    assert stored(lambda x: pe.xpos(x, x, head_axis=-2)[0], x) <= 4 * (2 * 256 + 64)


X, AT = np.zeros((5, 3, 8), np.float32), np.zeros((5, 2), int)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, r"positions of shape \(4,\) must broadcast to query without", {"positions": np.arange(4)}),
        (ValueError, r"positions of shape \(5,\) must broadcast to key", {"key": X[:2], "positions": np.arange(5)}),
        (ValueError, r"key_positions of shape \(4,\) must broadcast to key", {"key_positions": np.arange(4)}),
        (ValueError, "frequencies must have one axis", {"positions": AT, "frequencies": pe.axial(8, 2)}),
        (ValueError, r"frequencies as an array must have shape \(num_pairs,\)", {"frequencies": X[:2, 0, :4]}),
        (ValueError, "scale_base and gamma must give .* fit into float32", {"scale_base": 2e-29}),
        (ValueError, "scale_base and gamma must", {"scale_base": 2e-36, "gamma": 1e-300}),
        (ValueError, "scale_base must be positive", {"scale_base": 0}),
        (ValueError, "gamma must be positive", {"gamma": -1}),
        (ValueError, "origin must be a scalar", {"origin": AT}),
        (ValueError, "layout must be one of", {"layout": "neox"}),
    ],
)
def test_invalid_arguments_raise(error, match, change):
    with pytest.raises(error, match=f"^xpos: {match}"):
        pe.xpos(**{"query": X, "key": X, "head_axis": -2} | change)
