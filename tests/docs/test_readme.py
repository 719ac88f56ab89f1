"""The README's examples run, and say what is so."""

import re
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLES = [[cell.strip() for cell in line.strip("|").split("|")] for line in README.splitlines() if line[:1] == "|"]


def row(label, table):
    """The other cells of the only row of a table that begins with a label."""
    (found,) = (cells for cells in table if cells[0] == label)
    return found[1:]


def rows_of(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_it_is_short():
    assert len(README.split()) <= 900


@pytest.mark.slow
def test_the_examples():
    names = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a user has them
        for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
            exec(block, names)
        assert names["table"].shape == (1024, 512) and names["x"].shape == (2, 1024, 512)
        np.testing.assert_array_equal(names["x"][1], names["table"])  # x was zeros
        np.testing.assert_allclose(names["far"], pe.shift(pe.sinusoidal(1_999_999_995, 512), 5, 512), rtol=0, atol=5e-7)
        check_decoding(names)
        assert names["layer"](np.ones((1, 3, 512), np.float32)).shape == (1, 3, 512)
        check_layers(names["plan"], names["attention"])


def check_decoding(names):
    """A step gives the row of the whole sequence, and its cache the bits."""

    def turn(x):
        return pe.rotary(x, None, pe.geometric(128, 500_000.0), head_axis=-2)

    projected = jnp.concatenate([names["prompt"], names["token"]], axis=1)
    np.testing.assert_array_equal(names["keys"][:, :101], turn(projected))
    assert not names["keys"][:, 101:].any() and not names["values"][:, 101:].any()
    np.testing.assert_array_equal(names["values"][:, :101], projected)
    queries = turn(jnp.broadcast_to(names["query"], (2, 101, 32, 128)))
    whole = jax.nn.dot_product_attention(queries, turn(projected), projected, is_causal=True)
    np.testing.assert_allclose(*(x.astype(np.float32) for x in (names["out"], whole[:, -1:])), rtol=0, atol=0.02)


def check_layers(plan, attention):
    """Seven layers of eight rotate as the config says, the others not at all, and a traced layer is like a static one."""
    q, k, v = jax.random.normal(jax.random.key(1), (3, 2, 9, 4, 128))
    assert [layer.rotary_dim for layer in plan.layers] == [128, 128, 128, 0] * 2
    turned = [pe.rotary(x, None, pe.geometric(128, 5e6), head_axis=-2) for x in (q, k)]
    traced = jax.jit(attention)
    for layer, (a, b) in {2: turned, 3: (q, k)}.items():
        want = jax.nn.dot_product_attention(a, b, v, is_causal=True)
        for got in (attention(q, k, v, layer), traced(q, k, v, layer), attention(q, k, v, layer, jnp.arange(9))):
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


def test_the_vectors_are_those_of_the_results():
    conformance = rows_of("conformance/results/table.md")
    passed, refused = (next(cells for cells in conformance if cells[0] == name) for name in ("passed", "not offered"))
    cases = int(passed[1]) + int(refused[1])
    ours, beside, _ = row("Test vectors passed", TABLES)
    assert (
        ours == f"{passed[1]} of {cases}" and beside == f"transformers: {passed[-1]} of its {cases - int(refused[-1])}"
    )


def test_nothing_is_left_to_fill_in():
    assert not re.findall(r"\b[A-Z]{3,}_[A-Z]+\b|TODO|TBD", README)


def test_files_it_names_exist_and_are_shipped():
    inside = r"`(?:python )?((?:benchmarks|tests|examples)/[\w./]+)`"
    names = re.findall(rf"\]\(([^)#:]+)\)|src(?:set)?=\"([^\"]+)\"|{inside}", README)
    paths = {name for found in names for name in found if name}
    assert {"CITATION.cff", "docs/phase_error.png", "benchmarks/rotary_error.py"} <= paths
    assert all((ROOT / path).exists() for path in paths), paths
    sdist = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "sdist"
    ]
    shipped = {path.strip("/") for path in sdist["include"]} | {"LICENSE"}  # hatchling adds the licence
    assert {path.partition("/")[0] for path in paths} <= shipped
