"""Hostile input: the right result, or an error that names the function and the argument; never anything else.

POSENC_HOSTILE=N multiplies what is tried (`nox -s fuzz`); every draw is the same in every run.
"""

import functools
import itertools
import math
import re
import warnings

import flax.nnx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export
from jax.experimental import checkify

import posenc_jax as pe
from helpers.biases import BIASES
from helpers.closeness import assert_within
from helpers.hostile import EDGES, FLOATS, MANY, THOROUGH, TRIED, print_what_was_tried, profile  # noqa: F401 (fixtures)
from helpers.quick import quick
from helpers.spectra import SCALINGS
from helpers.tiers import tiered
from oracles import spectra
from oracles.attention import dense, may_see
from oracles.biases import exact_tile
from oracles.encodings import waves_or_nan
from oracles.positions import segments
from oracles.rotations import features, matrix, rotate
from posenc_jax import hf, linen, nnx

SHAPE, FLOAT = jax.ShapeDtypeStruct, jnp.float32
NAN, INF = float("nan"), float("inf")


# Every argument of every function, and what it should not be

P, X, H = np.arange(6, dtype=np.int32), np.ones((6, 8), np.float32), np.ones((6, 2, 8), np.float32)
ONES, TILE = np.ones(2, np.float32), {"query_positions": P, "key_positions": P}
MLP = tuple(np.ones(shape, np.float32) for shape in ((4,), (4,), (4, 2), (2,)))
VALID = {
    "Frequencies": {"cycles": (1 << 120, 1 << 119), "dim": 4, "axes": (0, 1), "attention_factor": 1.0, "precision": "exact"},
    "hf.positions_from_tokens": {"config": {"model_type": "qwen2_5_vl", "image_token_id": 3, "video_token_id": 4}, "tokens": P, "image_grids": [(1, 2, 2)], "video_grids": [(1, 2, 2)], "video_seconds": [2.0], "mask": np.ones(6, bool)},
    "RotaryPlan.rotate": {"x": H, "layer": 1, "positions": P, "head_axis": -2, "role": "query", "scaled": True},
    "RotaryPlan.shift_keys": {"keys": H, "layer": 1, "offset": P, "head_axis": -2},
    "VisionPlan.positions": {"shape": (2, 3), "layer": 1},
    "VisionPlan.rotate": {"x": H, "layer": 1, "positions": np.ones((6, 2), np.int32), "head_axis": -2, "role": "key", "scaled": False},
    "VisionPlan.table_rows": {"table": np.ones((3, 5, 2), np.float32), "shape": (2, 3)},
    "add_learned": {"x": X, "table": X, "positions": P, "scale": 1.0, "out_of_range": "nan"},
    "add_sinusoidal": {"x": X, "positions": P, "frequencies": 8, "layout": "half", "scale": 2.0},
    "alibi": {**TILE, "heads": 2},
    "attention": {"query": H, "key": H, "value": H, **TILE, "query_order": P, "key_order": P, "query_segments": P, "key_segments": P, "causal": True, "window": (3, None), "logits_soft_cap": 2.0, "sinks": ONES, "scale": 0.5, "block_size": 4},
    "axial": {"frequencies": 8, "num_axes": 2, "base": 1e4},
    "convert_layout": {"weights": X, "frequencies": 8, "source": "half", "target": "interleaved", "axis": 1, "num_heads": 1, "part": "first"},
    "content_bias": {**TILE, "table": np.ones((12, 2, 8), np.float32), "query": H, "key": None, "first": -6, "max_distance": None, "out_of_range": "zeros"},
    "cos_sin": {"positions": P, "frequencies": 8, "columns": "half"},
    "fire": {**TILE, "mlp": MLP, "c": 0.1, "threshold": 8.0},
    "fourier_features": {"x": X, "matrix": np.ones((8, 3), np.float32), "layout": "half", "dtype": jnp.float32},
    "geometric": {"dim": 8, "base": 1e4, "endpoint": True},
    "grid_positions": {"shape": (2, 3), "order": "row", "leading": 1},
    "join": {"frequencies": 8, "axes": (0, 1)},
    "learned": {"positions": P, "table": X, "out_of_range": "nan"},
    "multi_section": {"frequencies": 8, "sections": (2, 1, 1), "interleaved": False},
    "multimodal_positions": {"parts": [2, (1, 2, 2)], "following": "side"},
    "offset_similarity": {"offset": P, "frequencies": 8},
    "pope": {"x": H, "positions": P, "frequencies": 16, "head_axis": -2, "phase": np.ones((2, 8), np.float32), "layout": "half"},
    "positions_from_lengths": {"lengths": P, "total": 20},
    "positions_from_mask": {"mask": np.ones(6, bool)},
    "positions_from_segments": {"ids": P, "padding": 0},
    "positions_from_tokens": {"tokens": P, "image_token": 3, "video_token": 4, "image_grids": [(1, 2, 2)], "video_grids": [(1, 2, 2)], "video_steps": [2.0], "spatial_merge_size": 2, "mask": np.ones(6, bool), "following": "side"},
    "prope": {"x": H, "extrinsics": np.eye(4, dtype=np.float32), "intrinsics": np.diag(np.float32([2, 3, 1])), "role": "query", "head_axis": -2, "image_size": (2.0, 3.0), "width": 4},
    "relative_position_bias": {"query_positions": np.zeros((6, 2), np.int32), "key_positions": np.ones((6, 2), np.int32), "table": np.ones((3, 5, 2), np.float32), "prefix": np.ones((3, 2), np.float32), "symmetric": False, "out_of_range": "nan"},
    "resize_table": {"table": X, "shape": 4, "method": "linear", "antialias": False, "align_corners": False, "zeros_outside": False, "size_offset": 0.1},
    "rotary": {"x": H, "positions": P, "frequencies": 8, "layout": "half", "head_axis": -2, "part": "first", "inverse": False},
    "rotation_matrix": {"offset": P, "frequencies": 8, "layout": "half", "dtype": jnp.float32},
    "shard_positions": {"length": 24, "shards": 2, "order": "zigzag", "lengths": 4 * P[:3]},
    "shift": {"encodings": X, "offset": P, "frequencies": 8, "layout": "half"},
    "shift_keys": {"keys": H, "offset": P, "frequencies": 8, "layout": "half", "head_axis": -2, "part": "first"},
    "sinusoidal": {"positions": P, "frequencies": 8, "layout": "half", "dtype": jnp.float32},
    "t5": {**TILE, "table": np.ones((8, 2), np.float32), "bidirectional": True, "max_distance": 16},
    "timestep_embedding": {"timesteps": P, "dim": 8, "flip_sin_to_cos": True, "downscale_freq_shift": 1.0, "scale": 1.0, "max_period": 1e4, "dtype": jnp.float32},
    "xpos": {"query": H, "key": H, "positions": P, "frequencies": 8, "key_positions": P, "origin": 0, "scale_base": 512.0, "gamma": 0.4, "layout": "half", "head_axis": -2},
}  # fmt: skip
VALID = {name: {**TILE, **bias.arguments(2)} for name, bias in BIASES.items()} | VALID
VALID |= {scaling.function.__name__: scaling.arguments for scaling in SCALINGS.values()}
KEYS = jax.random.wrap_key_data(np.arange(12, dtype=np.uint32).reshape(6, 2))
JUNK = [
    None, True, False, 0, -1, 1, 3, 7, -0.0, 0.5, 1e-320, 1e-39, 2e-38, 1e-20, 1e38, 1e308, -2.5, NAN, INF, -INF, 2**31, -(2**31) - 1, 2**63, 10**400,
    "", "half", "nan", "²", b"x", b"\2\2", 1j, object(), [], [1], [[1.0]], [None], (), (1, 2), (1.0, NAN), {}, {1: 2}, {1, 2}, range(3),
    np.int32, jnp.complex64, "float33", jnp.float64,
    np.float32(2), np.float32(1e-39), np.float32(NAN), np.int64(3), np.bool_(True), np.float64(1.5), np.timedelta64(1, "s"), np.array(2), np.array(NAN, np.float32),
    np.zeros(0, np.float32), np.zeros((0, 8), np.float32), np.zeros((6, 0), np.float32), np.zeros((2, 3, 4, 5), np.float32),
    np.ones(6, bool), np.ones(6, np.complex64), np.ones(6), np.full(6, 2**40), np.full(6, 2**32 - 1, np.uint32),
    np.full(6, NAN, np.float32), np.full(6, INF, np.float32), np.array(["a"] * 6), np.array([None] * 6), np.zeros(6, "M8[D]"),
    np.ones(6, "m8[s]"), np.ones(6, ">f4"), np.ones(6, ">i4"), np.ma.ones((6, 8)), np.ones(6, np.longdouble), np.ones(6, np.float16), np.arange(6, dtype=np.uint8),
    jax.random.wrap_key_data(np.arange(2, dtype=np.uint32)), KEYS, *jax.device_put([np.zeros(6, d) for d in (jnp.bfloat16, jnp.int4, jnp.float8_e4m3fn)]), jax.ShapeDtypeStruct((6,), jnp.float32),
    np.ones((6, 8), jnp.float4_e2m1fn), jnp.float4_e2m1fn, np.ones((6, 8), jnp.float8_e8m0fnu), np.full((6, 8), "a"), np.zeros((6, 8), "m8[s]"),
    pe.geometric(8), pe.axial(8, 2), pe.geometric(7), pe.geometric(0), flax.nnx.Param(jax.device_put(np.ones(6, np.float32))), flax.nnx.Param(jax.device_put(np.arange(6, dtype=np.int32))),
]  # fmt: skip


