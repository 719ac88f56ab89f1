"""The command that measures what positions do to the loss: `demo/evidence.py`."""

import functools
import importlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
from helpers.quick import compiler_options

FOLDER = Path(__file__).parents[2] / "demo"
TEXT = np.frombuffer((FOLDER / "train_text.py").read_bytes(), np.uint8)


@pytest.fixture
def evidence(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("evidence")
    monkeypatch.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=compiler_options()))
    data = {"text": "code", "held_out_files": []}
    monkeypatch.setattr(module.corpus, "read", lambda: (TEXT, TEXT[::-1].copy(), data))
    module.train_text.interrupted.clear()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a user has them
        yield module


def tiny(evidence):
    return evidence.Setup(width=16, depth=1, heads=2, length=16, batch=2, segments=8)


def test_every_model_of_the_demo_is_measured_and_rope_with_other_bases(evidence):
    models = evidence.models()
    assert list(models)[:10] == list(evidence.VARIANTS)
    for base in (10, 100, 1000, 500_000):
        made = models[f"base {base}"].attention(tiny(evidence), None, 16)
        assert made.settings.frequencies == pe.geometric(8, base)
    assert len(models) == 14


@pytest.mark.slow
def test_what_is_finished_is_kept_and_the_rest_added(evidence, tmp_path, monkeypatch, capsys):
    file, trained, train = tmp_path / "new" / "evidence.json", [], evidence.train_text.train
    wanted = {name: evidence.VARIANTS[name] for name in ("learned", "rotary")}
    monkeypatch.setattr(evidence, "models", lambda: wanted)
    monkeypatch.setattr(evidence, "OFFSETS", (0, 10**6, 10**7, 10**8))
    monkeypatch.setattr(evidence.signal, "signal", lambda *_: None)  # Ctrl-C stays with pytest

    def count(setup, variant, text, steps, seed):
        trained.append((variant.label, seed))
        if interruption and len(trained) == 2:
            raise KeyboardInterrupt
        return train(setup, variant, text, steps, seed)

    monkeypatch.setattr(evidence.train_text, "train", count)
    arguments = ["--steps", "1", "--output", str(file)]
    interruption = True
    assert evidence.main([*arguments, "--seeds", "3"], tiny(evidence)) == 130
    assert "1 models are finished" in capsys.readouterr().out
    before = json.loads(file.read_text(encoding="utf-8"))
    assert list(before["seeds"]["3"]) == ["learned"]
    interruption = False
    assert evidence.main([*arguments, "--seeds", "3"], tiny(evidence)) == 0
    assert trained == [("learned positions", 3), ("rotary positions", 3), ("rotary positions", 3)]
    results = json.loads(file.read_text(encoding="utf-8"))
    assert results["seeds"]["3"].pop("rotary")["far"]["offset"] == [0, 10**6, 10**7, 10**8] and results == before
    learned = results["seeds"]["3"]["learned"]["bits_per_byte"]
    assert learned["16"] > 1 and learned["32"] is learned["64"] is None
    assert [path.name for path in file.parent.iterdir()] == ["evidence.json"]
    # Numbers of other settings are not mixed in.
    with pytest.raises(SystemExit):
        evidence.main(["--steps", "2", "--output", str(file)], tiny(evidence))
    assert f"{file} has results of other steps; name another file" in capsys.readouterr().err
    file.write_text("{", encoding="utf-8")
    with pytest.raises(SystemExit):
        evidence.main(arguments, tiny(evidence))
    assert "cannot be read" in capsys.readouterr().err


