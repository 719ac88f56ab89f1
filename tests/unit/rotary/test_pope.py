"""`pope` makes a pair of each feature: its softplus, at an angle that the position and a phase decide.

- It is the formula, in either layout, at every int32 position, and what PoPE-pytorch computes.
- Positions, axes of heads and dtypes are as for `rotary`; `shift_keys` moves its keys.
- Both lowerings give the same bits.
- Derivatives are those of the formula, and store the arguments alone.
- The modules of both stacks clip the phase of keys to [−2π, 0], and attention takes them.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
import posenc_jax.linen as linen
from helpers.closeness import assert_within
from helpers.differences import assert_derivatives
from oracles import attention, encodings, recorded, rotations, spectra
from oracles.biases import softplus
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


def formula(x, positions, phase=0.0, layout="half"):
    """PoPE of x (batch, seq, heads, features) at positions (seq,)."""
    sine, cosine = (w[:, None] for w in encodings.waves(positions, spectra.geometric(2 * x.shape[-1], 10_000)))
    s, c = np.sin(np.float64(phase)), np.cos(np.float64(phase))
    return rotations.pope(x, sine * c + cosine * s, cosine * c - sine * s, layout)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("phase", [None, PHASE, PHASE[0]], ids=["none", "by head", "one"])
def test_it_is_the_formula_at_any_position(phase, layout):
    want = formula(X, FAR, 0 if phase is None else phase, layout)
    got = pope(X, FAR, phase=phase, layout=layout)
    lengths = np.abs(rotations.as_complex(want, layout))
    error = np.abs(rotations.as_complex(got, layout) - rotations.as_complex(want, layout))
    assert_within(error, np.zeros_like(error), 1e-6 * lengths, against="mpmath")


def test_the_attention_factor_multiplies_the_result():
    assert_within(pope(X, FAR, frequencies=SCALED), 1.5 * formula(X, FAR), 1e-6 * np.abs(X).max(), against="mpmath")


@pytest.mark.parametrize("case", recorded.cases("pope"), ids=["first", "second"])
def test_queries_and_keys_are_those_of_pope_pytorch(case):
    """Heads come before seq, and pairs are interleaved; the bias acts clipped."""
    q, k, bias = (np.float32(case[name]) for name in ("q", "k", "bias"))
    frequencies = pe.geometric(2 * q.shape[-1], case["theta"])
    settings = {"frequencies": frequencies, "head_axis": -3, "layout": "interleaved"}
    phase = np.clip(bias, -2 * np.pi, 0).astype(np.float32)
    assert_within(pope(q, np.array(case["positions"]), **settings), case["query"], 2e-5, against="float32 phases")
    got = pope(k, np.array(case["positions"]), phase=phase, **settings)
    assert_within(got, case["key"], 2e-5, against="float32 phases")


def test_keys_move_without_the_amplitude():
    cached = pope(X, np.arange(8), frequencies=SCALED, phase=PHASE)
    got = pe.shift_keys(cached, 1000, SCALED, head_axis=-2)
    assert_within(got, pope(X, np.arange(1000, 1008), frequencies=SCALED, phase=PHASE), 5e-6, against="keys there")


def test_heads_may_lie_along_another_axis_or_none_or_several():
    want = pope(X, FAR, phase=PHASE)
    moved = pope(np.moveaxis(X, 2, 1), FAR, phase=PHASE, head_axis=-3)
    np.testing.assert_array_equal(np.moveaxis(moved, 1, 2), want)
    np.testing.assert_array_equal(pope(X[:, :, 1], FAR, phase=PHASE[1], head_axis=None), want[:, :, 1])
    divided = pope(X.reshape(2, 8, 2, 2, 6), FAR, phase=PHASE, head_axis=(-3, -2))
    np.testing.assert_array_equal(divided.reshape(want.shape), want)


def test_a_16_bit_result_is_rounded_once():
    x = X.astype(jnp.bfloat16)
    want = pope(x.astype(np.float32), FAR, phase=PHASE).astype(jnp.bfloat16)
    np.testing.assert_array_equal(pope(x, FAR, phase=PHASE), want, strict=True)


def test_positions_and_phases_out_of_range_give_nan():
    y = pope(X[:1, :2, :1], np.float32([3, 3e9]), phase=np.float32([1, 3e9, 0, 0, 0, 0]))
    assert np.isnan(y[0, 1]).all()
    np.testing.assert_array_equal(np.isnan(y[0, 0, 0]), np.arange(12) % 6 == 1)


def test_extreme_features():
    y = pope(np.float32([[-np.inf, np.inf, -200, 200, np.nan, 0]]), np.zeros(1, np.int32), head_axis=None)
    np.testing.assert_allclose(y[0, :6], [0, np.inf, 0, 200, np.nan, math.log(2)], rtol=1e-6, atol=5e-38)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("heads", [1, 4], ids=["no table", "a table"])
def test_both_lowerings_give_the_same_bits(heads, layout):
    angles = Angles(FAR[None, :, None, None], pe.geometric(12), PHASE[None, None, :1])
    stacked, padded = (jax.jit(lambda x, f=f: f(layout, x, angles))(X[:, :, :heads]) for f in (_stacked, _padded))
    np.testing.assert_array_equal(stacked, padded)


@pytest.mark.parametrize("positions", [np.float32([0, 1.5, -2]), np.int32([0, 1, 2])], ids=["float", "integer"])
def test_derivatives_are_those_of_the_formula(positions):
    def exact(x, w, phase, p=positions):
        angles = p[:, None, None] * w + phase
        return rotations.pope(x, np.sin(angles), np.cos(angles), "interleaved")

    def f(x, w, phase, p=positions):
        return pe.pope(x, p, w, phase=phase, layout="interleaved", head_axis=-2)

    arguments = X[:, :3], RNG.normal(size=6).astype(np.float32), PHASE
    assert_derivatives(f, exact, *arguments, *([positions] if positions.dtype == np.float32 else []))


@pytest.mark.parametrize("phase", [None, np.ones((8, 64), np.float32)], ids=["none", "phase"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_derivative_stores_the_arguments_and_constants_of_frequencies(dtype, phase):
    arguments = [jax.ShapeDtypeStruct((2, 256, 8, 64), dtype), *([] if phase is None else [phase])]
    f = lambda x, phase=None: pe.pope(x, np.arange(256), phase=phase, head_axis=-2)  # noqa: E731
    stored = jax.tree.leaves(jax.eval_shape(lambda *arguments: jax.vjp(f, *arguments)[1], *arguments))
    size = sum(math.prod(a.shape) * a.dtype.itemsize for a in arguments) + 4 * 256
    assert sum(array.size * array.dtype.itemsize for array in stored) <= size + 60 * 128


# Modules of both stacks


def of_nnx(phase, layout="half"):
    heads, width = phase.shape
    initial = lambda *_: jax.device_put(phase)  # noqa: E731
    return PoPE(heads, 2 * width, head_axis=-2, layout=layout, phase_init=initial, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("stack", ["nnx", "linen"])
def test_modules_clip_the_phase_of_keys(stack):
    module = linen.PoPE(4, 12, head_axis=-2)
    call = of_nnx(PHASE) if stack == "nnx" else functools.partial(module.apply, {"params": {"phase": PHASE}})
    clipped, others = np.clip(PHASE, np.float32(-2 * np.pi), 0), FAR - 3 * (FAR > 0)
    query, key = jax.jit(lambda x: call(x, x, FAR))(X)
    np.testing.assert_array_equal(query, pope(X, FAR))
    np.testing.assert_array_equal(key, pope(X, FAR, phase=clipped))
    apart = jax.jit(lambda x: call(x, x, FAR, key_positions=others)[1])(X)
    np.testing.assert_array_equal(apart, pope(X, others, phase=clipped))


def test_a_phase_at_a_limit_has_a_derivative():
    """A phase begins at 0, where JAX's clip has half a derivative and `lax.clamp` none."""
    phase = np.array([0, -2 * np.pi, -1, 0.5, -7, np.nextafter(np.float32(0), -1)], np.float32)

    def total(phase):
        graph, state = nnx.split(of_nnx(np.zeros((4, 6), np.float32)))
        state["phase"].set_value(jnp.tile(phase, (4, 1)))
        return jnp.sum(nnx.merge(graph, state)(X, X)[1][..., :6])

    got = jax.jit(jax.grad(total))(phase)
    want = jax.jit(jax.grad(lambda phase: jnp.sum(pe.pope(X, phase=phase, head_axis=-2)[..., :6])))(phase)
    np.testing.assert_allclose(got, np.where([1, 1, 1, 0, 0, 1], want, 0), rtol=1e-5, atol=1e-5)
    assert np.abs(np.asarray(want)).min() > 1e-3


