"""`pope` makes a pair of each feature: its softplus, at the angle of the position plus a phase.

- It is the formula times the amplitude, in either layout, at every int32 position, and what PoPE-pytorch computes.
- Positions, axes of heads and dtypes are as for `rotary`. `shift_keys` moves keys that `pope` made.
- Both lowerings give the same bits.
- Derivatives are those of the formula, and store only the arguments and constants of frequencies.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
from helpers.closeness import assert_rounded_once, assert_within
from helpers.differences import assert_derivatives, stored
from oracles import encodings, recorded, rotations, spectra
from posenc_jax._frequencies.angles import Angles
from posenc_jax._rotary.pope import _padded, _stacked
from posenc_jax.nnx import PoPE, positional_attention

RNG = np.random.default_rng(0)
FAR = np.int32([0, 3, 40, -1, 1_000_000, 2_000_000_000, -(2**31), 2**31 - 1])
X = 3 * RNG.normal(size=(2, 8, 4, 6)).astype(np.float32)  # batch, seq, heads, head_dim
PHASE = RNG.uniform(-7, 7, (4, 6)).astype(np.float32)
SCALED = pe.geometric(12).with_attention_factor(1.5)


def pope(x, positions=None, **settings):
    """`pope` in one program; positions are traced."""
    return np.asarray(jax.jit(lambda x, p: pe.pope(x, p, **{"head_axis": -2} | settings))(x, positions))


@pytest.mark.parametrize(
    ("layout", "frequencies", "phase"),
    [("half", None, None), ("half", SCALED, PHASE[0]), ("interleaved", 12, PHASE)],
    ids=["no phase", "one phase, an amplitude", "a phase by head"],
)
def test_it_is_the_formula_at_any_position(layout, frequencies, phase):
    sine, cosine = (w[:, None] for w in encodings.waves(FAR, spectra.geometric(12, 10_000)))
    rotation = (cosine + 1j * sine) * np.exp(1j * np.float64(0 if phase is None else phase))
    want = rotations.pope(X, rotation.imag, rotation.real, layout) * (1.5 if frequencies is SCALED else 1)
    got = pope(X, FAR, frequencies=frequencies, phase=phase, layout=layout)
    got, want = (rotations.as_complex(y, layout) for y in (got, want))
    assert_within(got, want, 5e-7 * np.abs(want), against="mpmath")


@pytest.mark.parametrize("case", recorded.cases("pope"), ids=["first", "second"])
def test_queries_and_keys_are_those_of_pope_pytorch(case):
    """There, heads come before seq, pairs are interleaved, and the phase is a bias, clipped to -2π … 0."""
    q, k, bias = (np.float32(case[name]) for name in ("q", "k", "bias"))
    frequencies = pe.geometric(2 * q.shape[-1], case["theta"])
    settings = {"frequencies": frequencies, "head_axis": -3, "layout": "interleaved"}
    phase = np.clip(bias, -2 * np.pi, 0).astype(np.float32)
    both = jax.jit(lambda q, k, p: (pe.pope(q, p, **settings), pe.pope(k, p, phase=phase, **settings)))
    for name, got in zip(("query", "key"), both(q, k, np.array(case["positions"])), strict=True):
        assert_within(got, case[name], 2e-5, against=f"{name}, float32 phases")


def test_shift_keys_moves_keys_and_keeps_their_amplitude():
    cached = pope(X, np.arange(8), frequencies=SCALED, phase=PHASE)
    got = pe.shift_keys(cached, 1000, SCALED, head_axis=-2)
    assert_within(got, pope(X, np.arange(1000, 1008), frequencies=SCALED, phase=PHASE), 5e-6, against="keys there")


def test_heads_may_lie_along_another_axis_or_none_or_several():
    def along_each(x, p, phase):
        """Yields the results with heads along axis -2, -3, none and two, in the shape of the first."""
        yield pe.pope(x, p, phase=phase, head_axis=-2)
        yield pe.pope(x.swapaxes(1, 2), p, phase=phase, head_axis=-3).swapaxes(1, 2)
        yield pe.pope(x[:, :, 1], p, phase=phase[1], head_axis=None)
        yield pe.pope(x.reshape(2, 8, 2, 2, 6), p, phase=phase, head_axis=(-3, -2)).reshape(*x.shape[:3], 12)

    want, moved, of_one, divided = jax.device_get(jax.jit(lambda *x: [*along_each(*x)])(X, FAR, PHASE))
    np.testing.assert_array_equal(moved, want)
    np.testing.assert_array_equal(of_one, want[:, :, 1])
    np.testing.assert_array_equal(divided, want)


def test_a_16_bit_result_is_rounded_once():
    assert_rounded_once(lambda x: pe.pope(x, FAR, phase=PHASE, head_axis=-2), X.astype(jnp.bfloat16))


def test_positions_and_phases_out_of_range_give_nan():
    y = pope(X[:1, :2, :1], np.float32([3, 3e9]), phase=np.float32([1, 3e9, 0, 0, 0, 0]))
    assert np.isnan(y[0, 1]).all()
    np.testing.assert_array_equal(np.isnan(y[0, 0, 0]), np.arange(12) % 6 == 1)


@pytest.mark.parametrize("heads", [1, 4], ids=["no table", "a table"])
def test_both_lowerings_give_the_same_bits(heads):
    angles = Angles(FAR[None, :, None, None], pe.geometric(12), PHASE[None, None, :1])
    both = lambda x: {of: [f(of, x, angles) for f in (_stacked, _padded)] for of in ("half", "interleaved")}  # noqa: E731
    for layout, (stacked, padded) in jax.jit(both)(X[:, :, :heads]).items():
        np.testing.assert_array_equal(stacked, padded, layout)


def test_derivatives_are_those_of_the_formula():
    def exact(x, p, w, phase):
        angles = p[:, None, None] * w + phase
        return rotations.pope(x, np.sin(angles), np.cos(angles), "interleaved")

    f = lambda x, p, w, phase: pe.pope(x, p, w, phase=phase, layout="interleaved", head_axis=-2)  # noqa: E731
    assert_derivatives(f, exact, X[:, :3], np.float32([0, 1.5, -2]), PHASE[0], PHASE)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_derivative_stores_the_arguments_and_constants_of_frequencies(dtype):
    arguments = jax.ShapeDtypeStruct((2, 256, 8, 64), dtype), np.ones((8, 64), np.float32)
    f = lambda x, phase: pe.pope(x, np.arange(256), phase=phase, head_axis=-2)  # noqa: E731
    size = sum(math.prod(a.shape) * a.dtype.itemsize for a in arguments) + 4 * 256
    assert stored(f, *arguments) <= size + 60 * 128  # integer constants of the 64 frequencies


H = np.zeros((5, 3, 8), np.float32)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "frequencies must have width 16, twice the features of x", {"frequencies": 8}),
        (ValueError, r"phase must have shape \(8,\) or \(3, 8\) beside x", {"phase": H[0, :2]}),
        (ValueError, r"phase must have shape \(8,\) beside x", {"x": H[0], "phase": H[0], "head_axis": None}),
        (TypeError, "phase must be a float array", {"phase": np.ones(8, int)}),
        (ValueError, r"positions of shape \(4,\) must broadcast to x without", {"positions": np.arange(4)}),
        (ValueError, "positions must not be one for all 5 .* use shift_keys", {"positions": np.arange(1)}),
        (ValueError, "layout must be one of", {"layout": "pairs"}),
    ],
)
def test_invalid_arguments_raise(error, match, change):
    with pytest.raises(error, match=f"^pope: {match}"):
        pe.pope(**{"x": H, "head_axis": -2} | change)


def test_the_error_of_a_phase_names_the_keys_of_attention():
    def attend(x):
        return positional_attention(rotation=PoPE(2, 16, head_axis=-2, rngs=nnx.Rngs(0)))(x, x, x)

    with pytest.raises(ValueError, match=r"^positional_attention: phase must have shape .* beside key"):
        jax.eval_shape(attend, H)
