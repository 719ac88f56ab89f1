"""The geometric spectrum, and `Frequencies` as a static value.

- `geometric` is right to one unit of 2⁻¹²⁸ cycle, with an endpoint and for odd widths too.
- `Frequencies` are plain, immutable, hashable values, static in JAX, and equal if all fields are, in any process.
- An index selects pairs as in NumPy. `with_angular`, and arrays of NumPy as frequencies, keep the exact ω.
- All functions of Frequencies take a width of 0.
"""

import copy
import dataclasses
import functools
import os
import pickle
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import encodings, spectra
from posenc_jax import kernels


@pytest.mark.parametrize("endpoint", [False, True])
@pytest.mark.parametrize(("dim", "base"), [(1, 10), (2, 1e4), (3, 0.5), (7, 1e4), (128, 1e4), (4096, 1e7)])
def test_geometric_is_right_to_the_last_unit(dim, base, endpoint):
    f, omegas = pe.geometric(dim, base, endpoint=endpoint), spectra.geometric(dim, base, endpoint)
    assert (f.dim, f.num_pairs, f.num_axes) == (dim, (dim + 1) // 2, 1)
    assert max(abs(t - mine) for t, mine in zip(spectra.exact_turns(omegas), f.cycles, strict=True)) <= 0.51
    np.testing.assert_allclose(f.angular, spectra.floats(omegas), rtol=4e-16)
    np.testing.assert_allclose(f.wavelengths, spectra.wavelengths(omegas), rtol=4e-16)


def test_a_pair_may_have_frequency_0():
    still = pe.Frequencies((0, 1 << 120), 4)
    assert still.wavelengths.tolist() == [np.inf, 256.0]
    np.testing.assert_array_equal(np.asarray(pe.sinusoidal(123, still))[:2], [0.0, 1.0])


def test_the_error_for_an_array_as_base_has_code_that_works_instead():
    for dim, endpoint in ((8, False), (8, True), (2, True), (7, True)):
        with pytest.raises(
            TypeError, match="^geometric: base must be a number, got float32 .*pass the array "
        ) as error:
            jax.eval_shape(lambda base: pe.geometric(dim, base, endpoint=endpoint), np.float32(1))  # noqa: B023
        code = str(error.value).partition("pass the array ")[2]
        with jax.numpy_dtype_promotion("standard"):  # as a user has it
            array = jax.jit(lambda base: eval(code, {"jnp": jnp, "base": base}))(np.float32(1e4))  # noqa: B023
        np.testing.assert_allclose(array, pe.geometric(dim, 1e4, endpoint=endpoint).angular, rtol=1e-6)


# Frequencies as a value


def test_fields_are_plain_values():
    f = pe.Frequencies([3 << 120, 5], np.int64(4), [0, 1], np.float32(0.5))
    assert (f.cycles, f.dim, f.axes, f.attention_factor, f.precision) == ((3 << 120, 5), 4, (0, 1), 0.5, "exact")
    assert [type(v) for v in (f.cycles, f.dim, f.axes, f.attention_factor)] == [tuple, int, tuple, float]
    assert pe.Frequencies((1, 1 - 2**156), 3).axes == (0, 0)
    assert pe.Frequencies((1,), 2, attention_factor=float(np.finfo(np.float32).max)).num_pairs == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        f.dim = 3


def test_equality_and_hash_are_by_value_of_every_field():
    f = pe.geometric(8, 100.0)
    changed = [
        pe.geometric(8, 101.0),
        pe.geometric(7, 100.0),
        dataclasses.replace(f, axes=(0, 0, 0, 1)),
        f.with_attention_factor(2.0),
        f.with_precision("float32"),
    ]
    assert len({f, *changed}) == 6 and all(f != other for other in changed) and f != 8
    for same in (pe.geometric(8, 100), copy.deepcopy(f), pickle.loads(pickle.dumps(f)), dataclasses.replace(f)):
        assert same == f and hash(same) == hash(f)
    for other in changed:
        assert pickle.loads(pickle.dumps(other)) == other


def test_it_is_equal_after_pickling_to_another_process():
    code = (
        "import pickle, sys, posenc_jax as pe; f = pickle.loads(sys.stdin.buffer.read());"
        "g = pe.axial(8, 2).with_precision('float32'); assert f == g and hash(f) == hash(g)"
    )
    f, environment = pe.axial(8, 2).with_precision("float32"), {**os.environ, "PYTHONHASHSEED": "12345"}
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(f), env=environment, check=True)


