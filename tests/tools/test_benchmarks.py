"""What the benchmarks make of their measurements: ratios, aims, tables, figures. Nothing is measured."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    """The modules of the folder, some of which have names that others have in other folders."""
    names = [path.stem for path in FOLDER.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        wanted = ("cases", "worker", "comparison", "report", "figures", "run", "pods")
        return SimpleNamespace(**{name: importlib.import_module(name) for name in wanted})
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(others)


def entry(case, **ratios):
    """A case, timed in four rounds, of which the third is ten times as slow."""
    copy = 1e-3 * np.array([1.0, 1.0, 10.0, 1.0])
    times = {name: (ratio * copy).tolist() for name, ratio in ratios.items()}
    both = {"plain": (0.9 * copy).tolist(), "plain again": (1.1 * copy).tolist()}
    return {"case": dataclasses.asdict(case), "name": case.name, "times": times | both}


@pytest.fixture
def result(bench):
    case = bench.cases.Case
    table, add = case("table", (131_072, 128), aim=1.1), case("add", (16, 4096, 512), aim=1.15)
    decode = case("decode", (32, 1, 32, 128), layout="half")
    names = {"posenc": "posenc_jax", "flax_nnx": "flax.nnx.RoPE", "flax_examples": "Flax examples", "plain": "copy"}
    peers = {name: {"name": title, "framework": "jax", "versions": {"jax": "1.2.3"}} for name, title in names.items()}
    peers["torchtune_rope"] = {"name": "torchtune", "framework": "torch", "versions": {"torch": "4.5.6"}}
    peers["liger_rope"] = {"name": "Liger-Kernel", "framework": "torch", "missing": "ModuleNotFoundError: No module"}
    growth = [
        {"over": over} | entry(case(kind, shape, layout=layout), posenc=1.1, flax_nnx=2)
        for over, kind, layout, shapes in (
            ("length", "table", "", [(1024, 128), (4096, 128)]),
            ("length", "rotary", "half", [(1, 1024, 1, 128), (1, 4096, 1, 128)]),
            ("heads", "rotary", "half", [(1, 4096, 1, 128), (1, 4096, 4, 128)]),
        )
        for shape in shapes
    ]
    first = case("table", (1024, 128))
    calls = {"posenc": [0.05], "flax_nnx": [0.04], "flax_examples": [0.001]}
    speed = [
        entry(table, posenc=1.04, flax_examples=4.2),
        entry(add, posenc=1.1, flax_examples=1.05, torchtune_rope=7),
        entry(decode, posenc=3, flax_nnx=2.98),
    ]
    return {
        "date": "2026-01-01",
        "quick": False,
        "platform": "cpu",
        "device": "a processor",
        "python": "3.12.1",
        "peers": peers,
        "failures": [{"peer": "flax_nnx", "ask": "time", "request": {}, "error": "ValueError: bad\nluck"}] * 2,
        "speed": speed,
        "growth": growth,
        "accuracy": {"positions": [10, 10**6], "errors": {"posenc": [5e-8, 5e-8], "flax_nnx": [2e-7, None]}},
        "first": [
            {"case": dataclasses.asdict(first), "name": first.name, "imports": {"posenc": [0.1]}, "calls": calls}
        ],
        "memory": [{"case": e["case"], "name": e["name"], "bytes": {"posenc": 12_300_000}} for e in [*speed, *growth]],
    }


def row(text, start):
    return next(line for line in text.splitlines() if line.startswith(f"| {start} |"))


def test_a_ratio_is_to_the_copies_of_the_same_round(bench):
    slow_round = entry(bench.cases.Case("table", (8, 8)), posenc=1.5)
    np.testing.assert_allclose(bench.comparison.ratios(slow_round)["posenc"], 4 * [1.5])
    slow_round["times"]["posenc"].pop()
    np.testing.assert_allclose(bench.comparison.ratios(slow_round)["posenc"], 3 * [1.5])
    slow_round["times"]["posenc"][0] *= 2  # in this round it is slow itself
    np.testing.assert_allclose(bench.comparison.ratios(slow_round)["posenc"], [3, 1.5, 1.5])
    assert bench.comparison.medians(slow_round) == {"posenc": pytest.approx(1.5)}
    assert bench.comparison.noise(slow_round) == pytest.approx(0.2)
    del slow_round["times"]["plain"]
    assert bench.comparison.ratios(slow_round) == {} and np.isnan(bench.comparison.noise(slow_round))


def test_the_report(bench, result):
    text = bench.report.text(result)
    speed, _, missed = text.partition("## Missed")
    assert "a processor, 2026-01-01, Python 3.12.1, jax 1.2.3, torch 4.5.6.\n" in text
    assert "Without Liger-Kernel: No module\n" in text and "- flax.nnx.RoPE, time: bad luck (2 times)\n" in text
    table = "1.04 (1.04–1.04) | ≤ 1.1 | met | Flax examples, 4.20 | 4.04 | Flax examples, 4.20 | 4.04, met |"
    assert row(text, "table, (131072,128), float32").endswith(table)
    add = "| ≤ 1.15 | met, BEHIND | Flax examples, 1.05 | 0.95 | Flax examples, 1.05 | 0.95 |"
    assert row(text, "add, (16,4096,512), float32").endswith(add)
    assert "half | 4 | 1.10 | 3.00 (3.00–3.00) | the" in text  # rounds, copy in ms, ours
    assert "| the fastest peer | met | flax.nnx.RoPE, 2.98 | 0.99 |" in row(
        text, "decode, (32,1,32,128), float32, half"
    )
    assert "The two copies of a round differ by 20.0 % in the median case, 20.0 to 20.0 % in all." in speed
    assert "| add, (16,4096,512), float32 | 1.10 | 1.05 | 7.00 |" in speed  # beside all
    assert "| add, (16,4096,512), float32 | 12.3 |" in speed  # MB
    assert "| flax.nnx.RoPE | 2.0e-07 | – |" in speed and "| position | 10 | 1,000,000 |" in speed
    # The first call beside that of the peer that compiles, which is not the fastest.
    first = "table, (1024,128), float32, first call, at most 1.1 times that of flax.nnx.RoPE, 40.0 ms: 50.0 ms"
    assert f"- {first}, MISSED." in speed and "- Flax examples makes its table on the host" in speed
    behind = "add, (16,4096,512), float32: BEHIND Flax examples, 1.05, at 1.10"
    assert missed.split("\n- ")[1:] == [behind, f"{first}\n"]


def test_the_summary(bench, result):
    lines = bench.report.summary(result).splitlines()
    assert lines[0] == "| case | posenc_jax | aim | the fastest other |"
    assert lines[3] == "| add, (16,4096,512), float32 | 1.10 | 1.15 | 1.05, Flax examples |"
    assert lines[4] == "| decode, (32,1,32,128), float32, half | 3.00 | 2.98 | 2.98, flax.nnx.RoPE |"


def test_the_readme_has_the_figures_of_the_results(bench):
    result = json.loads((FOLDER / "results" / "cpu.json").read_text())
    assert bench.report.summary(result) in (FOLDER.parent / "docs" / "speed.md").read_text(encoding="utf-8")
    assert bench.report.text(result) == (FOLDER / "results" / "cpu.md").read_text()


def test_behind_is_what_is_slower_in_most_rounds(bench, result):
    add = result["speed"][1]
    times = add["times"]
    copies = np.array(times["plain"]) / 0.9

    def verdict(**ratios):
        times.update({name: (copies * ratio).tolist() for name, ratio in ratios.items()})
        return row(bench.report.text(result), add["name"])

    assert "BEHIND" in verdict(posenc=[0.5, 1.1, 1.1, 1.1], flax_examples=[1.0] * 4)
    assert "BEHIND" not in verdict(posenc=[0.5, 0.9, 1.2, 1.2], flax_examples=[1.0] * 4)  # in two rounds of four
    assert "BEHIND" not in verdict(posenc=[1.01] * 4, flax_examples=[1.0] * 4)
    # Any peer counts: here not the one that is the fastest at the median, in two rounds.
    assert "BEHIND" in verdict(posenc=[1.0] * 4, flax_examples=[0.5, 0.5, 1.2, 1.2], torchtune_rope=[0.9] * 4)
    assert "BEHIND torchtune, 0.90, at 1.00" in bench.report.text(result)


def test_a_process_that_hangs_or_fails_tells_why(bench, tmp_path, monkeypatch):
    hangs, fails = ("exec sleep 60", 0.5, "no answer in 0.5 s"), ("echo broken >&2; exit 3", 60, "status 3; broken")
    half = ("echo broken >&2; printf '{\"answer'; exit 4", 60, "status 4; broken")
    for script, limit, reason in (hangs, fails, half):
        monkeypatch.setattr(bench.run, "LIMIT", limit)
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        process = bench.run.Process("plain", str(python))
        with pytest.raises(RuntimeError, match=reason):
            process.ask("versions")
        process.close()


def test_the_report_without_what_is_missed(bench, result):
    result["speed"] = result["speed"][:1]
    for name in ("growth", "accuracy", "first", "memory"):
        del result[name]
    assert bench.report.text(result).endswith("\n\nAll aims are met.\n")
    del result["speed"][0]["times"]["posenc"]
    assert bench.report.text(result).endswith("## Missed\n\n- table, (131072,128), float32: not measured\n")


def test_the_figures(bench, result, tmp_path, monkeypatch):
    part = result | {"speed": result["speed"][1:], "growth": [], "accuracy": {}, "first": [], "memory": []}
    names = [path.name for path in bench.figures.draw(part, tmp_path, "part")]
    assert names == ["part_bars.png", "part_bars_dark.png"]
    monkeypatch.setattr(bench.figures, "SCHEMES", {"_dark": bench.figures.SCHEMES["_dark"]})
    paths = bench.figures.draw(result, tmp_path, "cpu")
    assert [path.name for path in paths] == [f"cpu_{what}_dark.png" for what in ("bars", "errors", "length", "heads")]
    assert {path.name for path in tmp_path.iterdir()} == {*names, *(path.name for path in paths)}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())


def test_what_coincides_is_told_together(bench):
    errors = {"a": [1e-7, 1e-3], "b": [1e-7, None], "c": [1.5e-7, 0.9e-3], "d": [1e-7, 1e-2], "e": [1.9e-7, None]}
    assert bench.figures.alike(errors) == [["a", "c"], ["b", "e"], ["d"]]


def test_the_constants_of_peers_are_read_without_importing_them(bench):
    names = [path.stem for path in (FOLDER / "peers").glob("[a-z]*.py")]
    assert {"posenc", "plain"} < set(names)
    for name in names:
        found = bench.worker.settings(name)
        assert found["FRAMEWORK"] in ("jax", "torch") and found["IMPORT"].startswith(("import ", "from "))
        assert isinstance(found["NAME"], str) and isinstance(found["PACKAGES"], tuple)
    assert not {name for name in sys.modules if name.startswith("peers.")}
    assert bench.worker.settings("flax_examples")["EAGER"] == ("table",)


def test_names_of_cases_are_unique(bench):
    for cases in (bench.cases.SPEED, bench.cases.FIRST, *bench.cases.GROWTH.values()):
        assert len({case.name for case in cases}) == len(cases)
    every = {*bench.cases.SPEED, *bench.cases.FIRST, *(c for cases in bench.cases.GROWTH.values() for c in cases)}
    assert len({case.name for case in every}) == len(every)
    drawn = {case.name for row in bench.figures.BARS for case in row}
    assert drawn <= {case.name for case in bench.cases.SPEED}


def test_the_tables_of_pods_are_of_their_figures(bench):
    result = json.loads((FOLDER / "results" / "pods.json").read_text(encoding="utf-8"))
    assert bench.pods.text(result) == (FOLDER / "results" / "pods.md").read_text(encoding="utf-8")
    on_pods, figures = bench.pods.pods, {(f["target"], f["function"]): f for f in result["figures"]}
    cases = {(pod, case.name): case for pod in on_pods.PODS for case in (*on_pods.cases(pod), on_pods.TEXTBOOK)}
    assert list(figures) == list(cases)
    for (pod, name), case in cases.items():
        assert figures[pod, name]["first"] == bench.pods.first(case)
        if case is on_pods.TEXTBOOK:
            with pytest.raises(AssertionError, match="temporaries"):
                case.check(pod, figures[pod, name])
        else:
            case.check(pod, figures[pod, name])


def test_the_line_of_two_pods_foretells_a_third(bench):
    result = json.loads((FOLDER / "results" / "pods.json").read_text(encoding="utf-8"))
    on_pods, third = bench.pods.pods, {f["function"]: f for f in result["sizes"] if f["target"] == "v5p:16x16x16"}
    assert list(third) == bench.pods.ON_PAPER
    for case in on_pods.cases("v5p:16x16x16"):
        if case.name in third:
            case.check("v5p:16x16x16", third[case.name])
            for size in ("arguments", "result", "temporaries"):
                constant, each = bench.pods.line(result, case.name, size)
                foretold = constant + each * case.positions("v5p:16x16x16")
                assert third[case.name][size] == foretold or size == "temporaries" and third[case.name][size] < foretold
                assert 0 <= constant <= 2**17 or (case.name, size) == ("learned", "arguments")


def test_a_device_of_65_536_as_compiled(bench):
    result = json.loads((FOLDER / "results" / "pods.json").read_text(encoding="utf-8"))
    found = [f for f in result["sizes"] if f["target"] in bench.pods.pods.LARGEST]
    assert [f["function"] for f in found] == bench.pods.COMPILED
    (sizes,) = ([f[size] for size in ("arguments", "result", "temporaries", "collectives")] for f in found)
    assert sizes == [4 * 2**14, 4 * 128 * 2**14, 0, []]  # positions and rows of 2³⁰ over 65,536


def test_on_paper_a_device_has_what_its_positions_ask_for(bench):
    # 2³¹ positions over 65,536 devices are 32,768 for each: 128 KiB of int32, and 512 bytes of waves for every one.
    assert bench.pods.LENGTH // bench.pods.SHARDS == 32_768
    result = json.loads((FOLDER / "results" / "pods.json").read_text(encoding="utf-8"))
    rows = {row.split(" | ")[0][2:]: row[:-2].split(" | ")[1:] for row in bench.pods.paper(result).splitlines()}
    assert rows["sinusoidal"] == ["4", "512", "0", "0.1", "16.0", "0.0"]
    assert rows["rotary, two heads"] == ["512", "512", "0", "16.0", "16.0", "0.0"]
    assert rows["learned"] == ["4", "256", "256", "2.1", "8.0", "8.1"]  # with a table of 2 MiB