# Where two arguments must fit each other, the error may name the other one.
TOGETHER = {("convert_layout", "weights"), ("convert_layout", "axis"), ("rotary", "head_axis"), ("xpos", "head_axis")}
TOGETHER |= {("shift_keys", "head_axis"), ("RotaryPlan.shift_keys", "head_axis")}
TOGETHER |= {("pope", "head_axis"), ("prope", "head_axis"), ("prope", "intrinsics")}
TOGETHER |= {("RotaryPlan.rotate", "head_axis"), ("VisionPlan.rotate", "head_axis")}
PLAN = hf.RotaryPlan(
    (hf.RotaryLayer(pe.geometric(0), 8), hf.RotaryLayer(pe.geometric(8), 8, hf.QueryScale(0.1, 2))),
    "half",
    "first",
    1.5,
)
# Another token, size or mask may be valid and not fit the grids.
TOGETHER |= {(name, x) for name in ("positions_from_tokens", "hf.positions_from_tokens") for x in VALID[name]}
TOGETHER |= {("Frequencies", "cycles"), ("axial", "frequencies"), ("longrope", "frequencies")}


SLICED = hf.VisionPlan(
    (hf.RotaryLayer(pe.axial(8, 2), 8),) * 2, "half", grids=(hf.PatchGrid(),) * 2, slices=2, table="linear_aligned"
)


# What is called, where it is not the function of that name with these arguments.
CALLS = {"RotaryPlan.rotate": PLAN.rotate, "RotaryPlan.shift_keys": PLAN.shift_keys}
CALLS |= {"VisionPlan.positions": SLICED.positions, "VisionPlan.rotate": SLICED.rotate}
CALLS |= {
    "VisionPlan.table_rows": SLICED.table_rows,
    "hf.positions_from_tokens": hf.positions_from_tokens,
    "join": lambda frequencies, axes: pe.join(frequencies, 8, axes=axes),
}


def check_message(name, argument, error):
    message = str(error)
    names = {*VALID[name]} if (name, argument) in TOGETHER else {argument}
    right = message.startswith(f"{name.removeprefix('hf.')}: ") and any(re.search(rf"\b{n}\b", message) for n in names)
    assert right and len(message) > len(name) + 10, (name, argument, message)


# Where a finite position has no row in the table, for which the valid call asks NaN, or what it leads to is beyond float32
OUTSIDE = {("learned", "positions"), ("add_learned", "positions"), ("attention", "scale"), ("xpos", "scale_base")}
OUTSIDE |= {("relative_position_bias", f"{side}_positions") for side in ("query", "key")}


def is_finite(x):
    """Whether no float in it is NaN or infinite, nor a frequency."""
    leaves = jax.tree.leaves(x, is_leaf=lambda x: isinstance(x, pe.Frequencies))
    floats = (getattr(leaf, "angular", leaf) for leaf in leaves)
    floats = (x for x in floats if isinstance(x, float) or jnp.issubdtype(getattr(x, "dtype", None), jnp.floating))
    return all(np.isfinite(np.asarray(x, np.float64)).all() for x in floats)


# Errors come while a call is traced; what it computes of finite numbers takes a program for each shape.
HOW = {
    "traced": lambda f, arguments: jax.eval_shape(lambda: f(**arguments)),
    "computed": lambda f, arguments: f(**arguments),
}


@pytest.mark.parametrize("how", tiered(HOW, ["traced"]))
@pytest.mark.parametrize("name", VALID)
def test_every_argument_is_checked(name, how):
    of_plans = {
        "RotaryPlan.rotate",
        "RotaryPlan.shift_keys",
        *(f"VisionPlan.{name}" for name in ("positions", "rotate", "table_rows")),
    }
    assert {*VALID} == {*pe.__all__, *of_plans, "hf.positions_from_tokens"} - {"CosSin"}
    f, valid = CALLS.get(name) or getattr(pe, name), VALID[name]
    call = HOW[how]
    call(f, valid)
    for i, argument in enumerate(valid):
        # In the default suite a part of what does not belong, another for each argument.
        for junk in JUNK if MANY > 1 else JUNK[i % 8 :: 8]:
            TRIED["arguments"] += 1
            try:
                result = call(f, valid | {argument: junk})
                assert how == "traced" or is_finite(result) or not is_finite(junk) or (name, argument) in OUTSIDE, (
                    "of finite numbers"
                )
            except (TypeError, ValueError) as e:
                check_message(name, argument, e)
            except Exception as e:
                raise AssertionError(f"{name}: {argument} = {junk!r:.60} gives {type(e).__name__}: {e}") from e


def as_floats(arguments, dtype):
    """The arguments, their float32 arrays times ¾ and in another dtype."""
    leaf = lambda x: (0.75 * x).astype(dtype) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x  # noqa: E731
    return jax.tree.map(leaf, arguments)


def traced(f, arguments):
    """The text of a call's program and the arrays that it closes over."""
    jaxpr = jax.make_jaxpr(lambda: f(**arguments))()
    return str(jaxpr), jaxpr.consts


