"""Models still have the masks that were recorded of them."""

import pytest
from record_masks import CASES, case

from oracles import recorded

RECORDED = {case["model"]: case for case in recorded.cases("hf_masks")}


@pytest.mark.parametrize("name", CASES)
def test_the_mask_is_the_recorded_one(name):
    assert case(name) == RECORDED[name]
