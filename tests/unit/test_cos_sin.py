"""`cos_sin`, `rotary` by its waves, and frequencies by axis and by head."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import thorough, tiered
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


def test_waves_are_exact():
    places = {name: FAR if f.num_axes == 1 else np.stack([FAR, FAR[::-1]], -1) for name, f in SPECTRA.items()}
    waves = quick(lambda places: {name: pe.cos_sin(places[name], f) for name, f in SPECTRA.items()})(places)
    for name, f in SPECTRA.items():
        rows, pairs = places[name].reshape(5, f.num_axes).tolist(), list(zip(f.turns, f.axes, strict=True))
        fractions = np.array([[row[axis] * turns % 2**128 / 2**128 for turns, axis in pairs] for row in rows])
        for wave, function in zip(waves[name], (np.cos, np.sin), strict=True):
            assert wave.dtype == np.float32
            want = f.attention_factor * function(2 * np.pi * fractions)
            assert_within(wave, want, 9e-8 * f.attention_factor, against=f"{name}, {function.__name__} in float64")


def test_waves_are_those_of_the_encoding():
    sine, cosine = exact(FAR, [float(w) for w in pe.geometric(4).angular])
    got = pe.cos_sin(FAR, 4)
    assert_within(got[0], cosine, 9e-8, against="mpmath")
    assert_within(got[1], sine, 9e-8, against="mpmath")
    np.testing.assert_array_equal(np.concatenate(got[::-1], -1), pe.sinusoidal(FAR, 4, layout="half"))


@pytest.mark.parametrize("part", [thorough("first"), "last"])
@pytest.mark.parametrize("layout", ["half", thorough("interleaved")])
@pytest.mark.parametrize(("dtype", "width"), [thorough(jnp.float32, 16), (jnp.bfloat16, 8), thorough(jnp.float16, 12)])
def test_rotary_by_waves_has_the_same_bits(dtype, width, layout, part):
    f = pe.geometric(width).with_attention_factor(1.3)
    shapes = {(2, 5, 4, 16): -2, (2, 4, 5, 16): -3, (2, 5, 16): None, (2, 5, 1, 16): -2}  # and their axis of heads
    xs = [RNG.normal(size=shape).astype(dtype) for shape in shapes]

    @jax.jit
    def rotate(xs, **by):
        return [pe.rotary(x, **by, head_axis=shapes[x.shape], layout=layout, part=part) for x in xs]

    want, got = rotate(xs, positions=FAR, frequencies=f), rotate(xs, waves=pe.cos_sin(FAR, f))
    for x, y, of_positions in zip(xs, got, want, strict=True):
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, of_positions, err_msg=f"shape {x.shape}")


def test_a_decode_step_by_waves_has_the_same_bits():
    x, p = RNG.normal(size=(3, 1, 4, 16)).astype(np.float32), FAR[:3, None]
    by_waves = lambda x, waves: pe.rotary(x, waves=waves, head_axis=-2)  # noqa: E731
    both = jax.jit(lambda *arguments: (by_waves(*arguments), jax.vmap(by_waves)(*arguments)))
    want = pe.rotary(x, p, 16, head_axis=-2)
    for got in both(x, pe.cos_sin(p, 16)):
        np.testing.assert_array_equal(got, want)


TWICE = {
    "half": lambda w: jnp.concatenate([w, w], -1),  # as Hugging Face's `emb`
    "interleaved": lambda w: jnp.repeat(w, 2, -1),  # as DINO's, timm's
}


@pytest.mark.parametrize("part", ["first", thorough("last")])
@pytest.mark.parametrize("layout", tiered(TWICE, ["interleaved"]))
def test_waves_with_a_column_for_each_feature(layout, part):
    x, p, other = RNG.normal(size=(5, 4, 16)).astype(np.float32), FAR, {"half": "interleaved", "interleaved": "half"}

    @jax.jit
    def rotate(x, half, full):
        by = functools.partial(pe.rotary, x, head_axis=-2, part=part)
        return (
            [by(waves=half[n], layout=layout) for n in half],
            [by(waves=full[n], layout=layout) for n in full],
            by(waves=full[16], layout=other[layout]),
        )

    half = {width: pe.cos_sin(p, pe.geometric(width)) for width in (10, 12, 16)}
    half = {width: [1.3 * np.asarray(wave) for wave in waves] for width, waves in half.items()}
    twice = {"half": lambda w: np.concatenate([w, w], -1), "interleaved": lambda w: np.repeat(w, 2, -1)}[layout]
    full = {width: tuple(map(twice, waves)) for width, waves in half.items()}
    want, got, wrong = rotate(x, half, full)
    for width, y, by_pairs in zip(half, got, want, strict=True):
        np.testing.assert_array_equal(y, by_pairs, err_msg=f"{width} of 16 features")
        if width == 12:
            known = pe.rotary(x, waves=full[width], head_axis=-2, layout=layout, part=part)
            np.testing.assert_array_equal(known, by_pairs)
        with pytest.raises(ValueError, match=r"^rotary: waves\[0\] with a column for each feature must have"):
            pe.rotary(x, waves=full[width], head_axis=-2, layout=other[layout], part=part)
    assert np.isnan(np.asarray(wrong)[1:]).any((1, 2)).all()  # at position 0 every order is right
    # The waves of a head twice as wide are not those of its features.
    with pytest.raises(ValueError, match="with a column for each feature must have"):
        pe.rotary(x, waves=pe.cos_sin(p, 32), head_axis=-2, layout=layout)


def test_the_two_columns_of_a_pair_may_round_differently():
    x, (cosine, sine) = RNG.normal(size=(5, 4, 8)).astype(np.float32), map(np.asarray, pe.cos_sin(FAR, 8))
    by = functools.partial(pe.rotary, head_axis=-2)
    apart = {by: (np.concatenate([cosine, cosine + np.float32(by)], -1), TWICE["half"](sine)) for by in (0.005, 0.02)}
    by_pairs, rounded, beyond = jax.jit(lambda x, pairs, *full: [by(x, waves=w) for w in (pairs, *full)])(
        x, (cosine, sine), *apart.values()
    )
    np.testing.assert_array_equal(rounded, by_pairs)
    np.testing.assert_array_equal(by(x, waves=apart[0.005]), by_pairs)
    assert np.isnan(beyond).all()
    with pytest.raises(ValueError, match="with a column for each feature must have"):
        by(x, waves=apart[0.02])


def test_derivatives_by_waves_with_a_column_for_each_feature():
    x, ct = RNG.normal(size=(2, 5, 3, 8)).astype(np.float32)

    @quick
    def both(waves):
        loss = lambda twice: lambda w: jnp.sum(ct * pe.rotary(x, waves=jax.tree.map(twice, w), head_axis=-2))  # noqa: E731
        return jax.grad(loss(lambda w: w))(waves), jax.grad(loss(TWICE["half"]))(waves)

    for want, got in zip(*both(pe.cos_sin(FAR, 8)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_waves_need_not_come_from_cos_sin():
    x, c, s = (RNG.normal(size=shape).astype(np.float32) for shape in ((2, 5, 3, 10), (5, 4), (5, 4)))

    @quick
    def rotate(x):
        by = functools.partial(pe.rotary, x, head_axis=-2)
        interleaved = [by(waves=pair, layout="interleaved") for pair in ([c, s], np.stack([c, s]))]
        return by(waves=(c, s), part="last"), interleaved

    half, interleaved = rotate(x)
    assert_within(half, rotations.rotate(x, s[:, None], c[:, None], "half", "last"), 1e-6, against="float64")
    for got in interleaved:
        assert_within(got, rotations.rotate(x, s[:, None], c[:, None], "interleaved"), 1e-6, against="float64")


@pytest.mark.parametrize("dtype", [thorough(jnp.float32), jnp.bfloat16])
def test_waves_in_16_bits_are_taken_as_they_are(dtype):
    x = RNG.normal(size=(2, 5, 8, 8)).astype(jnp.bfloat16).astype(dtype)
    cases = list(itertools.product(("half", "interleaved"), (3, 4)))  # 3 pairs turn some of the features, 4 all
    narrow = {pairs: tuple(RNG.normal(size=(2, 5, pairs)).astype(jnp.bfloat16)) for pairs in (3, 4)}
    wide = {pairs: tuple(wave.astype(np.float32) for wave in waves) for pairs, waves in narrow.items()}
    rotate = jax.jit(lambda x, waves: [pe.rotary(x, waves=waves[n], layout=way, head_axis=-2) for way, n in cases])
    for case, got, want in zip(cases, rotate(x, narrow), rotate(x, wide), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=f"{case}")
    for platform in ("cuda", "tpu"):
        rotate.trace(x, narrow).lower(lowering_platforms=(platform,))


def test_a_derivative_in_x_keeps_only_the_waves():
    x, waves = np.ones((64, 8, 32), jnp.bfloat16), tuple(np.ones((2, 64, 16), np.float32))
    rotate = lambda x, waves: pe.rotary(x, waves=waves, head_axis=-2)  # noqa: E731
    back = jax.eval_shape(lambda x, waves: jax.vjp(lambda x: rotate(x, waves), x)[1], x, waves)
    assert sum(leaf.size for leaf in jax.tree.leaves(back)) == 2 * 64 * 16


def test_a_tangent_in_16_bits_is_rounded_once():
    x, dx = RNG.normal(size=(2, 5, 3, 8)).astype(jnp.bfloat16)
    waves, d_waves = (tuple(RNG.normal(size=(2, 5, 4)).astype(np.float32)) for _ in range(2))
    rotate = lambda x, waves: pe.rotary(x, waves=waves, head_axis=-2)  # noqa: E731
    move = jax.jit(lambda x, dx: jax.jvp(rotate, (x, waves), (dx, d_waves))[1])
    wide = np.asarray(move(x.astype(np.float32), dx.astype(np.float32)))
    np.testing.assert_array_equal(move(x, dx), wide.astype(jnp.bfloat16))


# Frequencies by axis and by head


def angles_of(positions, frequencies):
    """θ (..., heads, pairs) of positions (..., axes) by frequencies (heads, axes, pairs), modulo a turn, in float64."""
    turns = np.zeros((*positions.shape[:-1], frequencies.shape[0], frequencies.shape[2]))
    for c in range(frequencies.shape[1]):
        product = positions[..., c, None, None].astype(np.longdouble) * frequencies[:, c].astype(np.longdouble)
        turns = turns + np.fmod(product, 2 * np.longdouble("3.14159265358979323846264338327950288"))
    return turns.astype(np.float64)


@pytest.mark.parametrize(("axis", "layout", "part"), [thorough(-2, "half", "first"), (-3, "interleaved", "last")])
def test_by_heads(axis, layout, part):
    w = RNG.normal(size=(3, 2, 4)).astype(np.float32)
    p = RNG.integers(-1_000_000, 1_000_000, (2, 5, 2)).astype(np.int32)
    x = RNG.normal(size=(2, 5, 3, 10)).astype(np.float32)
    want = rotations.rotate_by(x, angles_of(p, w), layout, part)
    rotate = quick(functools.partial(pe.rotary, head_axis=axis, layout=layout, part=part))
    got = np.asarray(rotate(x if axis == -2 else x.swapaxes(1, 2), p, w))
    assert_within(got if axis == -2 else got.swapaxes(1, 2), want, 2e-6, against="float64")


def test_heads_are_apart():
    x, p = RNG.normal(size=(5, 3, 8)).astype(np.float32), RNG.integers(0, 90, (5, 2)).astype(np.int32)
    w = RNG.normal(size=(3, 2, 4)).astype(np.float32)
    rotate = functools.partial(pe.rotary, head_axis=-2)
    whole, shared = map(np.asarray, jax.jit(lambda x, p, w: (rotate(x, p, w), rotate(x, p, w[0])))(x, p, w))
    for head in range(3):
        alone = pe.rotary(x[:, head], p, w[head], head_axis=None)
        np.testing.assert_array_equal(whole[:, head], alone, err_msg=f"head {head}")
    np.testing.assert_array_equal(shared[:, 0], whole[:, 0])


@pytest.mark.thorough
def test_axes_are_added():
    x, p = RNG.normal(size=(5, 3, 8)).astype(np.float32), RNG.integers(0, 90, (5, 2)).astype(np.int32)
    w = RNG.normal(size=(3, 2, 4)).astype(np.float32)
    one_head, rotate = (functools.partial(pe.rotary, head_axis=axis) for axis in (None, -2))
    for head in range(3):
        step = one_head(one_head(x[:, head], p[:, 0], w[head, 0]), p[:, 1], w[head, 1])
        assert_within(one_head(x[:, head], p, w[head]), step, 2e-6, against=f"one axis after the other, head {head}")
    np.testing.assert_array_equal(rotate(x, p[:, 0], w[0, :1]), rotate(x, p[:, 0], w[0, 0]))
    np.testing.assert_array_equal(rotate(x, p, w[0]), rotate(x, waves=pe.cos_sin(p, w[0])))


def test_scores_of_rope_mixed_depend_on_offsets_alone():
    w = RNG.normal(size=(3, 2, 4)).astype(np.float32)
    q, k = RNG.normal(size=(2, 1, 3, 8)).astype(np.float32)
    rotate, scores = quick(functools.partial(pe.rotary, head_axis=-2)), []
    for moved in (0, [100, 7], [2_000_000_000, -2_000_000_000]):
        there = [rotate(x, np.int32([p]) + np.int32(moved), w) for x, p in ((q, [3, 9]), (k, [5, 1]))]
        scores.append(np.sum(np.asarray(there[0], np.float64) * np.asarray(there[1], np.float64), -1))
    assert_within(scores[1], scores[0], 3e-6, against="the same offset")
    assert_within(scores[2], scores[0], 3e-6, against="the same offset")


def test_a_coordinate_or_a_frequency_out_of_range_is_nan():
    encode = quick(pe.cos_sin)
    for axis in (0, 1):
        positions, integers = np.ones((3, 2), np.float32), np.ones((3, 2), np.int32)
        positions[1:, axis] = [3e9, np.nan]
        w = RNG.normal(size=(2, 4)).astype(np.float32)
        for wave, function in zip(encode(positions, w), (np.cos, np.sin), strict=True):
            want = [function(w.astype(np.float64).sum(0)), [np.nan] * 4, [np.nan] * 4]
            assert_within(wave, want, 9e-8, against=f"{function.__name__} in float64, axis {axis}")
        w[axis, 2] = 2.0**31
        cosine = np.isnan(encode(integers, w)[0])
        np.testing.assert_array_equal(cosine, [[False, False, True, False]] * 3, err_msg=f"axis {axis}")


X, W = np.ones((5, 3, 8), np.float32), np.ones((3, 2, 4), np.float32)
P, C = np.zeros((5, 2), np.int32), np.ones((5, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.rotary(X, P, W[:2], head_axis=-2), ValueError, r"rotary: frequencies must have one entry for each head of x, shape \(5, 3, 8\), got shape \(2, 2, 4\)"),
        (lambda: pe.rotary(X, P, W, head_axis=None), ValueError, r"rotary: frequencies must have one entry for each head of x, shape \(5, 3, 8\), got shape \(3, 2, 4\)"),
        (lambda: pe.rotary(X, np.repeat(P[:, :1], 3, 1), W, head_axis=-2), ValueError, "rotary: positions must have a last axis of size 2"),
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
        (lambda: pe.rotary(X[..., :6], waves=(W.reshape(6, 4)[:5] * np.float32([1, 2, 3, 4]), C), head_axis=-2), ValueError, r"rotary: waves\[0\] with a column for each feature must have all of them and then all again, for layout 'half'"),
        (lambda: pe.rotary(X[..., :2], waves=(C, C), head_axis=-2), ValueError, r"rotary: waves of 4 columns must have one for each pair that rotates, or for each feature, x has shape \(5, 3, 2\)"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