def same(got, want):
    for a, b in zip(got[1], want[1], strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    return got[0] == want[0]


@pytest.mark.parametrize("name", VALID)
def test_float64_of_numpy_without_x64(name):
    """Vectors are rounded as `jnp` rounds them; positions are read exactly, or rounded where that moves none."""
    f, valid = CALLS.get(name) or getattr(pe, name), VALID[name]
    with jax.enable_x64(False):
        if any(isinstance(leaf, np.ndarray) and leaf.dtype == np.float32 for leaf in jax.tree.leaves(valid)):
            assert same(*(traced(f, as_floats(valid, dtype)) for dtype in (np.float64, np.float32)))
        for argument in {*valid} & {*POSITIONS} - {"length"}:
            given = np.asarray(valid[argument])
            call = lambda p: traced(f, valid | {argument: p})  # noqa: B023, E731
            half = given.astype(np.float32) + np.float32(0.5)
            try:
                want = call(half)
            except TypeError:  # rows of a table are integers
                with pytest.raises(TypeError, match=f"^{name.removeprefix('hf.')}: {argument} must be an integer"):
                    call(given.astype(np.float64))
                continue
            assert same(call(half.astype(np.float64)), want)
            assert same(call(half + 0.1), call((half + 0.1).astype(np.float32)))
            assert same(call(given.astype(np.float64)), call(given))
            for moved in (np.full_like(half, 1e9, np.float64) + 0.5, np.full_like(half, 2.0**31, np.float64)):
                with pytest.raises(
                    ValueError, match=f"^{name}: {argument} must (fit into int32|be integers or floats)"
                ):
                    call(moved)
            for beyond in (np.full_like(half, 2.0**31), jax.device_put(np.full_like(half, -3e9))):
                with pytest.raises(ValueError, match=f"^{name}: {argument} must fit into int32, got float32 values"):
                    call(beyond)
            call(np.full_like(half, NAN)), call(np.full_like(half, 2**31 - 128))  # masked; the greatest in int32


POSITIONS = "positions query_positions key_positions offset timesteps origin length".split()
NARROW = jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e8m0fnu, jnp.float4_e2m1fn


@pytest.mark.parametrize("name", [name for name, valid in VALID.items() if {*valid} & {*POSITIONS}])
def test_floats_that_skip_integers_are_no_positions(name):
    f, valid = CALLS.get(name) or getattr(pe, name), VALID[name]
    for argument, dtype in itertools.product({*valid} & {*POSITIONS}, NARROW):
        call = lambda p: f(**valid | {argument: p})  # noqa: B023, E731
        for known_or_traced in (call, functools.partial(jax.eval_shape, call)):
            with pytest.raises(TypeError, match=f"^{name}: {argument} must be .*, got {jnp.dtype(dtype)}") as error:
                known_or_traced(np.ones(np.shape(valid[argument]), dtype))
            assert "an integer" in str(error.value) or "pass int32 or float32; .astype(jnp.float32) if" in str(
                error.value
            )


@pytest.mark.parametrize("name", [n for n, valid in VALID.items() if "frequencies" in valid and n != "axial"])
def test_frequencies_in_16_bits_are_refused(name):
    """Rounded to 16 bits they are off by up to one part in 256, which is a radian at position 1,000."""
    f, valid = CALLS.get(name) or getattr(pe, name), VALID[name]
    for dtype in NARROW[:2]:
        for w in (np.ones(4, dtype), jax.device_put(np.ones(4, dtype))):
            call = lambda w: f(**valid | {"frequencies": w})  # noqa: B023, E731
            for known_or_traced in (call, functools.partial(jax.eval_shape, call)):
                with pytest.raises(
                    TypeError, match=f"^{name}: frequencies must be (float32, got {jnp.dtype(dtype)}|Freq)"
                ):
                    known_or_traced(w)
    for dtype in NARROW[:2]:
        for w in (np.ones(4, dtype), [*np.ones(4, dtype)]):
            with pytest.raises(TypeError, match=r"^Frequencies.with_angular: angular(\[0\])? must be"):
                pe.geometric(8).with_angular(w)


def test_integers_of_16_bits_and_float32_are_positions():
    want = pe.timestep_embedding(937, 8)
    for dtype in (np.int16, np.uint16, np.float32):
        np.testing.assert_array_equal(pe.timestep_embedding(np.array(937, dtype), 8), want)
    with pytest.raises(
        TypeError, match="timesteps must be integers or float32, got bfloat16 of shape .*257 becomes 256"
    ):
        pe.timestep_embedding(jnp.bfloat16(937), 8)
    coordinates = np.array([[0.25, -0.5]], jnp.bfloat16)  # in [−1, 1], 16 bits may be all there is
    np.testing.assert_array_equal(
        pe.fourier_features(coordinates, MATRIX[:2]), pe.fourier_features(np.float32(coordinates), MATRIX[:2])
    )


# Shapes, dtypes and transforms, drawn

INTEGERS = (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.int64, np.uint32, np.uint64)
SPECIAL = [0.0, -0.0, 0.5, -0.5, 1e-40, 5e-39, 1e-20, NAN, INF, -INF]
SPECIAL += [2.0**31, -(2.0**31), 2.0**31 - 128, 1e30, 12345.678, 1e6 + 0.25]
SPECIAL_64 = [5e-324, 2.0**31 - 0.6, 2.0**31 - 0.4, -(2.0**31) - 0.4, -(2.0**31) - 0.6, 1e300]
# Axes of none, of one and of more, in any number
ROWS_SHAPE = st.lists(st.sampled_from([2, 3, 1, 2, 3, 0]), max_size=3).map(tuple)


def numbers(data, shape, dtype, within=(-(2**31), 2**31 - 1), finite=False):
    """An array of anything that the dtype holds, integers within limits, or of floats that have derivatives."""
    dtype, size = np.dtype(dtype), math.prod(shape)
    if dtype.kind in "iu":
        low, high = max(np.iinfo(dtype).min, within[0]), min(np.iinfo(dtype).max, within[1])
        values = st.sampled_from([x for x in (low, high, *EDGES) if low <= x <= high]) | st.integers(low, high)
    else:
        wide = dtype == np.float64
        special = (
            [x for x in SPECIAL if abs(x) < INF and not 0 < abs(x) < 1e-30] if finite else SPECIAL + SPECIAL_64 * wide
        )
        drawn = st.floats(-(2.0**31), 2.0**31, width=64 if wide else 32, exclude_max=True, allow_subnormal=not finite)
        values = st.sampled_from(special) | drawn
    with warnings.catch_warnings():  # 1e30 in float16 is infinite
        warnings.simplefilter("ignore")
        drawn = data.draw(st.lists(values, min_size=size, max_size=size))
        return np.array(drawn, dtype if dtype.kind in "iu" else np.float64).astype(dtype).reshape(shape)


def narrower(data, shape):
    """A shape that broadcasts to another."""
    ones = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    short = tuple(1 if one and data.draw(st.booleans()) else n for n, one in zip(shape, ones, strict=True))
    return short[data.draw(st.integers(0, len(shape))) if data.draw(st.booleans()) else 0 :]


def placing(data, shape):
    """A shape that broadcasts to another, with a position for each token of a sequence."""
    return *narrower(data, shape[:-1]), *shape[-1:]


def part_along(x, own, shape, k):
    """What of x, whose first axes broadcast to a shape, goes with axis k of that: an array, and its axis or None."""
    axis = k - (len(shape) - own)
    if axis < 0:
        return x, None
    return (x, axis) if x.shape[axis] == shape[k] else (x.squeeze(axis), None)


def scanned(f, arrays, axes, out):
    moving = [jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes, strict=True) if axis is not None]

    def step(carry, rows):
        rows = iter(rows)
        return carry, f(*(x if axis is None else next(rows) for x, axis in zip(arrays, axes, strict=True)))

    return jnp.moveaxis(jax.lax.scan(step, 0, moving)[1], 0, out)


def exported(f, arrays, axes, out):
    (n,) = export.symbolic_shape("n")
    shapes = [tuple(n if i == axis else m for i, m in enumerate(x.shape)) for x, axis in zip(arrays, axes, strict=True)]
    types = (SHAPE(shape, x.dtype) for shape, x in zip(shapes, arrays, strict=True))
    return export.deserialize(export.export(jax.jit(f))(*types).serialize()).call(*arrays)


def donated(f, arrays, axes, out):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        return jax.jit(f, donate_argnums=len(arrays) - 1)(*arrays[:-1], jnp.array(arrays[-1]))


def whole(f):
    """By default f is one program; op by op it is up to twenty."""
    return f if THOROUGH else jax.jit(f)


# f of arrays, mapped along one axis of each, or None, to one of the result: the same bits
SAME = {
    "jit": lambda f, arrays, axes, out: jax.jit(f)(*arrays),
    "vmap": lambda f, arrays, axes, out: jax.vmap(f, axes, out)(*arrays),
    "scan": scanned,
    "export": exported,
    "donate": donated,
}


def check_same(transform, f, want, arrays, own, shape, k=0, out=None, close=None):
    """Along axis k of a shape, to which the first axes of arrays broadcast; `own` says how many of each they are."""
    parts = (
        [part_along(x, n, shape, k) for x, n in zip(arrays, own, strict=True)] if shape else [(x, None) for x in arrays]
    )
    moved, axes = zip(*parts, strict=True)
    sizes = {x.shape[axis] for x, axis in parts if axis is not None}
    if not sizes or transform == "export" and 0 in sizes:  # nothing to map; symbolic sizes are at least 1
        transform = "jit"
    TRIED[transform] += 1
    arrays = jax.device_put(list(moved if transform in ("vmap", "scan") else arrays))
    got = SAME[transform](f, arrays, axes, k if out is None else out)
    assert got.dtype == want.dtype and got.shape == want.shape
    got, want = (np.asarray(y).astype(np.float64) for y in (got, want))
    np.testing.assert_allclose(got, want, rtol=0, atol=close) if close else np.testing.assert_array_equal(got, want)


def axis_of(data, shape):
    return data.draw(st.integers(0, max(len(shape) - 1, 0)))


def eps(*dtypes):
    return max(float(jnp.finfo(d).eps) for d in dtypes if jnp.issubdtype(d, jnp.floating))


# Positions beside the oracle


ROWS = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)


def last_of_a_head(p, x, way):
    dim, heads = x.shape[-1], jnp.stack([jnp.concatenate([x, x], -1)] * 3, -2)
    return pe.rotary(heads, p, dim, layout=way, part="last", head_axis=-2)[..., 1, dim:]


def second_of_two_axes(p, x, way):
    p = jnp.expand_dims(p, tuple(range(x.ndim - 1 - p.ndim)))  # else coordinates might be one position for each row
    dim, places = x.shape[-1], jnp.stack([jnp.zeros_like(p), p], -1)
    twice = jnp.concatenate([x, x], -1)
    return pe.rotary(twice, places, pe.axial(2 * dim, 2), layout="interleaved", head_axis=None)[..., dim:]


