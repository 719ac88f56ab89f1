"""`grid_positions` are those of loops, and give the tables of vision transformers, on grids that are not square.

Each side has a start and a step of its own, which move with it. Coordinates that are floats are rounded once.
"""

import itertools
import re
from fractions import Fraction

import jax
import numpy as np
import pytest

import posenc_jax as pe
from oracles import encodings, recorded
from oracles import positions as loops


@pytest.mark.parametrize(
    ("shape", "order"), [((7,), "row"), ((3, 5), "row"), ((3, 5), "column"), ((4, 1, 3), "row"), ((4, 1, 3), "column")]
)
def test_positions_are_those_of_loops(shape, order):
    cases = list(itertools.product((shape, np.array(shape)), (0, 1, 5)))
    grids = jax.jit(lambda: [pe.grid_positions(sides, order=order, leading=leading) for sides, leading in cases])()
    for (_, leading), got in zip(cases, grids, strict=True):
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, loops.grid(shape, order, leading))


def test_each_side_has_its_start_and_step_in_either_order_behind_leading_tokens_at_0():
    settings = {"start": (-7, 100, 10), "step": np.array([8, -3, 0])}
    cases = list(itertools.product(("row", "column"), (0, 2)))
    grids = jax.jit(lambda: [pe.grid_positions((2, 3, 4), order=o, leading=n, **settings) for o, n in cases])()
    for case, got in zip(cases, grids, strict=True):
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, loops.grid((2, 3, 4), *case, **settings))


def test_starts_of_image_models_and_the_ends_of_int32():
    h, w = 5, 4  # Flux 2's second reference image; Qwen-Image counts from the centre
    qwen = {"start": (0, -(h - h // 2), -(w - w // 2))}
    ends = {"start": -(2**31), "step": 2**31 - 1}  # a product alone is beyond int32
    cases = [((1, h, w, 1), {"start": (20, 0, 0, 0)}), ((1, h, w), qwen), ((3,), ends)]
    flux, centred, far = jax.jit(lambda: [pe.grid_positions(shape, **settings) for shape, settings in cases])()
    np.testing.assert_array_equal(flux, [(20, row, column, 0) for row in range(h) for column in range(w)])
    np.testing.assert_array_equal(centred, [(0, row, column) for row in range(-3, 2) for column in range(-2, 2)])
    np.testing.assert_array_equal(far, [[-(2**31)], [-1], [2**31 - 2]])


# start, step: sums that float32 rounds twice, just beyond ties that float64 cannot tell from ties, differences near 0
FLOATS = [(-100, 1 / 3), (1 + 2**-24, 2.0**-80), (-1 - 2**-24, -(2.0**-80)), (-0.3, 0.1), (2.0**31 - 1000, -1234.5678)]


def nearest_float32(x):
    near = np.float32(float(x))  # or a neighbour; first, because a tie of float32 goes to it
    candidates = [near, *(np.nextafter(near, np.float32(way)) for way in (-np.inf, np.inf))]
    return min(candidates, key=lambda y: abs(Fraction(float(y)) - x))


def test_floats_are_rounded_once():
    grids = jax.jit(lambda: [pe.grid_positions((2, 40), start=(7, a), step=(0.5, s)) for a, s in FLOATS])()
    for got, (a, s) in zip(grids, FLOATS, strict=True):
        exact = loops.grid((2, 40), start=(7, Fraction(a)), step=(Fraction(1, 2), Fraction(s)))
        np.testing.assert_array_equal(got, np.vectorize(nearest_float32)(exact), strict=True)
    # 1 and 1.0 are equal, but not the same argument
    dtypes = [
        jax.eval_shape(lambda one=one: pe.grid_positions((2,), start=one)).dtype for one in (1.0, 1, np.float64(1))
    ]
    assert dtypes == ["float32", "int32", "float32"]


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_they_give_the_tables_of_mae_and_big_vision(shape):
    """These encode each coordinate by itself and concatenate both."""
    spectra, width = [pe.geometric(4), pe.geometric(4, endpoint=True)], 8

    def encode(frequencies):
        return pe.sinusoidal(pe.grid_positions(shape, order="column"), frequencies, layout="half")

    encoded = jax.device_get(jax.jit(lambda: list(map(encode, spectra)))())
    for table, got in zip((encodings.mae, encodings.big_vision), encoded, strict=True):
        np.testing.assert_allclose(got.reshape(-1, width), table(width, *shape), rtol=0, atol=1e-7)


@pytest.mark.parametrize("case", recorded.cases("timm_grids"), ids=lambda case: f"{case['shape']} {case['arguments']}")
def test_they_give_the_tables_of_timm(case):
    shape, keywords = case["shape"], case["arguments"]
    if keywords.get("reverse_coord"):  # timm then also walks the grid column by column
        shape = shape[::-1]
    base = keywords.get("temperature", 10_000.0)
    # interleaved: coordinate by coordinate; otherwise the sines of both coordinates, then the cosines
    f = pe.geometric(6, base) if keywords.get("interleave_sin_cos") else pe.axial(12, 2, base)
    got = np.asarray(jax.jit(lambda: pe.sinusoidal(pe.grid_positions(shape), f, layout="half"))())
    np.testing.assert_allclose(got.reshape(-1, 12), np.reshape(case["values"], (-1, 12)), rtol=0, atol=5e-7)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"shape": (3, 0)}, ValueError, "shape[1] must be at least 1"),
        ({"shape": ()}, ValueError, "shape must have more sides"),
        ({"shape": (3,), "order": "column"}, ValueError, "shape must have more sides"),
        ({"shape": (2**16, 2**15)}, ValueError, "shape must have fewer than 2³¹ tokens"),
        ({"shape": (2**31 - 3,), "leading": 3}, ValueError, "shape must have fewer than 2³¹ tokens"),
        ({"shape": (2, 3), "leading": -1}, ValueError, "leading must be at least 0"),
        ({"shape": (2, 3), "order": "xy"}, ValueError, "order must be one of"),
        ({"shape": (2, 3), "start": (0, 0, 0)}, ValueError, "start must hold one number for each side of shape"),
        ({"shape": (2, 3), "start": True}, TypeError, "start must be a sequence of numbers, or one number"),
        ({"shape": (2, 3), "step": (1, None)}, TypeError, "step[1] must be a number"),
        ({"shape": (2, 3), "step": (1, np.inf)}, ValueError, "step[1] must be finite"),
        ({"shape": (2, 3), "start": (0, 2**31 - 2)}, ValueError, "start and step must keep"),
        ({"shape": (2, 3), "step": (0, -1.5e9)}, ValueError, "start and step must keep"),
        ({"shape": (1, 3), "step": (2**31, 0)}, ValueError, "start and step must keep"),
    ],
)
def test_invalid_arguments_raise(arguments, error, match):
    with pytest.raises(error, match=f"^grid_positions: {re.escape(match)}"):
        pe.grid_positions(**arguments)
