"""Rows of docs/attention_models.md give what modules of transformers and timm with these biases gave, recorded."""

import jax
import numpy as np
import pytest

from helpers.closeness import assert_within
from helpers.placed_biases import ROWS, attended, rounded
from helpers.tiers import slow
from oracles import recorded

CASES = [(case.pop("row"), case) for case in recorded.cases("placed_biases")]
BOUND = 1e-5  # of outputs up to 7, by two float32 programs
ROUNDED = [(row, case) for row, case in CASES if row == "Falcon" and case["length"] > 256]


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def label(x):
    return x if isinstance(x, str) else f"{len(x['query'])} queries of {x.get('length', 'a window')}"


def test_every_row_is_recorded():
    assert {row for row, _ in CASES} == set(ROWS)
    assert len(ROUNDED) == 1


@pytest.mark.parametrize(
    ("row", "case"),
    [x if n % 2 else slow(*x) for n, x in enumerate(x for x in CASES if x not in ROUNDED)],
    ids=label,
)
def test_the_row_is_the_module(row, case):
    assert_within(attended(row, case), np.array(case["output"]), BOUND, against=row)


@pytest.mark.slow
def test_the_page_repeats_the_rounding_of_falcon():
    ((row, case),) = ROUNDED
    assert_within(attended(row, case, **rounded(case)), np.array(case["output"]), BOUND, against=row)
