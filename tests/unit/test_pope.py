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
from helpers.tiers import compiled_by, thorough
from oracles import attention, encodings, recorded, rotations, spectra
from oracles.biases import softplus
from posenc_jax import _pope
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


@pytest.mark.parametrize("layout", ["half", "interleaved"])
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


@pytest.mark.parametrize("case", PEER, ids=range(len(PEER)))
def test_queries_keys_and_scores_are_those_of_pope_pytorch(case):
    query, key = turned(case)
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


@pytest.mark.parametrize("name", WRONG)
def test_the_recorded_values_tell_wrong_variants(name):
    query, key = turned(PEER[0], WRONG[name])
    error = max(np.abs(got - np.float64(PEER[0][of])).max() for got, of in ((query, "query"), (key, "key")))
    assert error > 0.1


def scores(q, k, p, phase=None, **options):
    query, key = pope(q, p, **options), pope(k, p - 5, phase=phase, **options)
    return np.einsum("bshd,bshd->bsh", *map(np.float64, (query, key)))


def test_scores_depend_on_the_offset_and_the_phase_alone():
    k = np.flip(X, 1).copy()
    near = scores(X, k, np.arange(8), PHASE)
    size = np.einsum("bshd,bshd->bsh", softplus(X), softplus(k))
    for start in (1, 3, 1_000_000, 2_000_000_000):
        assert_within(scores(X, k, start + np.arange(8), PHASE), near, 1e-6 * size, against=f"scores at {start}")
    omega = 10_000.0 ** (-np.arange(6) / 6)
    want = (softplus(X) * softplus(k) * np.cos(-5 * omega + PHASE)).sum(-1)
    assert_within(near, want, 1e-6 * size, against="the sum of cosines")
    assert_within(
        scores(X, k, np.arange(8), PHASE, layout="interleaved"), near, 1e-6 * size, against="the other layout"
    )
    for other in (None, PHASE + 0.1):
        assert np.abs(scores(X, k, np.arange(8), other) - near).max() > 1e-2


def test_a_content_cannot_move_a_peak():
    """With RoPE the offset of the greatest score depends on the contents; with PoPE each feature's stays."""
    q, k = (np.exp(RNG.normal(size=(2, 100, 1, 1))) for _ in range(2))  # one feature, of magnitudes
    at = np.linspace(-3, 3, 601).astype(np.float32)
    f = np.float32([1.0])
    key = pope(np.float32(k[0]), np.zeros(100, np.int32), f, phase=np.float32([-0.7]))
    query = pope(np.broadcast_to(np.float32(q[0]), (601, 100, 1, 1)), at[:, None], f)
    found = at[np.einsum("pshd,shd->psh", np.float64(query), np.float64(key)).argmax(0)]
    np.testing.assert_allclose(found, -0.7, atol=0.011)


