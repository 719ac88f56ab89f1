"""For drawn arrays of any dtype, shape and value: the exact result, NaN where no result exists, or an error.

- Encodings, biases, tables, attention with its gradients, and positions of segments and masks.
- No operation of a derivative gives NaN on the way to a number, and masked rows leave derivatives alone.

Hypothesis draws the same in every run; POSENC_HOSTILE=N multiplies the draws (`nox -f maintenance.py -s fuzz`).
"""

import math
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import checkify

import posenc_jax as pe
from helpers.biases import BIASES
from helpers.closeness import assert_within
from helpers.functions import FUNCTIONS
from helpers.hostile import EDGES, FLOATS, TRIED, print_what_was_tried, profile  # noqa: F401 (a fixture)
from helpers.slow import slow
from oracles import spectra
from oracles.attention import dense, may_see
from oracles.biases import exact_tile
from oracles.encodings import waves_or_nan
from oracles.positions import segments
from oracles.rotations import features, matrix, rotate

NAN, INF = float("nan"), float("inf")
INT32 = -(2**31), 2**31 - 1
INTEGERS = np.int8, np.int16, np.int32, np.uint8, np.uint16, np.int64, np.uint32, np.uint64
SPECIAL = [0.0, -0.0, 0.5, -0.5, 1e-40, 1e-20, NAN, INF, -INF, 2.0**31, -(2.0**31), 2.0**31 - 128, 1e30, 1e6 + 0.25]
# float64 beside the ends of int32, where rounding to the nearest integer decides
SPECIAL_64 = [5e-324, 2.0**31 - 0.6, 2.0**31 - 0.4, -(2.0**31) - 0.4, -(2.0**31) - 0.6, 1e300]
SHAPES = st.lists(st.sampled_from([2, 3, 1, 2, 3, 0]), max_size=3).map(tuple)  # axes of none, of one and of more
ROWS = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)


# One strategy for each kind of argument


def numbers(data, shape, dtype, within=INT32):
    """Draws an array of any numbers of the dtype; integers are from within[0] to within[1]."""
    dtype, size = np.dtype(dtype), math.prod(shape)
    if dtype.kind in "iu":
        low, high = max(np.iinfo(dtype).min, within[0]), min(np.iinfo(dtype).max, within[1])
        values = st.sampled_from([x for x in (low, high, *EDGES) if low <= x <= high]) | st.integers(low, high)
    else:
        wide = dtype == np.float64  # narrower dtypes draw float32, and round
        values = st.floats(-(2.0**31), 2.0**31, width=64 if wide else 32, exclude_max=True)
        values |= st.sampled_from(SPECIAL + SPECIAL_64 * wide)
    drawn = data.draw(st.lists(values, min_size=size, max_size=size))
    with warnings.catch_warnings():  # 1e30 in float16 is infinite
        warnings.simplefilter("ignore")
        return np.array(drawn, dtype if dtype.kind in "iu" else np.float64).astype(dtype).reshape(shape)


def narrower(data, shape):
    """Draws a shape that broadcasts to another: some axes are 1, and some leading axes are missing."""
    short = tuple(1 if data.draw(st.integers(0, 3)) == 0 else n for n in shape)
    return short[data.draw(st.integers(0, len(shape))) if data.draw(st.booleans()) else 0 :]


def floats_of(wide):
    return (*FLOATS, np.float64) if wide else FLOATS


def eps(*dtypes):
    """The largest spacing at 1 among the float dtypes."""
    return max(float(jnp.finfo(d).eps) for d in dtypes if jnp.issubdtype(d, jnp.floating))


def computed(name, f, *arrays):
    """f(*arrays). Arrays with positions beyond int32 are rejected if concrete, and then computed by jit."""
    finite = [x[np.isfinite(x)] for x in arrays if x.dtype.kind in "iuf"]
    if all(not x.size or INT32[0] <= x.min().item() <= x.max().item() <= INT32[1] for x in finite):
        return np.asarray(f(*arrays))
    with pytest.raises(ValueError, match=f"^{name}: (query_|key_)?positions must (fit into int32|be from 0 to)"):
        f(*arrays)
    return np.asarray(jax.jit(f)(*jax.device_put(arrays)))


# Encodings beside mpmath


def last_of_a_head(p, x, layout):
    """The second half of each head's features is rotated; the second of three heads is returned."""
    dim, heads = x.shape[-1], jnp.stack([jnp.concatenate([x, x], -1)] * 3, -2)
    return pe.rotary(heads, p, dim, layout=layout, part="last", head_axis=-2)[..., 1, dim:]


