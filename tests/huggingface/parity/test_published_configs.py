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
    assert isinstance(plan, str) or not isinstance(old, list) or len(plan.layers) == len(fresh)
    if isinstance(plan, str):
        tally["published configs, refused with a reason"] += 1
        return
    tally["published configs, read"] += 1
    if isinstance(old, list):
        wrong = not all(map(_same, plan.layers, fresh))
        tally["published configs, read and equal to transformers"] += not wrong
        tally["published configs, read and wrong"] += wrong
        assert not wrong
    else:
        tally["published configs, read, without a reference in transformers"] += 1


def _same(layer, theirs):
    """Whether a layer has the amplitude and the frequencies of transformers, or no positions."""
    if not layer.rotary_dim:
        return True
    ours = [layer.frequencies.attention_factor, *sorted(layer.frequencies.angular, reverse=True)]
    return theirs is not None and ours == pytest.approx(theirs, rel=3e-6)