@pytest.mark.parametrize("stack", ["nnx", "linen"])
@pytest.mark.parametrize("scale", [None, 8**-0.5], ids=["all scores", "in tiles"])
def test_attention_by_modules_is_the_sum_of_cosines(scale, stack):
    """It is scaled by the features of queries, which are half of those that it multiplies."""
    q, k, v = RNG.normal(size=(3, 2, 6, 2, 8)).astype(np.float32)
    phase, p = RNG.uniform(-6, 0.5, (2, 8)).astype(np.float32), np.array([5, 7, 8, 9, 1_000_000, 2_000_000_000])
    settings = {} if scale is None else {"attention": functools.partial(pe.attention, causal=True, scale=scale)}
    mask = np.tril(np.ones((1, 1, 6, 6), bool))
    if stack == "nnx":
        attend = positional_attention(rotation=of_nnx(phase, "interleaved"), **settings)
    else:
        module = linen.PoPE(2, 16, head_axis=-2, layout="interleaved")
        bound = linen.positional_attention(rotation=module, **settings)
        attend = functools.partial(bound.apply, {"params": {"rotation": {"phase": phase}}})
    got = jax.jit(lambda *qkv: attend(*qkv, input_positions=p, **({"mask": mask} if scale is None else {})))(q, k, v)
    omega = 10_000.0 ** (-np.arange(8) / 8)
    cosines = np.cos((p[None, :, None, None] - p[:, None, None, None]) * omega + np.minimum(phase, 0))
    scores = np.einsum("bqhd,bkhd,qkhd->bhqk", softplus(q), softplus(k), cosines) / math.sqrt(8)
    assert_within(got, attention.dense(np.zeros_like(q), k, v, scores, mask).y, 1e-5, against="float64")


