"""`cos_sin`, `rotary` by its waves, and frequencies by axis and by head."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.tiers import thorough
from oracles import rotations
from oracles.encodings import waves as exact

RNG = np.random.default_rng(0)
FAR = np.array([0, 3, 2**31 - 1, -(2**31), 1_234_567_891], np.int32)
SPECTRA = {
    "geometric": pe.geometric(8, 500_000.0),
    "yarn": pe.yarn(8, 1e4, 8, 4096),
    "sections": pe.multi_section(pe.geometric(8), (1, 3)),
    "odd": pe.geometric(7),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_waves_are_exact(name):
    f = SPECTRA[name]
    positions = FAR if f.num_axes == 1 else np.stack([FAR, FAR[::-1]], -1)
    got = pe.cos_sin(positions, f)
    places = np.broadcast_to(positions if f.num_axes > 1 else positions[:, None], (5, f.num_axes))
    for i, (turns, axis) in enumerate(zip(f.turns, f.axes, strict=True)):
        angle = 2 * np.pi * np.array([int(p) * turns % 2**128 / 2**128 for p in places[:, axis]])
        for wave, want in zip(got, (np.cos(angle), np.sin(angle)), strict=True):
            assert wave.dtype == jnp.float32 and wave.shape == (5, f.num_pairs)
            assert_within(wave[:, i], f.attention_factor * want, 9e-8 * f.attention_factor, against="float64")


def test_waves_are_those_of_the_encoding():
    sine, cosine = exact(FAR, [float(w) for w in pe.geometric(4).angular])
    got = pe.cos_sin(FAR[:2], 4)
    assert_within(got[0], cosine[:2], 9e-8, against="mpmath")
    assert_within(got[1], sine[:2], 9e-8, against="mpmath")
    table = pe.sinusoidal(FAR, 4, layout="half")
    np.testing.assert_array_equal(jnp.concatenate(pe.cos_sin(FAR, 4)[::-1], -1), table)


@pytest.mark.parametrize(("dtype", "width"), [thorough(jnp.float32, 16), (jnp.bfloat16, 8), thorough(jnp.float16, 12)])
def test_rotary_by_waves_has_the_same_bits(dtype, width):
    f = pe.geometric(width).with_attention_factor(1.3)
    shapes = [(-2, (2, 5, 4, 16)), (-3, (2, 4, 5, 16)), (None, (2, 5, 16)), (-2, (2, 5, 1, 16))]
    for (axis, shape), layout, part in itertools.product(shapes, ("half", "interleaved"), ("first", "last")):
        x, settings = jnp.asarray(RNG.normal(size=shape), dtype), {"head_axis": axis, "layout": layout, "part": part}
        want = pe.rotary(x, FAR, f, **settings)
        got = pe.rotary(x, waves=pe.cos_sin(FAR, f), **settings)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)


def test_a_decode_step_by_waves_has_the_same_bits():
    x, p = jnp.asarray(RNG.normal(size=(3, 1, 4, 16)), jnp.float32), FAR[:3, None]
    want = pe.rotary(x, p, 16, head_axis=-2)
    np.testing.assert_array_equal(pe.rotary(x, waves=pe.cos_sin(p, 16), head_axis=-2), want)
    by_row = jax.vmap(lambda x, w: pe.rotary(x, waves=w, head_axis=-2))(x, pe.cos_sin(p, 16))
    np.testing.assert_array_equal(by_row, want)


def test_waves_need_not_come_from_cos_sin():
    x, c, s = (RNG.normal(size=shape).astype(np.float32) for shape in ((2, 5, 3, 10), (5, 4), (5, 4)))
    want = rotations.rotate(x, s[:, None], c[:, None], "half", "last")
    assert_within(pe.rotary(x, waves=(c, s), head_axis=-2, part="last"), want, 1e-6, against="float64")
    want = rotations.rotate(x, s[:, None], c[:, None], "interleaved")
    for pair in ([c, s], np.stack([c, s])):
        got = pe.rotary(x, waves=pair, head_axis=-2, layout="interleaved")
        assert_within(got, want, 1e-6, against="float64")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("pairs", [3, 4])  # of some features, of all
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_waves_in_16_bits_are_taken_as_they_are(dtype, pairs, layout):
    x, *waves = (jnp.asarray(RNG.normal(size=shape), jnp.bfloat16) for shape in ((2, 5, 8, 8), (5, pairs), (5, pairs)))
    x, f = x.astype(dtype), jax.jit(lambda x, *waves: pe.rotary(x, waves=waves, layout=layout, head_axis=-2))
    np.testing.assert_array_equal(f(x, *waves), f(x, *(wave.astype(jnp.float32) for wave in waves)))
    for platform in ("cuda", "tpu"):
        f.trace(x, *waves).lower(lowering_platforms=(platform,))


def test_a_derivative_in_x_keeps_only_the_waves():
    x, waves = jnp.ones((64, 8, 32), jnp.bfloat16), pe.cos_sin(np.arange(64), 32)
    _, back = jax.vjp(lambda x: pe.rotary(x, waves=waves, head_axis=-2), x)
    assert sum(leaf.size for leaf in jax.tree.leaves(back)) == 2 * 64 * 16


def test_a_tangent_in_16_bits_is_rounded_once():
    x, dx = (jnp.asarray(RNG.normal(size=(5, 3, 8)), jnp.bfloat16) for _ in range(2))
    waves, d_waves = (tuple(RNG.normal(size=(2, 5, 4)).astype(np.float32)) for _ in range(2))
    f = lambda x, w: pe.rotary(x, waves=w, head_axis=-2)  # noqa: E731
    _, wide = jax.jvp(f, (x.astype(jnp.float32), waves), (dx.astype(jnp.float32), d_waves))
    _, got = jax.jvp(f, (x, waves), (dx, d_waves))
    np.testing.assert_array_equal(got, wide.astype(jnp.bfloat16))


# Frequencies by axis and by head


def angles_of(positions, frequencies):
    """θ (..., heads, pairs) of positions (..., axes) by frequencies (heads, axes, pairs), modulo a turn, in float64."""
    turns = np.zeros((*positions.shape[:-1], frequencies.shape[0], frequencies.shape[2]))
    for c in range(frequencies.shape[1]):
        product = positions[..., c, None, None].astype(np.longdouble) * frequencies[:, c].astype(np.longdouble)
        turns = turns + np.fmod(product, 2 * np.longdouble("3.14159265358979323846264338327950288"))
    return turns.astype(np.float64)


@pytest.mark.parametrize(("axis", "layout", "part"), [(-2, "half", "first"), (-3, "interleaved", "last")])
def test_by_heads(axis, layout, part):
    w = RNG.normal(size=(3, 2, 4)).astype(np.float32)
    p = RNG.integers(-1_000_000, 1_000_000, (2, 5, 2)).astype(np.int32)
    x = RNG.normal(size=(2, 5, 3, 10)).astype(np.float32)
    want = rotations.rotate_by(x, angles_of(p, w), layout, part)
    given = x if axis == -2 else x.swapaxes(1, 2)
    got = pe.rotary(given, p, w, head_axis=axis, layout=layout, part=part)
    assert_within(got if axis == -2 else got.swapaxes(1, 2), want, 2e-6, against="float64")


def test_axes_are_added_and_heads_are_apart():
    x, p = RNG.normal(size=(5, 3, 8)).astype(np.float32), RNG.integers(0, 90, (5, 2)).astype(np.int32)
    w = RNG.normal(size=(3, 2, 4)).astype(np.float32)
    whole = pe.rotary(x, p, w, head_axis=-2)
    for head in range(3):
        alone = pe.rotary(x[:, head], p, w[head], head_axis=None)
        np.testing.assert_array_equal(whole[:, head], alone)
        step = pe.rotary(
            pe.rotary(x[:, head], p[:, 0], w[head, 0], head_axis=None), p[:, 1], w[head, 1], head_axis=None
        )
        assert_within(alone, np.asarray(step, np.float64), 2e-6, against="one axis after the other")
    np.testing.assert_array_equal(
        pe.rotary(x, p, w[0], head_axis=-2)[:, 0], pe.rotary(x[:, 0], p, w[0], head_axis=None)
    )
    one = pe.rotary(x, p[:, 0], w[0, :1], head_axis=-2)
    np.testing.assert_array_equal(one, pe.rotary(x, p[:, 0], w[0, 0], head_axis=-2))
    np.testing.assert_array_equal(
        pe.rotary(x, p, w[0], head_axis=-2), pe.rotary(x, waves=pe.cos_sin(p, w[0]), head_axis=-2)
    )


def test_scores_of_rope_mixed_depend_on_offsets_alone():
    w = RNG.normal(size=(3, 2, 4)).astype(np.float32)
    q, k = RNG.normal(size=(2, 1, 3, 8)).astype(np.float32)
    scores = []
    for moved in (0, [100, 7], [2_000_000_000, -2_000_000_000]):
        there = [pe.rotary(x, np.int32([p]) + np.int32(moved), w, head_axis=-2) for x, p in ((q, [3, 9]), (k, [5, 1]))]
        scores.append(np.sum(np.asarray(there[0], np.float64) * np.asarray(there[1], np.float64), -1))
    assert_within(scores[1], scores[0], 3e-6, against="the same offset")
    assert_within(scores[2], scores[0], 3e-6, against="the same offset")


@pytest.mark.parametrize("axis", [0, 1])
def test_a_coordinate_or_a_frequency_out_of_range_is_nan(axis):
    positions = np.ones((3, 2), np.float32)
    positions[1:, axis] = [3e9, np.nan]
    w = RNG.normal(size=(2, 4)).astype(np.float32)
    for wave in pe.cos_sin(positions, w):
        assert np.isfinite(wave[0]).all() and np.isnan(wave[1:]).all()
    w[axis, 2] = 2.0**31
    cosine, _ = pe.cos_sin(np.ones((3, 2), np.int32), w)
    assert np.isnan(cosine[:, 2]).all() and np.isfinite(cosine[:, [0, 1, 3]]).all()


X, W = np.ones((5, 3, 8), np.float32), np.ones((3, 2, 4), np.float32)
P, C = np.zeros((5, 2), np.int32), np.ones((5, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.rotary(X, P, W[:2], head_axis=-2), ValueError, r"rotary: frequencies must have one entry for each head of x, shape \(5, 3, 8\), got shape \(2, 2, 4\)"),
        (lambda: pe.rotary(X, P, W, head_axis=None), ValueError, r"rotary: frequencies must have one entry for each head of x, shape \(5, 3, 8\), got shape \(3, 2, 4\)"),
        (lambda: pe.rotary(X, P[:, :1], W, head_axis=-2), ValueError, "rotary: positions must have a last axis of size 2"),
        (lambda: pe.rotary(X, None, W, head_axis=-2), ValueError, "rotary: positions must be given for frequencies of 2 axes, got None"),
        (lambda: pe.rotary(X, P, W[None], head_axis=-2), ValueError, r"rotary: frequencies as an array must have shape \(num_pairs,\) or \(axes, num_pairs\) or \(heads, axes, num_pairs\), got \(1, 3, 2, 4\)"),
        (lambda: pe.xpos(X, X, P[:, 0], W[0], head_axis=-2), ValueError, r"xpos: frequencies as an array must have shape \(num_pairs,\), got \(2, 4\)"),
        (lambda: pe.cos_sin(P, W), ValueError, r"cos_sin: frequencies as an array must have shape \(num_pairs,\) or \(axes, num_pairs\), got \(3, 2, 4\)"),
        (lambda: pe.cos_sin(P[:, 0], W[0]), ValueError, "cos_sin: positions must have a last axis of size 2"),
        (lambda: pe.rotary(X, P[:, 0], waves=(C, C), head_axis=-2), ValueError, r"rotary: positions must not be given beside waves, got int32 of shape \(5,\)"),
        (lambda: pe.rotary(X, None, 8, waves=(C, C), head_axis=-2), ValueError, "rotary: frequencies must not be given beside waves, got int 8"),
        (lambda: pe.rotary(X, waves=(C, C), inverse=True, head_axis=-2), ValueError, "rotary: inverse must not be given beside waves, got bool True"),
        (lambda: pe.rotary(X, waves=C, head_axis=-2), ValueError, "rotary: waves must be two arrays, the cosines and the sines, got 5"),
        (lambda: pe.rotary(X, waves=3, head_axis=-2), TypeError, "rotary: waves must be a sequence of two float arrays, the cosines and the sines, got int 3"),  # type: ignore
        (lambda: pe.rotary(X, waves=(C, P), head_axis=-2), TypeError, r"rotary: waves\[1\] must be a float array of shape \(..., num_pairs\)"),
        (lambda: pe.rotary(X, waves=(C, C[:, :3]), head_axis=-2), ValueError, "rotary: waves must have one shape and one dtype, got float32 of shape"),
        (lambda: pe.rotary(X, waves=(C, C.astype(np.float16)), head_axis=-2), ValueError, "rotary: waves must have one shape and one dtype, got float32 of shape"),
        (lambda: pe.rotary(X, waves=(C[:4], C[:4]), head_axis=-2), ValueError, r"rotary: waves of shape \(4,\) must broadcast to x without its head axis and its last, shape \(5,\)"),
        (lambda: pe.rotary(X[..., :6], waves=(C, C), head_axis=-2), ValueError, r"rotary: waves of 4 pairs must fit into head_dim, x has shape \(5, 3, 6\)"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