# name → (function of positions, rows (..., dim), layout and dtype; the truth of rows, waves and layout, affine in rows
# and in waves). An axis more where a function asks for a sequence.
FUNCTIONS = {
    "sinusoidal": (lambda p, x, way: pe.sinusoidal(p, x.shape[-1], layout=way, dtype=x.dtype), lambda x, s, c, way: features(s, c, way)),
    "add_sinusoidal": (lambda p, x, way: pe.add_sinusoidal(x[None], p[None], layout=way)[0], lambda x, s, c, way: x + features(s, c, way)),
    "rotary": (lambda p, x, way: pe.rotary(x, p, layout=way, head_axis=None), rotate),
    "rotary, inverse": (
        lambda p, x, way: pe.rotary(x, p, layout=way, head_axis=None, inverse=True),
        lambda x, s, c, way: rotate(x, -s, c, way),
    ),
    "rotary, heads first": (lambda p, x, way: pe.rotary(x[None, None], p[None], layout=way, head_axis=0)[0, 0], rotate),
    "rotary, last of a head": (last_of_a_head, rotate),
    "rotary, second of two axes": (second_of_two_axes, lambda x, s, c, way: rotate(x, s, c, "interleaved")),
    "shift": (lambda p, x, way: pe.shift(x, p, x.shape[-1], layout=way), lambda x, s, c, way: rotate(x, -s, c, way)),
    "rotation_matrix": (lambda p, x, way: pe.rotation_matrix(p, x.shape[-1], layout=way, dtype=x.dtype), lambda x, s, c, way: matrix(s, c, way)),
    "offset_similarity": (lambda p, x, way: pe.offset_similarity(p, x.shape[-1]), lambda x, s, c, way: c.sum(-1)),
    "timestep_embedding": (
        lambda p, x, way: pe.timestep_embedding(p, x.shape[-1], downscale_freq_shift=0, dtype=x.dtype),
        lambda x, s, c, way: features(s, c, "half"),
    ),
}  # fmt: skip
OF_ROWS = ("add_sinusoidal", "shift", *(name for name in FUNCTIONS if name.startswith("rotary")))
REVERSE_ONLY = "t5", "fire", "attention"  # of custom_vjp
NO_FORWARD = "forward-mode autodiff"


def derivatives(kind, name, f, p, x, y, by_p, by_x, known, bound):
    """Of y = f(p, x) by floats p and by x, beside ∂f/∂p and, of a direction v, ∂f/∂x·v; `known`: positions that are.

    Each is one program, unless it is eager.
    """
    TRIED[kind] += 1
    program, kind = program_of(kind)
    of_floats = jnp.issubdtype(p.dtype, jnp.floating)
    argnums, v = ((0, 1) if of_floats else (1,)), np.resize(ROWS[1:], x.shape).astype(x.dtype)
    arrays = tuple((p, x)[i] for i in argnums)
    g = lambda *floats: f(*floats) if of_floats else f(p, *floats)  # noqa: E731
    rows = np.broadcast_to(known, x.shape[:-1])
    tail = tuple(range(rows.ndim, y.ndim))
    against = f"of {name} by waves of mpmath at 60 digits"
    if kind in ("jvp", "jacfwd"):
        if name in REVERSE_ONLY:
            with pytest.raises(TypeError, match=NO_FORWARD):
                jax.jvp(g, arrays, arrays) if kind == "jvp" else jax.jacfwd(g, 0)(*arrays)
            return
        want = by_x(v) + by_p * of_floats
        if kind == "jvp":
            tangents = (*(np.ones(p.shape, p.dtype) for _ in argnums[1:]), v)
            got = np.asarray(program(lambda *pairs: jax.jvp(g, *pairs)[1])(arrays, tangents), np.float64)
        else:  # along the same direction, of all that is differentiated by
            jacobians = program(lambda *arrays: [jax.jacfwd(g, n)(*arrays) for n in range(len(arrays))])(*arrays)
            ways = (*(np.ones(p.shape) for _ in argnums[1:]), v.astype(np.float64))
            products = (
                np.asarray(j, np.float64).reshape(*y.shape, w.size) * w.ravel()
                for j, w in zip(jacobians, ways, strict=True)
            )
            got = sum(product.sum(-1) for product in products)
        want = np.broadcast_to(want, got.shape)
        assert_within(got[rows], want[rows], bound, against=f"tangent {against}")
        return
    ct = np.resize(ROWS[2:], y.shape).astype(y.dtype)
    loss = lambda *floats: jnp.sum((jax.checkpoint(g) if kind == "remat" else g)(*floats) * ct)  # noqa: E731
    *dp, dx = (np.asarray(d, np.float64) for d in program(jax.grad(loss, tuple(range(len(arrays)))))(*arrays))
    ct = ct.astype(np.float64)
    want = np.stack([(ct * by_x(np.broadcast_to(e, x.shape))).sum(tail) for e in np.eye(x.shape[-1])], -1)
    if name in OF_ROWS:
        assert_within(dx[rows], want[rows], bound, against=f"∂/∂x {against}")
    else:
        assert not dx.any()
    for d in dp:
        each = np.where(rows, np.broadcast_to((ct * by_p).sum(tail), rows.shape), 0)
        lead = each.ndim - p.ndim
        shared = tuple(i for i in range(each.ndim) if i < lead or p.shape[i - lead] == 1)
        want = each.sum(shared, keepdims=True).reshape(p.shape)
        assert_within(d[known], want[known], bound * (1 + np.abs(ct).sum()), against=f"∂/∂p {against}")


EAGER = "eager grad", "eager jvp"
DERIVATIVES = (
    "grad",
    "remat",
    "jvp",
    "jacfwd",  # jvp, mapped: of what is no function of positions, jvp alone
    *EAGER,
)


def program_of(kind):
    """How a derivative is computed, by jit or op by op, and which it is."""
    return (lambda f: f if kind in EAGER else jax.jit(f)), kind.removeprefix("eager ")


@pytest.mark.parametrize("transform", tiered([*SAME, *DERIVATIVES], ["vmap"]))
@profile(4)
@given(
    st.sampled_from(sorted(FUNCTIONS)),
    ROWS_SHAPE,
    st.sampled_from([2, 4, 10]),
    st.sampled_from(["half", "interleaved"]),
    st.booleans(),
    st.data(),
)
def test_positions_of_every_dtype_and_shape_under_every_transform(transform, name, shape, dim, way, wide, data):
    TRIED["positions"] += 1
    call, truth = FUNCTIONS[name]
    floats = (*FLOATS, np.float64) if wide else FLOATS
    draw_shape = placing if name in OF_ROWS and name != "shift" else narrower
    p = numbers(data, draw_shape(data, shape), data.draw(st.sampled_from(INTEGERS + floats[-1 - wide :])))
    lead = shape if name in OF_ROWS else p.shape
    x = np.resize(ROWS, (*lead, dim)).astype(data.draw(st.sampled_from(floats)))
    f = jax.jit(lambda p, x: call(p, x, way))  # known positions outside int32 raise
    omegas, exact = spectra.geometric(dim, 10_000), x.astype(np.float64)
    sine, cosine = waves_or_nan(p, omegas)
    want = truth(exact, sine, cosine, way)
    known = np.isfinite(sine).all(-1)
    bound = (4e-7 + eps(x.dtype)) * (1 + np.abs(exact).max(initial=0)) * (dim if name == "offset_similarity" else 1)
    with jax.enable_x64(wide):
        eager = np.asarray(f(p, x))
        if transform in SAME:
            # Where x is there for its width and dtype alone, one row of it.
            arrays, own = ((p, x), (p.ndim, len(lead))) if name in OF_ROWS else ((p, np.resize(x, dim)), (p.ndim, 0))
            close = dim * 1e-7 if name == "offset_similarity" else None
            check_same(transform, f, eager, arrays, own, lead, axis_of(data, lead), close=close)
        else:
            rates = np.array([float(w) for w in omegas])
            by_p = truth(exact, rates * cosine, -rates * sine, way) - truth(exact, 0 * sine, 0 * cosine, way)
            by_x = lambda v: truth(v, sine, cosine, way) - truth(0 * v, sine, cosine, way)  # noqa: E731
            bound_of = 4 * dim * (bound + eps(p.dtype, x.dtype) * (1 + np.abs(exact).max(initial=0)))
            derivatives(transform, name, f, *jax.device_put((p, x)), eager, by_p, by_x, known, bound_of)
    assert eager.dtype == (np.float32 if name == "offset_similarity" else x.dtype) and eager.shape == want.shape
    eager, finite = eager.astype(np.float64), np.isfinite(want)
    if name != "rotation_matrix":  # whose zeros are zeros beside any position
        np.testing.assert_array_equal(np.isfinite(eager), finite)
    assert_within(eager[finite], want[finite], bound, against=f"{name} by waves of mpmath at 60 digits")


