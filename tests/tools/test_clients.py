"""The clients without their codebases: what is replaced comes back, and what is wrong is seen."""

import ast
import importlib
import json
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from clients import harness, patches, run
from helpers.tiers import tiered

ROOT = Path(__file__).parents[2]
theirs = types.SimpleNamespace()


def textbook(x, positions):
    angle = positions[..., None, None].astype(jnp.float32) * 100.0 ** (
        -np.arange(4, dtype=np.float32)[None, None, None] / 4
    )
    a, b = jnp.split(x, 2, axis=-1)
    c, s = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * c - b * s, b * c + a * s], axis=-1)


theirs.rope = textbook
RIGHT = lambda x, p: pe.rotary(x, p, pe.geometric(8, 100.0), head_axis=-2)  # noqa: E731
WRONG = {
    "another base": lambda x, p: pe.rotary(x, p, pe.geometric(8, 101.0), head_axis=-2),
    "the other layout": lambda x, p: pe.rotary(x, p, pe.geometric(8, 100.0), head_axis=-2, layout="interleaved"),
    "one position late": lambda x, p: pe.rotary(x, p.astype(jnp.float32) * 1.001, pe.geometric(8, 100.0), head_axis=-2),
}


def trial():
    call, params, x = harness.layer(lambda x, p: theirs.rope(x, p), head_dim=8, length=8)
    p = jnp.tile(jnp.arange(8), (2, 1))
    return harness.Trial("textbook", call, params, (x, p), (x, p + 1_000_000))


def test_the_right_one_passes_and_theirs_comes_back():
    found = harness.run(trial(), [harness.Replaced(theirs, "rope", RIGHT)], compiles=1)
    assert found["passed"] and theirs.rope is textbook
    assert found["outputs"] < 1e-6 < 1e-2 < found["outputs deleted"]
    assert found["moved ours"] < 2e-6 < found["moved theirs"]
    assert "passed" in run.line("textbook", found)


@pytest.mark.parametrize("name", tiered(WRONG, ["one position late"]))
def test_a_wrong_one_fails(name):
    assert not harness.run(trial(), [harness.Replaced(theirs, "rope", WRONG[name])], compiles=1)["passed"]


def test_what_changes_nothing_when_it_is_deleted_fails():
    """The control: positions that the model does not use."""
    same = harness.Replaced(theirs, "rope", RIGHT, textbook)
    assert not harness.run(trial(), [same], compiles=1)["passed"]


def test_collectives_are_counted():
    text = "  %a = f32[8]{0} all-reduce(%b), x\n  %c = (f32[8]{0}, f32[8]{0}) all-gather-start(%d)\n  %e = f32[] all-reduce(%f)"
    program = types.SimpleNamespace(as_text=lambda: text)
    assert harness.collectives(program) == {"all-reduce": 2, "all-gather": 1}


def test_the_session_the_table_and_the_page_have_the_same_clients():
    noxfile, page = (ROOT / "noxfile.py").read_text("utf-8"), (ROOT / "docs/clients.md").read_text("utf-8")
    weekly = (ROOT / ".github/workflows/weekly.yml").read_text("utf-8")
    listed = re.search(r"^CLIENTS = \{(.*?)^\}", noxfile, re.M | re.S)
    assert re.findall(r'^    "(\w+)":', listed.group(1), re.M) == [*run.NAMES]
    assert f"client: [{', '.join(run.NAMES)}]" in weekly
    assert '"clients.patches", client, "--check"' in noxfile
    table = (ROOT / "clients/results/table.md").read_text("utf-8")
    assert table == run.table()
    for name in run.NAMES:
        assert f'--8<-- "clients/{name}.py:copy"' in page
        written = json.loads((ROOT / f"clients/results/{name}.json").read_text("utf-8"))
        assert written["models"] and all(model["passed"] for model in written["models"])
        if "--source" not in written["command"]:
            assert f"{written['package']}=={written['version']}" in listed.group(1)
            continue
        (commit,) = re.findall(rf'"{name}": \("{written["package"]}", "(\w{{40}})"\)', noxfile)
        assert commit.startswith(written["version"])
        assert f"client: {name}\n            repository: {written['package']}\n            commit: {commit}\n" in weekly


