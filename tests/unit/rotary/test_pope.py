"""PoPE against its formula in float64 and what PoPE-pytorch computes, and the properties it exists for."""

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
from helpers.quick import quick
from helpers.tiers import compiled_by, slow
from oracles import attention, encodings, recorded, rotations, spectra
from oracles.biases import softplus
from posenc_jax._frequencies.angles import Angles
from posenc_jax._rotary.pope import _padded, _stacked
from posenc_jax.nnx import PoPE, positional_attention

RNG = np.random.default_rng(0)
FAR = np.array([0, 3, 40, -1, 1_000_000, 2_000_000_000, -(2**31), 2**31 - 1], np.int32)
X = 3 * RNG.normal(size=(2, 8, 4, 6)).astype(np.float32)  # batch, seq, heads, head_dim
PHASE = RNG.uniform(-7, 7, (4, 6)).astype(np.float32)
pope = functools.partial(pe.pope, head_axis=-2)


def formula(x, positions, phase=0.0, layout="half", base=10_000):
    """PoPE of x (..., seq, heads, features) at positions (seq,), phases of 50 digits."""
    omegas = spectra.geometric(2 * x.shape[-1], base)
    sine, cosine = (w[:, None] for w in encodings.waves(positions, omegas))
    s, c = np.sin(np.float64(phase)), np.cos(np.float64(phase))
    return rotations.pope(x, sine * c + cosine * s, cosine * c - sine * s, layout)


@pytest.mark.parametrize("layout", [slow("half"), "interleaved"])
def test_the_formula_at_every_position(layout):
    both = quick(lambda x, p, d: (pope(x, p, layout=layout), pope(x, p, phase=d, layout=layout)))(X, FAR, PHASE)
    for got, phase in zip(both, (0, PHASE), strict=True):
        want = formula(X, FAR, phase, layout)
        assert_within(got, want, 3e-7 * np.abs(rotations.as_complex(want, layout)).max() + 1e-30)
        assert_within(np.abs(rotations.as_complex(got, layout)), softplus(X), 5e-7 * softplus(X), against="softplus")


# Each case as PoPE-pytorch computed it: heads come before seq, and pairs are interleaved.
PEER = recorded.cases("pope")


def inputs(case):
    return (np.float32(case[name]) for name in ("q", "k", "bias"))


def turned(case, form=pe.pope):
    """The query and the key of a case, whose bias acts clipped."""
    q, k, bias = inputs(case)
    options = {"head_axis": -3, "layout": "interleaved"}
    at, f = np.array(case["positions"]), pe.geometric(2 * q.shape[-1], case["theta"])
    phase = np.clip(bias, -2 * np.pi, 0).astype(np.float32)
    return form(q, at, f, **options), form(k, at, f, phase=phase, **options)


@pytest.mark.parametrize("case", [PEER[0], *map(slow, PEER[1:])], ids=range(len(PEER)))
def test_queries_keys_and_scores_are_those_of_pope_pytorch(case):
    query, key = quick(lambda: turned(case))()
    for got, name in ((query, "query"), (key, "key")):
        assert_within(got, np.float64(case[name]), 2e-5, against=f"the {name} of PoPE-pytorch, of float32 phases")
    scores = np.einsum("hqd,hkd->hqk", *map(np.float64, (query, key)))
    assert_within(scores, np.float64(case["scores"]), 2e-4, against="its scores")


WRONG = {
    "the exponential instead of softplus": lambda x, p, f, **o: pe.pope(np.exp(x) + np.log(-np.expm1(-np.exp(x))), p, f, **o),
    "frequencies of pairs of features": lambda x, p, f, **o: pe.pope(x, p, pe.geometric(f.dim, f.angular[1] ** -f.dim), **o),
    "one position on": lambda x, p, f, **o: pe.pope(x, p + 1, f, **o),
    "backward": lambda x, p, f, phase=None, **o: pe.pope(x, -p, f, phase=None if phase is None else -phase, **o),
    "the phase of the other head": lambda x, p, f, phase=None, **o: pe.pope(x, p, f, phase=None if phase is None else phase[::-1], **o),
    "the negative phase": lambda x, p, f, phase=None, **o: pe.pope(x, p, f, phase=None if phase is None else -phase, **o),
    "no phase": lambda x, p, f, phase=None, **o: pe.pope(x, p, f, **o),
    "the other layout": lambda x, p, f, layout, **o: pe.pope(x, p, f, layout="half", **o),
}  # fmt: skip


