"""The training demo, `demo/train_text.py`.

- A whole run measures every variant and writes a page that needs no other file; an interrupted run keeps its results.
- Windows of all lengths predict the same bytes, and a verdict needs more than noise.
- All models start from the same weights.
"""

import importlib
import json
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from helpers.closeness import assert_within

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "demo" / "train_text.py"
# One CPU device as a user has it, not those of conftest.py.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
ENVIRONMENT["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
# Variants in the order of the page, and the ones with a bias
NAMES = ["none", "sinusoidal", "learned", "rotary", "yarn", "alibi", "t5", "kerple", "fire", "pope"]
BIASES = NAMES[5:9]
TINY = {"width": 16, "depth": 1, "heads": 2, "length": 16}


def load(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


@pytest.fixture
def train_text(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("train_text")


@pytest.mark.slow
def test_the_command_measures_all_variants_and_writes_a_page(tmp_path):
    """The command as a user gives it, but with three steps, one layer, and less held-out text."""
    code = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); from train_text import Setup, main; "
    code += "sys.exit(main(sys.argv[1:], Setup(depth=1, segments=8)))"
    command = [sys.executable, "-c", code, "--all", "--steps", "3", "--output", str(tmp_path)]
    process = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr  # so all of its checks hold
    assert process.stdout.endswith(f"\n{(tmp_path / 'index.html').resolve()}\n")
    results = load(tmp_path)
    variants = results["variants"]
    assert list(variants) == NAMES and not results["coming"]
    for name, variant in variants.items():
        for length, window in variant["windows"].items():
            if name == "learned" and length != "128":  # its table has 128 rows
                assert window["bits_per_byte"] is None and "128 rows" in window["no_answer"]
            else:
                assert 1 < window["bits_per_byte"] < 9 and all(map(math.isfinite, window["by_position"]))
        assert (variant["beyond"] is None) == (name == "learned") and (variant["bias"] is None) == (name not in BIASES)
    # YaRN is the rotary model, read with another spectrum in longer windows.
    rotary, yarn = variants["rotary"]["windows"], variants["yarn"]["windows"]
    assert [yarn[length] == rotary[length] for length in ("128", "256", "512")] == [True, False, False]
    # How many parameters each variant has besides the model without positions
    more = {name: variant["parameters"] - variants["none"]["parameters"] for name, variant in variants.items()}
    learned = {"learned": 128 * results["setup"]["width"], "t5": 16 * 4, "kerple": 2 * 4, "pope": 96}
    assert more == dict.fromkeys(NAMES, 0) | learned | {"fire": 32 + 32 + 32 * 4 + 4 + 2}
    # The page needs nothing beside it, its links lead to papers, and every image has words for it.
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'<script|<link|@import|url\(|(?:src|srcset)="(?!data:)', page)
    links = re.findall(r'href="([^"]*)"', page)
    assert len(links) == 10 and all(re.fullmatch(r"https://arxiv.org/abs/\d{4}\.\d{5}", link) for link in links)
    assert page.count("<img") == len(re.findall(r'<img [^>]*alt="[^"]{20,}"', page)) == 18


def test_an_interruption_keeps_what_is_finished(tmp_path, train_text, monkeypatch):
    """Ctrl-C ends the run at the next `pause`, after which results and page are written."""
    monkeypatch.setattr(train_text.signal, "signal", lambda *_: None)  # Ctrl-C stays with pytest
    monkeypatch.setattr(train_text, "interrupted", threading.Event())

    def run(results, tables, setup, output, names):
        results["seconds"] = {"total": 1.0}
        train_text.interrupt()
        train_text.pause()

    monkeypatch.setattr(train_text, "run", run)
    assert train_text.main(["--output", str(tmp_path)]) == 130
    assert load(tmp_path)["interrupted"] and load(tmp_path)["seconds"] == {"total": 1.0}
    assert "The run was interrupted" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_windows_of_each_length_predict_the_same_bytes(train_text, monkeypatch):
    """With a fake model, whose loss of a byte tells which byte, at which position and after which byte it was."""

    class Fake(nnx.Module):
        def __init__(self, *arguments):
            pass

        def positions(self, x):
            return x

    def bits(graph, weights, windows):  # value · position in the window + the byte before
        return windows[:, 1:] * np.arange(1, windows.shape[1], dtype=np.int32)[None] + windows[:, :-1]

    monkeypatch.setattr(train_text, "Decoder", Fake)
    monkeypatch.setattr(train_text, "bits", bits)
    setup = train_text.Setup(**TINY, batch=2, segments=16)
    text = np.frombuffer(SCRIPT.read_bytes(), np.uint8)
    windows, beyond = train_text.evaluate(setup, train_text.VARIANTS["none"], None, text)
    # 16 segments of 64 bytes, in windows of 16, 32 and 64
    starts = np.linspace(0, len(text) - 65, 16).astype(int)
    rows, i = np.float64(text[starts[:, None] + np.arange(65)]), np.arange(64)
    costs = {length: rows[:, 1:] * (i % length + 1) + rows[:, :-1] for length in (16, 32, 64)}
    for length, want in costs.items():
        found, by_position = windows[str(length)], want.reshape(-1, length // 2, 2).mean(axis=(0, 2))
        assert_within(found["by_position"], by_position, 1e-4)
        assert found["bits_per_byte"] == pytest.approx(want.mean(), abs=1e-4)
    # Bytes beyond the training length of 16, in windows within that length and in windows of 64
    near, far = (costs[length][:, 16:].mean(axis=1) for length in (16, 64))
    error = np.std(far - near, ddof=1) / 4
    want = {"within": near.mean(), "beyond": far.mean(), "standard_error": error}
    assert {name: beyond[name] for name in want} == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [([1, 2, 3], "loses"), ([-1.1, -1.1, -1.2], "gains"), ([-1, 0, 5], "keeps"), ([0.9, 0.8, 0.85], "keeps")],
)
def test_a_verdict_needs_one_percent_and_two_standard_errors(differences, verdict, train_text):
    near = 100 + 0.1 * np.random.default_rng(0).normal(size=(3, 8))
    far = near + np.array(differences)[:, None]
    far[:, :2] = 99  # the first 2 are within the training length, and do not count
    assert train_text.compare(near, far, 2)["verdict"] == verdict


@pytest.mark.slow
def test_models_share_all_initial_weights_but_those_of_positions(train_text):
    def weights(name):
        model = train_text.Decoder(train_text.Setup(**TINY), train_text.VARIANTS[name], 0, TINY["length"])
        state = nnx.to_flat_state(nnx.state(model))
        return {path: leaf[...] for path, leaf in state if not {"positions", "attention_fn"} & set(path)}

    want = weights("none")
    for name in NAMES[1:]:
        jax.tree.map(np.testing.assert_array_equal, weights(name), want)


@pytest.mark.parametrize(("option", "value"), [("--steps", "0"), ("--output", str(SCRIPT))])
def test_wrong_options_are_explained(option, value, train_text, capsys):
    with pytest.raises(SystemExit):
        train_text.main([option, value])
    assert f"argument {option}: " in capsys.readouterr().err
