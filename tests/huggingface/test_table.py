"""A plan prints as a table, in text and in HTML: equal layers share a row, and a fact that some layer has is a column.

An indexer has a table of its own; a vision tower's table has its grid.
"""

import re

import pytest
import treescope

import posenc_jax as pe
from posenc_jax.hf import QueryScale, RotaryLayer, RotaryPlan, rotary_from_config, vision_rotary_from_config

GEMMA = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 8,
    "head_dim": 256,
    "sliding_window": 1024,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
TABLE = """\
RotaryPlan of 8 layers
layers    kind               base     rotated     rope type         layout  window     score scale
0-4, 6-7  sliding_attention  10000    256 of 256  default           half    1023 back  0.0625
5         full_attention     1000000  256 of 256  linear, factor 8  half    none       0.0625"""


def cells(plan):
    """The rows of a plan's HTML table, each a dict from names of columns to cells."""
    names, *rows = (re.findall("<t[hd]>(.*?)</t", line) for line in plan._repr_html_().split("<tr>")[1:])
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_in_text_equal_layers_share_a_row():
    plan = rotary_from_config(GEMMA)
    assert str(plan) == TABLE
    assert repr(plan).startswith("RotaryPlan(layers=(RotaryLayer(")


@pytest.mark.filterwarnings("ignore:The chararray class")  # treescope's
def test_notebooks_show_the_table_as_escaped_html():
    page = rotary_from_config(GEMMA)._repr_html_()
    assert page.startswith("<table><caption>RotaryPlan of 8 layers</caption><tr><th>layers</th><th>kind</th>")
    assert page.count("</tr>") == 3 and page.endswith("</td></tr></table>")
    plan = RotaryPlan((RotaryLayer(64, 64, kind="<b>&"),), "half")
    assert "<td>&lt;b&gt;&amp;</td>" in plan._repr_html_()
    assert "<caption>RotaryPlan of 1 layer</caption>" in treescope.render_to_html(plan, compressed=False)


def test_layers_without_rotation_have_a_row_and_unknown_facts_no_column():
    """These layers have no kind, window or scale of scores."""
    a, b = RotaryLayer(64, 128), RotaryLayer(0, 128)
    plan = RotaryPlan((a, b, a, a, b, a), "interleaved", "last")
    first, second = cells(plan)
    assert str(plan).startswith("RotaryPlan of 6 layers\n")
    rotated = {"base": "10000", "rotated": "last 64 of 128", "rope type": "default", "layout": "interleaved"}
    assert first == {"layers": "0, 2-3, 5"} | rotated
    assert second == {"layers": "1, 4", "base": "none", "rotated": "0 of 128", "rope type": "none", "layout": ""}


SECTIONS = pe.multi_section(64, (8, 12, 12))


@pytest.mark.parametrize(
    ("column", "text", "layer"),  # the cell's text in this layer's row
    [
        ("base", "?", RotaryLayer(pe.linear_scaling(64, 8.0), 128)),  # frequencies that are no geometric series
        ("base", "100", RotaryLayer(pe.axial(64, 2, 100.0), 64)),
        ("base", "10000", RotaryLayer(SECTIONS, 64)),
        ("coordinates", "8+12+12", RotaryLayer(SECTIONS, 64)),
        ("amplitude", "1.5", RotaryLayer(pe.geometric(64).with_attention_factor(1.5), 64)),
        ("rope type", "default, learned", RotaryLayer(64, 64, learned_log_factor="alpha")),
        ("query scale", "steps, 0.1, 8192", RotaryLayer(64, 64, QueryScale(0.1, 8192, 1))),
        ("window", "64 back, 64 ahead", RotaryLayer(64, 64, window=(64, 64))),
        ("window", "none", RotaryLayer(64, 64, kind="x", window=(None, None))),
        ("window", "chunks of 8192", RotaryLayer(64, 64, chunk=8192)),
    ],
)
def test_a_layer_has_this_text_in_this_column(column, text, layer):
    """The plan has another layer, so that some facts differ between layers."""
    assert cells(RotaryPlan((layer, RotaryLayer(32, 32)), "half"))[0].get(column) == text


def test_an_indexer_has_a_table_of_its_own():
    plan = rotary_from_config({"model_type": "deepseek_v32", "num_hidden_layers": 2})
    assert str(plan).split("\n\nindexer: ")[1] == str(plan.indexer)
    assert "64 of 128" in str(plan.indexer) and plan._repr_html_().count("<table>") == 2


def test_the_table_of_a_tower_has_its_grid():
    tower = {"depth": 4, "hidden_size": 160, "num_heads": 2, "window_size": 112, "fullatt_block_indexes": [1]}
    plan = vision_rotary_from_config({"model_type": "qwen2_5_vl", "vision_config": tower})
    assert str(plan).startswith("VisionPlan of 4 layers, table none\n")
    assert cells(plan)[0].items() >= {"coordinates": "20+20", "grid": "merge 2, window 4"}.items()