# Biases of exact distances


# Of two heads: a bias; its truth from exact distances, the queries' positions and whether the key is after; its slope.
TRUTHS = {name: bias.beside(2) for name, bias in BIASES.items()}
SLOPING = [(np.float32, np.float32), (np.int32, np.float32), (np.float32, np.uint8)]
PAIRS = [(d, d) for d in (*INTEGERS, np.float32)] + [
    (np.int32, np.float32),
    (np.float32, np.uint8),
    (np.uint8, np.int16),
]
WIDE_PAIRS = [(np.float64,) * 2, (np.float64, np.int64), (np.float32, np.float64), (np.uint64, np.float32)]


def beyond_int32(*arrays):
    finite = [x[np.isfinite(x)] for x in arrays]
    return any(x.size and not -(2**31) <= x.min().item() <= x.max().item() <= 2**31 - 1 for x in finite)


def base_of(name, f, *arrays):
    """f(*arrays), by jit if it rejects those that are concrete because of positions beyond int32."""
    if not beyond_int32(*arrays):
        return np.asarray(f(*arrays))
    with pytest.raises(ValueError, match=f"^{name}: (query_|key_)?positions must fit into int32, got "):
        f(*arrays)
    return np.asarray(jax.jit(f)(*jax.device_put(arrays)))


def check_slopes(kind, f, i, j, d, after, slope):
    """Derivatives by float32 positions, from how the bias grows with the distance: by i as by −j, but at distance 0."""
    TRIED[f"{kind} of a bias"] += 1
    program, kind = program_of(kind)
    apart = np.broadcast_to(d != 0, slope(d).shape)
    by_i = slope(d) * np.where(after, -1.0, 1.0) * apart
    signs = [sign for sign, x in zip((1, -1), (i, j), strict=True) if x.dtype == np.float32]
    floats = [x for x in (i, j) if x.dtype == np.float32]
    g = lambda *x: f(*x) if len(x) == 2 else f(x[0], j) if i.dtype == np.float32 else f(i, x[0])  # noqa: E731
    if kind == "jvp":
        ways = [np.float32(1), np.float32(3)][: len(floats)]
        tangents = [np.full_like(x, w) for x, w in zip(floats, ways, strict=True)]
        got = program(lambda *pairs: jax.jvp(g, *pairs)[1])(floats, tangents)
        want = sum(by_i * s * w for s, w in zip(signs, ways, strict=True))
        np.testing.assert_allclose(np.where(apart, got, 0), want, rtol=1e-5, atol=1e-6)
        return
    ct = np.resize(ROWS, by_i.shape) * apart
    loss = lambda *x: jnp.sum((jax.checkpoint(g) if kind == "remat" else g)(*x) * ct)  # noqa: E731
    cotangents = program(jax.grad(loss, tuple(range(len(floats)))))(*floats)
    for x, sign, got in zip(floats, signs, cotangents, strict=True):
        rows = (ct * by_i).sum((-3, -1 if x is floats[0] and i.dtype == np.float32 else -2)) * sign
        lead = rows.ndim - x.ndim
        want = rows.sum(tuple(k for k in range(rows.ndim - 1) if k < lead or x.shape[k - lead] == 1), keepdims=True)
        np.testing.assert_allclose(got, want.reshape(x.shape), rtol=1e-5, atol=1e-6 + 1e-5 * np.abs(ct * by_i).sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, bias in BIASES.items() if bias.slope])
@pytest.mark.parametrize("kind", ["grad", "jvp", *EAGER])
def test_slopes_of_biases_at_drawn_positions(kind, name):
    call, _, slope = TRUTHS[name]
    rng = np.random.default_rng(0)
    i, j = rng.uniform(-50, 50, (2, 3)).astype(np.float32), rng.uniform(-50, 50, 4).astype(np.float32)
    j[0] = i[0, 0]  # and one distance is 0
    for queries, keys in ((i, j), (i, j.astype(np.int32)), (i.astype(np.int16), j)):
        _, d, after = exact_tile(queries, keys)
        check_slopes(kind, call, queries, keys, d.astype(np.float32).astype(np.float64), after, slope)


@pytest.mark.parametrize("transform", tiered([*SAME, "a step", *DERIVATIVES[:3]], ["a step"]))
@profile(3)
@given(
    st.sampled_from(sorted(BIASES)),
    ROWS_SHAPE,
    st.booleans(),
    st.data(),
)
def test_biases_of_any_positions_under_every_transform(transform, name, batch, wide, data):
    TRIED["biases"] += 1
    bias, (call, truth, slope) = BIASES[name], TRUTHS[name]
    pairs = [
        pair for pair in PAIRS + WIDE_PAIRS * wide if not bias.sided or {np.dtype(d).kind for d in pair} <= {*"iu"}
    ]
    sloping = slope is not None and transform in DERIVATIVES
    kinds, batch = data.draw(st.sampled_from(SLOPING if sloping else pairs)), batch[:2]
    within = [
        (-(2**63), 2**64) if not bias.rounded and (wide or np.dtype(d).itemsize <= 4) else (-(2**31), 2**31 - 1)
        for d in kinds
    ]
    lengths = (data.draw(st.sampled_from([1, 3, 0])) for _ in range(2))
    i, j = (
        numbers(data, (*narrower(data, batch), n), d, limits, sloping)
        for n, d, limits in zip(lengths, kinds, within, strict=True)
    )
    batch = np.broadcast_shapes(i.shape[:-1], j.shape[:-1])
    # Sandwich's phases are of each side by itself, so integers stay exact beside floats.
    at, d, after = exact_tile(*(x.astype(np.float64) if name == "sandwich" else x for x in (i, j)))
    with np.errstate(all="ignore"):
        at, far = (x.astype(np.float32).astype(np.float64) for x in (at, d))
        if name == "sandwich":
            fits = np.isfinite(at) & (abs(np.round(at)) <= 2.0**31) & np.isfinite(far)
            fits &= np.isfinite(waves_or_nan(i, [1])[0][..., None, :, None, 0]) & np.isfinite(
                waves_or_nan(j, [1])[0][..., None, None, :, 0]
            )
            want = np.where(fits, truth(np.where(fits, d, 0), at, after), NAN)
        else:
            far = np.where(abs(far) < np.finfo(np.float32).tiny, 0, far)  # as compilers of float32 do, or not
            want = truth(far, at, after)
    with jax.enable_x64(wide):
        got = base_of(name, call, i, j)
        close = 2e-5 if bias.rounded else None  # which sum as the compiler likes
        if transform == "a step":  # of decoding, for each query
            step = jax.jit(lambda i, j: call(i[..., None], j)[..., 0, :])
            way = data.draw(st.sampled_from(["vmap", "scan"]))
            check_same(way, step, got, (i, j), (i.ndim, 0), i.shape, i.ndim - 1, got.ndim - 2, close)
        elif transform in SAME:
            own = i.ndim - 1, j.ndim - 1
            check_same(transform, jax.jit(call), got, (i, j), own, batch, axis_of(data, batch), close=close)
        elif sloping and ((d == 0) | (far > 1e-30)).all():
            check_slopes(transform, call, i, j, far, after, slope)
    assert got.dtype == np.float32 and got.shape == want.shape == (*batch, 2, i.shape[-1], j.shape[-1])
    with np.errstate(over="ignore"):
        want = want.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol={"sandwich": 6e-6, "fire": 2e-5}.get(name, 1e-37))


# Tables


