"""What evidence.md says of demo/evidence.json: the file is whole, and the sentences hold."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "demo" / "evidence.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
NAMES = ["none", "sinusoidal", "learned", "rotary", "yarn", "alibi", "t5", "kerple", "fire", "pope"]
BASES = ["base 10", "base 100", "base 1000", "base 500000"]
EXACT, FLOAT32, BFLOAT16 = "exact", "float32", "bfloat16"


def losses(name):
    """(seeds, 3), for one, two and four training lengths."""
    return np.array([[*seed[name]["bits_per_byte"].values()] for seed in RESULTS["seeds"].values()], float)


def far(phases, what="bits_per_byte"):
    return np.array([seed["rotary"]["far"][phases][what] for seed in RESULTS["seeds"].values()])


@pytest.fixture(scope="module")
def findings():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("findings")


def test_the_file_is_whole():
    assert RESULTS["steps"] == 500 and list(RESULTS["seeds"]) == ["0", "1", "2"]
    assert RESULTS["setup"]["length"] == 128 and RESULTS["bases"] == [10, 100, 1000, 500_000]
    assert {"python", "jax", "flax", "optax", "numpy", "posenc_jax"} == set(RESULTS["versions"])
    assert all(len(RESULTS["data"][f"{text}_sha256"]) == 64 for text in ("training", "held_out"))
    for seed in RESULTS["seeds"].values():
        assert list(seed) == NAMES + BASES
        for name, found in seed.items():
            assert list(found["bits_per_byte"]) == ["128", "256", "512"]
            answers = [value for value in found["bits_per_byte"].values() if value is not None]
            assert len(answers) == (1 if name == "learned" else 3) and all(1 < value < 8 for value in answers)
        measured = seed["rotary"]["far"]
        assert measured["offset"][0] == 0 and measured["offset"][-1] == 10**9 and len(measured["offset"]) == 16
        for phases in (EXACT, FLOAT32, BFLOAT16):
            assert len(measured[phases]["bits_per_byte"]) == len(measured[phases]["changed"]) == 16
            assert all(map(math.isfinite, measured[phases]["bits_per_byte"]))
        for phases in (EXACT, FLOAT32):
            weights = np.array([*measured["attention"][phases].values()])
            assert weights.shape == (4, 32) and weights.min() >= 0 and 0.5 < weights.sum(axis=1).max() <= 1
    # The seeds differ, and YaRN changes nothing at the training length.
    assert len(set(losses("none")[:, 0])) == 3
    np.testing.assert_array_equal(losses("yarn")[:, 0], losses("rotary")[:, 0])


def test_numbers_are_computed_from_the_file(findings):
    for name in NAMES + BASES:
        np.testing.assert_array_equal(findings.losses(name), losses(name))
    mean, spread = losses("kerple").mean(axis=0), losses("kerple").std(axis=0, ddof=1)
    row = "| KERPLE | " + " | ".join(f"{m:.2f}\u00a0±\u00a0{s:.2f}" for m, s in zip(mean, spread, strict=True)) + " |"
    assert row in findings.texts()["evidence_variants.md"].splitlines()
    assert "| learned table | " in findings.variants() and findings.variants().count("no answer") == 2
    assert findings.seed_noise() == pytest.approx(far(EXACT)[:, 0].std(ddof=1))
    # In the tables of Xu et al., 2024: bases 4.3e3, 1.6e4 and 8.4e4 for 1,024, 2,048 and 8,192, at width 128.
    findings_width = findings.HEAD_DIM
    try:
        findings.HEAD_DIM = 128
        for base, length in ((4.3e3, 1024), (1.6e4, 2048), (8.4e4, 8192)):
            assert findings.reach(0.95 * base) < length <= findings.reach(base)
    finally:
        findings.HEAD_DIM = findings_width


def test_the_page_s_sentences_about_encodings_hold():
    first, last = ({name: losses(name).mean(axis=0)[i] for name in NAMES + BASES} for i in (0, 2))
    rise = {name: last[name] - first[name] for name in first}
    assert sorted(NAMES, key=first.__getitem__)[:2] == ["pope", "rotary"]
    apart = (losses("rotary") - losses("pope"))[:, 0]
    assert apart.min() > 0 and apart.mean() < 2 * np.ptp(losses("pope")[:, 0])
    assert 0 < rise["pope"] < rise["rotary"] / 2 and rise["yarn"] < rise["pope"]
    answered = sorted((name for name in NAMES if name != "learned"), key=rise.__getitem__)
    assert math.isnan(rise["learned"]) and answered[-2:] == ["rotary", "sinusoidal"]
    assert 0 < rise["yarn"] < rise["rotary"] / 2
    for name in ("alibi", "kerple"):
        assert abs(rise[name]) < 0.01 * first[name] and np.abs(np.ptp(losses(name), axis=1)).max() < 0.02 * first[name]
    assert 0.01 < rise["fire"] / first["fire"] < 0.03
    assert all(first[name] > first["rotary"] + 0.05 for name in ("alibi", "kerple", "fire"))


def test_the_page_s_sentences_about_bases_hold(findings):
    first, last = ({name: losses(name).mean(axis=0)[i] for name in [*BASES, "rotary"]} for i in (0, 2))
    assert max(first.values()) - min(first.values()) < 0.06
    assert last["base 10"] - first["base 10"] < 0.25 < 0.6 < min(last[n] - first[n] for n in first if n != "base 10")
    between = [losses(name)[:, 2] for name in ("base 100", "base 1000", "rotary")]
    assert np.ptp([x.mean() for x in between]) < max(map(np.ptp, between))
    reach = [findings.reach(base) for base in findings.BASES.values()]
    assert reach == sorted(reach) == [4, 21, 83, 222, 756]  # by hand in float64: the first negative sum is one later
    slowest = [2 * np.pi * base ** (22 / 24) for base in findings.BASES.values()]
    assert slowest[0] < 128 < slowest[1]
    for base, turn in zip(findings.BASES.values(), slowest, strict=True):
        assert f"| {base:,} | {turn:,.0f} |" in findings.bases()


def test_the_page_s_sentences_about_phases_hold(findings):
    offset = RESULTS["seeds"]["0"]["rotary"]["far"]["offset"]
    at = {p: offset.index(p) for p in (300, 10_000, 10**6, 3 * 10**6, 10**7, 3 * 10**7)}
    exact, float32, bfloat16 = map(far, (EXACT, FLOAT32, BFLOAT16))
    noise = exact[:, 0].std(ddof=1)
    # Exact phases: the same loss everywhere, and the same guesses.
    assert np.abs(exact - exact[:, :1]).max() < 1e-6 and not far(EXACT, "changed").any()
    # The null result.
    assert np.abs(float32 - exact)[:, : at[10_000] + 1].max() < 1e-5 < noise / 100
    assert np.abs(float32 - exact)[:, : at[3 * 10**6] + 1].max() < noise
    # Then the loss rises, by less than 1% up to 2²⁴, and breaks beyond it; bfloat16 breaks beyond 2⁸.
    assert (np.abs(float32 - exact)[:, : at[10**7] + 1] < 0.01 * exact[:, :1]).all()
    assert (float32 - exact)[:, at[3 * 10**7] :].min() > 0.3
    assert np.abs(bfloat16 - exact)[:, : at[300]].max() < 0.01 and (bfloat16 - exact)[:, at[300] :].min() > 0.3
    changed = far(FLOAT32, "changed")
    assert 0.001 < changed[:, at[10**6]].min() < changed[:, at[10**7]].max() < 0.03
    assert findings.null().startswith("**Up to 3,000,000 positions") and "from 10,000,000 on" in findings.seen()
    # The head that is drawn looks at distances 1 to 3, and at a hundred million takes them for one.
    weights = RESULTS["seeds"]["0"]["rotary"]["far"]["attention"]
    near, broken = (np.array(weights[phases][str(10**8)][1:4]) for phases in (EXACT, FLOAT32))
    assert near.sum() > 0.5 and np.ptp(near) > 0.1 and np.ptp(broken) < 0.02


def test_the_page_is_short_and_shows_every_part(findings):
    text = PAGE.partition("??? example")[0] + PAGE.rpartition("```\n")[2]
    words = len(text.split()) + sum(len(findings.TEXTS[name]().split()) for name in ("null", "setup", "seen"))
    assert 600 <= words <= 1000
    for name in findings.texts():
        assert f'--8<-- "outputs/{name}"' in PAGE
