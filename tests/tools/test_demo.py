"""The training demo, `demo/train_text.py`: a whole run and its page, what it compares, and its own checks."""

import importlib
import json
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from helpers.closeness import assert_within

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "demo" / "train_text.py"
# One CPU device as a user has it, not those of conftest.py.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
ENVIRONMENT["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
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
def test_the_command(tmp_path):
    """As a user gives it, but for few steps, one layer, and less held-out text."""
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
    more = {name: variant["parameters"] - variants["none"]["parameters"] for name, variant in variants.items()}
    learned = {"learned": 128 * results["setup"]["width"], "t5": 16 * 4, "kerple": 2 * 4, "pope": 96}
    assert more == dict.fromkeys(NAMES, 0) | learned | {"fire": 32 + 32 + 32 * 4 + 4 + 2}
    # The same weights and batches at first: positions are what makes the models differ.
    costs = [tuple(variant["windows"]["128"]["by_position"]) for name, variant in variants.items() if name != "yarn"]
    assert len({*costs}) == len(costs)
    # The page needs nothing beside it, and every image has words for it.
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'<script|<link|@import|url\(|(?:src|srcset|href)="(?!data:)', page)
    assert page.count("<img") == len(re.findall(r'<img [^>]*alt="[^"]{20,}"', page)) == 18


def test_an_interruption_keeps_what_is_finished(tmp_path, train_text, monkeypatch):
    """Ctrl-C is heard at the next `pause`, and the page is written once more."""
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
    class Fake(nnx.Module):
        def __init__(self, *arguments):
            pass

        def positions(self, x):
            return x

    def bits(graph, weights, windows):  # of a byte: its value, its position in the window, and the byte before it
        return windows[:, 1:] * np.arange(1, windows.shape[1], dtype=np.int32)[None] + windows[:, :-1]

    monkeypatch.setattr(train_text, "Decoder", Fake)
    monkeypatch.setattr(train_text, "bits", bits)
    setup = train_text.Setup(**TINY, batch=2, segments=16)
    text = np.frombuffer(SCRIPT.read_bytes(), np.uint8)
    windows, beyond = train_text.evaluate(setup, train_text.VARIANTS["none"], None, text)
    costs = {length: np.zeros((16, 64)) for length in (16, 32, 64)}
    for length, want in costs.items():
        for row, start in enumerate(np.linspace(0, len(text) - 65, 16).astype(int)):
            for i in range(64):
                want[row, i] = int(text[start + i + 1]) * (i % length + 1) + int(text[start + i])
        by_position = want.reshape(-1, length // 2, 2).mean(axis=(0, 2))
        assert_within(windows[str(length)]["by_position"], by_position, 1e-4, against=f"a loop over {length} bytes")
        assert windows[str(length)]["bits_per_byte"] == pytest.approx(want.mean(), abs=1e-4)
    near, far = (costs[length][:, 16:].mean(axis=1) for length in (16, 64))
    assert beyond["within"] == pytest.approx(near.mean(), abs=1e-4)
    assert beyond["beyond"] == pytest.approx(far.mean(), abs=1e-4)
    assert beyond["standard_error"] == pytest.approx(np.std(far - near, ddof=1) / 4, abs=1e-4)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([1, 2, 3], "loses"),
        ([-1.1, -1.1, -1.2], "gains"),
        ([-1, 0, 5], "keeps"),  # within two standard errors
        ([0.9, 0.8, 0.85], "keeps"),  # within 1%
    ],
)
def test_a_verdict_needs_one_percent_and_two_standard_errors(differences, verdict, train_text):
    near = 100 + 0.1 * np.random.default_rng(0).normal(size=(3, 8))
    far = near + np.array(differences)[:, None]
    far[:, :2] = 99  # within the training length
    assert train_text.compare(near, far, 2)["verdict"] == verdict


@pytest.mark.slow
def test_models_share_all_initial_weights_but_those_of_positions(train_text):
    weights = {}
    for name, variant in train_text.VARIANTS.items():
        state = nnx.to_flat_state(nnx.state(train_text.Decoder(train_text.Setup(**TINY), variant, 0, TINY["length"])))
        weights[name] = {path: leaf[...] for path, leaf in state if not {"positions", "attention_fn"} & set(path)}
    for name, other in weights.items():
        assert other.keys() == weights["none"].keys()
        for path, drawn in other.items():
            np.testing.assert_array_equal(drawn, weights["none"][path], err_msg=f"{path} of {name}")


@pytest.mark.parametrize(
    ("option", "value", "message"), [("--steps", "0", "at least 1"), ("--output", SCRIPT, "folder")]
)
def test_wrong_options_are_explained(option, value, message, train_text, capsys):
    with pytest.raises(SystemExit):
        train_text.main([option, str(value)])
    assert re.search(f"argument {option}: .*{message}", capsys.readouterr().err)