@pytest.mark.parametrize("name", run.NAMES)
def test_the_lines_to_copy_are_short_and_whole(name):
    text = (ROOT / f"clients/{name}.py").read_text("utf-8")
    (lines,) = re.findall(r"# --8<-- \[start:copy\]\n(.*?)\n+# --8<-- \[end:copy\]", text, re.S)
    assert lines.startswith("import posenc_jax as pe") and len(lines.splitlines()) < 100
    assert max(map(len, lines.splitlines())) <= 105  # so that the page shows them whole
    compile(lines, name, "exec")


def test_jitter_is_a_rounding():
    x = {"w": jnp.ones((3, 4)), "n": jnp.arange(3)}
    got = harness.jittered(x)
    assert 0 < np.abs(got["w"] - 1).max() < 2e-7 and (got["n"] == x["n"]).all()
    assert importlib.util.find_spec("clients.plugin") and jax.tree.structure(got) == jax.tree.structure(x)


# Patches

THEIRS = '''"""Rotations."""

import math

import jax.numpy as jnp


class Rope(Module):
  base: float

  @named
  def __call__(self, x, *, key=None):
    """Turns x."""
    length, width = x.shape
    if width % 2:
      raise ValueError("odd")
    assert length
    angle = jnp.arange(length)
    if angle is None:
      raise ValueError("not a check of what is given")
    return x * angle


class Same(Rope):
  """Inherits."""
'''
OURS = """import posenc_jax as pe


def cast(x):
    return x


def rope(self, x, *, key=None):
    if self.base:
        f = pe.geometric(
            8, self.base
        )
    return cast(pe.rotary(x, None, f))


def other(x):
    return x
"""
NEW_BODY = """    if self.base:
      f = pe.geometric(
        8, self.base
      )
    return cast(pe.rotary(x, None, f))
"""


def test_a_patch_keeps_the_signature_the_docstring_and_the_checks():
    new = patches.rewritten(THEIRS, OURS, {"Rope.__call__": "rope", "Same.__call__": "rope"})
    old = "    angle = jnp" + THEIRS.split("    angle = jnp")[1].split("\n\n\nclass Same")[0] + "\n"
    want = THEIRS.replace(old, NEW_BODY).replace("numpy as jnp\n", "numpy as jnp\nimport posenc_jax as pe\n")
    want = want.replace("class Rope", "def cast(x):\n  return x\n\n\nclass Rope")
    assert new == want + "\n  def __call__(self, x, *, key=None):\n" + NEW_BODY
    with pytest.raises(ValueError, match=r"Rope.__call__ takes \['self', 'x', 'key'\], other takes \['x'\]"):
        patches.rewritten(THEIRS, OURS, {"Rope.__call__": "other"})


def test_a_patch_under_a_guard_keeps_their_lines():
    new = patches.rewritten(THEIRS, OURS, {"Rope.__call__": "rope"}, ("here()", ["import jax"]))
    added = "    if here():\n" + "".join(
        f"      {line}\n" if line else "\n" for line in ["import jax", "import posenc_jax as pe", ""]
    )
    added += "".join(f"  {line}\n" for line in NEW_BODY.splitlines()) + "\n"
    assert new == THEIRS.replace("    length, width", added + "    length, width")


def test_commands_and_what_they_print():
    text = "a\n\n```bash\necho 1\n```\n\n```text\n1\n```\n\n```bash\necho 2\n```\n"
    assert patches.commands(text) == [("echo 1\n", "1\n")]


