"""`cos_sin`, `rotary` by what it returns, and frequencies by axis and by head."""

import copy
import functools
import itertools
import pickle

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered
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
        rows, pairs = places[name].reshape(5, f.num_axes).tolist(), list(zip(f.cycles, f.axes, strict=True))
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


@pytest.mark.parametrize("part", [slow("first"), "last"])
@pytest.mark.parametrize("layout", ["half", slow("interleaved")])
@pytest.mark.parametrize(("dtype", "width"), [slow(jnp.float32, 16), (jnp.bfloat16, 8), slow(jnp.float16, 12)])
def test_rotary_by_cos_sin_has_the_same_bits(dtype, width, layout, part):
    f = pe.geometric(width).with_attention_factor(1.3)
    shapes = {(2, 5, 4, 16): -2, (2, 4, 5, 16): -3, (2, 5, 16): None, (2, 5, 1, 16): -2}  # and their axis of heads
    xs = [RNG.normal(size=shape).astype(dtype) for shape in shapes]

    @jax.jit
    def rotate(xs, **by):
        return [pe.rotary(x, **by, head_axis=shapes[x.shape], layout=layout, part=part) for x in xs]

    want, got = rotate(xs, positions=FAR, frequencies=f), rotate(xs, cos_sin=pe.cos_sin(FAR, f))
    for x, y, of_positions in zip(xs, got, want, strict=True):
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, of_positions, err_msg=f"shape {x.shape}")


def test_a_decode_step_by_cos_sin_has_the_same_bits():
    x, p = RNG.normal(size=(3, 1, 4, 16)).astype(np.float32), FAR[:3, None]
    both = jax.jit(lambda *arguments: (by(*arguments), jax.vmap(by)(*arguments)))
    want = pe.rotary(x, p, 16, head_axis=-2)
    for got in both(x, pe.cos_sin(p, 16)):
        np.testing.assert_array_equal(got, want)


def by(x, c, s=None, columns="pair", **settings):
    """`rotary` by a `CosSin`, or by raw arrays."""
    c = c if s is None else pe.CosSin(c, s, columns=columns)
    return pe.rotary(x, cos_sin=c, **{"head_axis": -2} | settings)


TWICE = {
    "half": lambda w: jnp.concatenate([w, w], -1),  # as Hugging Face's `emb`
    "interleaved": lambda w: jnp.repeat(w, 2, -1),  # as DINO's, timm's
}


@pytest.mark.parametrize("part", ["first", slow("last")])
@pytest.mark.parametrize("layout", tiered(TWICE, ["interleaved"]))
def test_a_column_for_each_feature(layout, part):
    """Of all or of a part of the head: 8 columns for a head of 16 are 4 pairs twice, as in GPT-NeoX and GLM-4."""
    x, settings = RNG.normal(size=(5, 4, 16)).astype(np.float32), {"layout": layout, "part": part}
    spectra = {n: pe.geometric(n).with_attention_factor(1.3) for n in (4, 8, 12, 16)}
    made = quick(lambda p: [{n: pe.cos_sin(p, f, columns=c) for n, f in spectra.items()} for c in ("pair", layout)])
    pairs, columns = jax.device_get(made(FAR))
    rotate = jax.jit(lambda x, *given: [[by(x, c, **settings) for c in each.values()] for each in given])
    for n, want, got in zip(pairs, *rotate(x, pairs, columns), strict=True):
        for one, two in zip(pairs[n], columns[n], strict=True):
            np.testing.assert_array_equal(two, np.repeat(one, 2, -1) if layout == "interleaved" else np.tile(one, 2))
        sine, cosine = (np.asarray(pairs[n][i], np.float64)[:, None] for i in (1, 0))
        assert_within(want, rotations.rotate(x, sine, cosine, layout, part), 1e-6, against=f"{n} in float64")
        np.testing.assert_array_equal(got, want, err_msg=f"{n} of 16 features")
    with pytest.raises(ValueError, match="^rotary: cos_sin must have a column per pair, or per feature in layout"):
        by(x, columns[8], **settings | {"layout": "half" if layout == "interleaved" else "interleaved"})


@pytest.mark.parametrize("layout", tiered(TWICE, ["half"]))
def test_columns_in_another_order(layout):
    """Known values raise, traced ones give NaN where the two columns of a pair differ, so not at position 0."""
    x, other = RNG.normal(size=(5, 4, 16)).astype(np.float32), {"half": "interleaved", "interleaved": "half"}[layout]
    wrong = [np.asarray(each) for each in quick(functools.partial(pe.cos_sin, frequencies=8, columns=other))(FAR)]
    with pytest.raises(ValueError, match=rf"^rotary: cos_sin\[0\] with columns='{layout}' must have"):
        by(x, *wrong, layout, layout=layout)
    assert np.isnan(jax.jit(lambda x, c, s: by(x, c, s, layout, layout=layout))(x, *wrong))[1:, :, :8].any((1, 2)).all()


