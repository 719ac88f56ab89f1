"""What the benchmarks make of their measurements: ratios, aims, tables, figures. Nothing is measured."""

import dataclasses
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import posenc_jax as pe

FOLDER, BOTH = Path(__file__).parents[2] / "benchmarks", ("float32", "bfloat16")


@pytest.fixture(scope="module")
def bench():
    """The modules of the folder, some of which have names that others have in other folders."""
    names = [path.stem for path in FOLDER.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        wanted = (
            "cases",
            "worker",
            "comparison",
            "reference",
            "report",
            "figures",
            "run",
            "pods",
            "loops",
            "fits",
            "history",
        )
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
    both = {case.unit: (0.9 * copy).tolist(), f"{case.unit} again": (1.1 * copy).tolist()}
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
        "memory": [{"name": e["name"], "bytes": {"posenc": 12_300_000}} for e in [*speed, *growth]],
    }


def own(text):
    """The part of one processor, after the tables of all."""
    return text.partition("\n# a processor\n")[2]


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
    text = own(bench.report.text([result]))
    speed, _, missed = text.partition("## Missed")
    assert "\n2026-01-01, Python 3.12.1, jax 1.2.3, torch 4.5.6.\n" in text
    assert "Without Liger-Kernel: No module\n" in text and "- flax.nnx.RoPE, time: bad luck (2 times)\n" in text
    table = "1.04 (1.04–1.04) | ≤ 1.1 | met | Flax examples, 4.20 | 4.04 | Flax examples, 4.20 | 4.04, met |"
    assert row(text, "table, (131072,128), float32").endswith(table)
    add = "| ≤ 1.15 | met, BEHIND | Flax examples, 1.05 | 0.95 | Flax examples, 1.05 | 0.95 |"
    assert row(text, "add, (16,4096,512), float32").endswith(add)
    assert "half | 4 | 1.10 ms | 3.00 (3.00–3.00) | the" in text  # rounds, copy, ours
    assert "| the fastest peer | met | flax.nnx.RoPE, 2.98 | 0.99 |" in row(
        text, "decode, (32,1,32,128), float32, half"
    )
    assert "The two units of a round differ by 20.0 % in the median case, 20.0 to 20.0 % in all." in speed
    assert "| add, (16,4096,512), float32 | 1.10 | 1.05 | 7.00 |" in speed  # beside all
    assert "| add, (16,4096,512), float32 | 12.3 |" in speed  # MB
    assert "| flax.nnx.RoPE | 2.0e-07 | – |" in speed and "| position | 10 | 1,000,000 |" in speed
    # The first call beside that of the peer that compiles, which is not the fastest.
    first = "table, (1024,128), float32, first call, at most 1.1 times that of flax.nnx.RoPE, 40.0 ms: 50.0 ms"
    assert f"- {first}, MISSED." in speed and "- Flax examples makes its table on the host" in speed
    behind = "add, (16,4096,512), float32: BEHIND Flax examples, 1.05, at 1.10"
    assert missed.split("\n- ")[1:] == [behind, f"{first}\n"]


