"""Each argument of the functions in helpers/functions.py is read in each form it may take, or rejected by its name.

- Junk is rejected with a TypeError or ValueError that names the function and the argument, or gives a finite result.
- Objects with `__jax_array__`, NumPy's float64 and other integers give the same program or values. With x64, shapes and
  dtypes are the same.
- Narrow float formats are accepted where they can hold the result, with its sign and NaN.
- Lengths beyond int32 and sizes that are not known are rejected where the function must count or know them.

By default an argument gets an eighth of the junk; with POSENC_HOSTILE above 1 (`nox -s tests_all`, `fuzz`), all of it.
"""

import re

import flax.nnx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export

import posenc_jax as pe
from helpers.functions import FUNCTIONS, WRAPPED
from helpers.hostile import MANY
from helpers.slow import slow
from posenc_jax import linen, nnx

BARE = {name: row for name, row in FUNCTIONS.items() if "," not in name}  # rows that give every argument
# Rows with arrays, where no wrapper of the tests stands before the function
OF_ARRAYS = {name: row for name, row in FUNCTIONS.items() if row.arrays and name not in WRAPPED}
NAN, INF = float("nan"), float("inf")
NARROW = jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e8m0fnu, jnp.float4_e2m1fn
POSITIONS = "positions query_positions key_positions offset timesteps origin length".split()
# (function, argument)
POSITION_ARGUMENTS = [(name, argument) for name, row in BARE.items() for argument in row.given if argument in POSITIONS]


def public(name):
    """The name by which an error calls the function."""
    return name.removeprefix("hf.")


def test_every_public_function_of_posenc_jax_has_a_row():
    assert {name for name in BARE if "." not in name} == {*pe.__all__} - {"CosSin", "KVCache"}  # what functions return


# Junk

# Python's scalars and containers, NumPy's scalars and arrays, JAX's arrays and keys, and objects of this library and of
# Flax. Any of them may be right for some argument.
JUNK = [
    *(None, True, False, 0, -1, 1, 3, 7, -0.0, 0.5, 1e-320, 1e-39, 2e-38, 1e-20, 1e38, 1e308, -2.5, NAN, INF, -INF),
    *(2**31, -(2**31) - 1, 2**63, 10**400, "", "half", "nan", "²", b"x", b"\2\2", 1j, object(), [], [1], [[1.0]]),
    *([None], (), (1, 2), (1.0, NAN), {}, {1: 2}, {1, 2}, range(3), np.int32, jnp.complex64, "float33", jnp.float64),
    *(np.float32(2), np.float32(1e-39), np.float32(NAN), np.int64(3), np.bool_(True), np.float64(1.5)),
    *(np.timedelta64(1, "s"), np.array(2), np.array(NAN, np.float32), np.array(["a"] * 6), np.array([None] * 6)),
    *(np.zeros(shape, np.float32) for shape in ((0,), (0, 8), (6, 0), (2, 3, 4, 5))),
    *(np.ones(6, dtype) for dtype in (bool, np.complex64, float, "m8[s]", ">f4", ">i4", np.longdouble, np.float16)),
    *(np.full(6, value, np.float32) for value in (NAN, INF)),
    *(
        np.full(6, 2**40),
        np.full(6, 2**32 - 1, np.uint32),
        np.zeros(6, "M8[D]"),
        np.ma.ones((6, 8)),
        np.full((6, 8), "a"),
    ),
    *(np.arange(6, dtype=np.uint8), np.zeros((6, 8), "m8[s]"), jax.ShapeDtypeStruct((6,), jnp.float32)),
    *(np.ones((6, 8), dtype) for dtype in (jnp.float4_e2m1fn, jnp.float8_e8m0fnu)),
    *jax.device_put([np.zeros(6, dtype) for dtype in (jnp.bfloat16, jnp.int4, jnp.float8_e4m3fn)]),
    *(jax.random.wrap_key_data(np.zeros(shape, np.uint32)) for shape in ((2,), (6, 2))),
    *(pe.geometric(8), pe.axial(8, 2), pe.geometric(7), pe.geometric(0)),
    *(flax.nnx.Param(jax.device_put(np.arange(6, dtype=dtype))) for dtype in (np.float32, np.int32)),
]
# (function, argument) where the argument must fit another, so that the error may name the other one
MAY_NAME_ANOTHER = {
    ("convert_layout", "weights"),
    ("convert_layout", "axis"),
    ("prope", "intrinsics"),
    ("Frequencies", "cycles"),
    ("prope", "x"),
}
MAY_NAME_ANOTHER |= {(name, "head_axis") for name in BARE} | {(name, "frequencies") for name in ("axial", "longrope")}
MAY_NAME_ANOTHER |= {(name, argument) for name, row in BARE.items() if "from_tokens" in name for argument in row.given}
# (function, argument) where a finite argument may give NaN or infinity: a position without a row in a table, for which
# the valid call asks NaN, or a result beyond float32
MAY_GIVE_NAN = {("learned", "positions"), ("add_learned", "positions"), ("attention", "scale"), ("xpos", "scale_base")}
MAY_GIVE_NAN |= {("relative_position_bias", name) for name in ("query_positions", "key_positions", "prefix")}
MAY_GIVE_NAN |= {("xpos", "gamma")}


