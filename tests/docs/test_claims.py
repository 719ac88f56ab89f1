"""What README and the pages count and name, against its source."""

import importlib
import json
import re
import tomllib
from pathlib import Path

import numpy as np

from helpers.pages import program
from posenc_jax.hf import _models, _refused

ROOT = Path(__file__).parents[2]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


README, NOXFILE, PROJECT = read("README.md"), read("noxfile.py"), tomllib.loads(read("pyproject.toml"))
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
AT_THE_ROOT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
PAGES |= {name: read(name) for name in (*AT_THE_ROOT, "conformance/README.md", "benchmarks/NOTES.md")}
WORDS = dict(zip("five six seven eight nine ten eleven twelve thirteen".split(), range(5, 14), strict=True))


def test_model_types():
    (said,) = re.findall(r"for some (\d+) model types", README)
    assert int(said) == round(len(_models.MODELS), -1)


def test_red_is_positive_on_every_page():
    """Of matplotlib's RdBu red is the lower end, of RdBu_r the upper."""
    assert "Red is positive, blue negative, here and on every page" in PAGES["docs/sinusoidal.md"]
    code = {name: "".join(re.findall(r"^ *```python\n(.*?)```", text, re.M | re.S)) for name, text in PAGES.items()}
    assert [name for name, text in code.items() if re.search(r"\bRdBu\b", text)] == []
    assert any("RdBu_r" in text for text in code.values())


def test_models_that_are_trained(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "demo"))
    models = importlib.import_module("models")
    trained, story = (
        sum(models.VARIANTS[name].weights is None for name in names) for names in (models.VARIANTS, models.STORY)
    )
    said = re.findall(r"[Tt]rains (\w+) small Transformers", README + NOXFILE)
    assert len(said) == 2 and {WORDS[word] for word in said} == {story}
    everywhere = re.findall(r"`nox -s demo -- --all`\s+trains (\w+) small Transformers", "".join(PAGES.values()))
    said = [*everywhere, *re.findall(r"`-- --all`, (\w+)", NOXFILE)]
    assert len(said) == 2 and {WORDS[word] for word in said} == {trained}
    evidence = json.loads(read("demo/evidence.json"))
    (said,) = re.findall(r"(\d+) small models", PAGES["docs/evidence.md"])
    assert int(said) == len(evidence["seeds"]) * (trained + len(evidence["bases"]))


def test_libraries_that_are_measured():
    newest = max(
        (json.loads(p.read_text()) for p in ROOT.glob("benchmarks/results/cpu-*.json")), key=lambda r: r["date"]
    )
    names = [peer["name"] for peer in newest["peers"].values() if "missing" not in peer]
    libraries = {re.split("[., ]", name)[0].lower() for name in names} - {"posenc_jax", "textbook", "copy"}
    (said,) = re.findall(r"runs this library beside (\w+) others", PAGES["docs/benchmarks.md"])
    assert WORDS[said] == len(libraries), libraries


def test_the_families_of_the_decoder():
    (said,) = re.findall(r"One decoder for (\w+) families", read("examples/decoder.py"))
    (listed,) = re.findall(r"one decoder for\s+(.*?), told apart", PAGES["docs/huggingface.md"], flags=re.DOTALL)
    assert WORDS[said] == len(re.split(r",\s|\sand\s", listed))


def test_only_equinox_has_other_formulas():
    rows = [line.strip("| ").split(" | ") for line in read("conformance/results/table.md").splitlines()]
    (names,) = (row[1:] for row in rows if row[0] == "outcome")
    (others,) = (row[1:] for row in rows if row[0] == "failed: anything else")
    assert [name for name, count in zip(names, others, strict=True) if count != "0"] == ["equinox.nn"]
    assert "only equinox\n  has any" in PAGES["docs/conformance.md"]


def test_figures_of_readme_that_other_pages_have():
    rows = [line.strip("| ").split(" | ") for line in PAGES["docs/speed.md"].splitlines() if line[:1] == "|"]
    (causal,) = (row for row in rows if row[0] == "ALiBi, causal")
    assert f"| Time of causal ALiBi, bfloat16, 4,096 tokens | {causal[2]} | 1, " in README
    assert f"takes [{forward_rotations('gpu-nvidia-h200')} copies](docs/speed.md#gpu)" in README