def second_of_two_axes(p, x, layout):
    """Features are rotated by the second of two coordinates; the first is 0."""
    # Else a row of coordinates might be read as one position per token.
    p = jnp.expand_dims(p, tuple(range(x.ndim - 1 - p.ndim)))
    twice, places = jnp.concatenate([x, x], -1), jnp.stack([jnp.zeros_like(p), p], -1)
    frequencies = pe.axial(2 * x.shape[-1], 2)
    return pe.rotary(twice, places, frequencies, layout="interleaved", head_axis=None)[..., x.shape[-1] :]


# name → (function(positions, rows (..., dim), layout), its float64 formula(rows, sines, cosines, layout))
ENCODINGS = {
    "sinusoidal": (
        lambda p, x, layout: pe.sinusoidal(p, x.shape[-1], layout=layout, dtype=x.dtype),
        lambda x, s, c, layout: features(s, c, layout),
    ),
    "add_sinusoidal": (
        lambda p, x, layout: pe.add_sinusoidal(x[None], p[None], layout=layout)[0],
        lambda x, s, c, layout: x + features(s, c, layout),
    ),
    "rotary": (lambda p, x, layout: pe.rotary(x, p, layout=layout, head_axis=None), rotate),
    "rotary, inverse": (
        lambda p, x, layout: pe.rotary(x, p, layout=layout, head_axis=None, inverse=True),
        lambda x, s, c, layout: rotate(x, -s, c, layout),
    ),
    "rotary, last of a head": (last_of_a_head, rotate),
    "rotary, second of two axes": (second_of_two_axes, lambda x, s, c, layout: rotate(x, s, c, "interleaved")),
    "shift": (
        lambda p, x, layout: pe.shift(x, p, x.shape[-1], layout=layout),
        lambda x, s, c, layout: rotate(x, -s, c, layout),
    ),
    "rotation_matrix": (
        lambda p, x, layout: pe.rotation_matrix(p, x.shape[-1], layout=layout, dtype=x.dtype),
        lambda x, s, c, layout: matrix(s, c, layout),
    ),
    "offset_similarity": (lambda p, x, layout: pe.offset_similarity(p, x.shape[-1]), lambda x, s, c, layout: c.sum(-1)),
    "timestep_embedding": (
        lambda p, x, layout: pe.timestep_embedding(p, x.shape[-1], downscale_freq_shift=0, dtype=x.dtype),
        lambda x, s, c, layout: features(s, c, "half"),
    ),
}
# The functions that read the rows, and not only their width and dtype
OF_ROWS = "add_sinusoidal", "shift", *(name for name in ENCODINGS if name.startswith("rotary"))


@pytest.mark.parametrize("name", ENCODINGS)
@profile(3)
@given(SHAPES, st.sampled_from([2, 4, 10]), st.sampled_from(["half", "interleaved"]), st.booleans(), st.data())
def test_encodings_at_any_positions(name, shape, dim, layout, wide, data):
    """By jit, beside mpmath; `wide` enables x64 and draws 64-bit dtypes too."""
    TRIED["positions"] += 1
    call, truth = ENCODINGS[name]
    per_token = name in OF_ROWS and name != "shift"  # a position for each token of a sequence
    p_shape = (*narrower(data, shape[:-1]), *shape[-1:]) if per_token else narrower(data, shape)
    p = numbers(data, p_shape, data.draw(st.sampled_from(INTEGERS + floats_of(wide)[-1 - wide :])))
    x = np.resize(ROWS, (*(shape if name in OF_ROWS else p.shape), dim)).astype(
        data.draw(st.sampled_from(floats_of(wide)))
    )
    sine, cosine = waves_or_nan(p, spectra.geometric(dim, 10_000))
    want = truth(x.astype(np.float64), sine, cosine, layout)
    with jax.enable_x64(wide):
        # Traced, because concrete positions outside int32 are rejected.
        got = np.asarray(jax.jit(lambda p, x: call(p, x, layout))(p, x))
    assert got.dtype == (np.float32 if name == "offset_similarity" else x.dtype) and got.shape == want.shape
    got, finite = got.astype(np.float64), np.isfinite(want)
    if name != "rotation_matrix":  # whose zeros stay zeros where the position is NaN
        np.testing.assert_array_equal(np.isfinite(got), finite)
    bound = (4e-7 + eps(x.dtype)) * (1 + np.abs(x.astype(np.float64)).max(initial=0))
    bound *= dim if name == "offset_similarity" else 1
    assert_within(got[finite], want[finite], bound, against=f"{name} by mpmath at 60 digits")


