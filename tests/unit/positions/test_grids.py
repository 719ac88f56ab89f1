"""`grid_positions` are those of loops, and give the tables of vision transformers, on grids that are not square."""

import itertools
import re

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
    ],
)
def test_invalid_arguments_raise(arguments, error, match):
    with pytest.raises(error, match=f"^grid_positions: {re.escape(match)}"):
        pe.grid_positions(**arguments)
