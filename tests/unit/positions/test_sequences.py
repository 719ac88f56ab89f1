"""Positions in packed and padded sequences are those of loops over tokens.

- `positions_from_segments` counts from 0 in each run of equal ids; tokens with the padding id are at 0.
- `positions_from_mask` counts tokens, and padding on any side is at 0.
- `positions_from_lengths` counts from 0 in each document. Traced lengths beyond the total are cut; a negative one makes
  all positions −1.
- All need memory linear in the length, without gathers and sorts.
"""

import functools
import re

import jax
import numpy as np
import pytest

import posenc_jax as pe
from oracles import positions as loops

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(1,), (2, 2, 51), (2, 0)])
def test_positions_count_from_0_in_each_segment(shape):
    paddings = None, 0, 2, 99
    ids = RNG.integers(-2, 3, shape).repeat(3, axis=-1)[..., : shape[-1]].astype(np.int32)  # runs of 3, 6, …
    every = jax.jit(lambda ids: [pe.positions_from_segments(ids, padding=padding) for padding in paddings])(ids)
    for padding, got in zip(paddings, every, strict=True):
        rows = [loops.segments(row, padding) for row in ids.reshape(int(np.prod(shape[:-1])), shape[-1]).tolist()]
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, np.reshape(rows, shape))


def test_a_segment_that_comes_back_starts_again():
    ids = np.array([5, 5, 0, 0, 5, 5, 5, 9])
    np.testing.assert_array_equal(pe.positions_from_segments(ids), [0, 1, 0, 1, 0, 1, 2, 0])
    np.testing.assert_array_equal(pe.positions_from_segments(ids, padding=0), [0, 1, 0, 0, 0, 1, 2, 0])


PADDINGS = 3, 255, 300, -1, 2**31 - 1, -(2**31)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.uint8])
def test_a_padding_id_may_lie_at_or_beyond_the_ends_of_the_dtype(dtype):
    """A padding id that does not fit matches no id, not even the one that it would wrap around to."""
    # what 300 wraps around to in uint8, and −2³¹ and −1 in uint32
    ends, wrapped = np.iinfo(dtype), (300 - 256, 2**31, 2**32 - 1)
    ids = np.repeat([n for n in PADDINGS + wrapped if ends.min <= n <= ends.max], 2).astype(dtype)
    every = jax.jit(lambda ids: [pe.positions_from_segments(ids, padding=padding) for padding in PADDINGS])(ids)
    for padding, got in zip(PADDINGS, every, strict=True):
        np.testing.assert_array_equal(got, loops.segments(ids.tolist(), padding), f"padding {padding}")


@pytest.mark.parametrize("dtype", [bool, np.uint8])
def test_positions_count_the_tokens_of_a_mask(dtype):
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]]).astype(dtype)
    want = [[0, 0, 0, 1, 2], [0, 1, 2, 0, 0], [0, 0, 1, 0, 2], [0, 0, 0, 0, 0]]
    for got in (pe.positions_from_mask(mask), jax.jit(pe.positions_from_mask)(mask)):
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, want)


def test_every_nonzero_value_of_a_traced_mask_counts():
    traced = jax.jit(pe.positions_from_mask)(np.array([0, 7, -1, 0], np.int32))
    np.testing.assert_array_equal(traced, [0, 0, 1, 0])


@pytest.mark.parametrize(
    ("lengths", "total", "dtype"),
    [
        *((lengths, 12, np.int32) for lengths in ([0] * 6, [1] * 6, [2] * 6, [7, 1, 4, 0, 0, 0])),
        *(([0, 3, 0, 0, 2, 0], 12, dtype) for dtype in (np.int32, np.uint8)),
        ([], 3, np.int32),
        ([0, 0, 1], 1, np.int32),
    ],
)
def test_positions_count_from_0_in_each_document(lengths, total, dtype):
    lengths, f = np.array(lengths, dtype), functools.partial(pe.positions_from_lengths, total=total)
    for got in (f(lengths), jax.jit(f)(lengths)):
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, loops.lengths(lengths, total))


