"""Tables and sentences that programs of docs/ write into pages agree with formulas, papers and recorded results."""

import json
import re

import numpy as np

from helpers.pages import program, text_of
from posenc_jax.hf._diffusion_models import MODELS


def test_a_row_of_evidence_is_mean_and_standard_deviation_of_the_seeds():
    seeds = json.loads(text_of("demo/evidence.json"))["seeds"].values()
    losses = np.array([[*seed["kerple"]["bits_per_byte"].values()] for seed in seeds])
    cells = [f"{m:.2f}\u00a0±\u00a0{s:.2f}" for m, s in zip(losses.mean(0), losses.std(0, ddof=1), strict=True)]
    assert f"| KERPLE | {' | '.join(cells)} |" in program("findings").texts()["evidence_variants.md"]


def test_the_reach_of_a_base_is_that_of_its_paper(monkeypatch):
    """Xu et al., 2024: bases 4.3e3, 1.6e4 and 8.4e4 for 1,024, 2,048 and 8,192, at width 128."""
    findings = program("findings")
    monkeypatch.setattr(findings, "HEAD_DIM", 128)
    for base, length in ((4.3e3, 1024), (1.6e4, 2048), (8.4e4, 8192)):
        assert findings.reach(0.95 * base) < length <= findings.reach(base)


def rows(table):
    """The cells of a Markdown table by the first cell of their row."""
    cells = ([cell.strip() for cell in row[1:-1].split("|")] for row in table.split("\n")[2:])
    return {name: rest for name, *rest in cells}


def test_a_summary_is_the_first_sentences_below_the_title():
    summary = program("llms").summary
    assert (
        summary("---\nhide: x\n---\n\n# T { #t }\n\n```python\n# c\n```\n\n[A `b`](x.md).\nMore: $x$. ")
        == "A b. More: x."
    )
    assert summary("# T\n\nOne. " + "Two " * 50 + ".") == "One."
    assert summary("# T\n\nNo end") == "No end" and summary("# T\n") == ""


def test_the_table_of_diffusion_models_has_every_class():
    """With its widths, its base, its pairs, the order of its tokens, and what its positions take."""
    text = program("diffusion_models").texts()["diffusion_models.md"]
    assert {*re.findall(r"\w+DModel", text)} == MODELS.keys()
    assert {line.count("|") for line in text.splitlines()} == {5}
    table = rows(text)
    rotation, tokens, _ = table["Flux 2<br>`Flux2Transformer2DModel`"]
    assert rotation == "32, 32, 32, 32<br>base 2,000<br>interleaved"
    assert tokens == "`text`, image, `references`"
    assert table["Cosmos<br>`CosmosTransformer3DModel`"][1] == "video; `rate` of a video"
    assert table["HiDream<br>`HiDreamImageTransformer2DModel`"][1] == "image, `text`"
