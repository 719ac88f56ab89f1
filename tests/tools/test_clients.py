"""The harness and the patches of clients/, tried without the codebases of the clients.

- A replaced function comes back after a trial; the right replacement passes, and a wrong one fails.
- Where theirs is wrong, the truth decides, and a trial that says so fails once theirs is right.
- Pins, workflow and results list the same clients.
- A patch replaces a body, and keeps the signature, the docstring and the checks.
"""

import json
import tomllib
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from clients import harness, patches, run

ROOT = Path(__file__).parents[2]
FREQUENCIES = pe.geometric(8, 100.0)
theirs = types.SimpleNamespace()  # stands for a module of a client, whose function `rope` is replaced


def textbook(x, positions):
    """Their function: right near 0, and off at a million because of float32 phases."""
    omega = 100.0 ** (-np.arange(4, dtype=np.float32)[None, None, None] / 4)
    angle = positions[..., None, None].astype(jnp.float32) * omega
    a, b = jnp.split(x, 2, axis=-1)
    c, s = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def right(x, positions):
    return pe.rotary(x, positions, FREQUENCIES, head_axis=-2)


def stretched(x, positions):
    """A wrong replacement: positions are a thousandth too large."""
    return pe.rotary(x, positions.astype(jnp.float32) * 1.001, FREQUENCIES, head_axis=-2)


theirs.rope = textbook


def tried(*replacement, wrong=""):
    """The report on a layer that rotates by `theirs.rope`, with a replacement and, where given, control and truth."""
    call, *drawn = harness.layer(lambda x, p: theirs.rope(x, p), head_dim=8, length=8)
    params, x = jax.device_get(drawn)
    p = np.tile(np.arange(8, dtype=np.int32), (2, 1))
    # Inputs near 0, and moved by a million positions
    trial = harness.Trial("textbook", call, params, (x, p), (x, p + 1_000_000), wrong)
    return harness.run(trial, [harness.Replaced(theirs, "rope", *replacement)], compiles=1)


def test_the_right_one_passes_and_theirs_comes_back():
    """Outputs change if the rotation is deleted; moved positions change theirs and not ours."""
    found = tried(right)
    assert found["passed"] and theirs.rope is textbook
    assert found["outputs"] < 1e-6 < 1e-2 < found["outputs deleted"]
    assert found["moved ours"] < 2e-6 < found["moved theirs"]


def test_a_wrong_one_and_a_model_without_positions_fail():
    assert not tried(stretched)["passed"]
    assert not tried(right, textbook)["passed"]  # the control gives the same


def test_where_theirs_is_wrong_ours_is_compared_with_the_truth_until_they_mend_it(monkeypatch):
    unrotated, line = (lambda x, p: x), "positions are a thousandth too large"
    monkeypatch.setattr(theirs, "rope", stretched)
    found = tried(right, unrotated, textbook, wrong=line)
    assert found["passed"] and found["outputs"] < 1e-6 < 1e-5 < found["outputs theirs"] and found["wrong"] == line
    assert not tried(stretched, unrotated, textbook, wrong=line)["passed"]  # as wrong as theirs
    monkeypatch.setattr(theirs, "rope", textbook)
    assert not tried(right, unrotated, textbook, wrong=line)["passed"]  # mended


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_errors_of_far_positions(layout):
    f = pe.geometric(64, 500_000)
    rotate = lambda x, at: pe.rotary(x, at, f.with_precision("float32"), head_axis=-2, layout=layout)  # noqa: E731
    theirs = harness.errors(harness.Far(rotate, layout))
    assert theirs[0] < 1e-7 and 0.4 < theirs[-1] < 1 and theirs == sorted(theirs)
    exact = lambda x, at: pe.rotary(x, at, f, head_axis=-2, layout=layout)  # noqa: E731
    assert max(harness.errors(harness.Far(exact, layout))) < 9e-8
    assert harness.errors(harness.Far(exact, "half" if layout == "interleaved" else "interleaved"))[0] > 0.1


def test_the_lines_that_are_copied_are_counted():
    assert run.lines("penzai") == 2


def test_the_pins_the_workflow_and_the_table_have_the_same_clients():
    weekly = (ROOT / ".github/workflows/weekly.yml").read_text("utf-8")
    pins = tomllib.loads((ROOT / "clients/pins.toml").read_text("utf-8"))
    assert tuple(pins) == run.NAMES
    assert f"client: [{', '.join(run.NAMES)}]" in weekly
    assert (ROOT / "clients/results/table.md").read_text("utf-8") == run.table()
    for name in run.NAMES:
        written = json.loads((ROOT / f"clients/results/{name}.json").read_text("utf-8"))
        assert written["models"] and all(model["passed"] for model in written["models"])
        if "--source" not in written["command"]:
            assert f"{written['package']}=={written['version']}" in pins[name].get("alone", pins[name]["packages"])
            continue
        repository, commit = pins[name]["checkout"]
        assert (
            repository == written["package"]
            and commit.startswith(written["version"])
            and f"commit: {commit}\n" in weekly
        )


# Patches: code of a client, whose method is replaced, and the code that replaces it

THEIRS = '''import jax.numpy as jnp


class Rope(Module):
  def __call__(self, x, *, key=None):
    """Turns x."""
    length, width = x.shape
    if width % 2:
      raise ValueError
    return x * jnp.arange(width)


class Same(Rope):
  """Inherits."""
'''
OURS = """import posenc_jax as pe


def cast(x):
    return x


def rope(self, x, *, key=None):
    if self.base:
        f = pe.geometric(8)
    return cast(pe.rotary(x, None, f))


def other(x):
    return x
"""
# The body of `rope` in their indentation of two
BODY = "    if self.base:\n      f = pe.geometric(8)\n    return cast(pe.rotary(x, None, f))\n"


def test_a_patch_keeps_the_signature_the_docstring_and_the_checks():
    new = patches.rewritten(THEIRS, OURS, {"Rope.__call__": "rope", "Same.__call__": "rope"})
    want = THEIRS.replace("    return x * jnp.arange(width)\n", BODY)
    want = want.replace("numpy as jnp\n", "numpy as jnp\nimport posenc_jax as pe\n")
    want = want.replace("class Rope", "def cast(x):\n  return x\n\n\nclass Rope")
    assert new == want + "\n  def __call__(self, x, *, key=None):\n" + BODY
    with pytest.raises(ValueError, match=r"Rope.__call__ takes \[.*'key'\], other takes \['x'\]"):
        patches.rewritten(THEIRS, OURS, {"Rope.__call__": "other"})


def test_a_patch_under_a_guard_keeps_their_lines():
    new = patches.rewritten(THEIRS, OURS, {"Rope.__call__": "rope"}, ("here()", ["import jax"]))
    body = "".join(f"  {line}\n" for line in BODY.splitlines())
    added = f"    if here():\n      import jax\n      import posenc_jax as pe\n\n{body}\n"
    assert new == THEIRS.replace("    length, width", added + "    length, width")
