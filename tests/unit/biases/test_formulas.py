"""ALiBi, KERPLE and Sandwich against float64 of exact distances and recorded peers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.biases import BIASES, FAR, NEAR, RATE, SCALE
from helpers.quick import quick
from helpers.tiers import tiered
from oracles import biases, recorded, spectra

PEERS = recorded.read("biases")


def test_alibi():
    numbers = 1, 2, 3, 6, 8, 12, 16, 71, 128
    slopes = [np.float32(biases.slopes(heads)) for heads in numbers]
    pairs = lambda q, k, n, s: (pe.alibi(q, k, n), pe.alibi(q, k, s))  # noqa: E731
    compute = jax.jit(lambda q, k, slopes: [pairs(q, k, *given) for given in zip(numbers, slopes, strict=True)])
    for q, k in ((NEAR, NEAR), (FAR, FAR), (FAR, NEAR)):
        distances = biases.tile(q, k)
        for heads, (of_number, of_slopes) in zip(numbers, compute(q, k, slopes), strict=True):
            want = biases.alibi(distances, biases.slopes(heads))
            np.testing.assert_allclose(of_number, want, rtol=2e-7, err_msg=f"{heads} heads")
            np.testing.assert_array_equal(of_slopes, of_number, err_msg=f"{heads} heads")


@pytest.mark.parametrize("positions", [NEAR, FAR], ids=["near", "far"])
def test_kerple(positions):
    d = biases.tile(positions, positions)
    want = biases.kerple_log(d, SCALE, RATE)
    np.testing.assert_allclose(pe.kerple_log(positions, positions, SCALE, RATE), want, rtol=4e-7)
    want = biases.kerple_power(d, SCALE, RATE)
    np.testing.assert_allclose(pe.kerple_power(positions, positions, SCALE, RATE), want, rtol=6e-7)
    one = pe.kerple_power(positions, positions, SCALE, np.ones_like(SCALE))
    np.testing.assert_allclose(one, pe.alibi(positions, positions, SCALE), rtol=2e-7)


@pytest.mark.parametrize("width", tiered([2, 16, 128], [2, 16]))
def test_sandwich(width):
    heads = 5
    for p in (NEAR, FAR):
        want = biases.sandwich(biases.tile(p, p), heads, spectra.geometric(width, 10_000))
        np.testing.assert_allclose(pe.sandwich(p, p, heads, width), want, atol=2e-7 * width)


def test_sandwich_of_other_frequencies():
    f = pe.axial(8, 1, 500.0)
    double = pe.Frequencies(f.cycles, f.dim, attention_factor=2.0)
    of = lambda p, angular: [pe.sandwich(p, p, 4, f), pe.sandwich(p, p, 4, double), pe.sandwich(p[:3], p[:3], 4, angular)]  # noqa: E731  # fmt: skip
    single, fourfold, learned = map(np.asarray, quick(of)(NEAR, np.float32(f.angular)))
    np.testing.assert_allclose(fourfold, 4 * single, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(learned, single[:, :3, :3], atol=2e-3)


def test_integers_of_two_dtypes():
    np.testing.assert_array_equal(pe.alibi(np.int8([3]), np.uint8([250]), 1), [[[-247 / 256]]])
    mixed = jax.jit(lambda queries, keys: pe.alibi(queries, keys, 1))
    if jax.config.jax_enable_x64:
        np.testing.assert_array_equal(mixed(np.int32([-3]), np.uint32([7])), [[[-10 / 256]]])
    else:
        expected = "alibi: query_positions of int32 and key_positions of uint32 have no common dtype here; pass int32"
        with pytest.raises(TypeError, match=expected):
            mixed(np.int32([-3]), np.uint32([7]))


# Peers


def test_alibi_beside_bloom_and_mpt():
    n = 9
    query, keys = np.array([n - 1]), np.arange(n)
    found = quick(lambda q, k: [pe.alibi(q, k, peer["heads"]) for peer in PEERS["alibi"]])(query, keys)
    for peer, ours in zip(PEERS["alibi"], found, strict=True):
        ours = np.asarray(ours, np.float64)[:, 0]
        bloom, mpt = np.array(peer["bloom"]), np.array(peer["mpt"])  # at keys 1 and 8, and at keys 0 and 7
        # BLOOM's grows with the key: the query's own is subtracted, which a softmax does not see.
        np.testing.assert_allclose(ours[:, 1], bloom[:, 0] - bloom[:, 1], rtol=1e-6)
        np.testing.assert_allclose(ours[:, [0, n - 2]], mpt, rtol=1e-6)


def causal(got, want, queries):
    """The largest error at keys that a query may see, relative to the largest bias."""
    got, want = np.asarray(got), np.array(want)
    seen = np.arange(want.shape[-1]) <= np.array(queries)[:, None]
    return np.max(np.abs(got - want), where=seen, initial=0) / np.max(np.abs(want), where=seen, initial=0)


@pytest.mark.parametrize("name", ["kerple_log", "kerple_power"])
def test_kerple_beside_the_authors_code(name):
    (peer,) = PEERS[name]
    a, p = (np.array(peer[key], np.float32) for key in "ap")
    got = getattr(pe, name)(np.array(peer["queries"]), np.arange(60), *((p, a) if name == "kerple_log" else (a, p)))
    assert causal(got, peer["bias"], peer["queries"]) <= 1e-6
    swapped = getattr(pe, name)(np.array(peer["queries"]), np.arange(60), *((a, p) if name == "kerple_log" else (p, a)))
    assert causal(swapped, peer["bias"], peer["queries"]) > 0.05


def test_sandwich_beside_the_paper_s_listing_and_nemo():
    # NeMo counts the frequencies from one step later than the paper's listing.
    (peer,) = PEERS["sandwich"]
    width, queries, keys = peer["width"], np.array(peer["queries"]), np.arange(50)
    later = pe.geometric(width).with_angular([10_000.0 ** (-2 * i / width) for i in range(1, width // 2 + 1)])
    got = pe.sandwich(queries, keys, peer["heads"], later)
    np.testing.assert_allclose(got, peer["bias"], atol=2e-6)
    # Appendix E: sinusoidal encodings from ω₀ = 1 on, their dot products over 8h/n; ours less d/2.
    angles = np.arange(50)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
    encodings = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    products = encodings[queries] @ encodings.T - width / 2
    ratios = 8 * np.arange(1, peer["heads"] + 1) / peer["heads"]
    listing = np.asarray(pe.sandwich(queries, keys, peer["heads"], width))
    np.testing.assert_allclose(listing, products / ratios[:, None, None], atol=2e-6)
    assert np.abs(listing - np.array(peer["bias"])).max() > 0.5  # the other of the two


P, H = np.arange(4), np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.alibi(P, P, 0), ValueError, "alibi: heads must be at least 1, got 0"),
        (lambda: pe.alibi(P, P, 2.0), TypeError, "alibi: heads must be an integer or a float array of slopes, got float 2.0"),  # type: ignore
        (lambda: pe.alibi(P, P, np.arange(3)), TypeError, r"alibi: heads must be a float array of shape \(heads,\), got int64"),
        (lambda: pe.alibi(P, P, np.ones((2, 2), np.float32)), ValueError, r"alibi: heads must have shape \(heads,\), got \(2, 2\)"),
        (lambda: pe.alibi(P, 3, 2), ValueError, r"alibi: key_positions must have shape \(..., keys\), got \(\)"),
        (lambda: pe.alibi(2, P, 2), ValueError, r"alibi: query_positions must have shape \(..., queries\), got \(\)"),
        (lambda: pe.alibi("a", P, 2), TypeError, "alibi: query_positions must be an integer or float array, got str"),
        (lambda: pe.alibi(P.reshape(2, 2), np.zeros((3, 2), int), 2), ValueError, r"alibi: the leading axes of query_positions, shape \(2, 2\), and"),
        (lambda: pe.alibi(np.array([2**31]), P, 2), ValueError, "alibi: query_positions must fit into int32"),
        (lambda: pe.kerple_log(P, P, H, H[:2]), ValueError, r"kerple_log: rate of shape \(2,\) must match scale, shape \(3,\)"),
        (lambda: pe.kerple_power(P, P, H, H[:2]), ValueError, r"kerple_power: exponent of shape \(2,\) must match scale"),
        (lambda: pe.kerple_log(P, P, 1.0, H), TypeError, r"kerple_log: scale must be a float array of shape \(heads,\), got float"),
        (lambda: pe.kerple_log(P, P, H[:0], H[:0]), ValueError, r"kerple_log: scale must have shape \(heads,\), got \(0,\)"),
        (lambda: pe.sandwich(P, P, 0, 8), ValueError, "sandwich: heads must be at least 1"),
        (lambda: pe.sandwich(P, P, 2, 7), ValueError, "sandwich: frequencies must have an even dim, got 7"),
        (lambda: pe.sandwich(P, P, 2, dataclasses.replace(pe.geometric(8), attention_factor=1e30)), ValueError, r"sandwich: frequencies must have an attention_factor whose square float32 holds 8 times, got 1e\+30"),
        (lambda: pe.sandwich(P, P, 16, dataclasses.replace(pe.geometric(8), attention_factor=1e30)), ValueError, r"sandwich: frequencies must have an attention_factor whose square float32 holds 16 times, got 1e\+30"),
        (lambda: pe.sandwich(P, P, 2, pe.axial(8, 2)), ValueError, "sandwich: frequencies must have one axis, got 2"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


GRID = np.stack(np.meshgrid(np.arange(3), np.arange(4), indexing="ij"), -1).reshape(-1, 2)


@pytest.mark.parametrize("bias", [BIASES[name].beside(4)[0] for name in ("alibi", "kerple_log", "sandwich", "t5")])
def test_coordinates_of_a_grid_are_not_a_batch(bias):
    video = pe.grid_positions((2, 2, 3))
    for grid in (GRID.astype(np.int32), jnp.asarray(GRID), pe.grid_positions((3, 4)), video):
        with pytest.raises(
            ValueError, match=r"query_positions must be one number for each token, .* of a grid, \(12, [23]\)"
        ):
            bias(grid, grid)
        first = np.asarray(grid)[:, 0]
        axis = jax.eval_shape(lambda p, first=first: bias(p, first), first)  # each by itself
        assert axis.shape == (4, 12, 12)
        with pytest.raises(ValueError, match="key_positions must be one number"):
            bias(np.arange(5), grid)
    # Sequences of two and three tokens: padded, packed, at other starts.
    p = pe.positions_from_mask(np.array([[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0]]))
    packed = pe.positions_from_segments(np.int32([[1, 1, 2], [1, 2, 2], [1, 1, 1], [1, 2, 3]]))
    starts = np.int32([[0, 1], [7, 8], [0, 0], [3, 4]])
    for short in (p, packed, starts, starts[:, ::-1]):
        assert jax.eval_shape(lambda short=short: bias(short, short)).shape == (4, 4, *short.shape[1:] * 2)
