"""Hostile input: the right result, or an error that names the function and the argument; never anything else.

POSENC_HOSTILE=N multiplies what is tried (`nox -s hostile`); every draw is the same in every run.
"""

import collections
import functools
import os
import re
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import export

import posenc_jax as pe
from posenc_jax import linen, nnx

MANY = int(os.environ.get("POSENC_HOSTILE", "1"))
NAN, INF = float("nan"), float("inf")
TRIED = collections.Counter()


@pytest.fixture(autouse=True, scope="module")
def print_what_was_tried():
    yield
    print("\ntried:", dict(TRIED))


# Every argument of every function, and what it should not be

P, X, H = np.arange(6, dtype=np.int32), np.ones((6, 8), np.float32), np.ones((6, 2, 8), np.float32)
ONES, TILE = np.ones(2, np.float32), {"query_positions": P, "key_positions": P}
MLP = tuple(np.ones(shape, np.float32) for shape in ((4,), (4,), (4, 2), (2,)))
EXTENDED = {"dim": 8, "base": 1e4, "factor": 2.0}
VALID = {
    "Frequencies": {"turns": (1 << 120, 1 << 119), "dim": 4, "axes": (0, 1), "attention_factor": 1.0, "precision": "exact"},
    "add_learned": {"x": X, "table": X, "positions": P, "scale": 1.0, "out_of_range": "nan"},
    "add_sinusoidal": {"x": X, "positions": P, "frequencies": 8, "layout": "half", "scale": 2.0},
    "alibi": {**TILE, "heads": 2},
    "attention": {"query": H, "key": H, "value": H, **TILE, "query_segments": P, "key_segments": P, "causal": True, "scale": 0.5, "block_size": 4},
    "axial": {"frequencies": 8, "num_axes": 2, "base": 1e4},
    "convert_layout": {"weights": X, "frequencies": 8, "source": "half", "target": "interleaved", "axis": 1, "num_heads": 1, "part": "first"},
    "dynamic_ntk": {**EXTENDED, "original_max": 64, "length": 128},
    "fire": {**TILE, "mlp": MLP, "c": 0.1, "threshold": 8.0},
    "fourier_features": {"x": X, "matrix": np.ones((8, 3), np.float32), "layout": "half", "dtype": jnp.float32},
    "geometric": {"dim": 8, "base": 1e4, "endpoint": True},
    "grid_positions": {"shape": (2, 3), "order": "row", "leading": 1},
    "kerple_log": {**TILE, "scale": ONES, "rate": ONES},
    "kerple_power": {**TILE, "scale": ONES, "exponent": ONES},
    "learned": {"positions": P, "table": X, "out_of_range": "nan"},
    "linear_scaling": {"frequencies": 8, "factor": 2.0},
    "llama3": {"frequencies": 8, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max": 64},
    "longrope": {"frequencies": 8, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max": 64, "factor": 2.0, "length": 100, "attention_factor": None},
    "multi_section": {"frequencies": 8, "sections": (2, 1, 1), "interleaved": False},
    "multimodal_positions": {"parts": [2, (1, 2, 2)], "following": "side"},
    "ntk": EXTENDED,
    "offset_similarity": {"offset": P, "frequencies": 8},
    "positions_from_mask": {"mask": np.ones(6, bool)},
    "positions_from_segments": {"ids": P, "padding": 0},
    "proportional": {"dim": 8, "base": 1e4, "fraction": 0.5, "factor": 1.0},
    "resize_table": {"table": X, "shape": 4, "method": "linear"},
    "rotary": {"x": H, "positions": P, "frequencies": 8, "layout": "half", "head_axis": -2, "part": "first", "inverse": False},
    "rotation_matrix": {"offset": P, "frequencies": 8, "layout": "half", "dtype": jnp.float32},
    "sandwich": {**TILE, "heads": 2, "frequencies": 8},
    "shard_positions": {"length": 8, "shards": 2, "order": "zigzag"},
    "shift": {"encodings": X, "offset": P, "frequencies": 8, "layout": "half"},
    "sinusoidal": {"positions": P, "frequencies": 8, "layout": "half", "dtype": jnp.float32},
    "t5": {**TILE, "table": np.ones((8, 2), np.float32), "bidirectional": True, "max_distance": 16},
    "timestep_embedding": {"timesteps": P, "dim": 8, "flip_sin_to_cos": True, "downscale_freq_shift": 1.0, "scale": 1.0, "max_period": 1e4, "dtype": jnp.float32},
    "xpos": {"query": H, "key": H, "positions": P, "frequencies": 8, "key_positions": P, "origin": 0, "scale_base": 512.0, "gamma": 0.4, "layout": "half", "head_axis": -2},
    "yarn": {**EXTENDED, "original_max": 64, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "attention_factor": 1.0},
}  # fmt: skip
KEYS = jax.random.split(jax.random.key(0), 6)
JUNK = [
    None, True, False, 0, -1, 1, 3, 7, -0.0, 0.5, 1e-320, 1e308, -2.5, NAN, INF, -INF, 2**31, -(2**31) - 1, 2**63, 10**400,
    "", "half", "nan", "²", b"x", 1j, object(), [], [1], [[1.0]], [None], (), (1, 2), (1.0, NAN), {}, {1: 2}, {1, 2}, range(3),
    np.int32, jnp.complex64, "float33", jnp.float64,
    np.float32(2), np.float32(NAN), np.int64(3), np.bool_(True), np.float64(1.5), np.timedelta64(1, "s"), np.array(2), np.array(NAN, np.float32),
    np.zeros(0, np.float32), np.zeros((0, 8), np.float32), np.zeros((6, 0), np.float32), np.zeros((2, 3, 4, 5), np.float32),
    np.ones(6, bool), np.ones(6, np.complex64), np.ones(6), np.full(6, 2**40), np.full(6, 2**32 - 1, np.uint32),
    np.full(6, NAN, np.float32), np.full(6, INF, np.float32), np.array(["a"] * 6), np.array([None] * 6), np.zeros(6, "M8[D]"),
    np.ones(6, "m8[s]"), np.ones(6, ">f4"), np.ones(6, ">i4"), np.ma.ones((6, 8)), np.ones(6, np.longdouble), np.ones(6, np.float16), np.arange(6, dtype=np.uint8),
    KEYS[0], KEYS, jnp.zeros(6, jnp.bfloat16), jnp.zeros(6, jnp.int4), jnp.zeros(6, jnp.float8_e4m3fn), jax.ShapeDtypeStruct((6,), jnp.float32),
    np.ones((6, 8), jnp.float4_e2m1fn), jnp.float4_e2m1fn, np.ones((6, 8), jnp.float8_e8m0fnu), np.full((6, 8), "a"), np.zeros((6, 8), "m8[s]"),
    pe.geometric(8), pe.axial(8, 2), pe.geometric(7),
]  # fmt: skip


# Where two arguments must fit each other, the error may name the other one.
TOGETHER = {("convert_layout", "weights"), ("convert_layout", "axis"), ("rotary", "head_axis"), ("xpos", "head_axis")}
TOGETHER |= {("Frequencies", "turns"), ("axial", "frequencies"), ("longrope", "frequencies")}


def check_message(name, argument, error):
    message = str(error)
    names = {*VALID[name]} if (name, argument) in TOGETHER else {argument}
    right = message.startswith(f"{name}: ") and any(re.search(rf"\b{n}\b", message) for n in names)
    assert right and len(message) > len(name) + 10, (name, argument, message)


@pytest.mark.parametrize("name", VALID)
def test_every_argument_is_checked(name):
    assert set(VALID) == set(pe.__all__)
    f, valid = getattr(pe, name), VALID[name]
    f(**valid)
    for i, argument in enumerate(valid):
        # In the default suite a part of what does not belong, another for each argument.
        for junk in JUNK if MANY > 1 else JUNK[i % 8 :: 8]:
            TRIED["arguments"] += 1
            try:
                jax.block_until_ready(f(**valid | {argument: junk}))
            except (TypeError, ValueError) as e:
                check_message(name, argument, e)
            except Exception as e:
                raise AssertionError(f"{name}: {argument} = {junk!r:.60} gives {type(e).__name__}: {e}") from e


# Positions, widths, layouts and transforms beside the oracle

INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
FLOATS = (np.float16, jnp.bfloat16, np.float32)
EDGES = [0, 1, -1, 2, 65535, 65536, -65536, 2**30, 2**31 - 1, -(2**31), 10**6, 2**31 - 65536]
SPECIAL = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1e-40,
    5e-39,
    1e-20,
    NAN,
    INF,
    -INF,
    2.0**31,
    -(2.0**31),
    2.0**31 - 128,
    1e30,
    12345.678,
    1e6 + 0.25,
]


@st.composite
def positions(draw):
    """An array of four positions of any dtype that is allowed."""
    dtype = np.dtype(draw(st.sampled_from(INTEGERS + FLOATS)))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
        values = st.sampled_from([x for x in EDGES if low <= x <= high]) | st.integers(low, high)
    else:
        values = st.sampled_from(SPECIAL) | st.floats(-(2.0**31), 2.0**31, width=32, exclude_max=True)
    with warnings.catch_warnings():  # 1e30 in float16 is infinite
        warnings.simplefilter("ignore")
        return np.array(draw(st.lists(values, min_size=4, max_size=4))).astype(dtype)


def waves_of(p, omegas):
    """True sine and cosine, NaN where a position is no number in the range of int32."""
    p = np.asarray(p).astype(np.float64)
    fits = np.isfinite(p) & (np.round(p) >= -(2.0**31)) & (np.round(p) < 2.0**31)
    result = oracle.waves(np.where(fits, p, 0), omegas)
    return tuple(np.where(fits[:, None], w, NAN) for w in result)


def split(x, layout):
    n = x.shape[-1] // 2
    return (x[..., :n], x[..., n:]) if layout == "half" else (x[..., 0::2], x[..., 1::2])


def join(a, b, layout):
    return np.concatenate([a, b], -1) if layout == "half" else np.stack([a, b], -1).reshape(*a.shape[:-1], -1)


ROWS = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)