def forward_rotations(device, layouts="half|interleaved", column=1):
    """The least and the greatest time of `rotary`, or of the fastest other, in a device's summary, in copies."""
    summary = read(f"benchmarks/results/{device}.md").partition("[start:summary]")[2].partition("[end:summary]")[0]
    forward = rf"^\| rotary, [^|]*(?:{layouts})(?: \| [^|]*){{{column}}} \| \**([\d.]+)"
    turned = sorted(re.findall(forward, summary, re.MULTILINE), key=float)
    assert len(turned) == 4 * len(layouts.split("|"))
    return f"{turned[0]} to {turned[-1]}"


def test_the_first_figures_of_how_fast():
    lines = [line for line in PAGES["docs/speed.md"].splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    ours, half, interleaved, (_, attention, *_), (_, _, kernel, *_) = rows[2:7]
    assert "half layout" in half[0] and "interleaved" in interleaved[0]
    for row, *which in ((ours,), (half, "half", 2), (interleaved, "interleaved", 2)):
        cpu, gpu = (forward_rotations(device, *which) for device in ("cpu", "gpu-nvidia-h200"))
        assert row[1:3] == [cpu, f"{gpu} (H200)"]
    dense = [float(number) for row in rows if row[0].startswith("ALiBi") and row[-1] == "1" for number in row[1:3]]
    assert len(dense) == 8 and attention == f"{min(dense):.2f} to {max(dense):.2f}"
    speeds = [row for row in rows if re.match(r"[\d,]+ × ", row[0]) and row[4].isdigit()]
    slower = [int(row[4]) / int(row[2]) for row in speeds] + [663 / 572]  # the last without a mask
    assert len(speeds) == 6 and kernel == f"{min(slower):.2f} to {max(slower):.2f} (H200)"
    assert "the kernel 612, with ALiBi 572; cuDNN 663" in PAGES["docs/speed.md"]


def test_numbers_in_prose():
    """Those that no block of their page prints."""

    def angular(dim):
        return 10_000.0 ** (-np.arange(0, dim, 2) / dim)

    def apart(dim, offset):
        return 2 * np.linalg.norm(np.sin(offset * angular(dim) / 2))

    step = 10_000 ** (2 / 128)
    said = {
        "rotations": [f"width 2, $|PE(0) - PE(710)|$ is {apart(2, 710):.5f}; at width 128, {apart(128, 710):.2f}."],
        "sinusoidal": [
            f"or {2 * np.pi / angular(512)[-1]:,.0f} at width 512",
            f"{step:.3f} at width 128, where a doubling takes {np.log(2) / np.log(step):.1f}",
        ],
        "adding": [f"| BERT, GPT-2 | 0.02 | {0.02 * np.sqrt(2):.3f} |"],
        "mistakes": [rf"$0.3^{{-450/512}} = {0.3 ** (-450 / 512):.2f}$"],
        "tiles": [f"a matrix of {8 * 32_768**2 * 4 / 1e9:.0f} GB"],
    }
    assert [
        text for page, texts in said.items() for text in texts if text not in " ".join(PAGES[f"docs/{page}.md"].split())
    ] == []


def test_versions_of_others_are_the_pinned_ones():
    pins = [pin for group in PROJECT["dependency-groups"].values() for pin in group if isinstance(pin, str)]
    pinned = {}
    for name, version in re.findall(r"([\w-]+)==([\d.]+\d)", " ".join(pins)):
        pinned.setdefault(name.lower(), set()).add(version)
    called = {"pytorch": "torch", "gemma library": "gemma"}
    for page, text in PAGES.items():
        for name, version in re.findall(r"([A-Za-z][\w-]*(?: library)?)`? (\d+\.\d+\.\d+)\b", text):
            name = name.lower().removeprefix("the ")
            known = pinned.get(called.get(name, name))
            assert known is None or version in known, f"{page}: {name} {version}, not {known}"


def test_pythons():
    lowest = PROJECT["project"]["requires-python"].removeprefix(">=")
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    tried = re.findall(r'session: tests_all, python: "(3\.\d+)"', read(".github/workflows/ci.yml"))
    assert named == tried and named[0] == lowest
    for text in (README, PAGES["docs/contributing.md"]):
        assert re.search(rf"needs (only )?Python \(?{lowest} or newer", text)
    flax = next(need for need in PROJECT["project"]["dependencies"] if need.startswith("flax>=")).removeprefix("flax>=")
    assert f"runs on Flax {flax} and newer" in PAGES["docs/flax.md"]


def test_sessions_and_files_exist():
    sessions = set(re.findall(r"^def (\w+)\(session", NOXFILE, re.MULTILINE))
    places = "tests|benchmarks|examples|demo|docs|conformance|posenc_jax"
    for page, text in PAGES.items():
        named = {name for found in re.findall(r'nox -s "?([a-z0-9_ ]+)', text) for name in found.split()}
        assert named - {"on", "NAME"} <= sessions, f"{page}: {named - sessions}"
        paths = re.findall(rf"`(?:python )?((?:{places})/[\w/-]*(?:\.\w+)?)", text)
        assert [path for path in paths if not (ROOT / path).exists()] == [], page
    first = NOXFILE.partition("# The seven that people use first")[2].partition("\n# ")[0]
    assert first.count("@nox.session") == WORDS["seven"]


def test_the_tables_of_sessions():
    text = "\n".join(program("outputs").sessions(NOXFILE))
    tables = re.findall(
        r"\n\*\*.+\*\*\n\n\| session \| .+ \|\n\| --- \| --- \|\n((?:\| `\w+` \| .+ \|(?:\n|$))+)", text
    )
    assert text.count("| session |") == len(tables)
    assert len(re.findall(r"^\| `\w+`", "".join(tables), re.MULTILINE)) == NOXFILE.count("\n@nox.session")


def test_actions_are_pinned_by_their_commit():
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    used = re.findall(r"uses: (?!\./)(.*)", workflows)
    assert used and [use for use in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)] == []