def test_the_summary_of_two_processors(bench, result):
    loop = next(case for case in bench.cases.LOOPS if case.kind == "loop")
    add = bench.cases.Case("add", (16, 4096, 512))
    speed = [entry(loop, posenc=1.5, flax_nnx=1.3), entry(add, posenc=1.2)]
    other = result | {"device": "another, 4 cores", "speed": speed}
    lines = bench.report.summary([result, other], ("table", "add", "decode")).splitlines()
    assert lines[0] == "| case | aim | posenc_jax, a processor | the fastest other | another |"
    # The least time over the least of the unit, whose rounds are 0.9 and 1.1 of a copy.
    ours = "1.10 (1.22) | 1.05, Flax examples | **1.20** (1.33)"
    assert lines[3] == f"| add, (16,4096,512), float32 | 1.15 | {ours} |"
    decode = "| decode, (32,1,32,128), float32, half | the fastest other |"
    assert lines[4] == f"{decode} 3.00 (3.33) | 2.98, flax.nnx.RoPE | – |"  # another is ahead by less than 2 %
    result["speed"][2]["times"]["flax_nnx"] = [0.9 * t for t in result["speed"][2]["times"]["flax_nnx"]]
    assert f"{decode} **3.00** (3.33) | 2.68, flax.nnx.RoPE |" in bench.report.summary([result], ("decode",))
    head, _, line = bench.report.summary([result, other], ("loop", "compile")).splitlines()
    assert head == "| case | aim | the textbook | posenc_jax, another | the fastest other |"
    assert line == f"| {loop.name} | 1.2 | 1.10 ms | **1.50** (1.67) | 1.30, flax.nnx.RoPE |"
    assert bench.report.summary([result, other], ("stack",)) == "Not measured yet."


def test_a_loop_is_in_units_of_the_textbook(bench):
    loop = entry(bench.cases.Case("loop", (8, 1, 32, 128), layout="half", way="position moving"), posenc=0.1)
    assert loop["name"] == "loop, (8,1,32,128), float32, half, position moving"
    assert set(loop["times"]) == {"posenc", "textbook", "textbook again"}
    assert bench.comparison.medians(loop) == {"posenc": pytest.approx(0.1)}