def turn(x, sine, cosine, layout):
    a, b = split(x.astype(np.float64), layout)
    return join(a * cosine - b * sine, b * cosine + a * sine, layout)


def matrices(sine, cosine, layout):
    dim = 2 * sine.shape[-1]
    columns = [turn(np.broadcast_to(e, (4, dim)), -sine, cosine, layout) for e in np.eye(dim)]
    return np.stack(columns, -1)


# name → (function of positions (n,), rows (n, dim), dim and layout; the truth of rows, waves and layout)
FUNCTIONS = {
    "sinusoidal": (lambda p, x, dim, way: pe.sinusoidal(p, dim, layout=way), lambda x, s, c, way: join(s, c, way)),
    "add_sinusoidal": (lambda p, x, dim, way: pe.add_sinusoidal(x, p, layout=way), lambda x, s, c, way: x + join(s, c, way)),
    "rotary": (lambda p, x, dim, way: pe.rotary(x, p, layout=way, head_axis=None), turn),
    "shift": (lambda p, x, dim, way: pe.shift(x, p, dim, layout=way), lambda x, s, c, way: turn(x, -s, c, way)),
    "rotation_matrix": (lambda p, x, dim, way: pe.rotation_matrix(p, dim, layout=way), lambda x, s, c, way: matrices(s, c, way)),
    "offset_similarity": (lambda p, x, dim, way: pe.offset_similarity(p, dim), lambda x, s, c, way: c.sum(-1)),
    "timestep_embedding": (
        lambda p, x, dim, way: pe.timestep_embedding(p, dim, downscale_freq_shift=0),
        lambda x, s, c, way: join(s, c, "half"),
    ),
}  # fmt: skip