def test_it_is_static_in_jax():
    assert jax.tree.leaves(pe.geometric(8)) == []


def test_repr_is_one_line():
    assert repr(pe.geometric(6)) == "Frequencies(dim=6, angular=1 … 0.00215443)"
    assert repr(pe.axial(8, 2)) == "Frequencies(dim=8, angular=1 … 0.01, num_axes=2)"
    scaled = pe.yarn(4, 10_000, 2, 64, attention_factor=0.5).with_precision("float32")
    assert repr(scaled).endswith(", attention_factor=0.5, precision='float32')")
    assert repr(pe.geometric(0)) == "Frequencies(dim=0)"


def test_with_angular_takes_floats_at_their_exact_value():
    axial, values = pe.axial(8, 2), np.array([1.0, 0.1, -0.3, 1e-7], np.float32)
    f = axial.with_attention_factor(1.5).with_angular(values)
    assert (f.axes, f.dim, f.attention_factor) == (axial.axes, 8, 1.5)
    assert f.cycles == spectra.turns(values.tolist())
    assert f.with_angular(list(axial.angular)).angular.tolist() == axial.angular.tolist()


@pytest.mark.parametrize("index", [np.s_[::2], np.s_[1:3], np.s_[::-1], np.s_[:0], [7, 0, 0, -8], (1,), np.array([2])])
def test_an_index_selects_pairs_as_in_numpy(index):
    f = pe.multi_section(pe.yarn(16, 1e4, 8, 4096), (3, 5)).with_precision("float32")
    got, of_numpy = f[index], np.array(index) if isinstance(index, (list, tuple)) else index
    assert list(got.cycles) == np.array(f.cycles, object)[of_numpy].tolist()
    assert list(got.axes) == np.array(f.axes)[of_numpy].tolist()
    assert got.dim == 2 * got.num_pairs
    assert (got.attention_factor, got.precision) == (f.attention_factor, "float32")


def test_float64_frequencies_of_numpy_are_exact():
    """Rounded to float32 they would be off by 0.06 at position one billion."""
    omega, p = 500_000.0 ** (-np.arange(0, 64, 2) / 64), np.int32([0, 1, 10**9, 2**31 - 1])
    with jax.enable_x64(False):
        want = np.concatenate(encodings.waves(p, omega.tolist()), -1)
        assert_within(pe.sinusoidal(p, omega, layout="half"), want, 9e-8, against="mpmath")
        exact = pe.geometric(64).with_angular(omega)
        np.testing.assert_array_equal(*jax.jit(lambda: [kernels.phase_constants(f) for f in (omega, exact)])())
        with pytest.raises(ValueError, match="^rotary: frequencies must be float32 if they have several axes"):
            pe.rotary(np.ones((4, 64), np.float32), np.zeros((4, 2), int), omega.reshape(2, 16), head_axis=None)
        with pytest.raises(ValueError, match="^sinusoidal: frequencies must be finite, got nan"):
            pe.sinusoidal(p, omega * np.nan)


# No features

# function → a call with width 0 whose result is a spectrum
NOTHING = {
    "linear_scaling": lambda: pe.linear_scaling(0, 2),
    "ntk": lambda: pe.ntk(0, 1e4, 2),
    "dynamic_ntk": lambda: pe.dynamic_ntk(0, 1e4, 2, 64, 128),
    "yarn": lambda: pe.yarn(0, 1e4, 2, 64).with_attention_factor(1),
    "longrope": lambda: pe.longrope(0, [], [], original_max=64, factor=1, length=128),
    "llama3": lambda: pe.llama3(0, 8, low_freq_factor=1, high_freq_factor=4, original_max=64),
    "proportional": lambda: pe.proportional(0, 1e4, 0.5),
    "axial": lambda: pe.axial(0, 2),
    "axial of widths": lambda: pe.axial((0, 0)),
    "join": lambda: pe.join(0, 0),
    "multi_section": lambda: pe.multi_section(0, ()),
}


@pytest.mark.parametrize("name", NOTHING)
def test_every_scaling_and_division_of_width_0_is_the_empty_spectrum(name):
    assert NOTHING[name]() == pe.geometric(0)


