"""The spectra, their exactness, and Frequencies as a static value."""

import copy
import dataclasses
import functools
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.spectra import count_traces
from oracles import encodings, spectra
from posenc_jax import kernels, nnx


@pytest.mark.parametrize("endpoint", [False, True])
@pytest.mark.parametrize(
    ("dim", "base"), [(1, 10), (2, 1e4), (3, 0.5), (7, 1e4), (128, 1e4), (4096, 1e7), (64, 500_000)]
)
def test_geometric_is_correct_to_the_last_unit(dim, base, endpoint):
    frequencies = pe.geometric(dim, base, endpoint=endpoint)
    assert (frequencies.dim, frequencies.num_pairs, frequencies.num_axes) == (dim, (dim + 1) // 2, 1)
    omegas = spectra.geometric(dim, base, endpoint)
    turns = spectra.exact_turns(omegas)
    assert max(abs(t - mine) for t, mine in zip(turns, frequencies.cycles, strict=True)) <= 0.51
    np.testing.assert_allclose(frequencies.angular, spectra.floats(omegas), rtol=4e-16)
    np.testing.assert_allclose(frequencies.wavelengths, spectra.wavelengths(omegas), rtol=4e-16)


def test_endpoint_ends_exactly_at_one_over_base():
    assert pe.geometric(64, 1000.0, endpoint=True).angular[-1] == pytest.approx(1e-3, rel=4e-16)
    assert pe.geometric(64, 1000.0).angular[-1] == pytest.approx(1000 ** (-62 / 64), rel=4e-16)
    assert pe.geometric(2, endpoint=True).angular.tolist() == pytest.approx([1.0])  # one pair: no division by zero


def test_the_last_wavelength():
    wavelengths = pe.geometric(16).wavelengths
    assert wavelengths[0] == pytest.approx(2 * np.pi)
    assert wavelengths[-1] == pytest.approx(2 * np.pi * 10_000 ** (14 / 16))


def test_a_pair_that_does_not_turn():
    still = pe.Frequencies((0, 1 << 120), 4)
    assert still.wavelengths.tolist() == [np.inf, 256.0]
    np.testing.assert_array_equal(np.asarray(pe.sinusoidal(123, still))[:2], [0.0, 1.0])


def test_fields_are_plain_values():
    f = pe.Frequencies([3 << 120, 5], np.int64(4), [0, 1], np.float32(0.5))  # type: ignore
    assert (f.cycles, f.dim, f.axes, f.attention_factor) == ((3 << 120, 5), 4, (0, 1), 0.5)
    assert [type(v) for v in (f.cycles, f.dim, f.axes, f.attention_factor)] == [tuple, int, tuple, float]


def test_no_frequency_of_2_to_the_28_cycles():
    limit = 2 ** (128 + 28)
    assert pe.Frequencies((limit - 1, 1 - limit), 4).num_pairs == 2
    for cycles in (limit, -limit):
        with pytest.raises(ValueError, match="Frequencies: cycles must be integers below 2²⁸ cycles per position"):
            pe.Frequencies((cycles,), 2)


def test_equality_and_hash_are_by_value_of_every_field():
    f = pe.geometric(8, 100.0)
    changed = [
        pe.geometric(8, 101.0),
        pe.geometric(7, 100.0),
        pe.geometric(8, 100.0, endpoint=True),
        dataclasses.replace(f, axes=(0, 0, 0, 1)),
        dataclasses.replace(f, attention_factor=2.0),
        f.with_precision("float32"),
    ]
    assert len({f, *changed}) == 7 and all(f != other for other in changed) and f != 8
    for same in (pe.geometric(8, 100), copy.deepcopy(f), pickle.loads(pickle.dumps(f)), dataclasses.replace(f)):
        assert same == f and hash(same) == hash(f)
    assert f.with_precision("float32").with_precision("exact") == f


def test_it_survives_a_journey_to_another_process():
    f = dataclasses.replace(pe.axial(8, 2), attention_factor=2)
    code = (
        "import pickle, sys, dataclasses, posenc_jax as pe; f = pickle.loads(sys.stdin.buffer.read());"
        "g = dataclasses.replace(pe.axial(8, 2), attention_factor=2); assert f == g and hash(f) == hash(g) and g in {f}"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(f), env=environment, check=True)


def test_it_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        pe.geometric(8).dim = 3  # type: ignore[misc]


def test_static_under_jit_and_no_leaf():
    assert count_traces(np.arange(3), [pe.geometric(8), pe.geometric(8), pe.geometric(8, 99.0)]) == 2
    assert jax.tree.leaves(pe.geometric(8)) == []


def test_amplitude():
    one, f = pe.geometric(8), pe.geometric(8).with_attention_factor(1.5)
    got, of_one = quick(lambda p: (pe.sinusoidal(p, f), pe.sinusoidal(p, one)))(np.arange(5))
    np.testing.assert_allclose(got, 1.5 * np.asarray(of_one), rtol=1e-7)


def test_other_frequencies_are_taken_at_their_exact_value():
    axes, values = pe.axial(8, 2), np.array([1.0, 0.1, -0.3, 1e-7], np.float32)
    f = dataclasses.replace(axes, attention_factor=1.5).with_angular(values)
    assert (f.axes, f.dim, f.attention_factor) == (axes.axes, 8, 1.5)
    assert f.cycles == spectra.turns(values.tolist())
    np.testing.assert_array_equal(f.angular.astype(np.float32), values)
    assert f.with_angular(list(axes.angular)).angular.tolist() == axes.angular.tolist()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.geometric(-4), ValueError, "geometric: dim must be at least 0, got -4"),
        (lambda: pe.geometric(4.0), TypeError, "geometric: dim must be an integer, got float 4.0"),  # type: ignore
        (lambda: pe.geometric(True), TypeError, "geometric: dim must be an integer, got bool True"),
        (lambda: pe.geometric(4, 0), ValueError, "geometric: base must be positive, got 0.0"),
        (lambda: pe.geometric(4, -1.0), ValueError, "geometric: base must be positive, got -1.0"),
        (lambda: pe.geometric(4, float("nan")), ValueError, "geometric: base must be finite, got nan"),
        (lambda: pe.geometric(4, float("inf")), ValueError, "geometric: base must be finite, got inf"),
        (lambda: pe.geometric(4, "10000"), TypeError, "geometric: base must be a number, got str '10000'"),  # type: ignore
        (lambda: pe.geometric(4, endpoint=1), TypeError, "geometric: endpoint must be True or False, got int 1"),  # type: ignore
        (lambda: pe.geometric(10**30), ValueError, "geometric: dim must be at most 2²⁰, got 1000"),
        (lambda: pe.geometric(4, 10**400), ValueError, "geometric: base must be finite, got inf"),
        (lambda: pe.geometric(16, 1e-12), ValueError, "geometric: base must keep every pair below 2²⁸ cycles per position, got 1e-12"),
        (lambda: pe.Frequencies(3, 2), TypeError, "Frequencies: cycles must be a sequence of integers, got int 3"),  # type: ignore
        (lambda: pe.Frequencies((1, 1), 4, 3), TypeError, "Frequencies: axes must be a sequence of integers, got int 3"),  # type: ignore
        (lambda: pe.Frequencies((1.5,), 2), ValueError, "Frequencies: cycles must be integers"),  # type: ignore
        (lambda: pe.Frequencies((1, 2), 4.0), TypeError, "Frequencies: dim must be an integer, got float 4.0"),  # type: ignore
        (lambda: pe.Frequencies((1,), 2, attention_factor="1"), TypeError, "Frequencies: attention_factor must be a number, got str '1'"),  # type: ignore
        (lambda: pe.Frequencies((1,), 2, attention_factor=1e39), ValueError, "attention_factor must fit into float32, got 1e"),
        (lambda: pe.Frequencies((1, 2), 5), ValueError, "Frequencies: dim must be 4 or 3 for 2 pairs, got 5"),
        (lambda: pe.Frequencies((), 1), ValueError, "Frequencies: dim must be 0 for 0 pairs, got 1"),
        (lambda: pe.Frequencies((1, 2), 4, axes=(0,)), ValueError, "Frequencies: axes must hold 2 coordinates"),
        (lambda: pe.Frequencies((1, 2), 4, axes=(0, -1)), ValueError, "axes must hold 2 coordinates of at least 0"),
        (lambda: pe.Frequencies((1,), 2, attention_factor=np.nan), ValueError, "attention_factor must be finite, got nan"),
        (lambda: pe.geometric(4).with_precision("float16"), ValueError, "Frequencies: precision must be one of .* got 'float16'"),  # type: ignore
        (lambda: pe.geometric(4).with_angular([1.0]), ValueError, "Frequencies.with_angular: angular must hold 2 numbers, one for each pair, got 1"),
        (lambda: pe.geometric(4).with_angular(3.0), TypeError, "Frequencies.with_angular: angular must be a sequence of numbers, got float 3.0"),  # type: ignore
        (lambda: pe.geometric(4).with_angular([1.0, "2"]), TypeError, "Frequencies.with_angular: angular must be a number, got str"),  # type: ignore
        (lambda: pe.geometric(4).with_angular([1.0, np.nan]), ValueError, "Frequencies.with_angular: angular must be finite, got nan"),
        (lambda: pe.sinusoidal(0, "8"), TypeError, "sinusoidal: frequencies must be Frequencies, an integer width or a float array"),  # type: ignore
        (lambda: pe.sinusoidal(0, 8.0), TypeError, "sinusoidal: frequencies must be Frequencies"),  # type: ignore
        (lambda: pe.sinusoidal(0, True), TypeError, "sinusoidal: frequencies must be Frequencies"),
        (lambda: pe.sinusoidal(0, -1), ValueError, r"sinusoidal: frequencies \(a width\) must be at least 0, got -1"),
        (lambda: pe.sinusoidal(0, np.ones((2, 2), np.float32)), ValueError, r"must have shape \(num_pairs,\), got \(2, 2\)"),
        (lambda: pe.cos_sin(0, np.ones((0, 2), np.float32)), ValueError, r"must have shape \(num_pairs,\) or \(axes, num_pairs\), got \(0, 2\)"),
        (lambda: pe.sinusoidal(0, np.arange(3)), TypeError, "frequencies must be a float array, got int"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_the_largest_amplitude():
    largest = float(np.finfo(np.float32).max)
    assert pe.Frequencies((1,), 2, attention_factor=largest).attention_factor == largest


def test_a_line_for_a_spectrum():
    assert repr(pe.geometric(6)) == "Frequencies(dim=6, angular=1 … 0.00215443)"
    assert repr(pe.axial(8, 2)) == "Frequencies(dim=8, angular=1 … 0.01, num_axes=2)"
    scaled = pe.yarn(4, 10_000, 2, 64, attention_factor=0.5).with_precision("float32")
    assert repr(scaled).endswith(", attention_factor=0.5, precision='float32')")


NO_FEATURES = {
    "linear_scaling": lambda: pe.linear_scaling(0, 2),
    "ntk": lambda: pe.ntk(0, 1e4, 2),
    "dynamic_ntk": lambda: pe.dynamic_ntk(0, 1e4, 2, 64, 128),
    "yarn": lambda: pe.yarn(0, 1e4, 2, 64).with_attention_factor(1),
    "longrope": lambda: pe.longrope(0, [], [], original_max=64, factor=1, length=128),
    "llama3": lambda: pe.llama3(0, 8, low_freq_factor=1, high_freq_factor=4, original_max=64),
    "proportional": lambda: pe.proportional(0, 1e4, 0.5),
    "axial": lambda: pe.axial(0, 2),
    "axial, each": lambda: pe.axial((0, 0)),
    "join": lambda: pe.join(0, 0),
    "multi_section": lambda: pe.multi_section(0, ()),
    "with_angular": lambda: pe.geometric(0).with_angular([]),
}


@pytest.mark.parametrize("name", NO_FEATURES)
def test_a_spectrum_without_features(name):
    assert NO_FEATURES[name]() == pe.geometric(0)


def test_what_no_features_give():
    x, p, none = jax.ShapeDtypeStruct((2, 5, 3, 0), np.float32), np.zeros((2, 5), np.int32), np.zeros(0, np.float32)
    shape_of = lambda call, *arrays: jax.tree.map(lambda y: y.shape, jax.eval_shape(call, *arrays))  # noqa: E731
    for f in (0, jnp.asarray(none)):
        assert shape_of(lambda: pe.sinusoidal(p, f)) == (2, 5, 0)  # noqa: B023
        assert shape_of(lambda: pe.cos_sin(p, f)) == ((2, 5, 0),) * 2  # noqa: B023
        assert shape_of(lambda: pe.rotation_matrix(p, f)) == (2, 5, 0, 0)  # noqa: B023
        assert shape_of(lambda: pe.offset_similarity(p, f)) == (2, 5)  # noqa: B023
        assert shape_of(lambda: pe.sandwich(p, p, 4, f)) == (2, 4, 5, 5)  # noqa: B023
        assert kernels.phase_constants(f).shape == (6, 0)
        for layout in ("half", "interleaved"):
            assert shape_of(lambda x: pe.rotary(x, p, f, head_axis=-2, layout=layout), x) == x.shape  # noqa: B023
            assert shape_of(lambda x: pe.xpos(x, x, p, f, head_axis=-2, layout=layout), x) == (x.shape,) * 2  # noqa: B023
            assert shape_of(lambda x: pe.shift(x[:, :, 0], p, f, layout=layout), x) == (2, 5, 0)  # noqa: B023
            assert shape_of(lambda x: pe.add_sinusoidal(x[:, :, 0], p, f, layout=layout), x) == (2, 5, 0)  # noqa: B023
    assert (
        shape_of(lambda x: pe.rotary(x, head_axis=-2), x) == shape_of(nnx.RotaryEncoding(0, head_axis=-2), x) == x.shape
    )
    assert shape_of(lambda x: pe.rotary(x, cos_sin=pe.cos_sin(p, 0), head_axis=-2), x) == x.shape
    assert shape_of(nnx.SinusoidalEncoding(0), jax.ShapeDtypeStruct((2, 5, 0), np.float32)) == (2, 5, 0)
    np.testing.assert_array_equal(pe.offset_similarity(p, 0), np.zeros((2, 5)))
    convert = functools.partial(pe.convert_layout, frequencies=0, source="half", target="interleaved", num_heads=2)
    assert shape_of(lambda x: convert(x[:, 0, 0], axis=-1), x) == (2, 0)
    eye, rows = np.eye(4, dtype=np.float32), np.zeros((5, 3, 0), np.float32)
    for settings, wide in (({}, x), ({"width": 0}, jax.ShapeDtypeStruct((2, 5, 3, 8), np.float32))):
        assert shape_of(lambda x: pe.prope(x, eye, role="key", head_axis=-2, **settings), wide) == wide.shape  # noqa: B023
    assert shape_of(lambda x: pe.content_bias(p[0], p[0], rows, query=x, first=-2), x) == (2, 3, 5, 5)
    for width in (0, 1):  # one feature is the zero that fills an odd width
        assert shape_of(lambda: pe.timestep_embedding(p, width, scale=1000.0)) == (2, 5, width)  # noqa: B023
        assert shape_of(nnx.TimestepEmbedding(width), p) == (2, 5, width)


def test_a_coordinate_without_features():
    assert pe.axial((8, 0)) == pe.geometric(8) and pe.axial((0, 8)).num_axes == 2


def test_float64_frequencies_of_numpy_are_exact():
    """Rounded to float32 they would be off by 0.06 at position one billion."""
    omega, p = 500_000.0 ** (-np.arange(0, 64, 2) / 64), np.int32([0, 1, 10**9, 2**31 - 1])
    with jax.enable_x64(False):
        sine, cosine = encodings.waves(p, omega.tolist())
        assert_within(
            pe.sinusoidal(p, omega, layout="half"), np.concatenate([sine, cosine], -1), 9e-8, against="mpmath"
        )
        x = np.ones((4, 1, 64), np.float32)
        exact = pe.geometric(64).with_angular(omega)
        np.testing.assert_array_equal(pe.rotary(x, p, omega, head_axis=-2), pe.rotary(x, p, exact, head_axis=-2))
        np.testing.assert_array_equal(kernels.phase_constants(omega), kernels.phase_constants(exact))
        with pytest.raises(
            ValueError, match=r"^rotary: frequencies must be float32 if they have several axes .* got float64"
        ):
            pe.rotary(x, np.zeros((4, 2), np.int32), omega.reshape(2, 16), head_axis=-2)
        with pytest.raises(ValueError, match="^sinusoidal: frequencies must be finite, got nan"):
            pe.sinusoidal(p, omega * np.nan)


@pytest.mark.parametrize(("dim", "endpoint"), [(8, False), (8, True), (2, True), (7, True), (7, False)])
def test_a_base_that_is_an_array_is_told_the_form(dim, endpoint):
    with pytest.raises(
        TypeError, match="^geometric: base must be a number, got float32 of shape .*pass the array "
    ) as error:
        jax.jit(lambda base: pe.geometric(dim, base, endpoint=endpoint))(1e4)
    code = compile(str(error.value).partition("pass the array ")[2], "the message", "eval")
    array = jax.jit(lambda base: eval(code, {"jnp": jnp, "base": base}))(np.float32(1e4))
    np.testing.assert_allclose(array, pe.geometric(dim, 1e4, endpoint=endpoint).angular, rtol=1e-6)