def is_finite(x):
    """Whether every float in a tree, the angular frequencies of `Frequencies` included, is finite."""
    leaves = jax.tree.leaves(x, is_leaf=lambda x: isinstance(x, pe.Frequencies))
    floats = (getattr(leaf, "angular", leaf) for leaf in leaves)
    floats = (x for x in floats if isinstance(x, float) or jnp.issubdtype(getattr(x, "dtype", None), jnp.floating))
    return all(np.isfinite(np.asarray(x, np.float64)).all() for x in floats)


@pytest.mark.parametrize("computed", [False, slow(True)], ids=["traced", "computed"])
@pytest.mark.parametrize("name", BARE)
def test_an_argument_is_right_or_refused_by_name(name, computed):
    """Junk gives a result (computed in slow cases, and finite if the junk is), or an error with both names."""
    row = BARE[name]

    def call(arguments):
        return row.function(**arguments) if computed else jax.eval_shape(lambda: row.function(**arguments))

    call(row.arguments)
    for i, argument in enumerate(row.given):
        names = [*row.given, "model_type"] if (name, argument) in MAY_NAME_ANOTHER else [argument]
        beginning = rf"{re.escape(public(name))}: .{{9}}.*"  # the function, and some words
        for junk in JUNK if MANY > 1 else JUNK[i % 8 :: 8]:  # by default an eighth, another for each argument
            try:
                result = call(row.arguments | {argument: junk})
            except (TypeError, ValueError) as error:
                message = str(error)
                assert re.match(beginning, message) and any(re.search(rf"\b{n}\b", message) for n in names), (
                    argument,
                    message,
                )
            except Exception as error:
                raise AssertionError(f"{argument} = {junk!r:.60} gives {type(error).__name__}: {error}") from error
            else:
                assert not computed or is_finite(result) or not is_finite(junk) or (name, argument) in MAY_GIVE_NAN


@pytest.mark.parametrize(("name", "argument"), POSITION_ARGUMENTS)
def test_positions_in_16_bits_or_fewer_are_rejected(name, argument):
    """Traced and concrete: such floats skip integers."""
    row = BARE[name]
    for dtype in NARROW:
        p = np.ones(np.shape(row.arguments[argument]), dtype)
        with pytest.raises(TypeError, match=f"^{name}: {argument} must be .*, got {jnp.dtype(dtype)}"):
            jax.eval_shape(lambda p: row.function(**row.arguments | {argument: p}), p)
        with pytest.raises(TypeError, match=f"^{name}: {argument} must be .*, got {jnp.dtype(dtype)}"):
            row.function(**row.arguments | {argument: p})


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", [name for name, row in BARE.items() if "frequencies" in row.given and name != "axial"])
def test_frequencies_in_16_bits_or_fewer_are_rejected(name, dtype):
    """Rounding to bfloat16 moves a frequency by up to one part in 256: up to 4 radians at position 1,000 for ω = 1.

    The frequencies of `axial` are a width.
    """
    row = BARE[name]
    with pytest.raises(TypeError, match=f"^{name}: frequencies must be (float32, got {jnp.dtype(dtype)}|Freq)"):
        row.function(**row.arguments | {"frequencies": np.ones(4, dtype)})