@pytest.mark.parametrize("name", run.NAMES)
def test_a_patch_holds_the_lines_to_copy(name):
    """The session makes each patch again from the sources; here, that it did so after these lines were written."""
    client = (ROOT / f"clients/{name}.py").read_text("utf-8")
    copied = client.split("[start:copy]\n")[1].split("# --8<-- [end:copy]")[0]
    lines = (patches.FOLDER / f"{name}.patch").read_text("utf-8").splitlines()
    added = {line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")}
    copied_lines = {line.strip() for line in copied.splitlines()}
    guard = re.findall(r"^GUARD = '(.*?)', \[\"(.*?)\"\]", client, re.M)
    others = {f"if {guard[0][0]}:", guard[0][1]} if guard else set()
    assert all(line in copied_lines | others or line.startswith("def __call__(") for line in added - {""})
    for function in ast.parse(copied).body[1:]:
        body = copied.splitlines()[function.body[0].lineno - 1 : function.end_lineno]
        assert {line.strip() for line in body} <= added | {line.strip() for line in lines}, function.name


@pytest.mark.parametrize("name", run.NAMES)
def test_a_text_says_what_the_session_found(name):
    text = " ".join((patches.FOLDER / f"{name}.md").read_text("utf-8").split())
    written = json.loads((ROOT / f"clients/results/{name}.json").read_text("utf-8"))
    assert f"{written['package']} {written['version']}" in text and f"test_{name}.py" in text
    moved = [(each["moved theirs"], each["moved ours"]) for each in written["models"] if "moved ours" in each]
    said = re.findall(r"change by (\S+) to (\S+) of the largest value, and with the patch by at most (\S+)\.", text)
    assert len(said) == bool(moved)
    for least, most, ours in said:
        theirs = [each for each, _ in moved]
        assert (f"{min(theirs):.0e}", f"{max(theirs):.0e}") == (least, most)
        assert max(each for _, each in moved) < float(ours)
    patch = (patches.FOLDER / f"{name}.patch").read_text("utf-8")
    for count in re.findall(r"(\d+) lines for (\d+)", text):
        assert count == tuple(str(len(re.findall(rf"^[{sign}][^{sign}\n]", patch, re.M))) for sign in "+-")
    compile((patches.FOLDER / f"test_{name}.py").read_text("utf-8"), name, "exec")


def test_readme_says_what_the_session_found():
    every = [json.loads((ROOT / f"clients/results/{name}.json").read_text("utf-8"))["models"] for name in run.NAMES]
    moved = [
        [(each["moved theirs"], each["moved ours"]) for each in models if "moved ours" in each] for models in every
    ]
    theirs, ours = zip(*(pair for pairs in moved for pair in pairs), strict=True)
    (row,) = re.findall(r"^\| Change when .*", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert sum(map(bool, moved)) == 8 and len(moved) == 9 and "eight of nine codebases" in row
    assert f"| {min(theirs):.0e} to {max(theirs):.0e} |" in row
    assert max(ours) < float(re.search(r"under (\S+) \|", row).group(1)) < 2 * max(ours)


def test_the_page_says_how_far_models_move():
    every = [json.loads((ROOT / f"clients/results/{name}.json").read_text("utf-8"))["models"] for name in run.NAMES]
    models = [model for models in every for model in models]
    page = " ".join((ROOT / "docs/clients.md").read_text("utf-8").split())
    (deleted,) = re.findall(r"Without any rotation, outputs differ by (\S+) of the largest value or more", page)
    assert 0 <= min(model["outputs deleted"] for model in models) - float(deleted) < 0.01
    moved = [model for model in models if "moved ours" in model]
    theirs = [model["moved theirs"] for model in moved]
    said = f"It changes the originals' outputs by {min(theirs):.1g} to {max(theirs):.2g} of the largest value"
    assert said in page
    assert all(model["moved ours"] <= harness.NOISE * model["outputs noise"] for model in moved)


def test_own_tests_that_fail_as_they_are_show_nothing(tmp_path):
    (tmp_path / "test_one.py").write_text("def test_one():\n    assert False\n", "utf-8")
    with pytest.raises(SystemExit, match="none of its own tests pass as they are"):
        run.own_tests("", ["test_one.py"], tmp_path)
    with pytest.raises(SystemExit, match="holds none of maxtext's tests"):
        run.own_tests("maxtext", ["test_two.py"], tmp_path)


def test_the_page_has_the_times_of_the_session():
    times = {"time": [], "function": [], "compile": []}
    for name in run.NAMES[:7]:
        for model in json.loads((ROOT / f"clients/results/{name}.json").read_text("utf-8"))["models"]:
            for key in times.keys() & model:
                times[key].append(model[key])
    page = " ".join((ROOT / "docs/clients.md").read_text("utf-8").split())
    passes, function, compiling = (f"{min(found):.2f} to {max(found):.2f}" for found in times.values())
    said = f"{passes} of the original's time for a forward and backward pass, {function} for the function alone, and {compiling}"
    assert said in page
