"""`cos_sin`, and `rotary` given the `CosSin` that it returns.

- Cosines and sines are within 9e-8 of the truth at every int32 position.
- `rotary` by a `CosSin`, a column per pair or per feature, has the bits of `rotary` by positions, with the amplitude.
- Columns in the order of the other layout raise if their values are concrete, and give NaN if they are traced.
- `rotary` takes a caller's own arrays, in 16 bits too, and has derivatives in them.
- A `CosSin` is a pair of arrays, and a pytree that keeps its `columns`.
"""

import copy
import functools
import pickle

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_rounded_once, assert_within
from helpers.differences import assert_derivatives, stored
from oracles import encodings, rotations, spectra

RNG = np.random.default_rng(0)
FAR = np.int32([0, 3, 2**31 - 1, -(2**31), 1_234_567_891])
OF_PAIRS = np.float32(encodings.waves(FAR, spectra.geometric(8, 10_000))[::-1])  # cosines and sines, a column per pair
SCALED = pe.geometric(8).with_attention_factor(1.3)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def rotary(x, c, s, columns="pair", **settings):
    """`rotary` by cosines c and sines s."""
    return pe.rotary(x, cos_sin=pe.CosSin(c, s, columns=columns), **{"head_axis": -2} | settings)


@pytest.mark.parametrize(
    ("frequencies", "dim", "axes"),
    [(pe.geometric(7), 7, None), (pe.multi_section(pe.geometric(8), (1, 3)), 8, [0, 1, 1, 1])],
    ids=["odd", "sections"],
)
def test_cosines_and_sines_are_exact_at_any_position(frequencies, dim, axes):
    positions = np.stack([FAR, FAR[::-1]], -1) if axes else FAR
    c = jax.jit(lambda p: pe.cos_sin(p, frequencies))(positions)
    for got, want in zip(c, encodings.waves(positions, spectra.geometric(dim, 10_000), axes)[::-1], strict=True):
        assert got.dtype == np.float32
        assert_within(got, want, 9e-8, against="mpmath")


def test_a_coordinate_or_a_frequency_out_of_range_is_nan():
    positions, w = np.float32([[1, 1], [3e9, 1], [1, np.nan]]), normal(2, 4)
    w[1, 2] = 2.0**31  # axis 1, pair 2
    want = np.where(np.arange(4) == 2, np.nan, np.cos(np.float64(w).sum(0)))
    cosine, sine = jax.jit(pe.cos_sin)(positions, w)
    assert_within(cosine, [want, [np.nan] * 4, [np.nan] * 4], 9e-8, against="float64")
    np.testing.assert_array_equal(np.isnan(sine), np.isnan(cosine))


@pytest.mark.parametrize(
    ("columns", "layout", "part", "dtype"),
    [
        ("pair", "half", "first", np.float32),
        ("half", "half", "last", jnp.bfloat16),
        ("interleaved", "interleaved", "first", np.float32),
    ],
)
def test_rotary_by_cos_sin_has_the_bits_of_rotary_by_positions(columns, layout, part, dtype):
    x, settings = normal(2, 5, 4, 16).astype(dtype), {"layout": layout, "part": part, "head_axis": -2}
    positions = np.stack([FAR, FAR[::-1]])

    @jax.jit
    def by_positions(x, p):
        return pe.rotary(x, p, SCALED, **settings), pe.cos_sin(p, SCALED, columns=columns)

    want, c = by_positions(x, positions)
    assert c[0].shape == (2, 5, 4 if columns == "pair" else 8)
    got = jax.jit(lambda x, c: pe.rotary(x, cos_sin=c, **settings))(x, c)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize(("columns", "other"), [("half", "interleaved"), ("interleaved", "half")])
def test_columns_in_another_order_raise_or_give_nan(columns, other):
    """NaN stands where the two columns of a pair differ, which is nowhere at position 0 and somewhere at all others."""
    x, wrong = normal(5, 4, 16), np.tile(OF_PAIRS, 2) if other == "half" else OF_PAIRS.repeat(2, -1)
    with pytest.raises(ValueError, match=rf"^rotary: cos_sin\[0\] with columns='{columns}' must have"):
        rotary(x, *wrong, columns, layout=columns)
    got = np.asarray(jax.jit(lambda x, *c: rotary(x, *c, columns, layout=columns))(x, *wrong))
    assert np.isfinite(got[0]).all() and np.isnan(got[1:, :, :8]).any((1, 2)).all()


def test_the_two_columns_of_a_pair_may_round_differently():
    """By at most 0.01, the tolerance of the check; the first column counts."""
    x, (cosine, sine) = normal(5, 4, 8), OF_PAIRS
    columns = lambda d: (np.concatenate([cosine, cosine + np.float32(d)], -1), np.tile(sine, 2))  # noqa: E731
    rotated = jax.jit(rotary, static_argnames="columns")
    np.testing.assert_array_equal(rotated(x, *columns(0.005), columns="half"), rotated(x, cosine, sine))
    with pytest.raises(ValueError, match="with columns='half' must have all of them and then all again"):
        rotary(x, *columns(0.02), "half")


@pytest.mark.parametrize(("layout", "pairs", "heads"), [("half", 3, 4), ("interleaved", 4, 1)])
def test_arrays_in_16_bits_are_taken_as_they_are(layout, pairs, heads):
    """Both with 4 heads, which share one table, and with a single head."""
    x, (c, s) = normal(2, 5, heads, 8), normal(2, 2, 5, pairs).astype(jnp.bfloat16)
    got = jax.jit(functools.partial(rotary, layout=layout))(x, c, s)
    want = rotations.rotate(x, *(np.float64(each)[:, :, None] for each in (s, c)), layout)
    assert_within(got, want, 1e-6, against="float64")