# Other forms of right arguments


class Held:
    """An object that JAX reads as the array it holds."""

    def __init__(self, x):
        self.x = x

    def __jax_array__(self):
        return jnp.asarray(self.x)


@pytest.mark.parametrize("name", OF_ARRAYS)
def test_an_object_may_stand_for_its_array(name):
    """All arrays held by objects, and each alone; nothing is compiled."""
    row = OF_ARRAYS[name]
    want = jax.eval_shape(lambda: row(*row.arrays))
    held = [Held(jax.device_put(x)) for x in row.arrays]
    for arrays in [held, *([*row.arrays[:i], x, *row.arrays[i + 1 :]] for i, x in enumerate(held))]:
        assert jax.eval_shape(lambda: row(*arrays)) == want  # noqa: B023


@pytest.mark.parametrize("hold", [Held, flax.nnx.Param])
@pytest.mark.parametrize("name", ["alibi", "add_learned", "positions_from_lengths"])
def test_the_array_that_an_object_holds_is_read(name, hold):
    row = OF_ARRAYS[name]
    held = [hold(jax.device_put(x)) for x in row.arrays]
    np.testing.assert_array_equal(row(*held), row(*row.arrays))


def program_of(call, *arrays):
    """The text of a call's program without x64, and the arrays that it closes over."""
    with jax.enable_x64(False):
        jaxpr = jax.make_jaxpr(lambda: call(*arrays))()
    return str(jaxpr), [(x.dtype, np.asarray(x).tobytes()) for x in jaxpr.consts]


@pytest.mark.parametrize("name", OF_ARRAYS)
def test_float64_of_numpy_without_x64_is_rounded_as_jax_rounds_it(name):
    """The programs are the same, but for float64 frequencies, whose digits beyond float32 are used."""
    row = OF_ARRAYS[name]
    named = [*zip(row.names, row.arrays, strict=True)]
    rounded = {name for name, x in named if x.dtype == np.float32 and name != "frequencies"}

    def arrays_in(dtype):
        return [(np.float64(0.7) * x).astype(dtype) if name in rounded else x for name, x in named]

    assert program_of(row, *arrays_in(np.float64)) == program_of(row, *arrays_in(np.float32))


@pytest.mark.parametrize("name", OF_ARRAYS)
def test_x64_changes_no_shape_and_no_dtype_but_of_positions(name):
    """Nothing is compiled."""
    row = OF_ARRAYS[name]
    with jax.enable_x64(True):
        wide = jax.eval_shape(row, *row.arrays)
    with jax.enable_x64(False):
        narrow = jax.eval_shape(row, *row.arrays)
    for a, b in zip(jax.tree.leaves(narrow), jax.tree.leaves(wide), strict=True):
        assert a.shape == b.shape and (a.dtype == b.dtype or (a.dtype, b.dtype) == (jnp.int32, jnp.int64))


@pytest.mark.parametrize(("name", "argument"), POSITION_ARGUMENTS)
def test_float64_positions_become_int32_or_float32_if_that_hardly_moves_them(name, argument):
    """Positions that float32 holds give the same program; fractions are rounded to float32; the rest is rejected."""
    row = BARE[name]
    given = np.asarray(row.arguments[argument])
    call = lambda p: program_of(lambda: row.function(**row.arguments | {argument: p}))  # noqa: E731
    halves = np.resize(np.float32([0.5, 7.5, 900.5]), given.shape)
    try:
        want = call(halves)
    except TypeError as error:  # rows of a table are integers
        assert re.match(f"{name}: {argument} must be an integer", str(error))
        return
    assert call(halves.astype(np.float64)) == want
    assert call(halves + np.float64(0.1)) == call((halves + np.float64(0.1)).astype(np.float32))
    assert call(given.astype(np.float64)) == call(given)
    for moved in (1e9 + 0.5, 2.0**31):  # float32 rounds the first by more than a position; the second is beyond int32
        with pytest.raises(ValueError, match=f"^{name}: {argument} must (fit into int32|be integers or floats)"):
            call(np.full(given.shape, moved))
    for beyond in (np.full_like(halves, 2.0**31), jax.device_put(np.full_like(halves, -3e9))):
        with pytest.raises(ValueError, match=f"^{name}: {argument} must fit into int32, got float32 values"):
            call(beyond)
    call(np.full_like(halves, NAN))  # a masked position
    call(np.full_like(halves, 2**31 - 128))  # the largest float32 in int32