def test_the_pages_have_the_figures_of_the_results(bench):
    """After another run: `python benchmarks/report.py --write`."""
    results, readme = bench.comparison.kept(), (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert bench.report.text(results) == (FOLDER / "results" / "cpu.md").read_text(encoding="utf-8")
    assert bench.report.readme(readme, results[0]) == readme
    for name, place in (("RoPE, bfloat16, (1,4096,32,128)", "copies"), ("Error at position 10⁶", "")):
        assert name in readme and place in row(readme, name)
    parts = re.findall(r"cpu\.md:(\w+)", "".join(path.read_text() for path in (FOLDER.parent / "docs").glob("*.md")))
    assert {"machines", "summary", "loops", "stacks", "first"} <= set(parts)
    assert all(f"[start:{part}]" in bench.report.text(results) for part in parts)


def test_the_readme_is_written(bench, result):
    result["accuracy"] = {"positions": [10**6, 2**31 - 1], "errors": {"posenc": [5e-8, 5e-8], "flax_nnx": [2e-2, 2.0]}}
    large = [entry(bench.cases.Case("rotary", (1, 4096, 32, 128), d, "half"), posenc=0.98, flax_nnx=2.84) for d in BOTH]
    rows = ["Error at position 10⁶", "Error at position 2³¹ − 1", "Time of RoPE, float32, in copies of its input"]
    page = "\n".join(
        [*(f"| {row} | 1 | 2 | | 3 |" for row in (*rows, "RoPE, bfloat16, (1,4096,32,128)")), "| other | 4 |"]
    )
    page = f"Measured on one, not on a GPU or TPU.\n{page}"
    assert bench.report.readme(page, result | {"speed": large, "device": "a Z80 (new), 2 cores"}).splitlines() == [
        "Measured on a Z80 (new), 2 cores, where two equal copies differ by 20%, not on a GPU or TPU.",
        "| Error at position 10⁶ | 5.0e-08 | 2.0e-02 | |  |",
        "| Error at position 2³¹ − 1 | 5.0e-08 | 2.0 | |  |",
        "| Time of RoPE, float32, in copies of its input | 0.98 | 2.84 | |  |",
        "| RoPE, bfloat16, (1,4096,32,128) | 0.98 copies | 2.84, flax.nnx.RoPE, the fastest other | `nox -s bench` |",
        "| other | 4 |",
    ]
    with pytest.raises(ValueError, match="0 rows of 'Error at position 10⁶'"):
        bench.report.readme("", result | {"speed": large})


def test_behind_is_what_is_slower_in_most_rounds(bench, result):
    add = result["speed"][1]
    times = add["times"]
    copies = np.array(times["plain"]) / 0.9

    def verdict(**ratios):
        times.update({name: (copies * ratio).tolist() for name, ratio in ratios.items()})
        return row(own(bench.report.text([result])), add["name"])

    assert "BEHIND" in verdict(posenc=[0.5, 1.1, 1.1, 1.1], flax_examples=[1.0] * 4)
    assert "BEHIND" not in verdict(posenc=[0.5, 0.9, 1.2, 1.2], flax_examples=[1.0] * 4)  # in two rounds of four
    assert "BEHIND" not in verdict(posenc=[1.01] * 4, flax_examples=[1.0] * 4)
    # Any peer counts: here not the one that is the fastest at the median, in two rounds.
    assert "BEHIND" in verdict(posenc=[1.0] * 4, flax_examples=[0.5, 0.5, 1.2, 1.2], torchtune_rope=[0.9] * 4)
    assert "BEHIND torchtune, 0.90, at 1.00" in bench.report.text([result])


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
    assert bench.report.text([result]).endswith("\n\nAll aims are met.\n")
    del result["speed"][0]["times"]["posenc"]
    assert bench.report.text([result]).endswith("## Missed\n\n- table, (131072,128), float32: not measured\n")


@pytest.mark.slow
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


def test_which_peer_has_which_case(bench):
    case, has = bench.cases.Case, bench.worker.has
    every = [path.stem for path in (FOLDER / "peers").glob("[a-z]*.py")]

    def of(*arguments, **more):
        return {name for name in every if has(name, case(*arguments, **more))}

    assert of("attention", (1, 64, 2, 8)) == {"attnax_rope", "dense_jax", "plain", "posenc", "x_transformers_rope"}
    assert of("loop", (8, 1, 2, 8), layout="interleaved", way="position moving") == {"posenc", "textbook"}
    decoders = {"flax_nnx", "gemma_rope", "keras_hub_layers", "penzai_rope", "posenc"}
    assert of("loop", (8, 1, 2, 8), layout="half") == decoders | {"textbook"}
    assert of("stack", (8, 1, 2, 8), layout="half") == decoders | {"textbook", "plain"}
    assert of("stack", (1, 64, 2, 8), layout="half") == decoders | {"textbook", "plain", "equinox_rope"}
    assert of("compile", (1, 64, 2, 8), layout="half") == decoders | {"textbook", "equinox_rope"}
    assert "textbook" not in of("rotary", (1, 64, 2, 8), layout="half")


@pytest.mark.slow
def test_a_loop_turns_at_each_position_and_a_stack_projects(bench):
    """256 turns at p are one at 256 p; one further each time, at 256 p + (0 + 1 + … + 255)."""
    x, cases, loops = np.random.default_rng(0).standard_normal((2, 1, 2, 8), np.float32), bench.cases, bench.loops
    turn = lambda x, positions: pe.rotary(x, positions, head_axis=-2)  # noqa: E731
    for way, more in {"position unchanged": 0, "position moving": 255 * 256 // 2}.items():
        case = cases.Case("loop", x.shape, layout="half", way=way)
        (positions,) = loops.arguments(case)
        want = turn(x, 256 * positions + more)
        np.testing.assert_allclose(loops.loop(case, turn)(x, positions), want, rtol=0, atol=2e-4)
    for way in ("scanned", "unrolled"):
        case = cases.Case("stack", x.shape, layout="half", way=way)
        positions, weights = loops.arguments(case)
        want = x
        for matrix in weights:
            want = turn((want.reshape(2, 1, 16) @ np.asarray(matrix)).reshape(x.shape), positions)
        assert len(weights) == 16
        np.testing.assert_allclose(loops.stack(case, turn)(x, positions, weights), want, rtol=1e-4, atol=1e-4)


def test_the_processor_is_named_with_its_generation(bench, tmp_path):
    path = tmp_path / "cpuinfo"

    def named(vendor, family, model):
        path.write_text(f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: X Y\n\nmore")
        return bench.reference.processor(path)

    assert named("AuthenticAMD", 25, 1) == "X Y (Zen 3)" and named("AuthenticAMD", 25, 17) == "X Y (Zen 4)"
    assert named("GenuineIntel", 6, 143) == "X Y (Sapphire Rapids)"
    assert named("GenuineIntel", 6, 1) == "X Y (family 6, model 1)"
    path.write_text("processor\t: 0\nBogoMIPS\t: 50\n")  # an ARM
    assert bench.reference.processor(path)


def test_a_run_goes_on_where_it_was_interrupted(bench, tmp_path):
    path, key, steps = tmp_path / "run.jsonl", {"files": "a"}, ["one", "two"]
    journal = bench.run.Journal(path, key)
    for step in steps:
        journal.write({"step": step, "answer": 1, "failures": [], "seconds": 2.0})
    with path.open("a") as file:
        file.write('{"step": "thr')  # killed while it wrote
    assert list(bench.run.Journal(path, key).found) == steps
    assert list(bench.run.Journal(path, key).found) == steps  # the line is mended
    assert not bench.run.Journal(path, {"files": "b"}).found  # of other versions
    journal = bench.run.Journal(path, key)
    journal.write({"step": "one", "answer": 1, "failures": [], "seconds": 2.0})
    assert not bench.run.Journal(path, key, fresh=True).found


class Asked:
    """A worker that loads and answers, but for what fails."""

    def __init__(self, ask):
        self.ask, self.process = ask, SimpleNamespace(poll=lambda: None)


def test_a_peer_that_fails_in_a_round_does_not_end_the_run(bench):
    counts = {"flax_nnx": 0}

    def fails(what, **_):
        counts["flax_nnx"] += what == "time"
        if what == "time" and counts["flax_nnx"] == 2:
            raise RuntimeError("ended with status -9")
        return 1.0

    run = bench.run.Bench(SimpleNamespace(peers=None, rounds=4))
    run.processes = {name: Asked(lambda what, **_: 1.0) for name in ("plain", "posenc", "gemma_rope")}
    run.processes["flax_nnx"] = Asked(fails)
    found = run.times(bench.cases.Case("rotary", (8, 8, 2, 8), layout="half"), 10.0)
    assert {name: len(times) for name, times in found["times"].items()} == {
        "plain": 4,
        "plain again": 4,
        "posenc": 4,
        "gemma_rope": 4,
    }
    dead = run.processes["gemma_rope"] = Asked(None)
    dead.process.poll, dead.close = lambda: -9, lambda: None
    run.start = lambda name, environment: Asked(lambda what, **_: 2.0)
    found = run.times(bench.cases.Case("rotary", (8, 8, 2, 8), layout="half"), 10.0)
    assert found["times"]["gemma_rope"] == [2.0] * 4 and run.processes["gemma_rope"] is not dead  # started anew
    (failure,) = run.failures
    assert failure["peer"] == "flax_nnx" and failure["error"] == "ended with status -9"


def test_a_run_repeats_no_step_of_its_journal(bench, tmp_path, capsys):
    run, measured = bench.run.Bench(SimpleNamespace(peers=None)), []

    def measure(name):
        measured.append(name)
        run.failures.append({"peer": "flax_nnx", "ask": "load", "request": {}, "error": name})
        return {"name": name}

    steps = [("speed", name, lambda name=name: measure(name)) for name in ("one", "two")]
    run.steps = lambda: [*steps, ("accuracy", "errors", lambda: {"errors": {}})]
    journal = bench.run.Journal(tmp_path / "run.jsonl", {})
    journal.write({"step": "speed, one", "answer": {"name": "before"}, "failures": [], "seconds": 5.0})
    result = run.run(journal, {"speed, two": 60.0})
    assert measured == ["two"] and result["speed"] == [{"name": "before"}, {"name": "two"}]
    assert result["accuracy"] == {"errors": {}} and [f["error"] for f in result["failures"]] == ["two"]
    assert result["seconds"]["speed, one"] == 5.0 and run.place == ""
    again = bench.run.Journal(tmp_path / "run.jsonl", {})
    assert run.run(again, {})["failures"] == result["failures"] and measured == ["two"]


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_no_two_steps_of_a_run_have_one_name(bench, platform):
    """Of two, the second would be taken from the journal of the first."""
    run = bench.run.Bench(SimpleNamespace(peers=None, cases="", quick=False, seconds=1.0, rounds=3))
    run.peers["posenc"] = {"platform": platform}
    names = [step[:2] for step in run.steps()]
    assert len(set(names)) == len(names)
    assert (("speed", "rotary, (4,4096,32,128), float32, half") in names) == (platform == "gpu")


def test_what_is_copied_on_a_gpu_leaves_its_cache(bench):
    large = [case for case in bench.cases.GPU if case.kind in ("table", "add", "rotary")]
    assert large and all(case.size >= 2 * 60e6 for case in large)


def test_names_of_cases_are_unique(bench):
    for cases in (bench.cases.SPEED, bench.cases.LOOPS, bench.cases.FIRST, *bench.cases.GROWTH.values()):
        assert len({case.name for case in cases}) == len(cases)
    every = {
        *bench.cases.SPEED,
        *bench.cases.LOOPS,
        *bench.cases.FIRST,
        *(c for cases in bench.cases.GROWTH.values() for c in cases),
    }
    assert len({case.name for case in every}) == len(every)
    drawn = {case.name for row in bench.figures.BARS for case in row}
    assert drawn <= {case.name for case in bench.cases.SPEED}


def test_a_gpu_has_cases_of_its_own(bench):
    speed, gpu = bench.cases.SPEED, bench.cases.GPU
    assert len({case.name for case in (*speed, *bench.cases.LOOPS, *gpu)}) == 2 * len(speed) + len(bench.cases.LOOPS)
    for small, large in zip(speed, gpu, strict=True):
        assert dataclasses.replace(large, shape=small.shape, aim=small.aim) == small
        assert large.shape[1:] == small.shape[1:] and large.aim == (1.1 if small.aim else None)
        if small.kind in ("table", "add", "rotary"):
            assert large.size == 2**26 * bench.cases.ITEMSIZE[small.dtype]
    run = bench.run.Bench(SimpleNamespace(peers=None, cases="rotary", quick=False, seconds=1.0))
    for platform, cases in {"cpu": speed, "cuda": gpu}.items():
        run.peers = {"posenc": {"platform": platform}}
        assert [name for _, name, _ in run.steps()] == [case.name for case in cases if "rotary" in case.name]


def test_forward_and_backward_the_unit_is_two_copies(bench, monkeypatch):
    spec = importlib.util.spec_from_file_location("plain", FOLDER / "peers" / "plain.py")
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    monkeypatch.setattr(bench.worker.Worker, "peer", plain)
    worker = bench.worker.Worker("plain")
    y, back = worker.function_of(bench.cases.Case("rotary", (2, 8, 2, 8), layout="half", backward=True))()()
    (x,) = bench.worker.arguments(bench.cases.Case("rotary", y.shape), -2, worker.framework)
    np.testing.assert_array_equal(y, x + 1)
    np.testing.assert_array_equal(back, x)  # of the cotangent, which has x's values, and not that array itself
    assert len({array.unsafe_buffer_pointer() for array in (x, y, back)}) == 3


def test_a_device_is_warm_when_it_is_timed(bench, monkeypatch):
    """A GPU runs all calls of a measurement once before, and is waited for after the last of them."""
    calls, each, last = [], ["run", "wait"], [*3 * ["run"], "wait"]
    for platform, expected in {"cpu": [*3 * each, "wait"], "cuda": 2 * last}.items():
        framework = SimpleNamespace(platform=platform, wait=lambda _: calls.append("wait"))
        monkeypatch.setitem(bench.worker.Worker.__init__.__globals__, "Jax", lambda framework=framework: framework)
        worker = bench.worker.Worker("plain")
        worker.run, worker.repeat = lambda: calls.append("run"), 3
        calls.clear()
        assert worker.time() > 0 and calls == expected
        worker.function_of = lambda case: lambda: lambda: calls.append("run")
        for seconds, repeats in {1e-6: {"cpu": 100, "cuda": 1000}, 1e-3: {"cpu": 5, "cuda": 20}}.items():
            worker.seconds = lambda count, each=seconds: count * each
            assert worker.load(dataclasses.asdict(bench.cases.Case("table", (8, 8)))) == repeats[platform]


def test_results_are_written_with_a_row_in_a_line(bench):
    value = {"a": [{"name": "x" * 130, "time": 0.123456789012, "whole": 2**40}, {"name": "y" * 130, "none": None}]}
    text = bench.reference.compact(value)
    first = '{"name": "' + 130 * "x" + '", "time": 0.12345679, "whole": 1099511627776}'
    assert text.splitlines() == [
        "{",
        ' "a": [',
        f"  {first},",
        '  {"name": "' + 130 * "y" + '", "none": null}',
        " ]",
        "}",
    ]
    assert bench.reference.compact({"a": [1, {}], "b": []}) == '{"a": [1, {}], "b": []}'
    for path in (FOLDER / "results").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert bench.reference.compact(json.loads(text)) + "\n" == text, path.name


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


def test_the_constants_of_polynomials_are_as_good_as_the_fits(bench):
    fits, phases = bench.fits, np.linspace(0, 2**30, 200_001).astype(int)
    assert fits.sine_fit()[1] < 6.3e-9 and fits.exp2_fit()[1] < 2.1e-9
    (alone, computed), (_, best) = (fits.sine_error(c, phases) for c in (fits.SINE, fits.sine_fit()[0]))
    assert alone < 2.2e-8 and computed < 8.6e-8 and computed <= 1.02 * best
    assert fits.exp2_error(fits.EXP2) <= fits.exp2_error(fits.exp2_fit()[0]) < 1.4e-8
    assert fits.exp_fit()[0] == fits.EXP and fits.exp_error(fits.EXP) < 1.4e-8
    assert fits.artanh_fit()[0] == fits.ARTANH and fits.artanh_error(fits.ARTANH) < 6e-9


def test_history_shows_what_became_slower(bench, result):
    h = bench.history
    (figures,) = h.summary(result | {"device": "a CPU"}).values()
    assert figures and all(low <= median <= high for low, median, high in figures.values())
    table = next(entry for entry in result["speed"] if entry["name"].startswith("table"))
    want = np.quantile(bench.comparison.ratios(table)["posenc"], (0.25, 0.5, 0.75))
    np.testing.assert_allclose(figures[table["name"]], want, atol=1e-4)
    rows = [{"case": "a table", "who": who, "ratio": ratio} for who, ratio in (("posenc_jax", 1.5), ("attnax", 3.0))]
    rows.append({"case": "a loop", "who": "posenc_jax", "ratio": None})
    assert h.summary({"v5e": {"figures": rows}}) == {"v5e, as compiled": {"a table": [1.5] * 3}}


@pytest.mark.parametrize(
    ("runs", "marked"),
    [
        ([(0.9, 1.0, 1.1), (0.9, 1.0, 1.1)], []),
        ([(0.9, 1.0, 1.1), (1.0, 1.2, 1.3)], []),  # their spreads overlap
        ([(0.9, 1.0, 1.1), (1.2, 1.3, 1.4)], [1]),
        ([(0.9, 1.0, 1.1), (1.2, 1.3, 1.4), (1.2, 1.3, 1.4)], [1, 2]),  # slower is not what is usual
        ([(0.9, 1.0, 1.1), (0.5, 0.6, 0.7), (0.5, 0.6, 0.7), (0.5, 0.6, 0.7), (0.8, 1.0, 1.1)], [4]),
        ([(1.0, 1.0, 1.0), (1.01, 1.01, 1.01), (1.05, 1.05, 1.05)], [2]),  # estimates have no spread
    ],
)
def test_a_point_is_slower_beyond_both_spreads(bench, runs, marked):
    points = [(f"commit {i}", *run) for i, run in enumerate(runs)]
    assert [i for i, mark in enumerate(bench.history.slower(points)) if mark] == marked
    lines = [{"commit": commit, "date": "", "figures": {"a < b": {"a case": run}}} for commit, *run in points]
    text, found = bench.history.page(lines)
    assert text.count("<circle") == len(runs) and text.count('class="slower"') == len(marked) == len(found)
    assert "a &lt; b" in text and "a < b" not in text


# The kernels of attention


def test_no_compiled_kernel_spills():
    """And each fits into the 227 KB of shared memory of a block on an H100 or H200."""
    cases = json.loads((FOLDER / "results" / "flash_compiled.json").read_text())["cases"]
    kernels = [x for case in cases.values() for x in (case, *case.values()) if isinstance(x, dict) and "registers" in x]
    assert len(kernels) > len(cases) > 100
    assert all(x["spilled_bytes"] == 0 and x["shared_bytes"] <= 227 * 1024 for x in kernels)


CASES = """
import os, time
from true_cases import *

def abort(problem): os.abort()
def too_large(problem): raise MemoryError("RESOURCE_EXHAUSTED")
def fine(left): return {"ms": 1.0}
def breaks(left): raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
def hangs(left): time.sleep(100)
def small(problem): return problem

def cases():
    made = {"crashes": abort, "too large": too_large}
    run = {"one": fine, "two": fine, "breaks the device": breaks, "three": fine, "long": fine, "hangs": hangs}
    seconds = {"long": 1000, "hangs": -298}
    names = "one", "crashes", "too large", "two", "breaks the device", "three", "long", "hangs", "four"
    return [
        Case(f"right: {n}", seconds.get(n, 1), at(16, 64), made.get(n), run=None if n in made else run.get(n, fine))
        for n in names
    ]
"""


@pytest.mark.slow
def test_a_case_on_a_device_costs_no_other(tmp_path):
    """Whether its process ends, hangs or breaks the device, or its memory or time is too little."""
    folder, output = tmp_path / "benchmarks" / "flash", tmp_path / "flash.json"
    shutil.copytree(FOLDER / "flash", folder)
    (folder / "cases.py").rename(folder / "true_cases.py")
    (folder / "cases.py").write_text(CASES)
    for name in ("tests", "posenc_jax"):
        (tmp_path / name).symlink_to(FOLDER.parent / name)
    command = [sys.executable, folder / "device.py", "--interpret", "--output", output, "--seconds", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "0 wrong: [], 4 failed: ['right: crashes', " in done.stdout, done.stderr
    found = {name: case.get("failed", "") for name, case in json.loads(output.read_text())["cases"].items()}
    assert "right: long" not in found and "run it again for 1 more" in done.stdout
    failed = {"crashes": "ended with -6", "too large": "RESOURCE_EXHAUSTED", "breaks the device": "CUDA_ERROR"}
    for name, message in (failed | {"hangs": "ended with -9"}).items():
        assert message in found.pop(f"right: {name}")
    assert found == dict.fromkeys(["right: one", "right: two", "right: three", "right: four"], "")
    # Of another device, or cut off by another program, nothing is written over.
    for text, message in (
        ('{"environment": {"device": "H100"}, "cases": {}}', "another --output"),
        ("{", "is no JSON"),
    ):
        output.write_text(text)
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode and message in done.stderr and output.read_text() == text