@pytest.mark.parametrize("dtype", [np.uint64, slow(np.int64), slow(np.uint32)], ids=str)
@pytest.mark.parametrize("name", ENCODINGS)
def test_traced_positions_outside_int32_are_nan_and_concrete_ones_refused(name, dtype):
    p = np.array([0, 5, 2**32 - 1 if dtype != np.int64 else -(2**31) - 1], dtype)
    call = lambda p: ENCODINGS[name][0](p, ROWS[:3, :4], "half")  # noqa: E731
    message = f"^{name.split(',')[0]}: (positions|offset|timesteps) must fit into int32, got {np.dtype(dtype)}"
    with jax.enable_x64(True):
        *inside, last = jax.device_get(jax.jit(call)(p))
        assert np.isfinite(inside).all() and np.isnan(last).any()
        for refused in (p, jax.device_put(p)):
            with pytest.raises(ValueError, match=message):
                call(refused)


# Biases beside their formulas of exact distances

# Dtypes of query and key positions
PAIRS = [
    *((d, d) for d in (*INTEGERS, np.float32)),
    (np.int32, np.float32),
    (np.float32, np.uint8),
    (np.uint8, np.int16),
]
WIDE_PAIRS = [(np.float64,) * 2, (np.float64, np.int64), (np.float32, np.float64), (np.uint64, np.float32)]


@pytest.mark.parametrize("name", BIASES)
@profile(3)
@given(SHAPES, st.booleans(), st.data())
def test_biases_of_any_positions(name, batch, wide, data):
    """Beside the float64 formula of exact distances; `wide` enables x64 and draws 64-bit dtypes too."""
    TRIED["biases"] += 1
    bias, batch = BIASES[name], batch[:2]
    call, truth = bias.beside(2)
    of_integers = lambda pair: {np.dtype(d).kind for d in pair} <= {*"iu"}  # noqa: E731
    kinds = data.draw(st.sampled_from([x for x in PAIRS + WIDE_PAIRS * wide if not bias.sided or of_integers(x)]))
    # Whether integers beyond int32 are drawn: without x64, JAX itself would cut 64-bit integers to 32 bits.
    anything = lambda d: not bias.rounded and (wide or np.dtype(d).itemsize <= 4)  # noqa: E731
    i, j = (
        numbers(
            data,
            (*narrower(data, batch), data.draw(st.sampled_from([1, 3, 0]))),
            d,
            (-(2**63), 2**64) if anything(d) else INT32,
        )
        for d in kinds
    )
    # Sandwich's phases are of each side by itself, so integers stay exact beside floats.
    # at: where each query is; d: the distances; after: whether the key is after the query.
    at, d, after = exact_tile(*(x.astype(np.float64) if name == "sandwich" else x for x in (i, j)))
    with np.errstate(all="ignore"):
        at, far = (x.astype(np.float32).astype(np.float64) for x in (at, d))
        if name == "sandwich":
            fits = np.isfinite(at) & (abs(np.round(at)) <= 2.0**31) & np.isfinite(far)
            of_queries, of_keys = (waves_or_nan(x, [1])[0][..., 0] for x in (i, j))
            fits &= np.isfinite(of_queries[..., None, :, None]) & np.isfinite(of_keys[..., None, None, :])
            want = np.where(fits, truth(np.where(fits, d, 0), at, after), NAN)
        else:  # compilers of float32 may take the smallest numbers for 0
            want = truth(np.where(abs(far) < np.finfo(np.float32).tiny, 0, far), at, after)
        want = want.astype(np.float32)
    with jax.enable_x64(wide):
        got = computed(name, call, i, j)
    assert got.dtype == np.float32 and got.shape[-3:] == (2, i.shape[-1], j.shape[-1])
    np.testing.assert_allclose(got, want, rtol=2e-6, atol={"sandwich": 6e-6, "fire": 2e-5}.get(name, 1e-37))


# Tables, attention, segments


@profile(8)
@given(SHAPES, st.sampled_from(INTEGERS), st.sampled_from(["error", "zeros", "nan"]), st.booleans(), st.data())
def test_learned_gives_its_row_or_none(shape, dtype, rule, wide, data):
    """Beyond the table of three rows the result is NaN or 0 by `rule`, or concrete positions are rejected."""
    TRIED["learned"] += 1
    limits = (-(2**63), 2**64) if wide or np.dtype(dtype).itemsize <= 4 else INT32
    p = numbers(data, shape, dtype, data.draw(st.sampled_from([limits, (0, 3)])))
    table = ROWS[:3, :2].astype(data.draw(st.sampled_from(floats_of(wide))))
    inside = np.array([0 <= int(x) < 3 for x in p.ravel()], bool).reshape(shape)
    rows = table[np.where(inside, p, 0).astype(int)].astype(np.float64)
    want = np.where(inside[..., None], rows, 0.0 if rule == "zeros" else NAN)
    call = partial(pe.learned, table=table, out_of_range=rule)
    with jax.enable_x64(wide):
        if rule == "error" and not inside.all():
            with pytest.raises(ValueError, match="^learned: positions must (be from 0 to 2|fit into int32), got "):
                call(p)
            got = np.asarray(jax.jit(call)(p))
        else:
            got = computed("learned", call, p)
    assert got.dtype == table.dtype
    np.testing.assert_array_equal(got.astype(np.float64), want)