def exported(f, p, x):
    (n,) = export.symbolic_shape("n")
    shapes = (jax.ShapeDtypeStruct((n, *a.shape[1:]), a.dtype) for a in (p, x))
    return export.deserialize(export.export(jax.jit(f))(*shapes).serialize()).call(p, x)


def donated(f, p, x):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        return jax.jit(f, donate_argnums=1)(p, jnp.array(x))


def gradients(f, p, x):
    """The primal of a derivative, whose cotangents must be finite where the primal is."""
    y, back = jax.vjp(lambda x: f(p, x), x)
    (dx,) = back(jnp.ones_like(y))
    rows = np.isfinite(np.asarray(y)).reshape(len(p), -1).all(-1)
    assert np.isfinite(np.asarray(dx)[rows]).all()
    return y


TRANSFORMS = {
    "jit": lambda f, p, x: jax.jit(f)(p, x),
    "vmap": lambda f, p, x: jax.vmap(lambda p, x: f(p[None], x[None])[0])(p, x),
    "vmap of the last axis": lambda f, p, x: jnp.moveaxis(jax.vmap(lambda p, x: f(p, x), (1, 2), -1)(p[:, None], x[..., None]), -1, 0)[0],
    "scan": lambda f, p, x: jax.lax.scan(lambda c, px: (c, f(px[0][None], px[1][None])[0]), 0, (p, x))[1],
    "remat": lambda f, p, x: jax.jit(jax.checkpoint(f))(p, x),
    "export": exported,
    "donate": donated,
    "grad": gradients,
    "jacfwd": lambda f, p, x: jax.jacfwd(lambda t: f(p, x) * t, has_aux=False)(1.0),
    "jvp": lambda f, p, x: jax.jvp(lambda t: f(p, x) * t, (1.0,), (1.0,))[0],
}  # fmt: skip


