"""Plans as tables, in text and in HTML."""

import subprocess
import sys

import pytest
import treescope
from flax import nnx

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
    """The rows of a plan's table by the names of its columns."""
    line, *lines = str(plan).split("\n\n")[0].splitlines()[1:]
    starts = [i for i, letter in enumerate(line) if letter != " " and line[max(i - 2, 0) : i].strip() == ""]
    ends = [*starts[1:], None]
    split = lambda text: [text[i:j].strip() for i, j in zip(starts, ends, strict=True)]  # noqa: E731
    return [dict(zip(split(line), split(text), strict=True)) for text in lines]


def test_text_has_one_row_for_equal_layers():
    plan = rotary_from_config(GEMMA)
    assert str(plan) == TABLE
    assert repr(plan).startswith("RotaryPlan(layers=(RotaryLayer(")


def test_html_is_escaped():
    page = rotary_from_config(GEMMA)._repr_html_()
    assert page.startswith("<table><caption>RotaryPlan of 8 layers</caption><tr><th>layers</th><th>kind</th>")
    assert page.count("<tr>") == 3 and "<td>linear, factor 8</td>" in page
    layer = RotaryLayer(pe.geometric(64), 64, kind="<b>&")
    assert "<td>&lt;b&gt;&amp;</td>" in RotaryPlan((layer,), "half")._repr_html_()


def test_what_does_not_rotate_and_what_is_not_known():
    a, b = RotaryLayer(pe.geometric(64), 128), RotaryLayer(pe.geometric(0), 128)
    rows = cells(RotaryPlan((a, b, a, a, b, a), "interleaved", "last"))
    assert [row["layers"] for row in rows] == ["0, 2-3, 5", "1, 4"]
    assert rows[0] | {"base": "10000", "rotated": "last 64 of 128", "layout": "interleaved"} == rows[0]
    assert rows[1] | {"base": "none", "rotated": "0 of 128", "rope type": "none", "layout": ""} == rows[1]
    assert not {"kind", "window", "score scale", "coordinates", "query scale"} & rows[0].keys()


SECTIONS = pe.multi_section(64, (8, 12, 12))
COLUMNS = {
    "a base that no geometric spectrum has": ("base", "?", RotaryLayer(pe.linear_scaling(64, 8.0), 128)),
    "the base of each coordinate": ("base", "100", RotaryLayer(pe.axial(64, 2, 100.0), 64)),
    "the base that coordinates share": ("base", "10000", RotaryLayer(SECTIONS, 64)),
    "coordinates": ("coordinates", "8+12+12", RotaryLayer(SECTIONS, 64)),
    "an amplitude": ("amplitude", "1.5", RotaryLayer(pe.geometric(64).with_attention_factor(1.5), 64)),
    "learned": ("rope type", "default, learned", RotaryLayer(64, 64, learned_log_factor="alpha")),
    "a query scale": ("query scale", "steps, 0.1, 8192", RotaryLayer(64, 64, QueryScale(0.1, 8192, 1))),
    "both sides": ("window", "64 back, 64 ahead", RotaryLayer(64, 64, window=(64, 64))),
    "no window": ("window", "none", RotaryLayer(64, 64, kind="x", window=(None, None))),
    "chunks": ("window", "chunks of 8192", RotaryLayer(64, 64, chunk=8192)),
}


@pytest.mark.parametrize(("column", "text", "layer"), COLUMNS.values(), ids=COLUMNS)
def test_columns(column, text, layer):
    assert cells(RotaryPlan((layer, RotaryLayer(32, 32)), "half"))[0].get(column) == text


def test_an_indexer_has_a_table():
    plan = rotary_from_config({"model_type": "deepseek_v32", "num_hidden_layers": 2})
    text = str(plan).split("\n\nindexer: ")
    assert len(text) == 2 and text[1] == str(plan.indexer) and "64 of 128" in text[1]
    assert plan._repr_html_().count("<table>") == 2


def test_a_tower_has_a_grid():
    tower = {"depth": 4, "hidden_size": 160, "num_heads": 2, "window_size": 112, "fullatt_block_indexes": [1]}
    plan = vision_rotary_from_config({"model_type": "qwen2_5_vl", "vision_config": tower})
    assert str(plan).startswith("VisionPlan of 4 layers, table none\n")
    assert cells(plan)[0] | {"coordinates": "20+20", "grid": "merge 2, window 4"} == cells(plan)[0]


@pytest.mark.filterwarnings("ignore:The chararray class")  # treescope's
def test_notebooks_show_the_table(capsys):
    plan = rotary_from_config(GEMMA)
    nnx.display(plan)  # outside of a notebook
    assert capsys.readouterr().out.strip() == TABLE
    assert "<caption>RotaryPlan of 8 layers</caption>" in treescope.render_to_html(plan, compressed=False)
    program = "import sys, posenc_jax.hf; print('treescope' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).stdout == b"False\n"
