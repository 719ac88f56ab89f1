"""What evidence.md shows is computed from demo/evidence.json."""

import json

import numpy as np
import pytest

from helpers.pages import program, text_of

RESULTS = json.loads(text_of("demo/evidence.json"))


def test_a_row_is_mean_and_standard_deviation_of_the_seeds():
    losses = np.array([[*seed["kerple"]["bits_per_byte"].values()] for seed in RESULTS["seeds"].values()])
    cells = [f"{m:.2f}\u00a0±\u00a0{s:.2f}" for m, s in zip(losses.mean(0), losses.std(0, ddof=1), strict=True)]
    table = program("findings").texts()["evidence_variants.md"]
    assert f"| KERPLE | {' | '.join(cells)} |" in table and table.count("no answer") == 2  # the learned table's


def test_the_reach_of_a_base_is_that_of_its_paper(monkeypatch):
    """Xu et al., 2024: bases 4.3e3, 1.6e4 and 8.4e4 for 1,024, 2,048 and 8,192, at width 128."""
    findings = program("findings")
    monkeypatch.setattr(findings, "HEAD_DIM", 128)
    for base, length in ((4.3e3, 1024), (1.6e4, 2048), (8.4e4, 8192)):
        assert findings.reach(0.95 * base) < length <= findings.reach(base)


@pytest.mark.parametrize("name", program("findings").texts())
def test_the_page_shows_every_part(name):
    assert f'--8<-- "outputs/{name}"' in text_of("docs/evidence.md")