X = np.ones((2, 5, 3, 0), np.float32)
# function → a call with positions p (2, 5) and frequencies f, and the shape of its result
SHAPES = {
    "sinusoidal": (lambda p, f: pe.sinusoidal(p, f), (2, 5, 0)),
    "rotation_matrix": (lambda p, f: pe.rotation_matrix(p, f), (2, 5, 0, 0)),
    "offset_similarity": (lambda p, f: pe.offset_similarity(p, f), (2, 5)),
    "sandwich": (lambda p, f: pe.sandwich(p, p, 4, f), (2, 4, 5, 5)),
    "phase_constants": (lambda p, f: kernels.phase_constants(f), (6, 0)),
    "rotary": (lambda p, f: pe.rotary(X, p, f, head_axis=-2), X.shape),
    "prope": (lambda p, f: pe.prope(X, jnp.eye(4), role="key", head_axis=-2), X.shape),
    "shift": (lambda p, f: pe.shift(X[:, :, 0], p, f), (2, 5, 0)),
}


@pytest.mark.parametrize("frequencies", [0, np.zeros(0, np.float32)], ids=["a width", "an array"])
@pytest.mark.parametrize("name", SHAPES)
def test_functions_of_width_0_return_arrays_without_features(name, frequencies):
    call, shape = SHAPES[name]
    assert jax.eval_shape(functools.partial(call, f=frequencies), np.zeros((2, 5), np.int32)).shape == shape


F = pe.geometric(12)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.geometric(-4), ValueError, "geometric: dim must be at least 0"),
        (lambda: pe.geometric(2**20 + 1), ValueError, "geometric: dim must be at most 2²⁰"),
        (lambda: pe.geometric(4, endpoint=1), TypeError, "geometric: endpoint must be True or False"),
        (lambda: pe.geometric(16, 1e-12), ValueError, "geometric: base must keep every pair below 2²⁸ cycles"),
        (lambda: pe.Frequencies(3, 2), TypeError, "Frequencies: cycles must be a sequence of integers"),
        (lambda: pe.Frequencies((1.5,), 2), ValueError, "Frequencies: cycles must be integers"),
        (lambda: pe.Frequencies((2**156,), 2), ValueError, "Frequencies: cycles must be integers below 2²⁸"),
        (lambda: pe.Frequencies((-(2**156),), 2), ValueError, "Frequencies: cycles must be integers below 2²⁸"),
        (lambda: pe.Frequencies((1, 2), 5), ValueError, "Frequencies: dim must be 4 or 3 for 2 pairs"),
        (lambda: pe.Frequencies((), 1), ValueError, "Frequencies: dim must be 0 for 0 pairs"),
        (lambda: pe.Frequencies((1, 2), 4, (0,)), ValueError, "Frequencies: axes must hold 2 coordinates"),
        (lambda: pe.Frequencies((1, 2), 4, (0, -1)), ValueError, "Frequencies: axes must hold 2 coordinates"),
        (
            lambda: F.with_attention_factor(1e39),
            ValueError,
            "Frequencies.with_attention_factor: attention_factor must fit",
        ),
        (lambda: F.with_precision("float16"), ValueError, "Frequencies: precision must be one of"),
        (lambda: F.with_angular([1.0]), ValueError, "Frequencies.with_angular: angular must hold 6 numbers"),
        (lambda: F.with_angular(3.0), TypeError, "Frequencies.with_angular: angular must be a sequence"),
        (lambda: F.with_angular([1e10] * 6), ValueError, "Frequencies.with_angular: angular must keep every pair"),
        (lambda: F.with_angular(np.float16([1])), TypeError, "Frequencies.with_angular: angular must be float32"),
        (lambda: F[[0, 6]], ValueError, "Frequencies.__getitem__: index must name pairs below 6"),
        (lambda: F[[-7]], ValueError, "Frequencies.__getitem__: index must name pairs below 6"),
        (lambda: F[0], TypeError, "Frequencies.__getitem__: index must be a sequence of integers"),
        (lambda: F["a":], TypeError, "Frequencies.__getitem__: index must be a slice of integers"),
        (lambda: F[::0], TypeError, "Frequencies.__getitem__: index must be a slice of integers"),
        (lambda: pe.geometric(7)[:2], ValueError, "Frequencies.__getitem__: frequencies must have an even dim"),
    ],
)
def test_invalid_arguments_raise(call, error, match):
    with pytest.raises(error, match="^" + re.escape(match)):
        call()