@pytest.mark.parametrize("transform", tiered([*SAME, *DERIVATIVES[:3]], ["vmap", "grad"]))
@profile(2)
@given(ROWS_SHAPE, st.sampled_from(INTEGERS), st.sampled_from(["error", "zeros", "nan"]), st.booleans(), st.data())  # fmt: skip
def test_learned_gives_its_row_or_none(transform, shape, dtype, rule, wide, data):
    TRIED["learned"] += 1
    limits = (-(2**63), 2**64) if wide or np.dtype(dtype).itemsize <= 4 else (-(2**31), 2**31 - 1)
    p = data.draw(
        st.sampled_from([lambda: numbers(data, shape, dtype, limits), lambda: numbers(data, shape, dtype, (0, 3))])
    )()
    table = ROWS[:3, :2].astype(data.draw(st.sampled_from((*FLOATS, np.float64) if wide else FLOATS)))
    f = lambda p, table: pe.learned(p, table, out_of_range=rule)  # noqa: E731
    inside = np.array([0 <= int(x) < 3 for x in p.ravel()], bool).reshape(shape)
    rows = np.where(inside, p, 0).astype(int)
    want = np.where(inside[..., None], table[rows].astype(np.float64), 0.0 if rule == "zeros" else NAN)
    with jax.enable_x64(wide):
        if rule == "error" and not inside.all():
            with pytest.raises(ValueError, match="^learned: positions must (be from 0 to 2|fit into int32), got "):
                f(p, table)
            got = np.asarray(jax.jit(f)(p, table))
        else:
            got = base_of("learned", f, p, table)
        np.testing.assert_array_equal(got.astype(np.float64), want)
        assert got.dtype == table.dtype
        if transform in SAME:
            check_same(transform, jax.jit(f), got, (p, table), (p.ndim, 0), shape, axis_of(data, shape))
            return
        if transform == "jvp":
            want = np.where(inside[..., None], table[rows].astype(np.float64), 0)
            tangent = jax.jit(lambda p, t: jax.jvp(functools.partial(f, p), (t,), (t,))[1])(p, table)
            np.testing.assert_array_equal(np.asarray(tangent).astype(np.float64), want)
            return
        ct = np.resize(np.arange(-3.0, 4), got.shape)  # whose sums are exact
        g = jax.checkpoint(f) if transform == "remat" else f
        loss = lambda t, p: jnp.sum(g(p, t) * ct.astype(t.dtype))  # noqa: E731
        want = np.stack([ct[inside & (rows == row)].sum(0) for row in range(3)])
        np.testing.assert_array_equal(np.asarray(jax.jit(jax.grad(loss))(table, p)).astype(np.float64), want)


# Attention beside the dense one


# Positions far and near
FAR = st.integers(-20, 20) | st.sampled_from([*range(-(2**31), -(2**31) + 5), *range(2**31 - 5, 2**31)])
SIDES = ("query_positions", "key_positions", "query_segments", "key_segments")


WINDOWS = st.sampled_from(
    [(None, None), (None, None), (2, None), (None, 1), (0, 3), (2**31, 2**31 - 1), (2**32 - 2, 0), (2**40, None)]
)
SINKS = st.sampled_from([None, None, (0.5, -1.0), (-INF, 3.0), (100.0, -100.0)])


@pytest.mark.parametrize("transform", tiered([*SAME, *DERIVATIVES[:3]], ["grad"]))
@profile(2)
@given(
    st.sampled_from([None, "alibi", "kerple_log", "t5"]), ROWS_SHAPE, st.booleans(),
    st.booleans(), st.booleans(), st.sampled_from([None, 0.5, -2.0]), st.sampled_from([1, 2, 512]), st.booleans(),
    WINDOWS, st.sampled_from([None, 1.5]), SINKS, st.data(),
)  # fmt: skip
def test_attention_of_any_positions_under_every_transform(
    transform, bias, batch, placed, segmented, causal, scale, block, wide, window, cap, sinks, data
):
    TRIED["attention"] += 1
    batch, dtype = batch[:2], data.draw(st.sampled_from((*FLOATS, np.float64) if wide else FLOATS))
    queries, kv_heads = data.draw(st.sampled_from([1, 3, 0])), data.draw(st.sampled_from([1, 2]))
    keys = data.draw(st.sampled_from([1, 4, 0])) if placed else queries
    q, k, v = (
        np.resize(ROWS[n:], (*batch, rows, heads, width)).astype(dtype)
        for n, (rows, heads, width) in enumerate(
            [(queries, 2, 2), (keys, kv_heads, 2), (keys, kv_heads, 2 + (cap is None))]
        )
    )
    draw = lambda values, n: np.array(data.draw(st.lists(values, min_size=n, max_size=n)), np.int32)  # noqa: E731
    i, j = (draw(FAR, queries), draw(FAR, keys)) if placed else (np.arange(queries), np.arange(keys))
    given_sides = {"query_positions": i, "key_positions": j} if placed else {}
    parts = None
    if segmented:
        parts = draw(st.integers(-1, 1), queries), draw(st.integers(-1, 1), keys)
        given_sides |= dict(zip(SIDES[2:], parts, strict=True))
    if data.draw(st.booleans()):  # of each query and head
        scale = np.resize(ROWS[2], (queries, 2)).astype(np.float32)
    sinks = None if sinks is None else np.float32(sinks)
    at, d, after = exact_tile(i, j)
    call, truth, _ = TRUTHS[bias] if bias else (None, lambda d, i, after: np.zeros((2, *d.shape[-2:])), None)
    added = truth(d.astype(np.float64), at, after).astype(np.float32).astype(np.float64)
    options = {"causal": causal, "window": window, "logits_soft_cap": cap, "sinks": sinks, "scale": scale}
    f = whole(lambda q, k, v: pe.attention(q, k, v, bias=call, block_size=block, **options, **given_sides))
    inside = np.float64 if dtype == np.float64 else np.float32
    of, c = q, scale
    if isinstance(scale, np.ndarray):  # it multiplies the query, which is rounded
        of, c = (q.astype(inside) * scale.astype(inside)[..., None]).astype(dtype), 1.0
    want, _, back = dense(of, k, v, added, may_see(i, j, causal, parts, window), c, inside, cap=cap, sinks=sinks)
    bound = 2 * (eps(dtype) + 1e-6) * (1 + np.abs(ROWS[:, :32]).max())
    with jax.enable_x64(wide):
        got = np.asarray(f(q, k, v))
        dy = np.resize(ROWS[3:], got.shape).astype(dtype)
        dq, dk, dv, *_ = back(dy)
        dq = dq * (np.float64(scale)[..., None] if of is not q else 1)
        if transform in SAME:
            check_same(transform, f, got, (q, k, v), (len(batch),) * 3, batch, axis_of(data, batch), close=bound)
        elif transform == "jvp":  # ⟨ȳ, ẏ⟩ = ⟨x̄, ẋ⟩
            TRIED["jvp of attention"] += 1
            along = tuple(np.resize(ROWS[n + 1 :], x.shape).astype(dtype) for n, x in enumerate((q, k, v)))
            tangent = np.asarray(quick(lambda x, v: jax.jvp(f, x, v)[1])((q, k, v), along))
            assert tangent.dtype == dtype and tangent.shape == got.shape and np.isfinite(tangent.astype(float)).all()
            dot = lambda a, b: np.sum(np.float64(a) * np.float64(b))  # noqa: E731
            by_all = sum(dot(a, b) for a, b in zip((dq, dk, dv), along, strict=True))
            assert abs(dot(dy, tangent) - by_all) <= 4 * bound * (1 + np.abs(np.float64(dy)).sum())
        else:
            TRIED[f"{transform} of attention"] += 1
            g = jax.checkpoint(f) if transform == "remat" else f
            cotangents = quick(jax.grad(lambda *x: jnp.sum(g(*x) * dy), (0, 1, 2)))(q, k, v)
            for name, mine, true in zip("qkv", cotangents, (dq, dk, dv), strict=True):
                assert_within(mine, true, 2 * bound, against=f"∂/∂{name} by the dense float64 formula")
    assert got.dtype == dtype and got.shape == (*q.shape[:-1], v.shape[-1])
    assert_within(got, want, bound, against="the dense float64 formula")


# What turns or adds near the origin, and modules

MATRIX = np.resize(ROWS, (8, 3))
# Functions of near positions and rows (..., 8), and whether they are linear in the rows
NEAR = {
    "xpos, query": (lambda p, x: pe.xpos(x, x, p, layout="interleaved", head_axis=None)[0], True),
    "xpos, key": (lambda p, x: pe.xpos(x, x, p, origin=50, head_axis=None)[1], True),
    "fourier_features": (lambda p, x: pe.fourier_features(x, MATRIX, dtype=x.dtype), False),
    "SinusoidalEncoding, NNX": (lambda p, x: nnx.SinusoidalEncoding(8, scale=2.0)(x[None], p[None])[0], False),
    "SinusoidalEncoding, Linen": (
        lambda p, x: linen.SinusoidalEncoding(8, scale=2.0).apply({}, x[None], p[None])[0],
        False,
    ),
    "RotaryEncoding, NNX": (lambda p, x: nnx.RotaryEncoding(8, head_axis=None)(x, p), True),
    "RotaryEncoding, Linen": (lambda p, x: linen.RotaryEncoding(8, head_axis=None).apply({}, x, p), True),
}


