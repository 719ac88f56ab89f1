"""The vectors of conformance/: this library passes them all, they are what the formulas give, wrong libraries fail."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from flax import nnx

from conformance import formulas, run, vectors
from conformance.adapters import NotOffered, flax_nnx
from helpers.tiers import slow
from oracles import attention, biases, encodings, rotations, spectra

FOLDER = Path(run.__file__).parent
CASES = run.load()
FIRSTS = [*{(case["group"], case["function"]): case for case in reversed(CASES)}.values()]
RESULTS = (FOLDER / "results" / "table.md").read_text(encoding="utf-8")


def named(pattern):
    found = [case for case in CASES if re.fullmatch(pattern, case["name"])]
    assert found, pattern
    return found


def outcomes(adapter, cases):
    return {case["name"]: run.judge(case, adapter)[0] for case in cases}


def with_rows_repeated(adapter, rows=12):
    """The adapter with each case's last position repeated up to a multiple of `rows`, and cut off the result again.

    Cases that differ in nothing but their positions then share one compiled program.
    """

    def repeated(function):
        def f(**arguments):
            sizes = [len(arguments[name]) for name in ("positions", "queries", "keys") if name in arguments]
            for name in ("positions", "queries", "keys"):
                if values := arguments.get(name):
                    arguments[name] = values + values[-1:] * (-len(values) % rows)
            whole = np.asarray(function(**arguments))
            if not sizes:
                return whole
            if len(sizes) == 1:
                assert len(whole) == len(arguments["positions"])
                return whole[: sizes[0]]
            assert whole.shape[-2:] == (len(arguments["queries"]), len(arguments["keys"]))
            return whole[..., : sizes[0], : sizes[1]]

        return f

    return SimpleNamespace(**{name: repeated(getattr(adapter, name)) for name in {case["function"] for case in CASES}})


def test_this_library_passes_the_first_cases_of_every_function():
    adapter = with_rows_repeated(importlib.import_module("conformance.adapters.posenc_jax"))
    assert len(FIRSTS) > 14
    judged = [(case["name"], *run.judge(case, adapter)) for case in FIRSTS]
    assert not [line for line in judged if line[1] != run.PASSED]


@pytest.mark.slow
@pytest.mark.parametrize("group", vectors.GROUPS)
@pytest.mark.parametrize("shapes", ["rows repeated", "as they are"])
def test_this_library_passes_every_case(group, shapes):
    adapter = importlib.import_module("conformance.adapters.posenc_jax")
    adapter = with_rows_repeated(adapter) if shapes == "rows repeated" else adapter
    judged = [(case["name"], *run.judge(case, adapter)) for case in CASES if case["group"] == group]
    assert judged and not [line for line in judged if line[1] != run.PASSED]


@pytest.mark.slow
@pytest.mark.parametrize("group", vectors.GROUPS)
def test_the_vectors_are_what_the_formulas_give(group):
    committed = (vectors.FOLDER / f"{group}.json").read_text(encoding="utf-8")
    assert committed == vectors.text(group, vectors.GROUPS[group]())


def test_every_case_is_named_once_and_its_inputs_are_exact_in_float32():
    assert len({case["name"] for case in CASES}) == len(CASES)

    def numbers(value):
        if isinstance(value, dict):
            value = list(value.values())
        return [n for v in value for n in numbers(v)] if isinstance(value, list) else [value]

    for case in CASES:
        inputs = case["inputs"]
        names = ("positions", "queries", "keys", "query_positions", "key_positions")
        positions = numbers([inputs[name] for name in names if name in inputs])
        assert all(abs(n) <= 2**31 and n < 2**31 for n in positions), case["name"]
        assert case["function"] in ("timestep", "fourier") or all(isinstance(n, int) for n in positions), case["name"]
        settings = numbers([case["parameters"], inputs])
        assert all(np.float32(n) == n for n in settings if isinstance(n, float)), case["name"]


def test_the_formulas_are_those_of_the_other_oracle():
    positions = [0, 7, 4095, 2**31 - 1, -(2**31)]
    for layout, endpoint in (("half", True), ("interleaved", False)):
        expected = encodings.encode(positions, 6, 500, layout, endpoint)
        assert np.array_equal(np.array(formulas.sinusoidal(positions, 6, 500, layout, endpoint), float), expected)
    x = [1.0, 1.0, 0.0, 0.0]
    turned = np.array(formulas.rotary(positions, x, 4, 10000, "half"), float)
    waves = encodings.encode(positions, 4, layout="half")
    assert np.array_equal(turned, np.concatenate([waves[:, 2:], waves[:, :2]], axis=1))
    timesteps = np.array(formulas.timestep(positions, 7, 500, 1, 1, False), float)
    assert np.array_equal(timesteps[:, :6], encodings.encode(positions, 6, 500, "half", endpoint=True))
    assert not timesteps[:, 6].any()


def test_the_biases_are_those_of_the_other_oracle():
    queries, keys, weights = [0, 7, 2**31 - 1], [3, 4095, 2**30], [0.25, 1.5]
    distance, after = biases.tile(queries, keys), np.array(queries)[:, None] < np.array(keys)
    table, mlp = np.arange(16.0).reshape(8, 2).tolist(), (weights, weights, [weights, weights], weights)
    for one, other in [
        (formulas.alibi(queries, keys, 12), biases.alibi(distance, biases.slopes(12))),
        (formulas.kerple_log(queries, keys, weights, weights), biases.kerple_log(distance, weights, weights)),
        (formulas.kerple_power(queries, keys, weights, weights), biases.kerple_power(distance, weights, weights)),
        (formulas.sandwich(queries, keys, 3, 64, 500), biases.sandwich(distance, 3, spectra.geometric(64, 500))),
        (
            formulas.fire(queries, keys, *mlp, 0.125, 64),
            biases.fire(distance, np.array(queries)[:, None], mlp, 0.125, 64),
        ),
        (formulas.t5(queries, keys, table, True, 100), biases.t5(distance, after, table, max_distance=100)),
    ]:
        np.testing.assert_allclose(np.array(one, float), other, rtol=1e-13)
    assert all(formulas.bucket(d, 16, 128) == biases.bucket(d, 16, 128) for d in range(200))


@pytest.mark.parametrize("settings", [{}, {"causal": True}, {"window": [1, 2]}, {"window": [None, 0]}], ids=str)
@pytest.mark.parametrize("sinks", [None, [0.5, -1.0, 2.0, 0.0]], ids=["", "sinks"])
def test_attention_is_that_of_the_other_oracle(settings, sinks):
    rng, places = np.random.default_rng(0), ([0, 3, 5, 20], [0, 1, 2, 4, 9])
    operands = [rng.standard_normal(shape) for shape in ((4, 4, 2), (5, 2, 2), (5, 2, 3))]
    lists = [x.tolist() for x in operands]
    rows = formulas.attention(*places, *lists, 1.5, **settings, soft_cap=0.75, sinks=sinks)
    seen = attention.may_see(*places, **settings)
    expected = attention.dense(*operands, seen=seen, scale=1.5, cap=0.75, sinks=sinks).y
    np.testing.assert_allclose(np.array(rows, float), expected, rtol=0, atol=1e-14)


def test_a_soft_cap_bounds_the_scores():
    """Two keys, whose scores 1 and −1 become ±½ tanh 2."""
    keys, values = [[[1.0]], [[-1.0]]], [[[1.0]], [[0.0]]]
    [[[mean]]] = formulas.attention([0], [0, 0], [[[1.0]]], keys, values, 1.0, soft_cap=0.5)
    assert abs(mean - 1 / (1 + np.exp(-np.tanh(2.0)))) < 1e-15


def test_the_formulas_give_figures_that_are_published():
    assert [float(m) for m in formulas.slopes(8)] == [2.0**-h for h in range(1, 9)]
    assert [float(m) for m in formulas.slopes(3)] == [2**-4, 2**-8, 2**-2]
    _, phi3 = spectra.SCALINGS["longrope"](4, 10000, [1, 1], [1, 8], 4096, 32, 5000)
    assert round(float(phi3), 6) == 1.190238
    kept, interpolated = formulas.M.mpf(1), formulas.M.mpf(1) / 8
    scaled, _ = spectra.SCALINGS["llama3"](128, 500000, 8, 1, 4, 8192)
    ratios = [s / w for s, w in zip(scaled, formulas.spectrum(128, 500000), strict=True)]
    assert ratios[28] == kept > ratios[29] > ratios[34] > ratios[35] == interpolated
    # xPos, 512 positions from the origin: (i/n + 0.4)/1.4.
    expected = [0.4 / 1.4, 0.65 / 1.4, 0.9 / 1.4, 1.15 / 1.4]
    np.testing.assert_allclose(np.array(formulas.decays(8, "query", 512), float), expected, rtol=1e-15)
    np.testing.assert_allclose(np.array(formulas.decays(8, "key", 512), float), 1 / np.array(expected), rtol=1e-15)
    # gpt-oss: the ramp begins at 8.092779 and ends at 17.398025.
    scaled, _ = spectra.SCALINGS["yarn"](64, 150000, 32, 4096, truncate=False)
    gammas = [(1 - s / w) * 32 / 31 for s, w in zip(scaled, formulas.spectrum(64, 150000), strict=True)]
    expected = np.clip((np.arange(32) - 8.092779) / (17.398025 - 8.092779), 0, 1)
    np.testing.assert_allclose(np.array(gammas, float), expected, atol=1e-6)


@pytest.mark.parametrize("buckets, furthest", [(16, 128), (32, 128), (32, 512)])
def test_buckets_are_those_of_the_logarithm(buckets, furthest):
    exact = buckets // 2
    for distance in range(exact, 2 * furthest):
        with mpmath.workdps(60):  # where it is whole, 60 digits may leave it a little less
            logarithm = mpmath.log(mpmath.mpf(distance) / exact) / mpmath.log(mpmath.mpf(furthest) / exact)
            beyond = int(mpmath.floor(logarithm * (buckets - exact) + mpmath.mpf(10) ** -50))
        assert formulas.bucket(distance, buckets, furthest) == min(exact + beyond, buckets - 1)


@pytest.mark.parametrize("layout", vectors.LAYOUTS)
def test_a_score_of_xpos_is_of_the_distance_alone_and_decays(layout):
    def score(p, q, origin):
        x = [1.0] * 8
        [query], [key] = (formulas.xpos([n], x, 8, 500, layout, of, origin) for n, of in ((p, "query"), (q, "key")))
        return sum(a * b for a, b in zip(query, key, strict=True))

    exact = sum(
        2 * scale * formulas.M.cos(512 * w)
        for scale, w in zip(formulas.decays(8, "query", 512), formulas.spectrum(8, 500), strict=True)
    )
    for p, origin in ((512, 0), (512, -7), (2**31 - 1, 2**31 - 600)):
        assert abs(score(p, p - 512, origin) - exact) < 1e-12


def test_fourier_features_are_of_fractions_of_a_turn():
    rows = np.array(formulas.fourier([[0.25, 2], [0.5, 0.125]], [[1, 0, 2], [0, 1, 1]], "interleaved"), float)
    half = np.sqrt(0.5)
    assert np.array_equal(rows, [[1, 0, 0, 1, 0, -1], [0, -1, half, half, half, half]])


def wrong(function, **changes):
    """The formulas themselves, in mpmath, with arguments that a mistake would change."""

    def f(**arguments):
        return formulas.FUNCTIONS[function](**arguments | {k: v(arguments) for k, v in changes.items()})

    return SimpleNamespace(**{function: f})


def other_layout(arguments):
    return {"half": "interleaved", "interleaved": "half"}[arguments["layout"]]


def first_base():
    """The base of the first call with a width, whatever base comes later."""
    bases = {}
    return lambda a: bases.setdefault(a.get("rotary_width", a.get("width")), a["base"])


# A function, what a mistake makes of its arguments, the cases that show it, and those that it takes before them.
WRONG = {
    "transposed": ("rotary", {"layout": other_layout}, "(rotary|partial|scaling|axes)-(?!encoding).*"),
    "sines and cosines transposed": ("sinusoidal", {"layout": other_layout}, "sinusoidal-.*"),
    "a wrong base": ("rotary", {"base": lambda a: a["base"] * 1.001}, "(rotary|partial)-.*"),
    "turned backwards": ("rotary", {"positions": lambda a: [-p for p in a["positions"]]}, "(rotary|partial)-.*"),
    "a table kept by width": ("rotary", {"base": first_base()}, "rotary-8-500000-.*", "rotary-8-10000-.*"),
    "an encoding kept by width": ("sinusoidal", {"base": first_base()}, "sinusoidal-7-500-.*", "sinusoidal-7-10000-.*"),
    "a position late": ("sinusoidal", {"positions": lambda a: [p + 1 for p in a["positions"]]}, "sinusoidal-.*"),
    "the other spacing": ("sinusoidal", {"endpoint": lambda a: not a.get("endpoint")}, "sinusoidal-.*"),
    "no scaling": ("rotary", {"scaling": lambda a: None}, "scaling-(?!dynamic.*near).*"),
    "all turned": ("rotary", {"rotary_width": lambda a: len(a["x"])}, "partial-.*"),
    "one coordinate": ("rotary", {"axes": lambda a: None}, "axes-(axial|sections|interleaved|widths).*"),
    "keys as queries": ("xpos", {"of": lambda a: "query"}, "xpos-key-.*"),
    "another origin": ("xpos", {"origin": lambda a: a["origin"] + 8}, "xpos-.*"),
    "a slower decay": ("xpos", {"scale_base": lambda a: 2 * a.get("scale_base", 512)}, "xpos-.*"),
    "the other half first": ("timestep", {"cosines_first": lambda a: not a["cosines_first"]}, "timestep-.*"),
    "the other shift": ("timestep", {"shift": lambda a: 1 - a["shift"]}, "timestep-.*"),
    "radians for turns": (
        "fourier",
        {"matrix": lambda a: [[b / (2 * np.pi) for b in row] for row in a["matrix"]]},
        "fourier-.*",
    ),
    "slopes in one series": (
        "alibi",
        {"queries": lambda a: a["queries"], "heads": lambda a: 2 ** (a["heads"] - 1).bit_length()},
        "alibi-(3|6|12|20|40)-.*",
    ),
    "buckets one off": ("t5", {"max_distance": lambda a: a["max_distance"] - 1}, "t5-.*-edges"),
    "a key more": (
        "attention",
        {"window": lambda a: [a["window"][0] + 1, a["window"][1]]},
        "attention-(both|sliding)-(near|far)",
    ),
    "no window": ("attention", {"window": lambda a: (None, None)}, "attention-(left|right|both|sliding).*-(near|far)"),
    "sides of the window swapped": (
        "attention",
        {"window": lambda a: a["window"][::-1]},
        "attention-(left|right|both)-.*",
    ),
    "causal always": ("attention", {"causal": lambda a: True}, "attention-(plain|left|right|both)-.*"),
    "no sinks": ("attention", {"sinks": lambda a: None}, "attention-(sliding-sinks|sinks|all)-(near|decode|far)"),
    "a sink for all heads": ("attention", {"sinks": lambda a: [0.5] * 4}, "attention-(sliding-sinks|sinks)-near"),
    "no soft cap": ("attention", {"soft_cap": lambda a: None}, "attention-(cap|sliding-cap|all)-.*"),
    "a scale by the width": ("attention", {"scale": lambda a: 0.5}, "attention-(?!alone).*"),
    "key heads in turn": (
        "attention",
        {name: lambda a, name=name: [heads * 2 for heads in a[name]] for name in ("key", "value")},
        "attention-.*",
    ),
    "a distance early": ("kerple_log", {"keys": lambda a: [j + 1 for j in a["keys"]]}, "kerple-log-.*"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_library_fails_every_case_that_shows_it(mistake):
    function, changes, pattern, *before = WRONG[mistake]
    right = outcomes(wrong(function), named(pattern))
    assert set(right.values()) == {run.PASSED}
    library = wrong(function, **changes)
    for earlier in before:
        assert set(outcomes(library, named(earlier)).values()) == {run.PASSED}
    result = outcomes(library, named(pattern))
    assert set(result.values()) == {run.FAILED}, [name for name in result if result[name] != run.FAILED]


def float32_phases(positions, x, rotary_width, base, layout, scaling=None, axes=None):
    """As most libraries have it; half layout, whole heads."""
    phases = encodings.float32_phases(positions, spectra.geometric(rotary_width, base))
    return rotations.rotate_by([x] * len(phases), phases, layout)


def test_float32_phases_fail_and_are_told_from_wrong_formulas():
    def reasons(adapter, pattern):
        return {run.judge(case, adapter)[::2] for case in named(pattern)}

    rounded = SimpleNamespace(rotary=float32_phases)
    assert reasons(rounded, "rotary-.*-half-(text|long)") == {(run.FAILED, run.ROUNDED)}
    assert reasons(rounded, "rotary-.*-half-far") == {(run.FAILED, run.LOST)}
    mistaken = wrong("rotary", base=lambda a: a["base"] * 1.01)
    assert not {why for _, why in reasons(mistaken, "rotary-.*-(near|text)")} & {run.ROUNDED, run.LOST}


def raises(error):
    def f(**arguments):
        raise error

    return f


def test_what_is_not_offered_is_no_failure_and_an_error_is():
    [case] = named("rotary-8-10000-half-near")
    right = wrong("rotary").rotary
    assert run.judge(case, SimpleNamespace())[::2] == (run.ABSENT, "no rotary")
    assert run.judge(case, SimpleNamespace(rotary=raises(NotOffered("x"))))[::2] == (run.ABSENT, "x")
    assert run.judge(case, SimpleNamespace(rotary=raises(ValueError("y\nz"))))[::2] == (run.FAILED, "ValueError: y")
    shape = run.judge(case, SimpleNamespace(rotary=lambda **a: right(**a)[1:]))
    assert shape[::2] == (run.FAILED, "shape (7, 8), expected (8, 8)")
    nan = run.judge(case, SimpleNamespace(rotary=lambda **a: np.array(right(**a), float) * np.nan))
    assert nan[:2] == (run.FAILED, np.inf)


@pytest.mark.parametrize("cases", [FIRSTS, slow(CASES)], ids=["the first of each function", "all"])
def test_what_flax_offers(cases, monkeypatch):
    """With a right RoPE all cases of the half layout, whole heads and no scaling; without one, none: no failure."""

    def right_rope(theta):
        return lambda rows, positions: formulas.rotary(
            positions.tolist(), rows[0].tolist(), rows.shape[1], theta, "half"
        )

    monkeypatch.setattr(nnx, "RoPE", right_rope, raising=False)
    offered = {case["name"] for case in named("rotary-.*-half-.*")}
    assert offered & {case["name"] for case in cases}
    wanted = {c["name"]: run.PASSED if c["name"] in offered else run.ABSENT for c in cases}
    assert outcomes(flax_nnx, cases) == wanted
    monkeypatch.delattr(nnx, "RoPE")
    assert set(outcomes(flax_nnx, cases).values()) == {run.ABSENT}


def test_a_failure_that_needs_earlier_cases_is_named_with_them(monkeypatch, capsys):
    def adapter():
        return SimpleNamespace(NAME="keeps", PACKAGES=("numpy",), **vars(wrong("rotary", base=first_base())))

    def afresh(name, cases):
        monkeypatch.setitem(sys.modules, "conformance.adapters.gemma", adapter())
        run.main(["--adapter", name, "--case", *cases])
        return capsys.readouterr().out.splitlines()[-1]

    monkeypatch.setattr(run, "afresh", afresh)
    monkeypatch.setattr(run, "load", lambda: named("rotary-(8|64)-.*-half-(near|text)"))
    monkeypatch.setitem(sys.modules, "conformance.adapters.gemma", adapter())
    assert run.main(["--adapter", "gemma"]) == 1
    shown = re.findall("--case (.*)  #", capsys.readouterr().out)
    first, second = "rotary-8-10000-half-text", "rotary-8-500000-half-"
    assert shown == [f"{first} {second}{name}" for name in ("near", "text")]
    for line in shown:
        assert f" {run.FAILED}, error" in afresh("gemma", line.split())
        assert f" {run.PASSED}, error" in afresh("gemma", line.split()[1:])
    assert afresh("gemma", [f"{second}near", first]).startswith(f"gemma {first}: {run.FAILED}, error")  # in that order
    # One that fails alone is named alone, and one that needs two is named with two.
    judged = lambda needs: lambda name, cases: f"{name} {cases[-1]}: failed, x" if needs <= set(cases) else ""  # noqa: E731
    for needs, named_with in ((set(), []), ({"b"}, ["b"]), ({"b", "c"}, ["b", "c", "d"])):
        monkeypatch.setattr(run, "afresh", judged(needs))
        assert run.repeat("gemma", ["a", "b", "c", "d"], "e", "x") == [*named_with, "e"]


def test_a_case_is_run_in_a_new_process():
    case = "rotary-8-10000-half-near"
    assert run.afresh("posenc_jax", ["alibi-1-decode", case]).startswith(f"posenc_jax {case}: {run.PASSED}, error ")


def test_the_program_reports_and_repeats_a_failure(monkeypatch, capsys, tmp_path):
    names = ["rotary-8-10000-half-near", "alibi-12-decode"]
    broken = SimpleNamespace(NAME="broken", PACKAGES=("numpy",), **vars(wrong("rotary", layout=other_layout)))
    monkeypatch.setitem(sys.modules, "conformance.adapters.gemma", broken)
    monkeypatch.setattr(run, "afresh", lambda name, cases: f"{name} {cases[-1]}: failed, error 1, allowed 3.2e-07")
    arguments = ["--adapter", "gemma", "--case", *names]
    assert run.main(arguments) == 1
    out = capsys.readouterr().out
    assert "gemma rotary-8-10000-half-near: failed, error" in out and "alibi-12-decode: not offered, no alibi" in out
    page = tmp_path / "table.md"
    assert run.main([*arguments, "--markdown", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "| rotary | 0 of 1 |\n" in text and "| bias | – |\n" in text and "| failed: anything else | 1 |" in text
    assert text.count("python -m conformance.run --adapter gemma --case rotary-8-10000-half-near  # error") == 1
    broken.rotary = wrong("rotary").rotary
    assert run.main(["--adapter", "gemma", "--case", names[0]]) == 0
    with pytest.raises(SystemExit):
        run.main(["--adapter", "gemma", "--case", "no-such-case"])
    assert "no case no-such-case" in capsys.readouterr().err


def test_neither_the_runner_nor_the_formulas_import_a_library():
    code = "import sys, conformance.run, conformance.vectors; print({'posenc_jax', 'jax', 'torch'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=FOLDER.parent)
    assert result.stdout == "set()\n", result.stderr


def test_the_page_of_results_is_of_these_cases():
    assert f"{len(CASES)} cases, " in RESULTS
    shown = re.findall(r"^python -m conformance.run --adapter (\w+) --case (.+)  # error", RESULTS, re.MULTILINE)
    assert shown and {case for _, cases in shown for case in cases.split()} <= {case["name"] for case in CASES}
    assert {adapter for adapter, _ in shown} <= set(run.ADAPTERS) - {"posenc_jax"}
    rows = [line.split(" | ") for line in RESULTS.splitlines() if line.startswith(("| passed", "| failed", "| not"))]
    counts = [[int(cell.strip(" |")) for cell in row[1:]] for row in rows]
    assert len(counts) == 5 and [sum(column) for column in zip(*counts, strict=True)] == [len(CASES)] * 7
    assert sum(map(sum, counts[1:4])) == len(shown)