BIBLIOGRAPHY = re.findall(
    r'^- <a id="(\w+)"></a>(.*?)(?=^- <a|\Z)', PAGES["docs/bibliography.md"], flags=re.MULTILINE | re.DOTALL
)


def plain(title):
    return re.sub(r"\W+", " ", title).lower().strip()


def test_years_and_numbers_of_papers():
    said = {}
    for name, entry in BIBLIOGRAPHY:
        outside = re.sub(r"\*.*?\*|\[.*?\)", "", entry, flags=re.DOTALL)  # of the title and of links
        said[name] = set(re.findall(r"\b(?:19|20)\d\d\b", outside))
        assert set(re.findall(r"\d{4}", name)) <= said[name], name
        for label, number in re.findall(r"\[arXiv:([\d.]+)\]\(https://arxiv\.org/abs/([\d.]+)\)", entry):
            assert label == number, name
    for page, text in PAGES.items():
        for words, name in re.findall(r"\[([^\[\]]*)\]\((?:docs/)?bibliography\.md#(\w+)\)", text):
            assert set(re.findall(r"\b(?:19|20)\d\d\b", words)) <= said[name], f"{page}: [{words}] is #{name}"


def test_papers_of_docstrings_are_those_of_the_bibliography():
    """By the first author, the beginning of the title and the year."""
    papers = [(plain(re.search(r"\*(.*?)\*", entry, re.DOTALL)[1]), name) for name, entry in BIBLIOGRAPHY]
    cited = 0
    for path in (ROOT / "posenc_jax").rglob("*.py"):
        text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
        for author, title, year in re.findall(r'([A-Z]\w+) et al\., "([^"]+)",? (\d{4})', text):
            same = [name for full, name in papers if name.startswith(author.lower()) and full.startswith(plain(title))]
            assert not same or author.lower() + year in "".join(same), f"{path.name}: {author}, {title}, {year}; {same}"
            near = [full for full, name in papers if name == author.lower() + year]
            assert len(near) != 1 or near[0].startswith(plain(title)), f"{path.name}: {author}, {title}, {year}; {near}"
            cited += bool(same)
    assert cited > 40


def test_what_the_newest_models_do():
    def named(row):
        (line,) = (line for line in PAGES["docs/rope.md"].splitlines() if line.startswith(f"| **{row}**"))
        return [name for name in re.findall(r"`(\w+)`", line.split(" | ")[2])]

    def facts(row):
        for name in named(row):
            known = _models.canonical_type(name)
            yield (
                name,
                known and _models.MODELS[known],
                _refused.REFUSED.get(name) or _refused.REFUSED.get(f"{name}_text"),
            )

    held = {
        "Interleaved M-RoPE": lambda model, _: model.interleaved_sections,
        "No RoPE at all": lambda model, _: model.never_rotates,
        "A learned bias that depends on the tokens": lambda _, refused: "content_bias" in refused,
        "Rotated values": lambda model, _: "rope_on_values" in model.defaults,
        "Learned spectra": lambda model, _: "learned_log_factor" in model.reads,
    }
    for row, holds in held.items():
        for name, model, refused in facts(row):
            assert holds(model, refused), f"{row}: {name}"
    for name, model, _ in facts("NoPE layers"):
        assert model.sliding_only or model.defaults.get("no_rope_layer_interval"), name
