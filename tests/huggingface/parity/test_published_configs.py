"""Configs of published checkpoints: what is recorded of their spectra is what the installed transformers makes of them."""

import published
import pytest
import small

from oracles import recorded

RECORD = recorded.read("hf_published")


NEWER = {name for names in small.NEWER.values() for name in names}  # than the release that is recorded


@pytest.mark.parametrize("case", RECORD["cases"], ids=lambda case: case["name"])
def test_recorded_spectra(case, tally):
    fresh, old = published.spectra(case["config"]), case["layers"]
    if isinstance(old, list):
        for theirs, number in zip(fresh, old, strict=True):
            assert theirs == (None if number is None else pytest.approx(RECORD["spectra"][number], rel=1e-6))
    elif old is None and case["config"]["model_type"] in NEWER:
        old = fresh
    else:  # how it fails is not recorded for its words
        assert type(fresh) is type(old)
    plan = published.outcome(case["config"])
    if isinstance(plan, str):
        tally["published configs, refused with a reason"] += 1
        return
    tally["published configs, read"] += 1
    if isinstance(old, list):
        for layer, theirs in zip(plan.layers, fresh, strict=True):
            if layer.rotary_dim:
                ours = sorted(layer.frequencies.angular, reverse=True)
                assert [layer.frequencies.attention_factor, *ours] == pytest.approx(theirs, rel=3e-6)
        tally["published configs, read and equal to transformers"] += 1
