"""The benchmarks measure and report what they say.

- A small run works from end to end, and an interrupted run goes on.
- The comparison counts a function as behind if it is slower in most rounds.
- Pages show the figures of the recorded results; recorded pods keep their limits.
"""

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import posenc_jax as pe

FOLDER = Path(__file__).parents[2] / "benchmarks"
RESULTS = FOLDER / "results"


@pytest.fixture(scope="module")
def bench():
    """The modules of benchmarks/; modules of the same names from other folders come back afterwards."""
    names = [path.stem for path in FOLDER.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        wanted = ("cases", "comparison", "report", "run", "pods", "loops", "fits", "history")
        return SimpleNamespace(**{name: importlib.import_module(name) for name in wanted})
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(others)


def python(*arguments):
    """Runs Python from the root of the project, and returns what it prints."""
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=FOLDER.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_its_figures_and_its_history(bench, tmp_path):
    case = "table, (131072,128), float32"
    options = ["--cases", case, "--peers", "flax_examples", "--rounds", 3, "--seconds", 1, "--out", tmp_path]
    assert case in python(FOLDER / "run.py", *options)
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text(encoding="utf-8"))
    assert not result["failures"]
    times = result["speed"][0]["times"]
    assert set(times) == {"posenc", "flax_examples", "plain", "plain again"}
    assert {len(rounds) for rounds in times.values()} == {3} and min(map(min, times.values())) > 1e-6
    python(FOLDER / "history.py", tmp_path, path)
    assert "<circle" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_the_pages_have_the_figures_of_the_results(bench):
    """New results are written by `python benchmarks/report.py --write` and `python benchmarks/pods.py --tables`."""
    results, readme = bench.comparison.kept(), (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert bench.report.text(results) == (RESULTS / "cpu.md").read_text(encoding="utf-8")
    assert bench.report.readme(readme, results[0]) == readme
    pods = json.loads((RESULTS / "pods.json").read_text(encoding="utf-8"))
    assert bench.pods.text(pods) == (RESULTS / "pods.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("ours", "behind"),
    [
        ([0.5, 1.1, 1.1, 1.1], True),
        ([0.5, 0.9, 1.2, 1.2], False),  # slower in half of the rounds
        ([1.01] * 4, False),  # by less than 2%
    ],
)
def test_behind_is_what_is_slower_in_most_rounds(bench, ours, behind):
    """Times are divided by the time of a copy in the same round. The third round is slow for all."""
    copies = 1e-3 * np.array([1.0, 1.0, 10.0, 1.0])
    times = {"posenc": ours * copies, "flax_nnx": copies, "plain": 0.9 * copies, "plain again": 1.1 * copies}
    case = {"kind": "add", "shape": [16, 4096, 512]}
    found = bench.comparison.ratios({"case": case, "times": {name: list(t) for name, t in times.items()}})
    np.testing.assert_allclose(found["posenc"], ours)
    assert bench.comparison.is_ahead(found["flax_nnx"], found["posenc"]) == behind


def test_a_run_goes_on_where_it_was_interrupted(bench, tmp_path):
    # key: the versions that were measured; entry: a result of a step
    path, key, entry = tmp_path / "run.jsonl", {"files": "a"}, {"answer": 1, "failures": [], "seconds": 2.0}
    for step in ("one", "two"):
        bench.run.Journal(path, key).write(entry | {"step": step})
    with path.open("a") as file:
        file.write('{"step": "thr')  # killed while it wrote
    assert list(bench.run.Journal(path, key).found) == ["one", "two"]
    assert not bench.run.Journal(path, {"files": "b"}).found  # other versions start anew


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_no_two_steps_of_a_run_have_one_name(bench, platform):
    """A run that goes on would take the second of two such steps from the first."""
    run = bench.run.Bench(SimpleNamespace(peers=None, cases="", quick=False, seconds=1.0, rounds=3))
    run.peers["posenc"] = {"platform": platform}
    names = [step[:2] for step in run.steps()]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_a_loop_rotates_at_each_position_and_a_stack_projects(bench):
    """256 rotations by p are one by 256 p; if p grows by one each time, one by 256 p + (0 + 1 + … + 255)."""
    x, loops = np.random.default_rng(0).standard_normal((2, 1, 2, 8), np.float32), bench.loops
    rotate = lambda x, positions: pe.rotary(x, positions, head_axis=-2)  # noqa: E731
    for way, more in {"position unchanged": 0, "position moving": 255 * 256 // 2}.items():
        case = bench.cases.Case("loop", x.shape, layout="half", way=way)
        (positions,) = loops.arguments(case)
        want = rotate(x, 256 * positions + more)
        np.testing.assert_allclose(loops.loop(case, rotate)(x, positions), want, rtol=0, atol=2e-4)
    case = bench.cases.Case("stack", x.shape, layout="half", way="scanned")
    (positions, weights), want = loops.arguments(case), x
    for matrix in weights:
        want = rotate((want.reshape(2, 1, 16) @ np.asarray(matrix)).reshape(x.shape), positions)
    for way in ("scanned", "unrolled"):
        got = loops.stack(dataclasses.replace(case, way=way), rotate)(x, positions, weights)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_the_constants_of_polynomials_are_as_good_as_the_fits(bench):
    """`alone` is the error of the polynomial in exact arithmetic, `computed` the error in float32."""
    fits, phases = bench.fits, np.linspace(0, 2**30, 200_001).astype(int)
    (alone, computed), (_, best) = (fits.sine_error(c, phases) for c in (fits.SINE, fits.sine_fit()[0]))
    assert alone < 2.2e-8 and computed < 8.6e-8 and computed <= 1.02 * best
    assert fits.exp2_error(fits.EXP2) <= fits.exp2_error(fits.exp2_fit()[0]) < 1.4e-8
    assert fits.exp_fit()[0] == fits.EXP and fits.exp_error(fits.EXP) < 1.4e-8
    assert fits.artanh_fit()[0] == fits.ARTANH and fits.artanh_error(fits.ARTANH) < 6e-9


# Whole pods


def test_a_device_of_a_pod_holds_its_share_alone(bench):
    """In the figures that `benchmarks/pods.py` recorded. The textbook formula is the control, and fails."""
    on_pods, pods = bench.pods.pods, json.loads((RESULTS / "pods.json").read_text(encoding="utf-8"))
    figures = {(f["target"], f["function"]): f for f in (*pods["figures"], *pods["sizes"])}
    for pod in (*on_pods.PODS, "v5p:16x16x16"):
        for case in on_pods.cases(pod):
            if pod in on_pods.PODS or case.name in bench.pods.ON_PAPER:
                case.check(pod, figures[pod, case.name])
    for pod in on_pods.PODS:
        with pytest.raises(AssertionError, match="temporaries"):
            on_pods.TEXTBOOK.check(pod, figures[pod, on_pods.TEXTBOOK.name])