def test_pairs_are_those_that_rotary_turns():
    f = pe.geometric(12, 500.0)
    for layout in ("half", "interleaved"):
        options = {"layout": layout, "head_axis": -2}
        magnitude = softplus(X).astype(np.float32)
        parts = magnitude, np.zeros_like(magnitude)
        before = np.concatenate(parts, -1) if layout == "half" else np.stack(parts, -1).reshape(*X.shape[:-1], 12)
        assert_within(pe.pope(X, FAR, f, **options), np.float64(pe.rotary(before, FAR, f, **options)), 2e-6)
        cached = pe.pope(X, np.arange(8), f, phase=PHASE, **options)
        there = pe.pope(X, np.arange(1000, 1008), f, phase=PHASE, **options)
        assert_within(pe.rotary(cached, 1000, f, **options), np.float64(there), 5e-6, against="keys placed there")


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
    np.testing.assert_array_equal(y["floats"], y["integers"])
    assert_within(y["counted"], formula(X, np.arange(8)), 1e-6 * np.abs(X).max())
    omega = pe.axial(12, 2)
    at = np.stack([np.arange(8), np.arange(8) // 2], -1)[:, list(omega.axes)] * omega.angular
    assert_within(y["axes"], rotations.pope(X, np.sin(at)[:, None], np.cos(at)[:, None], "half"), 5e-6)


@pytest.mark.parametrize("layout", ["half", thorough("interleaved")])
def test_both_forms_give_the_same_bits(layout):
    angles = _pope.Angles(FAR[None, :, None, None], pe.geometric(12), PHASE[None, None])
    forms = jax.jit(lambda x: [form(layout, x, angles) for form in (_pope._stacked, _pope._padded)])(X)
    np.testing.assert_array_equal(*forms)


def test_an_amplitude_and_float32_phases():
    f = pe.Frequencies(pe.geometric(12).turns, 12, attention_factor=1.5)
    assert_within(pope(X, FAR, f), 1.5 * np.float64(pope(X, FAR)), 1e-6 * np.abs(X).max())
    rounded = pope(X[:, :3], FAR[:3], f.with_precision("float32"), phase=PHASE)
    assert_within(rounded, 1.5 * formula(X[:, :3], FAR[:3], PHASE), 2e-4)
    assert (rounded != pope(X[:, :3], FAR[:3], f, phase=PHASE)).any()


def test_what_lies_outside_is_nan():
    y = quick(lambda x, p, d: pope(x, p, phase=d))(
        X[:1, :2, :1], np.float32([3, 3e9]), np.float32([1, 3e9, 0, 0, 0, 0])
    )
    assert np.isnan(y[0, 1]).all()
    np.testing.assert_array_equal(np.isnan(y[0, 0, 0]), np.arange(12) % 6 == 1)
    extreme = np.float32([[-np.inf, np.inf, -200, 200, np.nan, 0]])
    first = np.asarray(pe.pope(extreme, np.zeros(1, np.int32), head_axis=None))[0, :6]
    np.testing.assert_allclose(first, [0, np.inf, 0, 200, np.nan, math.log(2)], rtol=1e-6, atol=5e-38)


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


def module(phase=PHASE, heads=4):
    made = PoPE(heads, 12, head_axis=-2, rngs=nnx.Rngs(0))
    made.phase[...] = jnp.asarray(phase)
    return made


def test_both_stacks_clip_the_phase_of_keys():
    of_linen, variables = linen.PoPE(4, 12, head_axis=-2), {"params": {"phase": PHASE}}
    clipped = np.clip(PHASE, np.float32(-2 * np.pi), 0)
    assert (clipped != PHASE).any()
    want = jax.device_get((pope(X, FAR), pope(X, FAR, phase=clipped), pope(X, FAR - 3 * (FAR > 0), phase=clipped)))
    for call in (module(), functools.partial(of_linen.apply, variables)):
        query, key = call(X, X, FAR)
        _, elsewhere = call(X, X, FAR, key_positions=FAR - 3 * (FAR > 0))
        for got, true in zip((query, key, elsewhere), want, strict=True):
            np.testing.assert_array_equal(got, true)
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


@pytest.mark.parametrize("layout", ["half", thorough("interleaved")])
def test_attention_of_both_stacks(layout):
    q, k, v = RNG.normal(size=(3, 2, 6, 2, 8)).astype(np.float32)
    phase, p = RNG.uniform(-6, 0, (2, 8)).astype(np.float32), np.array([5, 7, 8, 9, 1_000_000, 2_000_000_000])
    of_nnx = PoPE(2, 16, head_axis=-2, layout=layout, rngs=nnx.Rngs(0))
    of_nnx.phase[...] = jnp.asarray(phase)
    linen_pope, tiles = linen.PoPE(2, 16, head_axis=-2, layout=layout), functools.partial(pe.attention, causal=True)
    variables, mask = {"params": {"pope": {"phase": phase}}}, np.tril(np.ones((1, 1, 6, 6), bool))

    def computed(q, k, v):
        for settings, options in (({}, {"mask": mask}), ({"attention": tiles}, {})):
            given = {"input_positions": p} | options
            yield positional_attention(of_nnx, **settings)(q, k, v, **given)
            yield linen.positional_attention(linen_pope, **settings).apply(variables, q, k, v, **given)

    omega, mu = 10_000.0 ** (-np.arange(8) / 8), softplus
    waves = np.cos((p[None, :, None, None] - p[:, None, None, None]) * omega + phase)
    by_content = np.einsum("bqhd,bkhd,qkhd->bhqk", mu(q), mu(k), waves) / math.sqrt(8)
    want = attention.dense(np.zeros_like(q), k, v, by_content, mask).y
    found = quick(lambda *qkv: list(computed(*qkv)))(q, k, v)
    for way, got in zip(("NNX", "Linen", "NNX in tiles", "Linen in tiles"), found, strict=True):
        assert got.shape == v.shape
        assert_within(got, want, 1e-5, against=way)


def test_in_the_layers_of_flax():
    x = RNG.normal(size=(2, 5, 16)).astype(np.float32)
    layer = nnx.MultiHeadAttention(
        2, 16, attention_fn=positional_attention(PoPE(2, 16, head_axis=-2, rngs=nnx.Rngs(0))), decode=False, rngs=nnx.Rngs(1)
    )  # fmt: skip
    graph, state = nnx.split(layer)
    loss = lambda state, x: jnp.sum(nnx.merge(graph, state)(x, mask=np.tril(np.ones((1, 1, 5, 5), bool))) ** 2)  # noqa: E731
    slopes = quick(jax.grad(loss))(state, x)
    learned = slopes["attention_fn"]["pope"]["phase"].get_value()
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
        (lambda: positional_attention(NNX_POPE(2, 16, head_axis=-2), layout="interleaved"), ValueError, "positional_attention: layout and part must be left out with PoPE, which has its own, got 'interleaved' and 'first'"),
        (lambda: positional_attention(NNX_POPE(2, 16, head_axis=-3)), ValueError, "positional_attention: frequencies must be PoPE with head_axis -2, got -3"),
        (lambda: linen.positional_attention(NNX_POPE(2, 16, head_axis=-2)), TypeError, "positional_attention: frequencies must be Frequencies or an integer width, got PoPE"),  # type: ignore
        (lambda: positional_attention(NNX_POPE(3, 8, head_axis=-2))(H, H, H), ValueError, "positional_attention: frequencies must have width 16, twice the features of query"),
        (lambda: positional_attention(NNX_POPE(2, 16, head_axis=-2))(H, H, H), ValueError, r"positional_attention: phase must have shape \(8,\) or \(3, 8\) beside key"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