def test_lengths_may_have_a_batch():
    lengths = RNG.multinomial(20, [0.4, 0.2, 0.2, 0.1, 0.1], (20, 5)).astype(np.int32)
    want = [[loops.lengths(row, 23) for row in rows] for rows in lengths]
    np.testing.assert_array_equal(pe.positions_from_lengths(lengths, 23), want)


@pytest.mark.parametrize(
    ("lengths", "want"),
    [
        ([3, 9, 4], [0, 1, 2, 0, 1, 2, 3]),
        ([3, -1, 0], [-1] * 7),
        ([-(2**31), 9, 0], [-1] * 7),
        ([3, 2**31 - 1, 2**31 - 1], [0, 1, 2, 0, 1, 2, 3]),  # the sum wraps around in int32
        ([3, *[2**31 - 1] * 3], [0, 1, 2, 0, 1, 2, 3]),  # and in uint32
        ([3, *[2**30] * 9], [0, 1, 2, 0, 1, 2, 3]),
    ],
)
def test_traced_lengths_that_do_not_fit_are_cut_or_give_minus_1(lengths, want):
    documents = np.int32(lengths + [0] * (10 - len(lengths)))
    np.testing.assert_array_equal(jax.jit(lambda n: pe.positions_from_lengths(n, 7))(documents), want)


@pytest.mark.parametrize(
    ("f", "bytes_per_token"),
    [
        (pe.positions_from_segments, 40),
        (pe.positions_from_mask, 40),
        (lambda lengths: pe.positions_from_lengths(lengths, 2**12), 80),
    ],
)
def test_memory_is_linear_without_gathers_and_sorts(f, bytes_per_token):
    compiled = jax.jit(f).lower(jax.ShapeDtypeStruct((2**12,), np.int32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= bytes_per_token * 2**12
    assert not {"gather", "sort"} & set(compiled.as_text().replace("(", " ").split())


IDS = np.array([1, 1, 2], np.int32)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "match"),
    [
        ("segments", (3,), ValueError, "ids must have shape (..., length), got ()"),
        ("segments", (np.array([1, 2**32 + 1]),), ValueError, "ids must fit into int32"),
        ("mask", (IDS,), ValueError, "mask must hold 0 and 1, got 1 to 2"),
        ("mask", (-IDS,), ValueError, "mask must hold 0 and 1, got -2 to -1"),
        ("mask", (np.float32(IDS),), TypeError, "mask must be a boolean or integer array"),
        ("mask", (np.array(True),), ValueError, "mask must have shape (..., length), got ()"),
        ("lengths", (IDS, 3), ValueError, "lengths must sum to at most total = 3, got 4"),
        ("lengths", (np.full(9, 2**31 - 1), 3), ValueError, "lengths must sum to at most total = 3, got 19327352823"),
        ("lengths", (np.array([[1, 2], [3, 1]]), 3), ValueError, "lengths must sum to at most total = 3, got 4"),
        ("lengths", (np.array([3, -1]), 7), ValueError, "lengths must be at least 0, got -1"),
        ("lengths", (IDS, 0), ValueError, "total must be at least 1"),
        ("lengths", (IDS, 2**31), ValueError, "total must fit into int32"),
        ("lengths", (3, 7), ValueError, "lengths must have shape (..., documents), got ()"),
    ],
)
def test_invalid_arguments_raise(name, arguments, error, match):
    f = getattr(pe, f"positions_from_{name}")
    with pytest.raises(error, match=f"^positions_from_{name}: {re.escape(match)}"):
        f(*arguments)


@pytest.mark.parametrize(("padding", "error"), [(0.0, TypeError), (False, TypeError), (2**31, ValueError)])
def test_invalid_paddings_raise(padding, error):
    with pytest.raises(error, match="^positions_from_segments: padding must (be an integer|fit into int32)"):
        pe.positions_from_segments(IDS, padding=padding)