def test_the_two_columns_of_a_pair_may_round_differently():
    x, (cosine, sine) = RNG.normal(size=(5, 4, 8)).astype(np.float32), map(np.asarray, pe.cos_sin(FAR, 8))
    apart = {d: (np.concatenate([cosine, cosine + np.float32(d)], -1), TWICE["half"](sine)) for d in (0.005, 0.02)}
    of_pairs, rounded, beyond = jax.jit(lambda x, c, *given: [by(x, *c), *(by(x, *g, "half") for g in given)])(
        x, (cosine, sine), *apart.values()
    )
    np.testing.assert_array_equal(rounded, of_pairs)
    np.testing.assert_array_equal(by(x, *apart[0.005], "half"), of_pairs)
    assert np.isnan(beyond).all()
    with pytest.raises(ValueError, match="with columns='half' must have all of them and then all again"):
        by(x, *apart[0.02], "half")


def test_derivatives_by_a_column_for_each_feature():
    x, ct = RNG.normal(size=(2, 5, 3, 8)).astype(np.float32)

    @quick
    def both(c, s):
        loss = lambda twice, columns: lambda *w: jnp.sum(ct * by(x, *map(twice, w), columns))  # noqa: E731
        return jax.grad(loss(lambda w: w, "pair"), (0, 1))(c, s), jax.grad(loss(TWICE["half"], "half"), (0, 1))(c, s)

    for want, got in zip(*both(*pe.cos_sin(FAR, 8)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_arrays_need_not_come_from_cos_sin():
    x, c, s = (RNG.normal(size=shape).astype(np.float32) for shape in ((2, 5, 3, 10), (5, 4), (5, 4)))
    half, interleaved = quick(lambda x: [by(x, c, s, part="last"), by(x, c, s, layout="interleaved")])(x)
    assert_within(half, rotations.rotate(x, s[:, None], c[:, None], "half", "last"), 1e-6, against="float64")
    assert_within(interleaved, rotations.rotate(x, s[:, None], c[:, None], "interleaved"), 1e-6, against="float64")


@pytest.mark.parametrize("columns", [slow("pair"), "half", slow("interleaved")])
def test_it_is_a_pair_and_a_pytree_that_knows_its_columns(columns):
    layout, x = "interleaved" if columns == "interleaved" else "half", np.ones((5, 3, 8), np.float32)
    rotate = lambda x, c: by(x, c, layout=layout)  # noqa: E731
    made = lambda x: (pe.cos_sin(FAR, 8, columns=columns), pe.rotary(x, FAR, 8, head_axis=-2, layout=layout))  # noqa: E731
    c, want = jax.device_get(jax.jit(made)(x))
    cosine, sine = c
    assert cosine is c[0] and sine is c[1] and len(c) == 2 and np.stack(c).shape == (2, *cosine.shape)
    scanned = jax.jit(lambda x, c: jax.lax.scan(lambda c, x: (c, rotate(x, c)), c, x[None]))
    for again in (copy.copy(c), copy.deepcopy(c), pickle.loads(pickle.dumps(c))):
        assert isinstance(again, pe.CosSin) and again.columns == columns
        np.testing.assert_array_equal(np.stack(again), np.stack(c))
    kept, (y,) = scanned(x, c)
    assert isinstance(kept, pe.CosSin) and kept.columns == columns
    np.testing.assert_array_equal(y, want)
    stored = jax.export.export(jax.jit(lambda x, c: (rotate(x, c), c)))(x, c).serialize()
    y, again = jax.export.deserialize(stored).call(x, c)
    assert again.columns == columns
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("dtype", [slow(jnp.float32), jnp.bfloat16])
def test_cos_sin_in_16_bits_is_taken_as_it_is(dtype):
    x = RNG.normal(size=(2, 5, 8, 8)).astype(jnp.bfloat16).astype(dtype)
    cases = list(itertools.product(("half", "interleaved"), (3, 4)))  # 3 pairs turn some of the features, 4 all
    narrow = {pairs: tuple(RNG.normal(size=(2, 5, pairs)).astype(jnp.bfloat16)) for pairs in (3, 4)}
    wide = {pairs: tuple(wave.astype(np.float32) for wave in waves) for pairs, waves in narrow.items()}
    rotate = jax.jit(lambda x, arrays: [by(x, *arrays[n], layout=way) for way, n in cases])
    for case, got, want in zip(cases, rotate(x, narrow), rotate(x, wide), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=f"{case}")
    for platform in ("cuda", "tpu"):
        rotate.trace(x, narrow).lower(lowering_platforms=(platform,))


def test_a_derivative_in_x_keeps_only_cos_sin():
    x, arrays = np.ones((64, 8, 32), jnp.bfloat16), tuple(np.ones((2, 64, 16), np.float32))
    back = jax.eval_shape(lambda x, arrays: jax.vjp(lambda x: by(x, *arrays), x)[1], x, arrays)
    assert sum(leaf.size for leaf in jax.tree.leaves(back)) == 2 * 64 * 16


def test_a_tangent_in_16_bits_is_rounded_once():
    x, dx = RNG.normal(size=(2, 5, 3, 8)).astype(jnp.bfloat16)
    arrays, along = RNG.normal(size=(2, 2, 5, 4)).astype(np.float32)
    move = jax.jit(lambda x, dx: jax.jvp(by, (x, *arrays), (dx, *along))[1])
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


@pytest.mark.parametrize(("axis", "layout", "part"), [slow(-2, "half", "first"), (-3, "interleaved", "last")])
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


@pytest.mark.slow
def test_axes_are_added():
    x, p = RNG.normal(size=(5, 3, 8)).astype(np.float32), RNG.integers(0, 90, (5, 2)).astype(np.int32)
    w = RNG.normal(size=(3, 2, 4)).astype(np.float32)
    one_head, rotate = (functools.partial(pe.rotary, head_axis=axis) for axis in (None, -2))
    for head in range(3):
        step = one_head(one_head(x[:, head], p[:, 0], w[head, 0]), p[:, 1], w[head, 1])
        assert_within(one_head(x[:, head], p, w[head]), step, 2e-6, against=f"one axis after the other, head {head}")
    np.testing.assert_array_equal(rotate(x, p[:, 0], w[0, :1]), rotate(x, p[:, 0], w[0, 0]))
    np.testing.assert_array_equal(rotate(x, p, w[0]), rotate(x, cos_sin=pe.cos_sin(p, w[0])))


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
PAIR = pe.CosSin(C, C, columns="pair")


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
        (lambda: pe.rotary(X, P[:, 0], cos_sin=PAIR, head_axis=-2), ValueError, r"rotary: positions must not be given beside cos_sin, got int32 of shape \(5,\)"),
        (lambda: pe.rotary(X, None, 8, cos_sin=PAIR, head_axis=-2), ValueError, "rotary: frequencies must not be given beside cos_sin, got int 8"),
        (lambda: pe.rotary(X, cos_sin=PAIR, inverse=True, head_axis=-2), ValueError, "rotary: inverse must not be given beside cos_sin, got bool True"),
        (lambda: by(X, (C, C)), TypeError, r"rotary: cos_sin must be what cos_sin returns, or CosSin\(cosine, sine, columns=…\) with columns \"pair\", \"half\" or \"interleaved\", got tuple$"),
        (lambda: by(X, C, C, "pairs"), ValueError, "CosSin: columns must be one of .*, got 'pairs'"),
        (lambda: pe.CosSin(C, C), TypeError, "columns"),  # type: ignore
        (lambda: pe.cos_sin(P[:, 0], 8, columns="feature"), ValueError, "cos_sin: columns must be one of .*, got 'feature'"),  # type: ignore
        (lambda: by(X, C, P), TypeError, r"rotary: cos_sin\[1\] must be a float array of shape \(..., columns\)"),
        (lambda: by(X, C, C[:, :3]), ValueError, "rotary: cos_sin must have one shape and one dtype, got float32 of shape"),
        (lambda: by(X, C, C.astype(np.float16)), ValueError, "rotary: cos_sin must have one shape and one dtype, got float32 of shape"),
        (lambda: by(X, C[:4], C[:4]), ValueError, r"rotary: cos_sin of shape \(4,\) must broadcast to x without its head axis and its last, shape \(5,\)"),
        (lambda: by(X, C[:1], C[:1]), ValueError, r"rotary: cos_sin must not be one for all 5 vectors of x, got shape \(1,\): if they share it, use jnp.broadcast_to\(positions, \(5,\)\); to move rotated keys, use shift_keys"),
        (lambda: by(X[..., :6], *2 * [np.ones((5, 5), np.float32)], "half"), ValueError, "rotary: cos_sin must have an even number of columns, got 5"),
        (lambda: by(X[..., :6], C, C), ValueError, r"rotary: cos_sin of 4 pairs must fit into head_dim, x has shape \(5, 3, 6\)"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