def test_rounded_phases_are_rounded_as_they_say(evidence):
    positions = np.arange(10**7, 10**7 + 64, dtype=np.int32)
    omega = np.array([10_000 ** (-2 * i / 24) for i in range(12)])
    angle = (positions[:, None].astype(np.float32) * omega.astype(np.float32)).astype(np.float64)
    float32, exactly = jax.jit(lambda p: [evidence.cos_sin(phases, p, 24) for phases in ("float32", "exact")])(
        positions
    )
    for wave, wanted in zip(float32, (np.cos(angle), np.sin(angle)), strict=True):
        np.testing.assert_allclose(wave, wanted, rtol=0, atol=2e-7)
    exact = positions[:, None].astype(np.longdouble) * 10_000 ** (-2 * np.arange(12, dtype=np.longdouble) / 24)
    for wave, wanted in zip(exactly, (np.cos(exact), np.sin(exact)), strict=True):
        np.testing.assert_allclose(wave, wanted.astype(np.float64), rtol=0, atol=2e-7)
    # Eight bits: 300 and 301 are 300, and 300 ω is one of few numbers.
    cos, _ = evidence.cos_sin("bfloat16", np.array([300, 301], np.int32), 24)
    cos = np.asarray(cos)
    np.testing.assert_array_equal(cos[0], cos[1])
    second = float(jnp.bfloat16(300 * float(jnp.bfloat16(omega[1]))))
    assert float(cos[0, 1]) == pytest.approx(np.cos(second), abs=2e-7)


@pytest.mark.slow
def test_exact_phases_answer_alike_at_all_offsets(evidence, monkeypatch):
    monkeypatch.setattr(evidence, "OFFSETS", (0, 10**6, 10**7, 10**8, 2 * 10**9))
    setup = tiny(evidence)
    rng, rotary = np.random.default_rng(0), evidence.VARIANTS["rotary"]
    graph, state = nnx.split(nnx.eval_shape(lambda: evidence.Decoder(setup, rotary, 0, setup.length)))
    draw = lambda w: jax.device_put((rng.normal(size=w.shape) * w.shape[0] ** -0.5).astype(w.dtype))  # noqa: E731
    model = nnx.merge(graph, jax.tree.map(draw, state))
    kernel = model.blocks[0].attention.query.kernel
    kernel[...] = jax.device_put(np.asarray(kernel[...]) * np.float32(8))  # scores that tell positions apart
    found = evidence.far(setup, nnx.state(model), TEXT)
    exact, float32, bfloat16 = (np.array(found[phases]["bits_per_byte"]) for phases in evidence.PHASES)
    # What the model itself answers, which counts its positions from 0.
    starts = np.linspace(0, len(TEXT) - 17, 8).astype(int)
    windows = TEXT[starts[:, None] + np.arange(17)].astype(np.int32)
    logits = np.asarray(jax.jit(lambda: model(windows[:, :-1]))(), np.float64)
    chosen = np.take_along_axis(logits, windows[:, 1:, None], axis=-1)[..., 0]
    own = (np.log(np.exp(logits).sum(axis=-1)) - chosen).mean() / np.log(2)
    assert exact[0] == pytest.approx(own, abs=1e-6) and float32[0] == pytest.approx(own, abs=1e-5)
    assert np.ptp(exact) < 1e-6 and not any(found["exact"]["changed"])
    assert abs(float32 - own)[[3, 4]].min() > 1e-4 < abs(bfloat16 - own)[1:].min()
    weights = {p: [np.array(found["attention"][p][str(at)]) for at in evidence.DRAWN] for p in ("exact", "float32")}
    assert all(w.shape == (16,) and w.sum() == pytest.approx(1, abs=1e-3) for w in weights["exact"])
    assert max(np.abs(w - weights["exact"][0]).max() for w in weights["exact"]) < 2e-5
    assert np.abs(weights["float32"][-1] - weights["exact"][0]).max() > 1e-3
    # By hand: the last byte's weights in the head that looks most to one place.
    block = model.blocks[0]

    @jax.jit
    def queries_and_keys(windows):
        x = block.norms[0](model.positions(model.embedding(windows)))
        return [pe.rotary(f(x), head_axis=-2) for f in (block.attention.query, block.attention.key)]

    q, k = (np.asarray(x, np.float64) for x in queries_and_keys(windows[:, :-1]))
    scores = np.exp(np.einsum("bhd,bkhd->bhk", q[:, -1], k) / 8**0.5)
    own = (scores / scores.sum(axis=-1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(weights["exact"][0], own[own.max(axis=-1).argmax()][::-1], rtol=0, atol=2e-5)