@pytest.mark.slow
def test_the_recorded_values_tell_wrong_variants():
    found = quick(lambda: {name: turned(PEER[0], form) for name, form in WRONG.items()})()
    for name, both in jax.device_get(found).items():
        pairs = zip(both, (PEER[0]["query"], PEER[0]["key"]), strict=True)
        assert max(np.abs(got - np.float64(true)).max() for got, true in pairs) > 0.1, name


def test_scores_depend_on_the_offset_and_the_phase_alone():
    k, starts = np.flip(X, 1).copy(), np.array([0, 1, 3, 1_000_000, 2_000_000_000], np.int32)

    @quick
    def pairs(q, k):
        def both(start, phase, **options):
            p = start + np.arange(8, dtype=np.int32)
            return pope(q, p, **options), pope(k, p - 5, phase=phase, **options)

        others = [both(0, PHASE, layout="interleaved"), both(0, None), both(0, PHASE + np.float32(0.1))]
        return [*(both(start, PHASE) for start in starts), *others]

    near, *far, interleaved, no_phase, another = (
        np.einsum("bshd,bshd->bsh", *map(np.float64, pair)) for pair in pairs(X, k)
    )
    size, omega = (softplus(X) * softplus(k)).sum(-1), 10_000.0 ** (-np.arange(6) / 6)
    want = (softplus(X) * softplus(k) * np.cos(-5 * omega + PHASE)).sum(-1)
    assert_within(near, want, 1e-6 * size, against="the sum of cosines")
    for start, found in zip(starts[1:], far, strict=True):
        assert_within(found, near, 1e-6 * size, against=f"scores at {start}")
    assert_within(interleaved, near, 1e-6 * size, against="the other layout")
    for found in (no_phase, another):
        assert np.abs(found - near).max() > 1e-2


@pytest.mark.slow
def test_a_content_cannot_move_a_peak():
    """With RoPE the offset of the greatest score depends on the contents; with PoPE each feature's stays."""
    q, k = (np.exp(RNG.normal(size=(2, 100, 1, 1))) for _ in range(2))  # one feature, of magnitudes
    at = np.linspace(-3, 3, 601).astype(np.float32)
    f = np.float32([1.0])
    drawn = np.broadcast_to(np.float32(q[0]), (601, 100, 1, 1))
    of_keys = lambda k: pope(k, np.zeros(100, np.int32), f, phase=np.float32([-0.7]))  # noqa: E731
    query, key = quick(lambda q, k: (pope(q, np.repeat(at[:, None], 100, 1), f), of_keys(k)))(drawn, np.float32(k[0]))
    found = at[np.einsum("pshd,shd->psh", np.float64(query), np.float64(key)).argmax(0)]
    np.testing.assert_allclose(found, -0.7, atol=0.011)


@pytest.mark.slow
def test_pairs_are_those_that_rotary_turns():
    f, magnitude = pe.geometric(12, 500.0), softplus(X).astype(np.float32)
    parts = magnitude, np.zeros_like(magnitude)
    before = {"half": np.concatenate(parts, -1), "interleaved": np.stack(parts, -1).reshape(*X.shape[:-1], 12)}

    def both(x, before):
        for layout, magnitudes in before.items():
            options = {"layout": layout, "head_axis": -2}
            yield pe.pope(x, FAR, f, **options), pe.rotary(magnitudes, FAR, f, **options)
            cached = pe.pope(x, np.arange(8), f, phase=PHASE, **options)
            yield (
                pe.shift_keys(cached, 1000, f, **options),
                pe.pope(x, np.arange(1000, 1008), f, phase=PHASE, **options),
            )

    for got, want in quick(lambda *given: list(both(*given)))(X, before):
        assert_within(got, np.float64(want), 5e-6)


def test_keys_move_without_the_amplitude():
    f = pe.geometric(12).with_attention_factor(1.5)
    near = np.arange(8, dtype=np.int32)

    @quick
    def moved_and_there(x):
        moved = pe.shift_keys(pope(x, near, f, phase=PHASE), 1000, f, head_axis=-2)
        return moved, pope(x, near + 1000, f, phase=PHASE)

    moved, there = moved_and_there(X)
    assert_within(moved, np.float64(there), 5e-6)


