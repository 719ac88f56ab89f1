"""`demo/evidence.py` measures what positions do to the loss.

- An interrupted run keeps what is finished, goes on from there, and mixes no results of other settings.
- Exact phases give the same loss and attention at all offsets; float32 and bfloat16 phases do not.
"""

import importlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

FOLDER = Path(__file__).parents[2] / "demo"
TEXT = np.frombuffer((FOLDER / "train_text.py").read_bytes(), np.uint8)


@pytest.fixture
def evidence(monkeypatch):
    """The module, with a text of this repository in place of the corpus."""
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("evidence")
    data = {"text": "code", "held_out_files": []}
    monkeypatch.setattr(module.corpus, "read", lambda: (TEXT, TEXT[::-1].copy(), data))
    module.train_text.interrupted.clear()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a user has them
        yield module


def tiny(evidence):
    """The setup of a small model."""
    return evidence.Setup(width=16, depth=1, heads=2, length=16, batch=2, segments=8)


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_is_finished_and_goes_on(evidence, tmp_path, monkeypatch, capsys):
    file, train = tmp_path / "new" / "evidence.json", evidence.train_text.train
    monkeypatch.setattr(evidence, "models", lambda: {name: evidence.VARIANTS[name] for name in ("learned", "rotary")})
    monkeypatch.setattr(evidence, "OFFSETS", (0, 10**6, 10**7, 10**8))
    monkeypatch.setattr(evidence.signal, "signal", lambda *_: None)  # Ctrl-C stays with pytest

    def run(steps, interrupted):
        """The status and results of a command in which Ctrl-C comes when the variant's training starts."""

        def patched(setup, variant, *arguments):
            if variant.family == interrupted:
                raise KeyboardInterrupt
            return train(setup, variant, *arguments)

        monkeypatch.setattr(evidence.train_text, "train", patched)
        status = evidence.main(["--output", str(file), "--seeds", "3", "--steps", steps], tiny(evidence))
        return status, json.loads(file.read_text(encoding="utf-8"))

    status, before = run("1", "rotary")
    assert status == 130 and list(before["seeds"]["3"]) == ["learned"]
    status, results = run("1", "learned")  # which is not trained again
    assert status == 0 and results["seeds"]["3"].pop("rotary")["far"] and results == before
    learned = results["seeds"]["3"]["learned"]["bits_per_byte"]
    assert learned["16"] > 1 and learned["32"] is learned["64"] is None
    with pytest.raises(SystemExit):  # numbers of other settings are not mixed in
        run("2", "")
    assert "has results of other steps" in capsys.readouterr().err


@pytest.mark.slow
def test_exact_phases_answer_alike_at_all_offsets(evidence, monkeypatch):
    monkeypatch.setattr(evidence, "OFFSETS", (0, 10**6, 10**8, 2 * 10**9))
    setup, rng, rotary = tiny(evidence), np.random.default_rng(0), evidence.VARIANTS["rotary"]
    graph, state = nnx.split(nnx.eval_shape(lambda: evidence.Decoder(setup, rotary, 0, setup.length)))
    draw = lambda w: jax.device_put((rng.normal(size=w.shape) * w.shape[0] ** -0.5).astype(w.dtype))  # noqa: E731
    model = nnx.merge(graph, jax.tree.map(draw, state))
    kernel = model.blocks[0].attention.query.kernel
    kernel[...] = jax.device_put(np.asarray(kernel[...]) * np.float32(8))  # scores that tell positions apart
    found = evidence.far(setup, nnx.state(model), TEXT)
    exact, float32, bfloat16 = (np.array(found[phases]["bits_per_byte"]) for phases in evidence.PHASES)
    # The loss of the model itself, which counts its positions from 0
    starts = np.linspace(0, len(TEXT) - 17, 8).astype(int)
    windows = TEXT[starts[:, None] + np.arange(17)].astype(np.int32)
    logits = np.asarray(jax.jit(lambda: model(windows[:, :-1]))(), np.float64)
    chosen = np.take_along_axis(logits, windows[:, 1:, None], axis=-1)[..., 0]
    own = (np.log(np.exp(logits).sum(axis=-1)) - chosen).mean() / np.log(2)
    assert exact[0] == pytest.approx(own, abs=1e-6) and float32[0] == pytest.approx(own, abs=1e-5)
    assert np.ptp(exact) < 1e-6 and not any(found["exact"]["changed"])
    assert abs(float32 - own)[[2, 3]].min() > 1e-4 < abs(bfloat16 - own)[1:].min()
    exact, float32 = (np.array([*found["attention"][phases].values()]) for phases in ("exact", "float32"))
    assert exact.sum(-1) == pytest.approx(1, abs=1e-3)
    assert np.abs(exact - exact[0]).max() < 2e-5 < 1e-3 < np.abs(float32 - exact[0]).max()