def profile(examples):
    return settings(
        max_examples=examples * MANY,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


@profile(40)
@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.sampled_from(sorted(TRANSFORMS)),
    positions(),
    st.sampled_from([2, 4, 10]),
    st.sampled_from(["half", "interleaved"]),
    st.booleans(),
)
def test_positions_of_every_dtype_under_every_transform(name, transform, p, dim, way, wide):
    TRIED["positions"] += 1
    call, truth = FUNCTIONS[name]
    x = ROWS[:, :dim]
    f = lambda p, x: call(p, x, dim, way)  # noqa: E731
    with jax.enable_x64(wide):
        eager = np.asarray(f(p, x))
        if wide or p.dtype.itemsize <= 4:  # else JAX makes 32 bits of it before it comes to the function
            got = np.asarray(TRANSFORMS[transform](f, jnp.asarray(p), jnp.asarray(x)))
            if name == "offset_similarity":
                np.testing.assert_allclose(got, eager, rtol=0, atol=dim * 1e-7)
            else:
                np.testing.assert_array_equal(got, eager)
    want = truth(x, *waves_of(p, oracle.geometric(dim, 10_000)), way)
    assert eager.dtype == np.float32 and eager.shape == want.shape
    size = 1 + np.abs(x).max()
    finite = np.isfinite(want)
    if name != "rotation_matrix":  # whose zeros are zeros beside any position
        np.testing.assert_array_equal(np.isfinite(eager), finite)
    assert np.abs(eager - want)[finite].max(initial=0) <= 3e-7 * size * (dim if name == "offset_similarity" else 1)