@compiled_by(quick)
def test_dtypes_and_axes(program):
    wide = X.astype(jnp.bfloat16)
    moved = np.moveaxis(X, 2, 1)

    def computed(x, wide, moved):
        return {
            "full": pope(x, FAR, phase=PHASE),
            "half precision": pope(wide, FAR, phase=PHASE),
            "rounded": pope(wide.astype(jnp.float32), FAR, phase=PHASE),
            "heads first": pe.pope(moved, FAR, head_axis=-3, phase=PHASE),
            "one head": pe.pope(x[:, :, 0], FAR, head_axis=None, phase=PHASE[0]),
            "two head axes": pe.pope(x.reshape(2, 8, 2, 2, 6), FAR, head_axis=(-3, -2), phase=PHASE),
            "floats": pope(x, FAR[[0, 1, 2, 3, 4, 3, 2, 1]].astype(np.float32)),
            "integers": pope(x, FAR[[0, 1, 2, 3, 4, 3, 2, 1]]),
            "counted": pope(x),
            "axes": pope(x, jnp.stack([jnp.arange(8), jnp.arange(8) // 2], -1), pe.axial(12, 2)),
        }

    y = jax.device_get(program(computed)(X, wide, moved))
    assert y["half precision"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(y["half precision"], y["rounded"].astype(jnp.bfloat16))
    np.testing.assert_array_equal(np.moveaxis(y["heads first"], 1, 2), y["full"])
    np.testing.assert_array_equal(y["one head"], y["full"][:, :, 0])
    np.testing.assert_array_equal(y["two head axes"].reshape(2, 8, 4, 12), y["full"])
    np.testing.assert_array_equal(y["floats"], y["integers"])
    assert_within(y["counted"], formula(X, np.arange(8)), 1e-6 * np.abs(X).max())
    omega = pe.axial(12, 2)
    at = np.stack([np.arange(8), np.arange(8) // 2], -1)[:, list(omega.axes)] * omega.angular
    assert_within(y["axes"], rotations.pope(X, np.sin(at)[:, None], np.cos(at)[:, None], "half"), 5e-6)


@pytest.mark.parametrize("layout", ["half", slow("interleaved")])
def test_both_forms_give_the_same_bits(layout):
    angles = Angles(FAR[None, :, None, None], pe.geometric(12), PHASE[None, None])
    both = jax.jit(lambda x: [lowering(layout, x, angles) for lowering in (_stacked, _padded)])(X)
    np.testing.assert_array_equal(*both)


def test_an_amplitude_and_float32_phases():
    f = pe.Frequencies(pe.geometric(12).cycles, 12, attention_factor=1.5)
    near = lambda f: pope(X[:, :3], FAR[:3], f, phase=PHASE)  # noqa: E731
    amplified, exact, rounded = quick(lambda: (pope(X, FAR, f), near(f), near(f.with_precision("float32"))))()
    assert_within(amplified, 1.5 * formula(X, FAR), 1e-6 * np.abs(X).max())
    assert_within(rounded, 1.5 * formula(X[:, :3], FAR[:3], PHASE), 2e-4)
    assert (rounded != exact).any()


def test_what_lies_outside_is_nan():
    extreme = np.float32([[-np.inf, np.inf, -200, 200, np.nan, 0]])
    f = lambda x, p, d, e: (pope(x, p, phase=d), pe.pope(e, np.zeros(1, np.int32), head_axis=None))  # noqa: E731
    found = quick(f)(X[:1, :2, :1], np.float32([3, 3e9]), np.float32([1, 3e9, 0, 0, 0, 0]), extreme)
    y, first = jax.device_get(found)
    assert np.isnan(y[0, 1]).all()
    np.testing.assert_array_equal(np.isnan(y[0, 0, 0]), np.arange(12) % 6 == 1)
    np.testing.assert_allclose(first[0, :6], [0, np.inf, 0, 200, np.nan, math.log(2)], rtol=1e-6, atol=5e-38)


@pytest.mark.parametrize("phase", [None, np.ones((8, 64), np.float32)], ids=["", "phase"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_derivative_keeps_the_arguments_and_words_of_frequencies(dtype, phase):
    x, positions = jax.ShapeDtypeStruct((2, 256, 8, 64), dtype), jnp.arange(256)
    arguments = (x,) if phase is None else (x, phase)
    f = lambda x, phase=None: pope(x, positions, phase=phase)  # noqa: E731
    kept = jax.tree.leaves(jax.eval_shape(lambda *given: jax.vjp(f, *given)[1], *arguments))
    size = sum(math.prod(a.shape) * a.dtype.itemsize for a in (*arguments, positions))
    assert sum(array.size * array.dtype.itemsize for array in kept) <= size + 60 * 128


# Modules of both stacks


def module(phase=PHASE, layout="half"):
    """NNX's, with this phase."""
    heads, width = np.shape(phase)
    given = {"phase_init": lambda *_: jax.device_put(phase), "rngs": nnx.Rngs(0)}
    return PoPE(heads, 2 * width, head_axis=-2, layout=layout, **given)


def test_both_stacks_clip_the_phase_of_keys():
    of_linen, variables = linen.PoPE(4, 12, head_axis=-2), {"params": {"phase": PHASE}}
    clipped = np.clip(PHASE, np.float32(-2 * np.pi), 0)
    assert (clipped != PHASE).any()
    others, of_nnx = FAR - 3 * (FAR > 0), module()

    def computed(x):
        for call in (of_nnx, functools.partial(of_linen.apply, variables)):
            query, key = call(x, x, FAR)
            yield query, key, call(x, x, FAR, key_positions=others)[1]
        yield pope(x, FAR), pope(x, FAR, phase=clipped), pope(x, others, phase=clipped)

    *found, want = jax.jit(lambda x: list(computed(x)))(X)
    for got in found:
        jax.tree.map(np.testing.assert_array_equal, got, want)
    shapes = jax.eval_shape(of_linen.init, jax.random.key(0), X, X)["params"]
    assert shapes["phase"].shape == PHASE.shape


def test_a_phase_at_an_end_has_a_derivative():
    """It begins at the end of what it is clipped to, where JAX's clip has half a derivative and `lax.clamp` none."""
    begin = np.array([0, -2 * np.pi, -1, 0.5, -7, np.nextafter(np.float32(0), -1)], np.float32)

    def loss(phase):
        graph, state = nnx.split(module())
        state["phase"].set_value(jnp.tile(phase, (4, 1)))
        return jnp.sum(nnx.merge(graph, state)(X, X)[1][..., :6])

    unclipped = lambda phase: jnp.sum(pope(X, phase=phase)[..., :6])  # noqa: E731
    got, want = quick(lambda phase: (jax.grad(loss)(phase), jax.grad(unclipped)(phase)))(begin)
    np.testing.assert_allclose(got, np.where([1, 1, 1, 0, 0, 1], want, 0), rtol=1e-5, atol=1e-5)
    assert np.abs(np.asarray(want)).min() > 1e-3


@pytest.mark.parametrize("layout", ["half", slow("interleaved")])
def test_attention_of_both_stacks(layout):
    q, k, v = RNG.normal(size=(3, 2, 6, 2, 8)).astype(np.float32)
    phase, p = RNG.uniform(-6, 0.5, (2, 8)).astype(np.float32), np.array([5, 7, 8, 9, 1_000_000, 2_000_000_000])
    of_nnx = module(phase, layout)
    linen_pope, tiles = linen.PoPE(2, 16, head_axis=-2, layout=layout), functools.partial(pe.attention, causal=True)
    variables, mask = {"params": {"rotation": {"phase": phase}}}, np.tril(np.ones((1, 1, 6, 6), bool))

    def computed(q, k, v):
        scaled = functools.partial(tiles, scale=8**-0.5)  # what it is without
        for settings, options in (({}, {"mask": mask}), ({"attention": tiles}, {}), ({"attention": scaled}, {})):
            given = {"input_positions": p} | options
            yield positional_attention(rotation=of_nnx, **settings)(q, k, v, **given)
            yield linen.positional_attention(rotation=linen_pope, **settings).apply(variables, q, k, v, **given)

    omega, mu = 10_000.0 ** (-np.arange(8) / 8), softplus
    waves = np.cos((p[None, :, None, None] - p[:, None, None, None]) * omega + np.minimum(phase, 0))
    by_content = np.einsum("bqhd,bkhd,qkhd->bhqk", mu(q), mu(k), waves) / math.sqrt(8)
    want = attention.dense(np.zeros_like(q), k, v, by_content, mask).y
    found = quick(lambda *qkv: list(computed(*qkv)))(q, k, v)
    ways = "NNX", "Linen", "NNX in tiles", "Linen in tiles", "NNX with a scale", "Linen with a scale"
    for way, got in zip(ways, found, strict=True):
        assert got.shape == v.shape
        assert_within(got, want, 1e-5, against=way)


def from_rng(key, shape, dtype):
    """An initialiser by NumPy, which compiles nothing."""
    return (RNG.normal(size=shape) / 5).astype(dtype)


@pytest.mark.slow
def test_in_the_layers_of_flax():
    x = RNG.normal(size=(2, 5, 16)).astype(np.float32)
    layer = nnx.MultiHeadAttention(
        2, 16, attention_fn=positional_attention(rotation=module(np.zeros((2, 8), np.float32))), decode=False, kernel_init=from_rng, rngs=nnx.Rngs(1)
    )  # fmt: skip
    graph, state = nnx.split(layer)
    loss = lambda state, x: jnp.sum(nnx.merge(graph, state)(x, mask=np.tril(np.ones((1, 1, 5, 5), bool))) ** 2)  # noqa: E731
    slopes = quick(jax.grad(loss))(state, x)
    learned = slopes["attention_fn"]["rotation"]["phase"].get_value()
    assert learned.shape == (2, 8) and np.abs(learned).min() > 0


H = np.zeros((5, 3, 8), np.float32)
NNX_POPE = functools.partial(PoPE, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pope(H, None, 8), ValueError, r"pope: frequencies must have width 16, twice the features of x, shape \(5, 3, 8\), got 8$"),
        (lambda: pope(H, None, np.ones(4, np.float32)), ValueError, "pope: frequencies must have width 16, .* got 8"),
        (lambda: pope(H, phase=np.ones((2, 8), np.float32)), ValueError, r"pope: phase must have shape \(8,\) or \(3, 8\) beside x, shape \(5, 3, 8\), got \(2, 8\)"),
        (lambda: pe.pope(H, head_axis=None, phase=np.ones((3, 8), np.float32), positions=np.arange(3)), ValueError, r"pope: phase must have shape \(8,\) beside x"),
        (lambda: pope(H, phase=np.ones(8, int)), TypeError, "pope: phase must be a float array, got int64 of shape"),
        (lambda: pope(H, phase="zeros"), TypeError, "pope: phase must be a float array, got str"),
        (lambda: pope(H, np.arange(4)), ValueError, r"pope: positions of shape \(4,\) must broadcast to x without"),
        (lambda: pope(H.astype(int)), TypeError, "pope: x must be a float array"),
        (lambda: pe.pope(H, head_axis=-1), ValueError, "pope: head_axis must be an axis of x other than its last"),
        (lambda: pe.pope(H), TypeError, "head_axis"),  # type: ignore
        (lambda: pope(H, layout="pairs"), ValueError, "pope: layout must be one of"),
        (lambda: NNX_POPE(0, 16, head_axis=-2), ValueError, "PoPE: num_heads must be at least 1, got 0"),
        (lambda: NNX_POPE(2, 15, head_axis=-2), ValueError, "PoPE: frequencies must have an even dim, got 15"),
        (lambda: NNX_POPE(2, np.ones(8), head_axis=-2), TypeError, "PoPE: frequencies must be Frequencies or an integer width, got an array"),  # type: ignore
        (lambda: linen.PoPE(2, 15, head_axis=-2), ValueError, "PoPE: frequencies must have an even dim, got 15"),
        (lambda: linen.PoPE(2, 16, head_axis=None), TypeError, "PoPE: head_axis must be an integer, got NoneType None"),  # type: ignore
        (lambda: positional_attention(rotation=NNX_POPE(2, 16, head_axis=-2), layout="interleaved"), ValueError, "positional_attention: layout and part must be left out unless rotation is a width or Frequencies, got 'interleaved' and 'first'"),
        (lambda: positional_attention(rotation=NNX_POPE(2, 16, head_axis=-3)), ValueError, "positional_attention: rotation must be a module with head_axis -2, got PoPE with -3"),
        (lambda: jax.eval_shape(positional_attention(rotation=NNX_POPE(3, 8, head_axis=-2)), H, H, H), ValueError, "positional_attention: frequencies must have width 16, twice the features of query"),
        (lambda: jax.eval_shape(positional_attention(rotation=NNX_POPE(2, 16, head_axis=-2)), H, H, H), ValueError, r"positional_attention: phase must have shape \(8,\) or \(3, 8\) beside key"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
