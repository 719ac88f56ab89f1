"""Encodings of images and video on grids that are not square, against the tables of vision transformers."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe

DATA = Path(__file__).parent / "data"
TABLES = json.loads((DATA / "timm_grids.json").read_text())["cases"]
RESIZED = json.loads((DATA / "timm_resized.json").read_text())["cases"]
SHAPES = [(3, 5), (5, 3), (1, 4), (4, 1), (14, 24)]


@pytest.mark.parametrize("leading", [0, 1, 5])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (5, 3), (1, 1), (2, 3, 4), (4, 1, 3), (2, 3, 2, 2)])
def test_positions(shape, leading):
    want = np.array([(0,) * len(shape)] * leading + list(np.ndindex(*shape)))
    got = pe.grid_positions(shape, leading=leading)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(jax.jit(lambda: pe.grid_positions(np.array(shape), leading=leading))(), want)
    if len(shape) > 1:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        np.testing.assert_array_equal(pe.grid_positions(shape, order="column", leading=leading), want[:, order])


def test_leading_tokens_are_not_turned():
    x = np.random.default_rng(0).normal(size=(2 + 15, 3, 16)).astype(np.float32)
    got = pe.rotary(x, pe.grid_positions((3, 5), leading=2), pe.axial(16, 2))
    np.testing.assert_array_equal(got[:2], x[:2])
    np.testing.assert_array_equal(got[2:], pe.rotary(x[2:], pe.grid_positions((3, 5)), pe.axial(16, 2)))


def one_coordinate(width, coordinate, omega):
    """(sines, cosines) of one coordinate of each token."""
    phase = np.outer(coordinate.reshape(-1), omega)
    assert phase.shape[1] == width // 2
    return np.concatenate([np.sin(phase), np.cos(phase)], axis=1)


def mae(width, height, columns):
    """`get_2d_sincos_pos_embed` of facebookresearch/mae (util/pos_embed.py, commit a9f5c70), in float64.

    The original takes one side; its meshgrid of (w, h) makes x the first coordinate and rows the first axis.
    """
    x, y = np.meshgrid(np.arange(columns, dtype=float), np.arange(height, dtype=float))
    omega = 1.0 / 10000 ** (np.arange(width // 4) / (width / 4.0))
    return np.concatenate([one_coordinate(width // 2, c, omega) for c in (x, y)], axis=1)


def big_vision(width, height, columns):
    """`posemb_sincos_2d` of google-research/big_vision (models/vit.py, commit 0b73d7b), in float64."""
    y, x = np.mgrid[:height, :columns]
    omega = 1.0 / 10_000.0 ** (np.arange(width // 4) / (width // 4 - 1))
    return np.concatenate([one_coordinate(width // 2, c, omega) for c in (x, y)], axis=1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [8, 36, 384])
def test_tables_of_mae_and_big_vision(shape, width):
    positions = pe.grid_positions(shape, order="column")  # each coordinate is encoded by itself, and they are joined
    got = np.asarray(pe.sinusoidal(positions, width // 2, layout="half")).reshape(-1, width)
    np.testing.assert_allclose(got, mae(width, *shape), rtol=0, atol=1e-7)
    ends = pe.sinusoidal(positions, pe.geometric(width // 2, endpoint=True), layout="half")
    np.testing.assert_allclose(np.asarray(ends).reshape(-1, width), big_vision(width, *shape), rtol=0, atol=1e-7)
    rows_first = np.asarray(pe.sinusoidal(pe.grid_positions(shape), width // 2, layout="half")).reshape(-1, width)
    np.testing.assert_array_equal(rows_first, np.roll(got, width // 2, axis=1))
    with_class = np.pad(got, ((1, 0), (0, 0)))  # MAE's class token
    assert not with_class[0].any() and with_class.shape == (shape[0] * shape[1] + 1, width)


@pytest.mark.parametrize("case", TABLES, ids=lambda c: f"{c['shape']} {c['arguments']}")
def test_tables_of_timm(case):
    shape, keywords = case["shape"], case["arguments"]
    if keywords.get("reverse_coord"):  # which walks the grid column by column as well
        shape = shape[::-1]
    positions, base = pe.grid_positions(shape), keywords.get("temperature", 10_000.0)
    if keywords.get("interleave_sin_cos"):
        got = pe.sinusoidal(positions, pe.geometric(6, base), layout="half").reshape(-1, 12)
    else:  # the sines of both coordinates, then the cosines
        got = pe.sinusoidal(positions, pe.axial(12, 2, base), layout="half")
    np.testing.assert_allclose(got, np.reshape(case["values"], (-1, 12)), rtol=0, atol=5e-7)


def test_three_coordinates():
    shape, width = (2, 3, 4), 24
    got = pe.sinusoidal(pe.grid_positions(shape), pe.axial(width, 3))
    assert got.shape == (24, width)
    omega = 10000.0 ** (-np.arange(4) / 4)
    for token, cell in zip(np.asarray(got), np.ndindex(*shape), strict=True):
        want = [f(p * w) for p in cell for w in omega for f in (np.sin, np.cos)]
        np.testing.assert_allclose(token, want, rtol=0, atol=1e-7)


@pytest.mark.parametrize("case", RESIZED, ids=lambda c: f"{c['old']} {c['new']} {c['interpolation']}")
def test_resizing_as_timm_does(case):
    method = {"bicubic": "cubic", "bilinear": "linear"}[case["interpolation"]]
    table = np.float32(case["table"]).reshape(*case["old"], 2)
    got = pe.resize_table(table, case["new"], method=method)
    np.testing.assert_allclose(got, np.reshape(case["resized"], (*case["new"], 2)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.grid_positions((3, 0)), ValueError, r"grid_positions: shape\[1\] must be at least 1, got 0"),
        (lambda: pe.grid_positions((-1, 3)), ValueError, r"grid_positions: shape\[0\] must be at least 1, got -1"),
        (lambda: pe.grid_positions(()), ValueError, r"grid_positions: shape must have more sides for order='row', got \(\)"),
        (lambda: pe.grid_positions((3,), order="column"), ValueError, r"grid_positions: shape must have more sides for order='column', got \(3,\)"),
        (lambda: pe.grid_positions((2**16, 2**15)), ValueError, r"grid_positions: shape must have fewer than 2³¹ tokens, got \(65536, 32768\) after leading=0"),
        (lambda: pe.grid_positions(4), TypeError, "grid_positions: shape must be a sequence of integers, got int 4"),  # type: ignore
        (lambda: pe.grid_positions((2.0, 3)), TypeError, r"grid_positions: shape\[0\] must be an integer, got float 2.0"),  # type: ignore
        (lambda: pe.grid_positions((2, 3), leading=-1), ValueError, "grid_positions: leading must be at least 0, got -1"),
        (lambda: pe.grid_positions((2, 3), leading=True), TypeError, "grid_positions: leading must be an integer, got bool True"),
        (lambda: pe.grid_positions((2, 3), order="xy"), ValueError, "grid_positions: order must be one of .* got 'xy'"),  # type: ignore
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