def test_timesteps_may_be_integers_of_any_width_and_byte_order_or_float32():
    want = pe.timestep_embedding(np.arange(3), 8)
    for dtype in (np.int8, np.uint16, np.int64, ">i4", ">u2", ">i8", np.float32):
        np.testing.assert_array_equal(pe.timestep_embedding(np.arange(3).astype(dtype), 8), want)


# Narrow formats

# What each format lacks: it would give a number where NaN is due, or NaN for each negative cosine.
LACKING = {"float4_e2m1fn": "no NaN", "float6_e2m3fn": "no NaN", "float6_e3m2fn": "no NaN"}
LACKING["float8_e8m0fnu"] = "no negative numbers"


@pytest.mark.parametrize("name", LACKING)
def test_formats_without_nan_or_sign_are_refused(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    p, x = np.arange(6), np.ones((6, 8)).astype(dtype)
    # How the error begins, and a call
    calls = {
        "sinusoidal: dtype": lambda: pe.sinusoidal(p, 8, dtype=dtype),
        "learned: table": lambda: pe.learned(p, x),
        "add_sinusoidal: x": lambda: pe.add_sinusoidal(x),
        "LearnedEncoding: param_dtype": lambda: linen.LearnedEncoding(8, 8, param_dtype=dtype).init(
            jax.random.key(0), np.ones((6, 8), np.float32)
        ),
    }
    for beginning, call in calls.items():
        with pytest.raises(
            TypeError, match=f"^{beginning} (is {name}, which has {LACKING[name]}|must be .*got {name})"
        ):
            call()


@pytest.mark.parametrize("name", ["e3m4", "e4m3", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2", "e5m2fnuz"])
def test_the_other_formats_of_8_bits_hold_signs_and_nan(name):
    dtype = np.dtype(getattr(ml_dtypes, f"float8_{name}"))
    encoded, rows = jax.jit(lambda p, at, t: (pe.sinusoidal(p, 4, dtype=dtype), pe.learned(at, t)))(
        np.array([-1, NAN], np.float32), np.array([5, 0]), -np.ones((3, 2)).astype(dtype)
    )
    assert encoded.dtype == rows.dtype == dtype
    encoded, rows = (np.asarray(x).astype(np.float32) for x in (encoded, rows))
    assert encoded[0, 0] < -0.8 and np.isnan(encoded[1]).all()
    np.testing.assert_array_equal(rows, [[NAN] * 2, [-1] * 2])


# Lengths beyond int32, and sizes that are not known

ATTEND = nnx.positional_attention(bias=lambda i, j: pe.alibi(i, j, 1))
SHAPE = jax.ShapeDtypeStruct
# Calls that count positions: the function, and the type of an array with n tokens, or None if it takes n itself
COUNTING_CALLS = {
    "add_sinusoidal": (pe.add_sinusoidal, lambda n: SHAPE((2, n, 8), np.float32)),
    "rotary": (lambda x: pe.rotary(x, head_axis=-2), lambda n: SHAPE((n, 2, 8), np.float32)),
    "rotary, heads first": (lambda x: pe.rotary(x, head_axis=-3), lambda n: SHAPE((2, n, 8), np.float32)),
    "xpos": (lambda x: pe.xpos(x, x, head_axis=-2), lambda n: SHAPE((n, 2, 8), np.float32)),
    "pope": (lambda x: pe.pope(x, head_axis=-2), lambda n: SHAPE((n, 2, 8), np.float32)),
    "positions_from_mask": (pe.positions_from_mask, lambda n: SHAPE((2, n), bool)),
    "positions_from_segments": (pe.positions_from_segments, lambda n: SHAPE((2, n), np.int32)),
    "positional_attention": (lambda x: ATTEND(x, x, x), lambda n: SHAPE((n, 1, 8), np.float32)),
    "SinusoidalEncoding.table": (nnx.SinusoidalEncoding(8).table, None),
    "SinusoidalEncoding.table, Linen": (linen.SinusoidalEncoding(8).bind({}).table, None),
}


@pytest.mark.parametrize("name", COUNTING_CALLS)
def test_no_more_positions_are_counted_than_int32_has(name):
    """A symbolic length is accepted."""
    call, of_length = COUNTING_CALLS[name]

    def count(n):
        return jax.eval_shape(call, of_length(n)) if of_length else jax.eval_shape(lambda: call(n))

    count(2**31)
    for n in (2**31 + 1, 2**40):
        with pytest.raises(ValueError, match=f"^{name.split(',')[0]}: at most 2³¹ positions can be counted"):
            count(n)
    if of_length:
        jax.eval_shape(call, of_length(export.symbolic_shape("n")[0]))


def test_attention_that_is_causal_counts_no_more_either():
    call = lambda x: pe.attention(x, x, x, causal=True)  # noqa: E731
    jax.eval_shape(call, SHAPE((2**31, 2, 8), np.float32))
    with pytest.raises(
        ValueError, match="^attention: at most 2³¹ positions can be counted, got query of length 2147483649"
    ):
        jax.eval_shape(call, SHAPE((2**31 + 1, 2, 8), np.float32))


# (function, axis) whose size the function need not know: rows of a table, and columns of the matrix
ANY_SIZE = {("learned", "r"), ("fourier_features", "d")}
# Every axis that the function computes with: (function, index of the array, axis of the array). Letters are those of
# helpers/functions.py; resize_table has a test of its own.
MUST_BE_KNOWN = [
    (name, i, at)
    for name, row in OF_ARRAYS.items()
    for i, axes in enumerate(row.axes)
    for at, axis in enumerate(axes)
    if axis in "dpacwr" and (name, axis) not in ANY_SIZE and name != "resize_table"
]


@pytest.mark.parametrize(("name", "i", "at"), MUST_BE_KNOWN)
def test_a_size_that_is_computed_with_must_be_known(name, i, at):
    row = OF_ARRAYS[name]
    (n,) = export.symbolic_shape("n")
    shapes = [SHAPE(x.shape, x.dtype) for x in row.arrays]
    shapes[i] = SHAPE((*shapes[i].shape[:at], n, *shapes[i].shape[at + 1 :]), shapes[i].dtype)
    # content_bias compares features with the query's, and names the query.
    named = "query" if (name, row.axes[i][at]) == ("content_bias", "d") else row.names[i]
    requirement = rf"(a known size along axis {at}, got shape|(shape|a last axis of size) .*got)"
    with pytest.raises(ValueError, match=rf"^[\w.]+: (\w+ of )?{named}(\[\d\])? must have {requirement} .*"):
        jax.eval_shape(row, *shapes)


def test_a_symbolic_length_needs_a_bound_for_a_table():
    (n,) = export.symbolic_shape("n")
    table = np.ones((6, 8), np.float32)
    message = (
        "^add_learned: x must have a sequence of known size, or with a constraint such as 'seq <= 6', got shape .*n"
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda x: pe.add_learned(x, table), SHAPE((n, 8), np.float32))
    (s,) = export.symbolic_shape("s", constraints=["s <= 6"])
    exported = export.export(jax.jit(pe.add_learned))(SHAPE((s, 8), np.float32), SHAPE((6, 8), np.float32))
    x = np.ones((4, 8), np.float32)
    np.testing.assert_array_equal(exported.call(x, table), pe.add_learned(x, table))