# A bias for two heads → its truth from exact distances (queries, keys), the derivative's limit apart
BIASES = {
    "alibi": (lambda i, j: pe.alibi(i, j, ONES / 3), lambda d, after: -d * float(ONES[0] / 3)),
    "kerple_log": (lambda i, j: pe.kerple_log(i, j, ONES, ONES), lambda d, after: -np.log1p(d)),
    # Not ½, which a compiler that knows it makes a square root, with other bits.
    "kerple_power": (lambda i, j: pe.kerple_power(i, j, ONES, ONES * 0.75), lambda d, after: -(d**0.75)),
    "t5": (
        lambda i, j: pe.t5(i, j, np.repeat(np.arange(8.0, dtype=np.float32)[:, None], 2, 1), max_distance=16),
        lambda d, after: np.minimum(np.where(d < 2, d, np.where(d < 6, 2, 3)), 3) + 4 * after,  # √(2·16) = 5.7
    ),
}


@profile(40)
@given(st.sampled_from(sorted(BIASES)), st.sampled_from(INTEGERS[:3] + INTEGERS[4:6]), st.data())
def test_biases_of_exact_distances(name, dtype, data):
    TRIED["biases"] += 1
    info = np.iinfo(dtype)
    values = st.sampled_from([info.min, info.max, 0, 1, 5, 6]) | st.integers(info.min, info.max)
    i, j = (np.array(data.draw(st.lists(values, min_size=3, max_size=3)), dtype) for _ in range(2))
    call, truth = BIASES[name]
    got = call(i, j)
    distance = i[:, None].astype(np.int64) - j[None].astype(np.int64)
    want = truth(np.abs(distance).astype(np.float64), distance < 0)
    assert got.dtype == np.float32 and got.shape == (2, 3, 3)
    np.testing.assert_allclose(got, np.broadcast_to(want, got.shape), rtol=2e-6, atol=0)
    np.testing.assert_array_equal(jax.jit(call)(i, j), got)


@profile(30)
@given(
    st.lists(st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1, 2]), min_size=1, max_size=8),
    st.sampled_from(["zeros", "nan"]),
)
def test_learned_gives_its_row_or_none(rows, rule):
    TRIED["learned"] += 1
    got = np.asarray(pe.learned(np.array(rows, np.int32), ROWS[:3], out_of_range=rule))
    for p, row in zip(rows, got, strict=True):
        want = ROWS[p] if 0 <= p < 3 else np.full(64, 0 if rule == "zeros" else NAN, np.float32)
        np.testing.assert_array_equal(row, want)


@profile(30)
@given(st.lists(st.sampled_from([0, 0, 0, 1, -(2**31), 2**31 - 1]), min_size=1, max_size=12))
def test_positions_of_any_segments_and_masks(ids):
    TRIED["segments"] += 1
    want, count = [], 0
    for i, segment in enumerate(ids):
        count = count + 1 if i and ids[i - 1] == segment else 0
        want.append(count)
    np.testing.assert_array_equal(pe.positions_from_segments(np.array(ids, np.int32)), want)
    mask = np.array(ids) == 0
    counted = [sum(mask[:i]) if m else 0 for i, m in enumerate(mask)]
    np.testing.assert_array_equal(pe.positions_from_mask(mask), counted)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64], ids=str)
def test_traced_positions_outside_int32_are_nan_and_known_ones_refused(name, dtype):
    call = FUNCTIONS[name][0]
    f = lambda p: call(p, ROWS[:2, :4], 4, "half")  # noqa: E731
    with jax.enable_x64(True):
        p = jnp.array([5, 2**32 - 1 if dtype != np.int64 else -(2**31) - 1], dtype)
        with pytest.raises(
            ValueError, match=f"^{name}: (positions|offset|timesteps) must fit into int32, got {np.dtype(dtype)}"
        ):
            f(p)
        first, second = np.asarray(jax.jit(f)(p))
    assert np.isfinite(first).all() and np.isnan(second).any()