FAR = st.integers(-20, 20) | st.sampled_from([*range(INT32[0], INT32[0] + 5), *range(INT32[1] - 4, INT32[1] + 1)])
WINDOWS = st.sampled_from([(None, None), (None, None), (2, None), (None, 1), (0, 3), (2**32 - 2, 0), (2**40, None)])
SINKS = st.sampled_from([None, None, (0.5, -1.0), (-INF, 3.0), (100.0, -100.0)])


@pytest.mark.parametrize("bias", [None, slow("alibi"), slow("kerple_log"), "t5"])
@profile(3)
@given(
    *(SHAPES, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([None, 0.5, -2.0])),
    *(st.sampled_from([1, 2, 512]), WINDOWS, st.sampled_from([None, 1.5]), SINKS, st.data()),
)
def test_attention_and_its_derivatives_at_any_positions(
    bias, batch, wide, placed, segmented, causal, scale, block, window, cap, sinks, data
):
    """Beside the dense float64 formula. `placed` draws positions, `segmented` segments; else they count from 0."""
    TRIED["attention"] += 1
    batch, dtype = batch[:2], data.draw(st.sampled_from(floats_of(wide)))
    queries, kv_heads = data.draw(st.sampled_from([1, 3, 0])), data.draw(st.sampled_from([1, 2]))
    keys = data.draw(st.sampled_from([1, 4, 0])) if placed else queries
    # (tokens, heads, features) of query, key and value; values may be wider than keys
    shapes = (queries, 2, 2), (keys, kv_heads, 2), (keys, kv_heads, 2 + (cap is None))
    q, k, v = (np.resize(ROWS[n:], (*batch, *shape)).astype(dtype) for n, shape in enumerate(shapes))
    draw = lambda values, n: np.array(data.draw(st.lists(values, min_size=n, max_size=n)), np.int32)  # noqa: E731
    i, j = (draw(FAR, queries), draw(FAR, keys)) if placed else (np.arange(queries), np.arange(keys))
    parts = (draw(st.integers(-1, 1), queries), draw(st.integers(-1, 1), keys)) if segmented else None
    sides = dict(query_positions=i, key_positions=j) if placed else {}
    sides |= dict(zip(("query_segments", "key_segments"), parts or (), strict=False))
    call, truth = BIASES[bias].beside(2) if bias else (None, lambda d, i, after: np.zeros((2, *d.shape[-2:])))
    at, d, after = exact_tile(i, j)
    added = truth(d.astype(np.float64), at, after).astype(np.float32)
    sinks = None if sinks is None else np.float32(sinks)
    inside, factor = np.float64 if dtype == np.float64 else np.float32, None  # inside: the dtype of the scores
    if data.draw(st.booleans()):  # a scale for each query and head multiplies the query, and the product is rounded
        scale = factor = np.resize(ROWS[2], (queries, 2)).astype(np.float32)
    settings = {"causal": causal, "window": window, "logits_soft_cap": cap, "sinks": sinks, "scale": scale}
    f = jax.jit(lambda q, k, v: pe.attention(q, k, v, bias=call, block_size=block, **settings, **sides))
    scaled_q, scale = (q, scale) if factor is None else ((q.astype(inside) * factor[..., None]).astype(dtype), 1.0)
    want, _, back = dense(
        scaled_q, k, v, added, may_see(i, j, causal, parts, window), scale, inside, cap=cap, sinks=sinks
    )
    bound = 2 * (eps(dtype) + 1e-6) * (1 + np.abs(ROWS[:, :32]).max())
    with jax.enable_x64(wide):
        got = np.asarray(f(q, k, v))
        dy = np.resize(ROWS[3:], got.shape).astype(dtype)
        gradient = jax.device_get(jax.jit(jax.grad(lambda *x: jnp.sum(f(*x) * dy), (0, 1, 2)))(q, k, v))
    assert got.dtype == dtype and got.shape == (*q.shape[:-1], v.shape[-1])
    assert_within(got, want, bound, against="the dense float64 formula")
    dq, *others = back(dy)[:3]
    dq = dq if factor is None else dq * factor[..., None]
    for name, mine, true in zip("qkv", gradient, (dq, *others), strict=True):
        assert_within(mine, true, 2 * bound, against=f"∂/∂{name} by the dense float64 formula")