@pytest.mark.parametrize("transform", tiered([*SAME, "grad", "remat"], ["vmap"]))
@profile(2)
@given(
    st.sampled_from(sorted(NEAR)),
    ROWS_SHAPE,
    st.sampled_from((*INTEGERS, np.float32)),
    st.sampled_from(FLOATS),
    st.data(),
)
def test_the_rest_under_every_transform(transform, name, shape, at, dtype, data):
    TRIED["others"] += 1
    f, linear = NEAR[name]
    p = numbers(data, placing(data, shape), at, (-900, 900), finite=True)
    p = np.clip(p, -900, 900) if p.dtype.kind not in "iu" else p
    x = np.resize(ROWS, (*shape, 8)).astype(dtype)
    got = np.asarray(f(p, x))
    assert got.dtype == dtype and got.shape[:-1] == shape and np.isfinite(got.astype(np.float64)).all()
    if transform in SAME:
        close = 4 * eps(dtype) if name == "fourier_features" else None  # a sum as the compiler likes
        check_same(transform, f, got, (p, x), (p.ndim, len(shape)), shape, axis_of(data, shape), close=close)
        return
    TRIED[transform] += 1
    ct = np.resize(ROWS[2:], got.shape).astype(dtype)
    g = jax.checkpoint(f) if transform == "remat" else f
    dx = np.asarray(quick(jax.grad(lambda x, p: jnp.sum(g(p, x) * ct)))(x, p), np.float64)
    along = (dx * x.astype(np.float64)).sum()
    if linear:  # ẋ·x = ẏ·y
        y = (ct.astype(np.float64) * got.astype(np.float64)).sum()
        scale = np.abs(ct.astype(np.float64)).sum() * np.abs(got.astype(np.float64)).max(initial=0)
        assert abs(along - y) <= 4 * eps(dtype) * scale
    elif name.startswith("Sinusoidal"):
        np.testing.assert_array_equal(dx, 2 * ct.astype(np.float64))


# Segments and masks


# Each length compiles one program, so there are few by default.
LISTS_OF_IDS = st.sampled_from([1, 2, 5, 12] if MANY == 1 else range(1, 13)).flatmap(
    lambda n: st.lists(st.sampled_from([0, 0, 0, 1, -(2**31), 2**31 - 1]), min_size=n, max_size=n)
)


@profile(30, default=10)
@given(LISTS_OF_IDS)
def test_positions_of_any_segments_and_masks(ids):
    TRIED["segments"] += 1
    mask = np.array(ids) == 0
    counted = [sum(mask[:i]) if m else 0 for i, m in enumerate(mask)]
    of_both = quick(lambda ids, mask: (pe.positions_from_segments(ids), pe.positions_from_mask(mask)))
    by_segments, by_mask = of_both(np.array(ids, np.int32), mask)
    np.testing.assert_array_equal(by_segments, segments(ids))
    np.testing.assert_array_equal(by_mask, counted)


@pytest.mark.parametrize("dtype", tiered([np.int64, np.uint32, np.uint64], [np.uint64]), ids=str)
def test_traced_positions_outside_int32_are_nan_and_known_ones_refused(dtype):
    p = np.array([0, 5, 2**32 - 1 if dtype != np.int64 else -(2**31) - 1], dtype)

    def each(p):
        return {name: call(p, ROWS[: len(p), :4], "half") for name, (call, _) in FUNCTIONS.items()}

    with jax.enable_x64(True):
        known, traced = jax.device_get((jax.jit(lambda: each(p[:-1]))(), jax.jit(each)(p)))
        for name, (call, _) in FUNCTIONS.items():
            *inside, last = traced[name]
            np.testing.assert_array_equal(inside, known[name], err_msg=name)
            assert np.isfinite(inside).all() and np.isnan(last).any(), name
            message = f"^{name.split(',')[0]}: (positions|offset|timesteps) must fit into int32, got {np.dtype(dtype)}"
            for refused in (p, jax.device_put(p)):
                with pytest.raises(ValueError, match=message):
                    call(refused, ROWS[:3, :4], "half")


@pytest.mark.slow
def test_no_nan_on_the_way_to_a_number():
    p = np.array([0.0, -0.0, 0.5, 1e-40, 2.0**31 - 128, -(2.0**31), 1e6 + 0.25, 3.0], np.float32)
    x = np.resize(ROWS, (8, 8)).astype(np.float32)

    def value_and_cotangents(call, *arrays):
        y, back = jax.vjp(call, *arrays)
        return jax.block_until_ready((y, back(np.ones(y.shape, y.dtype))))

    with jax.debug_nans(True):
        for name, (call, _) in FUNCTIONS.items():
            calls = [functools.partial(call, way=way) for way in ("half", "interleaved")]
            if name in OF_ROWS[1:]:  # whose derivative is one program even if eager: JAX looks at its results
                jax.jit(lambda *arrays, cs=calls: [value_and_cotangents(c, *arrays) for c in cs])(p, x)
                continue
            for c in calls:
                # Not within jax.jit, so that JAX looks at every operation of the derivative.
                value_and_cotangents(lambda p, c=c: c(p, x), jax.device_put(p))
        for call, *_ in TRUTHS.values():
            jax.block_until_ready(call(EXTREMES, EXTREMES))


FREE, SOME = np.array([0.0, 1e-3, 1.0, 3.0], np.float32), np.array([-1, 0, 7, 2**31 - 1], np.int32)
SLOPES, NONE = np.float32([0.5, 2.0]), {"query_segments": np.array([9, 0, 0]), "key_segments": np.zeros(3, np.int32)}
# Functions of floats, by all of which there are derivatives; the first query sees nothing
FREELY = {
    name: (functools.partial(call, SOME, SOME[::-1]), *parameters)
    if bias.sided
    else (lambda i, *parameters, call=call: call(i, FREE, *parameters), FREE, *parameters)
    for name, bias in BIASES.items()
    for call, parameters in [bias.of(2)]
} | {
    "attention": (
        lambda q, k, v, m, s, c: pe.attention(
            q, k, v, bias=lambda i, j: pe.alibi(i, j, m), causal=True, window=(1, 1), sinks=s, scale=c, logits_soft_cap=2.0, block_size=2, **NONE
        ),
        *np.float32(np.resize(ROWS, (3, 3, 2, 4))), SLOPES, SLOPES, FREE[2:],
    ),
    "content_bias": (lambda q, t: pe.content_bias(SOME, SOME[::-1], t, query=q, out_of_range="zeros"), np.float32(np.resize(ROWS, (len(SOME), 2, 4))), np.ones((7, 2, 4), np.float32)),
    "fire": (lambda i, c, t, *mlp: pe.fire(i, FREE, mlp, c=c, threshold=t), FREE, np.float32(0.1), np.float32(8), *MLP),
    "fourier_features": (pe.fourier_features, np.resize(FREE, (4, 2)), np.resize(FREE, (2, 3))),
    "learned": (lambda table: pe.learned(np.array([0, 2, 1]), table), np.ones((3, 2), np.float32)),
    "relative_position_bias": (
        lambda table, prefix: pe.relative_position_bias(SOME, SOME[::-1], table, prefix=prefix, out_of_range="zeros"),
        np.ones((7, 2), np.float32),
        np.ones((3, 2), np.float32),
    ),
    "pope": (lambda x, p, w, d: pe.pope(x, p, w, phase=d, head_axis=None), np.float32(np.resize(ROWS, (4, 4))), FREE, FREE, FREE),
    "rotary": (lambda x, p, w: pe.rotary(x, p, w, head_axis=None), np.ones((4, 8), np.float32), FREE, FREE),
    "sandwich": (lambda i, j, w: pe.sandwich(i, j, 2, w), FREE, FREE, FREE),
    "sinusoidal": (pe.sinusoidal, FREE, FREE),
    "xpos": (lambda q, k, p: pe.xpos(q, k, p, head_axis=-2), H[:4], H[:4], FREE),
}  # fmt: skip


def by_all(f):
    """The derivatives of f by all of its arguments."""

    def of(*floats):
        y, back = jax.vjp(f, *floats)
        return back(jax.tree.map(lambda y: np.resize(ROWS, y.shape), y))

    return of


@pytest.mark.parametrize("name", tiered(FREELY, ["attention"]))
def test_no_operation_of_any_derivative_gives_nan(name):
    f, *floats = FREELY[name]
    error, found = quick(checkify.checkify(by_all(f), errors=checkify.nan_checks))(*floats)
    error.throw()
    for x in map(np.asarray, jax.tree.leaves(found)):
        assert np.isfinite(x).all() and x.any()