def by_feature(x, c, s):
    """`rotary` by a column per pair, repeated to one per feature."""
    return rotary(x, *(jnp.concatenate([w, w], -1) for w in (c, s)), "half")


@pytest.mark.parametrize(
    ("f", "layout", "part", "shape"),
    [
        (by_feature, "half", "first", (5, 4)),
        (functools.partial(rotary, layout="interleaved", part="last"), "interleaved", "last", (1, 5, 2)),
    ],
    ids=["columns per feature", "the last pairs"],
)
def test_derivatives_in_x_and_the_arrays_are_those_of_the_formula(f, layout, part, shape):
    exact = lambda x, c, s: rotations.rotate(x, s[..., None, :], c[..., None, :], layout, part)  # noqa: E731
    assert_derivatives(f, exact, normal(2, 5, 3, 8), normal(*shape), normal(*shape))


def test_derivatives_in_positions_and_frequencies_are_those_of_the_formula():
    def exact(p, w):
        angles = p @ w
        return np.stack([np.cos(angles), np.sin(angles)])

    assert_derivatives(lambda p, w: jnp.stack(pe.cos_sin(p, w)), exact, normal(5, 2), normal(2, 3))


def test_a_tangent_in_16_bits_is_rounded_once():
    (x, dx), (c, s), tangents = normal(2, 2, 5, 3, 8).astype(jnp.bfloat16), normal(2, 2, 5, 4), normal(2, 2, 5, 4)
    assert_rounded_once(lambda x, dx: jax.jvp(rotary, (x, c, s), (dx, *tangents))[1], x, dx)


def test_the_derivative_in_x_stores_the_arrays_alone():
    x, arrays = np.ones((64, 8, 32), jnp.bfloat16), tuple(np.ones((2, 64, 16), np.float32))
    assert stored(lambda x: rotary(x, *arrays), x) == 4 * 2 * 64 * 16  # float32 cosines and sines


@pytest.mark.parametrize(
    "journey",
    [
        copy.deepcopy,
        lambda c: pickle.loads(pickle.dumps(c)),
        jax.jit(lambda c: c),
        lambda c: jax.export.deserialize(jax.export.export(jax.jit(lambda c: c))(c).serialize()).call(c),
    ],
    ids=["copy", "pickle", "jit", "export"],
)
def test_it_is_a_pair_that_knows_its_columns_after_a_journey(journey):
    arrays = OF_PAIRS.repeat(2, -1)
    again = journey(pe.CosSin(*arrays, columns="interleaved"))
    assert isinstance(again, pe.CosSin) and again.columns == "interleaved"
    np.testing.assert_array_equal(again, arrays)


X, C, P = np.ones((5, 3, 8), np.float32), np.ones((5, 4), np.float32), np.zeros((5, 2), np.int32)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "positions must not be given beside cos_sin", {"positions": P[:, 0]}),
        (ValueError, "frequencies must not be given beside cos_sin", {"frequencies": 8}),
        (ValueError, "inverse must not be given beside cos_sin", {"inverse": True}),
        (TypeError, r"cos_sin must be what cos_sin returns, or CosSin\(.*\"interleaved\"", {"cos_sin": (C, C)}),
        (ValueError, "layout must be one of", {"layout": "neox"}),
        (ValueError, "part must be one of", {"part": "middle"}),
    ],
)
def test_invalid_arguments_beside_cos_sin_raise(error, match, change):
    with pytest.raises(error, match=f"^rotary: {match}"):
        pe.rotary(**{"x": X, "cos_sin": pe.CosSin(C, C, columns="pair"), "head_axis": -2} | change)


@pytest.mark.parametrize(
    ("error", "match", "arrays", "settings"),
    [
        (TypeError, r"cos_sin\[1\] must be a float array of shape \(..., columns\)", (C, P), {}),
        (ValueError, "cos_sin must have one shape and one dtype", (C, C[:, :3]), {}),
        (ValueError, "cos_sin must have one shape and one dtype", (C, C.astype(np.float16)), {}),
        (ValueError, r"cos_sin of shape \(4,\) must broadcast to x without its head", (C[:4], C[:4]), {}),
        (ValueError, "cos_sin must not be one for all 5 .*broadcast_to.positions, .*shift_keys", (C[:1], C[:1]), {}),
        (ValueError, "cos_sin of 5 pairs must fit into head_dim", (np.ones((1, 5), np.float32),) * 2, {}),
        (ValueError, "an even number of columns", (C[:, :3], C[:, :3]), {"columns": "half"}),
        (ValueError, "per feature in layout 'interleaved'", (C, C), {"columns": "half", "layout": "interleaved"}),
    ],
)
def test_invalid_arrays_raise(error, match, arrays, settings):
    with pytest.raises(error, match=f"^rotary: .*{match}"):
        rotary(X, *arrays, **settings)


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ValueError, "CosSin: columns must be one of", lambda: pe.CosSin(C, C, columns="pairs")),
        (ValueError, "cos_sin: columns must be one of", lambda: pe.cos_sin(P[:, 0], 8, columns="pairs")),
        (ValueError, "cos_sin: frequencies as an array must have shape .*axes", lambda: pe.cos_sin(P, C[None])),
        (ValueError, "cos_sin: positions must have a last axis of size 2", lambda: pe.cos_sin(P[:, 0], C[:2])),
    ],
)
def test_invalid_arguments_of_cos_sin_raise(error, match, call):
    with pytest.raises(error, match=f"^{match}"):
        call()