@profile(10)
@given(
    st.lists(st.sampled_from([0, 0, 0, 1, -(2**31), 2**31 - 1]), min_size=1, max_size=12).map(
        lambda x: [*x, *[0] * 12][:12]
    )
)
def test_positions_of_any_segments_and_masks(ids):
    """Of twelve segment ids, beside the oracle; and of a mask that is true where the ids are 0, beside a count."""
    TRIED["segments"] += 1
    mask = np.array(ids) == 0
    np.testing.assert_array_equal(pe.positions_from_segments(np.array(ids, np.int32)), segments(ids))
    counted = [sum(mask[:i]) if m else 0 for i, m in enumerate(mask)]
    np.testing.assert_array_equal(pe.positions_from_mask(mask), counted)


# No NaN on the way to a number

# Without PRoPE: a lens whose focal length is 0 has no inverse.
OF_FLOATS = [name for name, row in FUNCTIONS.items() if row.floats and not name.startswith("prope")]


@pytest.mark.parametrize("name", [name if name == "fire" else slow(name) for name in OF_FLOATS])
def test_no_operation_of_a_derivative_gives_nan(name):
    """Where a third of the floats are 0, −0, subnormal, 1 or 0.001."""
    row = FUNCTIONS[name]
    extremes = [np.resize(np.float32([0.0, -0.0, 1e-40, 1.0, 1e-3]), x.shape) for x in row.floats]
    floats = [np.where(np.arange(x.size).reshape(x.shape) % 3, x, y) for x, y in zip(row.floats, extremes, strict=True)]

    def derivatives(*floats):
        y, back = jax.vjp(lambda *floats: row(*row.with_floats(floats)), *floats)
        return y, back(jax.tree.map(lambda y: jnp.ones(y.shape, y.dtype), y))

    error, found = jax.jit(checkify.checkify(derivatives, errors=checkify.nan_checks))(*floats)
    error.throw()
    assert all(np.isfinite(x).all() and np.any(x) for x in jax.tree.leaves(found))


BY_FREQUENCIES = ["sinusoidal, array", "add_sinusoidal, array", "rotation_matrix, halves", "offset_similarity, array"]


@pytest.mark.slow
@pytest.mark.parametrize("p", [NAN, INF])
@pytest.mark.parametrize("name", BY_FREQUENCIES)
def test_a_masked_row_leaves_the_derivative_by_frequencies_alone(name, p):
    """A second token at NaN or infinity changes nothing in the derivative of the first token's sum."""
    row = FUNCTIONS[name]
    argument = "offset" if "offset" in row.given else "positions"

    def of_the_first(w, last):
        """The derivative of the sum of the first token's results, beside one at `last`."""
        at = np.resize(np.float32([3.0, last]), row.arguments[argument].shape)
        call = lambda w: row.function(**row.arguments | {argument: at, "frequencies": w})  # noqa: E731
        return jax.jit(jax.grad(lambda w: jnp.sum(call(w)[:, 0])))(w)

    w = np.geomspace(1, 0.1, 4).astype(np.float32)
    want = np.asarray(of_the_first(w, 0.0))
    assert_within(of_the_first(w, p), want, 1e-6 * np.abs(want), against="beside a row at 0")


def test_a_query_that_sees_nothing_has_finite_derivatives():
    """Under a bias, a window, a soft cap and sinks that reach −∞."""
    q, k, v = np.resize(ROWS, (3, 3, 2, 4)).astype(np.float32)
    apart = {"query_segments": np.array([9, 0, 0]), "key_segments": np.zeros(3, np.int32)}

    def attend(q, k, v, slopes, sinks):
        settings = {"causal": True, "window": (1, 1), "logits_soft_cap": 2.0, "block_size": 2} | apart
        return jnp.sum(pe.attention(q, k, v, bias=lambda i, j: pe.alibi(i, j, slopes), sinks=sinks, **settings))

    gradient = jax.jit(checkify.checkify(jax.grad(attend, range(5)), errors=checkify.nan_checks))
    error, found = gradient(q, k, v, np.float32([0.5, 2.0]), np.float32([-INF, 1.0]))
    error.throw()
    assert all(np.isfinite(x).all() for x in found) and not np.asarray(found[0])[0].any()