def test_no_nan_on_the_way_to_a_number():
    p = np.array([0.0, -0.0, 0.5, 1e-40, 2.0**31 - 128, -(2.0**31), 1e6 + 0.25, 3.0], np.float32)
    x = np.resize(ROWS, (8, 8)).astype(np.float32)
    with jax.debug_nans(True):
        for call, _ in FUNCTIONS.values():
            for way in ("half", "interleaved"):
                jax.block_until_ready(call(p, x, 8, way))
                # Not within jax.jit, so that JAX looks at every operation of the derivative.
                grad = jax.grad(lambda p, c=call, w=way: jnp.sum(c(p, x, 8, w)))
                jax.block_until_ready(grad(jnp.asarray(p)))
        for call, _ in BIASES.values():
            jax.block_until_ready(call(EXTREMES, EXTREMES))


EXTREMES = np.array([-(2**31), 2**31 - 1, 0, 1], np.int32)


# What cannot be counted, held or known

SHAPE, FLOAT = jax.ShapeDtypeStruct, jnp.float32
ATTEND = nnx.positional_attention(bias=functools.partial(pe.alibi, heads=1))
# Calls that count positions, of an array with n along its sequence
COUNTS = {
    "add_sinusoidal": (pe.add_sinusoidal, lambda n: SHAPE((2, n, 8), FLOAT)),
    "rotary": (pe.rotary, lambda n: SHAPE((n, 2, 8), FLOAT)),
    "rotary, heads first": (functools.partial(pe.rotary, head_axis=-3), lambda n: SHAPE((2, n, 8), FLOAT)),
    "xpos": (lambda x: pe.xpos(x, x), lambda n: SHAPE((n, 2, 8), FLOAT)),
    "positions_from_mask": (pe.positions_from_mask, lambda n: SHAPE((2, n), jnp.bool_)),
    "positions_from_segments": (pe.positions_from_segments, lambda n: SHAPE((2, n), jnp.int32)),
    "positional_attention": (lambda x: ATTEND(x, x, x), lambda n: SHAPE((n, 1, 8), FLOAT)),
    "add_sinusoidal, NNX": (nnx.SinusoidalEncoding(8), lambda n: SHAPE((n, 8), FLOAT)),
    "rotary, NNX": (nnx.RotaryEncoding(8, head_axis=-2), lambda n: SHAPE((n, 2, 8), FLOAT)),
    "add_sinusoidal, Linen": (linen.SinusoidalEncoding(8).bind({}), lambda n: SHAPE((n, 8), FLOAT)),
    "rotary, Linen": (linen.RotaryEncoding(8, head_axis=-2).bind({}), lambda n: SHAPE((n, 2, 8), FLOAT)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_no_more_positions_are_counted_than_int32_has(name):
    call, of_length = COUNTS[name]
    jax.eval_shape(call, of_length(2**31))
    for n in (2**31 + 1, 2**40):
        with pytest.raises(
            ValueError, match=f"^{name.split(',')[0]}: at most 2³¹ positions can be counted, .* length {n}\\b"
        ):
            jax.eval_shape(call, of_length(n))
    (n,) = export.symbolic_shape("n")
    jax.eval_shape(call, of_length(n))


@pytest.mark.parametrize(
    "module", [nnx.SinusoidalEncoding(8), linen.SinusoidalEncoding(8).bind({})], ids=["NNX", "Linen"]
)
def test_a_table_ends_with_int32(module):
    assert jax.eval_shape(lambda: module.table(2**31)).shape == (2**31, 8)
    with pytest.raises(ValueError, match="^SinusoidalEncoding.table: at most 2³¹ positions can be counted, got table"):
        jax.eval_shape(lambda: module.table(2**31 + 1))


# Which would give a number where NaN is due, or NaN for each negative wave
LACKING = {"float4_e2m1fn": "no NaN", "float6_e2m3fn": "no NaN", "float6_e3m2fn": "no NaN", "float8_e8m0fnu": "no negative numbers"}  # fmt: skip


@pytest.mark.parametrize("name", LACKING)
def test_formats_without_nan_or_sign_are_refused(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    x = np.ones((6, 8)).astype(dtype)
    calls = {
        "sinusoidal: dtype": lambda: pe.sinusoidal(NAN, 8, dtype=dtype),
        "sinusoidal: positions": lambda: pe.sinusoidal(x, 8),
        "sinusoidal: frequencies": lambda: pe.sinusoidal(P, x[0]),
        "learned: table": lambda: jax.jit(pe.learned)(P, x),
        "add_sinusoidal: x": lambda: pe.add_sinusoidal(x),
        "LearnedEncoding: param_dtype": lambda: linen.LearnedEncoding(8, 8, param_dtype=dtype).init(KEYS[0], X),
    }
    for begin, call in calls.items():
        with pytest.raises(TypeError, match=f"^{begin} is {name}, which has {LACKING[name]}"):
            call()


@pytest.mark.parametrize("name", ["e3m4", "e4m3", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2", "e5m2fnuz"])
def test_the_other_formats_of_8_bits_hold_what_they_must(name):
    dtype = np.dtype(getattr(ml_dtypes, f"float8_{name}"))
    got = np.asarray(pe.sinusoidal(np.array([-1, NAN], np.float32), 4, dtype=dtype)).astype(np.float32)
    assert got[0, 0] < -0.8 and np.isnan(got[1]).all()
    rows = jax.jit(pe.learned)(np.array([5, 0]), -np.ones((3, 2)).astype(dtype))
    np.testing.assert_array_equal(np.asarray(rows).astype(np.float32), [[NAN] * 2, [-1] * 2])


@pytest.mark.parametrize("dtype", [">i4", ">u2", ">i8"])
def test_integers_of_any_byte_order(dtype):
    p = np.array([0, 5, 300])
    np.testing.assert_array_equal(pe.sinusoidal(p.astype(dtype), 4), pe.sinusoidal(p, 4))
    np.testing.assert_array_equal(pe.alibi(p.astype(dtype), p.astype(">i2"), 2), pe.alibi(p, p, 2))


def test_a_width_must_be_known():
    (d,) = export.symbolic_shape("d")
    for name, call in {"rotary": pe.rotary, "add_sinusoidal": pe.add_sinusoidal}.items():
        for frequencies in (None, 8, pe.geometric(4)):
            with pytest.raises(ValueError, match=f"^{name}: x must have a last axis of known size, got shape .*d"):
                jax.eval_shape(lambda x, f=frequencies, g=call: g(x, None, f), SHAPE((6, 2, d), FLOAT))


def test_a_bound_on_a_symbolic_length_is_enough_for_a_table():
    (s,) = export.symbolic_shape("s", constraints=["s <= 6"])
    exported = export.export(jax.jit(pe.add_learned))(SHAPE((s, 8), FLOAT), SHAPE((6, 8), FLOAT))
    np.testing.assert_array_equal(exported.call(X[:4], X), pe.add_learned(X[:4], X))


@pytest.mark.parametrize("p", [NAN, INF, -INF, 2.0**31, 1e38])
def test_a_masked_row_leaves_the_derivative_by_frequencies_alone(p):
    w, at = jnp.array([0.5, 2.0]), jnp.array([3.0, p], FLOAT)
    calls = {
        "sinusoidal": lambda w, at: pe.sinusoidal(at, w),
        "add_sinusoidal": lambda w, at: pe.add_sinusoidal(ROWS[: len(at), :4], at, w),
        "rotation_matrix": lambda w, at: pe.rotation_matrix(at, w),
        "offset_similarity": lambda w, at: pe.offset_similarity(at, w),
        "fourier_features": lambda w, at: pe.fourier_features(at[:, None], w[None]),
    }
    for name, call in calls.items():
        masked = jax.grad(lambda w, at, f=call: jnp.sum(f(w, at)[0]))
        np.testing.assert_allclose(masked(w, at), masked(w, at[:1]), rtol=1e-6, err_msg=name)
