"""ALiBi, KERPLE and Sandwich: what each promises besides `test_every_bias.py`.

- `alibi` has the slopes of BLOOM and MPT for any number of heads.
- `kerple_log` and `kerple_power` are the authors' code; the derivative of a power is 0 at distance 0.
- `sandwich` is the dot product of two sinusoidal encodings, less its value at distance 0, as in the paper and in NeMo.
  Frequencies are a width, Frequencies or an array of ω.
"""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import biases, recorded

PEERS = recorded.read("biases")


@functools.cache
def alibi_of_all_heads():
    """Number of heads → the bias of query 8 and keys 0 to 8."""
    heads = [peer["heads"] for peer in PEERS["alibi"]]
    return jax.jit(lambda at: {n: pe.alibi(at[8:], at, n) for n in heads})(np.arange(9))


@pytest.mark.parametrize("peer", PEERS["alibi"], ids=lambda peer: f"{peer['heads']} heads")
def test_alibi_is_that_of_bloom_and_mpt(peer):
    ours = np.asarray(alibi_of_all_heads()[peer["heads"]], np.float64)[:, 0]
    want = biases.alibi(biases.tile([8], range(9)), biases.slopes(peer["heads"]))
    np.testing.assert_allclose(ours, want[:, 0], rtol=2e-7)
    bloom, mpt = np.array(peer["bloom"]), np.array(peer["mpt"])  # BLOOM at keys 1 and 8, MPT at keys 0 and 7
    # BLOOM's bias grows with the key. We subtract its value at the query's own key; a softmax is the same.
    np.testing.assert_allclose(ours[:, 1], bloom[:, 0] - bloom[:, 1], rtol=1e-6)
    np.testing.assert_allclose(ours[:, [0, 7]], mpt, rtol=1e-6)


# The authors' letters for our arguments, in our order
@pytest.mark.parametrize(("name", "order"), [("kerple_log", "pa"), ("kerple_power", "ap")])
def test_kerple_is_that_of_the_authors_code(name, order):
    (peer,) = PEERS[name]
    queries, keys = np.array(peer["queries"]), np.arange(60)
    got = getattr(pe, name)(queries, keys, *(np.float32(peer[letter]) for letter in order))
    want = np.where(keys <= queries[:, None], peer["bias"], np.asarray(got))  # the authors' is causal
    assert_within(got, want, 1e-6 * np.abs(want).max(), against="the authors' code")


def test_the_derivative_of_a_power_is_0_at_distance_0():
    power = lambda p: pe.kerple_power(p, *np.float32([[1.0], [2.0], [0.5]]))[0, 0, 0]  # noqa: E731
    derivative = jax.jit(jax.grad(power))
    np.testing.assert_allclose(derivative(np.float32([5.0])), [-0.5], rtol=1e-6)
    np.testing.assert_array_equal(derivative(np.float32([1.0])), [0.0])


def test_sandwich_is_that_of_nemo_and_of_the_listing_in_its_paper():
    (peer,) = PEERS["sandwich"]
    width, heads, queries, keys = peer["width"], peer["heads"], np.array(peer["queries"]), np.arange(50)
    # NeMo counts the frequencies from one step later than the paper's listing.
    later = pe.geometric(width).with_angular([10_000.0 ** (-2 * i / width) for i in range(1, width // 2 + 1)])
    assert_within(pe.sandwich(queries, keys, heads, later), peer["bias"], 2e-6, against="NeMo")
    # Appendix E: dot products of sinusoidal encodings with ω₀ = 1, divided by 8h/n. We subtract d/2 first.
    angles = keys[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
    encodings = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    listing = (encodings[queries] @ encodings.T - width / 2) / (8 * np.arange(1, heads + 1) / heads)[:, None, None]
    assert_within(pe.sandwich(queries, keys, heads, width), listing, 2e-6, against="the listing")


def test_sandwich_takes_frequencies_with_an_amplitude_and_arrays():
    f, p = pe.axial(8, 1, 500.0), np.arange(0, 300, 40, dtype=np.int32)
    compute = jax.jit(lambda p, f: pe.sandwich(p, p, 4, f))
    single, amplified = compute(p, f), compute(p, f.with_attention_factor(2.0))
    assert_within(amplified, 4 * np.asarray(single), 1e-5, against="four times the bias")
    assert_within(compute(p, np.float32(f.angular)), np.asarray(single), 2e-4, against="the exact frequencies")


def test_the_derivative_of_sandwich_by_omega_is_that_of_the_formula():
    omega, along = np.float32([1.0, 0.1]), np.float32([0.5, -2.0])
    q, k = np.arange(5), np.arange(7)
    f = lambda omega: pe.sandwich(q, k, 2, omega)  # noqa: E731
    got = jax.jit(lambda *x: jax.jvp(f, x[:1], x[1:])[1])(omega, along)
    d = (q[:, None] - k)[..., None].astype(np.float64)
    want = np.float64([[[2 / 8]], [[2 / 16]]]) * np.sum(-np.sin(np.float64(omega) * d) * d * along, -1)
    assert_within(got, want, 1e-5, against="the derivative of the formula")


P, H = np.arange(4), np.ones(3, np.float32)
LOUD = dataclasses.replace(pe.geometric(8), attention_factor=1e30)
SHAPE, LIMIT = "a float array of shape (heads,)", "must have an attention_factor whose square float32 holds"


@pytest.mark.parametrize(
    ("function", "arguments", "error", "match"),
    [
        (pe.alibi, (0,), ValueError, "heads must be at least 1"),
        (pe.alibi, (2.0,), TypeError, "heads must be an integer or a float array of slopes"),
        (pe.alibi, (P,), TypeError, f"heads must be {SHAPE}"),
        (pe.alibi, (H[None],), ValueError, "heads must have shape (heads,)"),
        (pe.kerple_log, (1.0, H), TypeError, f"scale must be {SHAPE}"),
        (pe.kerple_log, (H, H[:2]), ValueError, "rate of shape (2,) must match scale, shape (3,)"),
        (pe.kerple_log, (H[:0], H[:0]), ValueError, "scale must have shape (heads,)"),
        (pe.kerple_power, (H, H[:2]), ValueError, "exponent of shape (2,) must match scale"),
        (pe.sandwich, (0, 8), ValueError, "heads must be at least 1"),
        (pe.sandwich, (2, 7), ValueError, "frequencies must have an even dim"),
        (pe.sandwich, (2, LOUD), ValueError, f"frequencies {LIMIT} 8 "),
        (pe.sandwich, (16, LOUD), ValueError, f"frequencies {LIMIT} 16 "),
        (pe.sandwich, (2, pe.axial(8, 2)), ValueError, "frequencies must have one axis, got 2"),
    ],
)
def test_invalid_arguments_raise(function, arguments, error, match):
    with pytest.raises(error, match=f"^{function.__name__}: {re.escape(match)}"):
        function(P, P, *arguments)