@pytest.mark.slow
@pytest.mark.parametrize("name", FREELY)
def test_no_nan_on_the_way_of_any_derivative(name):
    f, *floats = FREELY[name]
    floats = jax.device_put(floats)
    with jax.debug_nans(True):
        eager, jitted = (jax.block_until_ready(g(*floats)) for g in (by_all(f), quick(by_all(f))))
    for i, (a, b) in enumerate(zip(eager, jitted, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        assert np.isfinite(a).all() and a.any()
        assert_within(a, b, 1e-4 * (np.abs(a).max() + np.abs(b)), against=f"∂/∂ argument {i} in one program")


EXTREMES = np.array([-(2**31), 2**31 - 1, 0, 1], np.int32)


# What cannot be counted, held or known

ATTEND = nnx.positional_attention(bias=functools.partial(pe.alibi, heads=1))
# Calls that count positions, of an array with n along its sequence
COUNTS = {
    "add_sinusoidal": (pe.add_sinusoidal, lambda n: SHAPE((2, n, 8), FLOAT)),
    "rotary": (functools.partial(pe.rotary, head_axis=-2), lambda n: SHAPE((n, 2, 8), FLOAT)),
    "rotary, heads first": (functools.partial(pe.rotary, head_axis=-3), lambda n: SHAPE((2, n, 8), FLOAT)),
    "xpos": (lambda x: pe.xpos(x, x, head_axis=-2), lambda n: SHAPE((n, 2, 8), FLOAT)),
    "pope": (functools.partial(pe.pope, head_axis=-2), lambda n: SHAPE((n, 2, 8), FLOAT)),
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


def test_attention_counts_no_more_either():
    call = functools.partial(pe.attention, causal=True)
    jax.eval_shape(call, *[SHAPE((2**31, 2, 8), FLOAT)] * 3)
    with pytest.raises(
        ValueError, match="^attention: at most 2³¹ positions can be counted, got query of length 2147483649"
    ):
        jax.eval_shape(call, *[SHAPE((2**31 + 1, 2, 8), FLOAT)] * 3)
    with pytest.raises(ValueError, match="^positional_attention: .* got query of length 2147483649"):
        jax.eval_shape(ATTEND, *[SHAPE((2**31 + 1, 1, 8), FLOAT)] * 3)


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
        "sinusoidal: frequencies": lambda: pe.sinusoidal(P, x[0]),
        "learned: table": lambda: jax.jit(lambda p: pe.learned(p, x))(P),
        "add_sinusoidal: x": lambda: pe.add_sinusoidal(x),
        "LearnedEncoding: param_dtype": lambda: linen.LearnedEncoding(8, 8, param_dtype=dtype).init(KEYS[0], X),
    }
    for begin, call in calls.items():
        # To an older JAX a format that it does not have is none of floats.
        is_float = jnp.issubdtype(dtype, jnp.floating) and "frequencies" not in begin  # no 8 bits there at all
        why = f"is {name}, which has {LACKING[name]}" if is_float else f"must be .*float.* got {name}"
        with pytest.raises(TypeError, match=f"^{begin} {why}"):
            call()


FORMATS = {
    name: np.dtype(getattr(ml_dtypes, f"float8_{name}"))
    for name in ("e3m4", "e4m3", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2", "e5m2fnuz")
}


def test_the_other_formats_of_8_bits_hold_what_they_must():
    @quick
    def encodings_and_rows(p, at, tables):
        return {name: (pe.sinusoidal(p, 4, dtype=FORMATS[name]), pe.learned(at, t)) for name, t in tables.items()}

    tables = {name: -np.ones((3, 2)).astype(dtype) for name, dtype in FORMATS.items()}
    for name, found in encodings_and_rows(np.array([-1, NAN], np.float32), np.array([5, 0]), tables).items():
        assert found[0].dtype == found[1].dtype == FORMATS[name]
        got, rows = (np.asarray(x).astype(np.float32) for x in found)
        assert got[0, 0] < -0.8 and np.isnan(got[1]).all(), name
        np.testing.assert_array_equal(rows, [[NAN] * 2, [-1] * 2], err_msg=name)


@pytest.mark.parametrize("dtype", [">i4", ">u2", ">i8"])
def test_integers_of_any_byte_order(dtype):
    p = np.array([0, 5, 300])
    np.testing.assert_array_equal(pe.sinusoidal(p.astype(dtype), 4), pe.sinusoidal(p, 4))
    np.testing.assert_array_equal(pe.alibi(p.astype(dtype), p.astype(">i2"), 2), pe.alibi(p, p, 2))


# Calls with an array of symbolic shape, the argument that it is, that shape for n, and the axis that must be known
UNKNOWN = [
    *((f, "x", lambda n: (6, 2, n), 2) for f in (functools.partial(pe.rotary, head_axis=-2), lambda x: pe.rotary(x, None, 8, head_axis=-2), pe.add_sinusoidal)),
    (lambda w: pe.sinusoidal(P, w), "frequencies", lambda n: (n,), 0),
    (lambda w: pe.rotary(H, P, w, head_axis=-2), "frequencies", lambda n: (n,), 0),
    (lambda w: pe.rotation_matrix(P, w), "frequencies", lambda n: (n,), 0),
    (lambda x: pe.shift(x, P, 8), "encodings", lambda n: (6, n), 1),
    (lambda t: pe.t5(P, P, t), "table", lambda n: (n, 2), 0),
    (lambda t: pe.relative_position_bias(P, P, t), "table", lambda n: (n, 2), 0),
    (lambda t: pe.content_bias(P, P, t, query=H), "table", lambda n: (n, 8), 0),
    (lambda w: pe.fire(P, P, (w, *MLP[1:]), c=0.1, threshold=9.0), "w1 of mlp", lambda n: (n,), 0),
    (lambda w: pe.fire(P, P, (*MLP[:2], w, MLP[3]), c=0.1, threshold=9.0), "w2 of mlp", lambda n: (n, 2), 0),
    (lambda t: pe.add_learned(X, t), "table", lambda n: (n, 8), 0),
    (lambda x: pe.add_learned(x, X), "x", lambda n: (6, n), 1),
    (lambda w: pe.convert_layout(w, 8, source="half", target="interleaved", axis=0, num_heads=1), "weights", lambda n: (n,), 0),
    (lambda x: pe.prope(x, np.eye(4, dtype=np.float32), role="key", head_axis=-2), "x", lambda n: (6, 2, n), 2),
    (lambda e: pe.prope(H, e, role="key", head_axis=-2), "extrinsics", lambda n: (1, 4, n), 2),
]  # fmt: skip


@pytest.mark.parametrize(("call", "name", "shape", "axis"), UNKNOWN)
def test_what_is_computed_must_have_a_known_size(call, name, shape, axis):
    (n,) = export.symbolic_shape("n")
    with pytest.raises(ValueError, match=rf"^\w+: {name} must have a known size along axis {axis}, got shape .*n"):
        jax.eval_shape(call, SHAPE(shape(n), FLOAT))


def test_a_symbolic_length_needs_a_bound_for_a_table():
    (n,) = export.symbolic_shape("n")
    message = (
        "^add_learned: x must have a sequence of known size, or with a constraint such as 'seq <= 6', got shape .*n"
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda x: pe.add_learned(x, X), SHAPE((n, 8), FLOAT))


def test_a_bound_on_a_symbolic_length_is_enough_for_a_table():
    (s,) = export.symbolic_shape("s", constraints=["s <= 6"])
    exported = export.export(jax.jit(pe.add_learned))(SHAPE((s, 8), FLOAT), SHAPE((6, 8), FLOAT))
    np.testing.assert_array_equal(exported.call(X[:4], X), pe.add_learned(X[:4], X))


@quick
def by_frequencies_of_the_first_row(w, at):
    """Of each function, the derivative of the sum of its first row by the frequencies w."""
    calls = {
        "sinusoidal": lambda w: pe.sinusoidal(at, w),
        "add_sinusoidal": lambda w: pe.add_sinusoidal(ROWS[: len(at), :4], at, w),
        "rotation_matrix": lambda w: pe.rotation_matrix(at, w),
        "offset_similarity": lambda w: pe.offset_similarity(at, w),
        "fourier_features": lambda w: pe.fourier_features(at[:, None], w[None]),
    }
    return {name: jax.grad(lambda w, f=call: jnp.sum(f(w)[0]))(w) for name, call in calls.items()}


@pytest.mark.slow
@pytest.mark.parametrize("p", [NAN, INF])
def test_a_masked_row_leaves_the_derivative_by_frequencies_alone(p):
    w = np.float32([0.5, 2.0])
    masked, beside = (by_frequencies_of_the_first_row(w, np.float32([3.0, q])) for q in (p, 0.0))
    for name, want in jax.device_get(beside).items():
        assert_within(masked[name], want, 1e-6 * np.abs(want), against=f"{name} beside a row at 0")