# Errors

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
        (TypeError, "x must be a float array", {"x": H.astype(int)}),
        (ValueError, "head_axis must be an axis of x other than its last", {"head_axis": -1}),
        (ValueError, "layout must be one of", {"layout": "pairs"}),
    ],
)
def test_errors(error, match, change):
    with pytest.raises(error, match=f"^pope: {match}"):
        pe.pope(**{"x": H, "head_axis": -2} | change)


def of_flax(*settings, **more):
    return PoPE(*settings, **{"head_axis": -2, "rngs": nnx.Rngs(0)} | more)


def attend(**module):
    return jax.eval_shape(positional_attention(rotation=of_flax(**module)), H, H, H)


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ValueError, "PoPE: num_heads must be at least 1", lambda: of_flax(0, 16)),
        (ValueError, "PoPE: frequencies must have an even dim", lambda: of_flax(2, 15)),
        (TypeError, "PoPE: frequencies must be Frequencies or an integer width", lambda: of_flax(2, np.ones(8))),
        (ValueError, "PoPE: frequencies must have an even dim", lambda: linen.PoPE(2, 15, head_axis=-2)),
        (TypeError, "PoPE: head_axis must be an integer", lambda: linen.PoPE(2, 16, head_axis=None)),
        (
            ValueError,
            "positional_attention: layout and part must be left out unless rotation is a width or Frequencies",
            lambda: positional_attention(rotation=of_flax(2, 16), layout="interleaved"),
        ),
        (
            ValueError,
            "positional_attention: rotation must be a module with head_axis -2",
            lambda: positional_attention(rotation=of_flax(2, 16, head_axis=-3)),
        ),
        (
            ValueError,
            "positional_attention: frequencies must have width 16, twice the features of query",
            lambda: attend(num_heads=3, frequencies=8),
        ),
        (
            ValueError,
            r"positional_attention: phase must have shape \(8,\) or \(3, 8\) beside key",
            lambda: attend(num_heads=2, frequencies=16),
        ),
    ],
)
def test_errors_of_modules(error, match, call):
    with pytest.raises(error, match=f"^{match}"):
        call()
