"""`rotary` and `shift_keys`.

- Each pair of features rotates by ω·p, within 3e-7 of its length at every int32 position, in either layout.
- Features beyond the width of the frequencies keep their bits, whether the first or the last features rotate.
- Positions broadcast over heads, which may lie along any axes, and count from 0 where they are None.
- Frequencies may have several axes of coordinates, and an entry for each head.
- `inverse` undoes the rotation and its amplitude. `shift_keys` moves rotated keys to other positions.
- Products are float32 and rounded once; float64 stays float64.
- Derivatives in x, positions and frequencies are those of the formula.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.closeness import assert_rounded_once, assert_within
from helpers.differences import assert_derivatives
from oracles import encodings, rotations, spectra

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 3, 8)).astype(np.float32)  # batch, seq, heads, head_dim
AT = RNG.integers(0, 1000, (2, 5)).astype(np.int32)
FAR = np.int32([0, 1, -1, 65_536, -(2**16), 1_000_003, 2_000_000_000, 2**31 - 1, -(2**31)])
OMEGAS = 10.0 ** -np.arange(4)  # of pe.geometric(8)
SCALED = pe.geometric(8).with_attention_factor(1.25)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def rotate(x, positions=None, *, function=pe.rotary, **settings):
    """`rotary`, or another function, in one program; positions are traced."""
    settings = {"head_axis": -2} | settings
    return np.asarray(jax.jit(lambda x, p: function(x, p, **settings))(x, positions))


# Values


@pytest.mark.parametrize(
    ("layout", "dim", "base", "amplitude"), [("half", 6, 10_000, 1.0), ("interleaved", 64, 500_000, 1.25)]
)
def test_each_pair_rotates_by_its_angle_at_any_position(layout, dim, base, amplitude):
    x, frequencies = normal(9, 2, dim), pe.geometric(dim, base).with_attention_factor(amplitude)
    sine, cosine = encodings.waves(FAR, spectra.geometric(dim, base))
    want = rotations.as_complex(x, layout) * amplitude * (cosine + 1j * sine)[:, None]
    got = rotations.as_complex(rotate(x, FAR, frequencies=frequencies, layout=layout), layout)
    assert_within(got, want, 3e-7 * np.abs(want), against="mpmath")


@pytest.mark.parametrize(("layout", "part"), [("half", "last"), ("interleaved", "first")])
def test_features_beyond_the_width_keep_their_bits(part, layout):
    x = normal(2, 5, 3, 7)
    got = rotate(x, AT, frequencies=4, layout=layout, part=part)
    assert_within(got, rotations.rope(x, AT, 4, layout=layout, part=part), 1e-6, against="float64")
    kept = np.s_[..., 4:] if part == "first" else np.s_[..., :3]
    np.testing.assert_array_equal(got[kept], x[kept])


def test_the_inverse_undoes_a_rotation_and_its_amplitude():
    settings, far = {"frequencies": SCALED, "layout": "interleaved"}, np.arange(2_000_000_000, 2_000_000_005)
    assert_within(rotate(rotate(X, far, **settings), far, **settings, inverse=True), X, 1e-6)


def test_the_inverse_of_the_smallest_amplitude_is_the_largest_float32():
    largest = float(np.finfo(np.float32).max)
    frequencies = dataclasses.replace(pe.geometric(8), attention_factor=1 / largest)
    x = np.full((1, 1, 8), 0.5, np.float32)
    np.testing.assert_array_equal(rotate(x, 0, frequencies=frequencies, inverse=True), x * largest)


@pytest.mark.parametrize("offset", [-40, np.int32([[7], [-40]])], ids=["one", "of each row"])
def test_keys_move_by_an_offset_and_keep_their_amplitude(offset):
    x, settings = normal(2, 5, 3, 12), {"frequencies": SCALED, "layout": "interleaved", "part": "last"}
    cached, want = rotate(x, AT, **settings), rotate(x, AT + offset, **settings)
    assert_within(rotate(cached, offset, function=pe.shift_keys, **settings), want, 3e-6, against="keys there")


# Positions and frequencies


@pytest.mark.parametrize("positions", [AT, AT[0]], ids=["of each row", "of all rows"])
def test_positions_broadcast_over_heads_and_batch(positions):
    want = rotations.rope(X, np.broadcast_to(positions, AT.shape))
    assert_within(rotate(X, positions), want, 1e-6, against="float64")


def test_heads_may_lie_along_any_axis():
    moved = np.moveaxis(X, 2, 0)
    np.testing.assert_array_equal(np.moveaxis(rotate(moved, AT, head_axis=0), 0, 2), rotate(X, AT))


def test_there_may_be_no_axis_of_heads_or_several():
    np.testing.assert_array_equal(rotate(X[:, :, 1], AT, head_axis=None), rotate(X, AT)[:, :, 1])
    x, frequencies = normal(2, 5, 6, 8), normal(6, 1, 4)
    want = rotate(x, AT, frequencies=frequencies)
    groups = x.reshape(2, 5, 2, 3, 8).transpose(2, 0, 3, 1, 4)  # kv_heads, batch, group, seq, head_dim
    got = rotate(groups, AT, frequencies=frequencies, head_axis=[2, 0])
    np.testing.assert_array_equal(got.transpose(1, 3, 0, 2, 4).reshape(x.shape), want)


@pytest.mark.parametrize(("head_axis", "seq_axis"), [(-2, 1), (0, 2), (None, 2)])
def test_positions_count_from_zero_along_the_last_axis_that_is_not_of_heads(head_axis, seq_axis):
    positions = np.arange(X.shape[seq_axis]).reshape([-1 if axis == seq_axis else 1 for axis in range(4)])
    want = rotations.rotate_by(X, positions * OMEGAS, "half")
    assert_within(rotate(X, head_axis=head_axis), want, 1e-6, against="float64")


def test_each_pair_rotates_by_its_own_coordinate():
    frequencies, positions = pe.multi_section(pe.geometric(8), [1, 2, 1]), RNG.integers(0, 1000, (2, 5, 3))
    angles = positions[..., [0, 1, 1, 2]] * OMEGAS
    want = rotations.rotate_by(X, angles[:, :, None], "half")
    assert_within(rotate(X, positions, frequencies=frequencies), want, 1e-6, against="float64")


@pytest.mark.parametrize("by_head", [False, True])
def test_frequencies_may_be_an_array_by_axis_and_by_head(by_head):
    w = normal(*([3] if by_head else []), 2, 3)
    positions = RNG.integers(-(2**31), 2**31, (2, 5, 2)).astype(np.int32)
    exact = np.asarray(w, np.longdouble)
    angles = (positions[..., None, :, None] * exact).sum(-2) % (2 * np.longdouble("3.14159265358979323846264338"))
    want = rotations.rotate_by(X, angles.astype(np.float64), "interleaved", "last")
    got = rotate(X, positions, frequencies=w, layout="interleaved", part="last")
    assert_within(got, want, 2e-6, against="float64")


def test_a_width_of_0_rotates_nothing():
    x = X.astype(jnp.bfloat16)
    np.testing.assert_array_equal(rotate(x, frequencies=0), x, strict=True)


def test_a_rotation_under_vmap_has_the_bits_of_one_without():
    mapped = jax.jit(jax.vmap(lambda x, p: pe.rotary(x, p, head_axis=-2)))
    np.testing.assert_array_equal(mapped(X, AT), rotate(X, AT))


# Dtypes


def test_a_16_bit_result_is_rounded_once():
    assert_rounded_once(lambda x: pe.rotary(x, AT, 6, head_axis=-2), X.astype(jnp.bfloat16))


def test_float64_is_kept():
    with jax.enable_x64(True):
        got = rotate(X.astype(np.float64), AT)
    assert got.dtype == np.float64
    assert_within(got, rotations.rope(X, AT), 3e-7, against="float64")


# Derivatives

FLOAT_POSITIONS = RNG.uniform(-3, 3, (2, 5)).astype(np.float32)
W = np.float32([1.3, 0.2, 0.7])
SECTIONS = pe.multi_section(pe.geometric(8, 10.0), [1, 2, 1])
BY_HEAD = normal(3, 2, 3)


def angles_by_head(p, w):
    return np.einsum("...a,hai->...hi", p, w)


# name → a function, its formula in float64, and the arguments in which both are differentiated
DERIVATIVES = {
    "interleaved, last, inverse, positions of a sequence": (
        lambda x, p, w: pe.rotary(x, p, w, head_axis=-2, layout="interleaved", part="last", inverse=True),
        lambda x, p, w: rotations.rotate_by(x, -p[..., None, None] * w, "interleaved", "last"),
        (X, FLOAT_POSITIONS[0], W),
    ),
    "frequencies alone, integer positions": (
        lambda w: pe.rotary(X, AT % 7, w, head_axis=-2),
        lambda w: rotations.rotate_by(X, (AT % 7)[..., None, None] * w, "half"),
        (W,),
    ),
    "positions alone, of several coordinates": (
        lambda p: pe.rotary(X, p, SECTIONS, head_axis=-2),
        lambda p: rotations.rotate_by(X, (p[..., SECTIONS.axes] * SECTIONS.angular)[..., None, :], "half"),
        (normal(2, 5, 3),),
    ),
    "by axis and by head": (
        lambda x, p, w: pe.rotary(x, p, w, head_axis=-2, layout="interleaved"),
        lambda x, p, w: rotations.rotate_by(x, angles_by_head(p, w), "interleaved"),
        (X, normal(5, 2), BY_HEAD),
    ),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_those_of_the_formula(name):
    f, exact, arguments = DERIVATIVES[name]
    assert_derivatives(f, exact, *arguments)


def test_the_derivative_in_x_is_the_rotation_backward():
    x, dy = normal(2, 2, 5, 3, 10).astype(jnp.bfloat16)
    far = RNG.integers(-(2**31), 2**31, (2, 5)).astype(np.int32)
    dx = jax.jit(lambda x, dy: jax.vjp(lambda x: pe.rotary(x, far, SCALED, head_axis=-2), x)[1](dy)[0])(x, dy)
    undone = SCALED.with_attention_factor(1 / 1.25)  # `inverse` divides by the amplitude
    np.testing.assert_array_equal(dx, rotate(dy, far, frequencies=undone, inverse=True), strict=True)


def test_derivatives_in_frequencies_are_not_rounded_to_16_bits():
    x, ct = normal(2, 64, 4, 8).astype(jnp.bfloat16)

    def total(w, x):
        return jnp.vdot(ct.astype(np.float32), pe.rotary(x, None, w, head_axis=-2).astype(jnp.float32))

    slope, w = jax.jit(jax.grad(total)), np.float32([1.3, 0.2, 0.7, 0.01])
    assert_within(slope(w, x), slope(w, x.astype(np.float32)), 1e-3)  # sums of 256 terms of up to 64 · 3


def test_the_derivative_in_an_x_that_devices_share_is_summed_over_devices(on_cpu):
    x, weights = normal(1, 3, 6), normal(8, 3, 6)
    local = lambda x, p, c: jax.lax.psum(jnp.sum(c * pe.rotary(x, p, head_axis=-2)), "d")  # noqa: E731
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu"))
    total = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("d"), P("d")), out_specs=P())
    want = rotations.rope(weights, -np.arange(8)).sum(0, keepdims=True)
    got = jax.jit(jax.grad(total))(x, np.arange(8), weights)
    assert_within(got, want, 1e-6 + 1e-5 * np.abs(want), against="float64")


# Errors

BY_AXES = np.ones((3, 2, 4), np.float32)  # heads, axes, pairs
TINY = SCALED.with_attention_factor(-2e-39)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (TypeError, r"x must be a float array of shape \(..., head_dim\)", {"x": X.astype(int), "head_axis": None}),
        (TypeError, r"x must be a float array of shape \(..., heads, head_dim\)", {"x": X.astype(int)}),
        (ValueError, "layout must be one of", {"layout": "neox"}),
        (ValueError, "part must be one of", {"part": "middle"}),
        (TypeError, "inverse must be True or False", {"inverse": "no"}),
        (TypeError, "head_axis must be an integer, a tuple of integers or None", {"head_axis": (-3, "a")}),
        (ValueError, "head_axis must name each axis of x once", {"head_axis": (-2, 2)}),
        (ValueError, "head_axis must be an axis of x other than its last", {"head_axis": -1}),
        (ValueError, "head_axis must be an axis of x other than its last", {"head_axis": 3}),
        (ValueError, "head_axis must be an axis of x other than its last", {"head_axis": 4}),
        (ValueError, "head_axis must be an axis of x other than its last", {"head_axis": -5}),
        (ValueError, "frequencies must have an even dim", {"frequencies": 7}),
        (ValueError, "frequencies of width 10 must fit into head_dim", {"frequencies": 10}),
        (ValueError, r"for a base of 4096, pass geometric\(8, 4096\)", {"frequencies": 4096}),
        (ValueError, "frequencies must have one entry for each head of x", {"frequencies": BY_AXES[:2]}),
        (ValueError, "frequencies must have one entry for each head of x", {"frequencies": BY_AXES, "head_axis": None}),
        (ValueError, "frequencies as an array must have .*heads, axes, num_pairs", {"frequencies": BY_AXES[None]}),
        (ValueError, "inverse needs .* an attention_factor above 3e-39", {"frequencies": TINY, "inverse": True}),
        (ValueError, r"positions of shape \(4,\) must broadcast to x without its head", {"positions": AT[0, :4]}),
        (ValueError, r"positions of shape \(5,\) must broadcast .* \(2, 3\)", {"positions": AT[0], "head_axis": -3}),
        (ValueError, "positions must be given where x has no sequence axis", {"head_axis": (0, 1, 2)}),
        (ValueError, "must not be one for all 5 vectors of x, .*shift_keys", {"positions": 3}),
        (ValueError, "if axis -2 holds the heads, pass head_axis=-2", {"positions": 3, "head_axis": None}),
    ],
)
def test_invalid_arguments_raise(error, match, change):
    with pytest.raises(error, match=f"^rotary: .*{match}"):
        pe.rotary(**{"x": X, "head_axis": -2} | change)


@pytest.mark.parametrize(
    ("error", "match", "offset", "frequencies"),
    [
        (TypeError, "frequencies must be Frequencies, an integer width or a float array", 7, None),
        (TypeError, "offset must be an integer or float array", None, 8),
        (ValueError, r"offset of shape \(4,\) must broadcast to keys without", np.arange(4), 8),
    ],
)
def test_invalid_arguments_of_shift_keys_raise(error, match, offset, frequencies):
    with pytest.raises(error, match=f"^shift_keys: {match}"):
        pe.shift_keys(X, offset, frequencies, head_axis=-2)
