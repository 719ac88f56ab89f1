"""What a release needs: versions that agree, notes, addresses, workflows, and what each version supports."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = loaded(ROOT / ".github/release.py")
READY = {
    "package": '__version__ = "0.2.0"\n',
    "citation": "version: 0.2.0\ndate-released: 2027-01-31\n",
    "changelog": "# Changelog\n\n## 0.2.0 (2027-01-31)\n\n- **New.** One.\n\n## 0.1.0 (2026-12-01)\n\nThe first.\n",
    "page": "| posenc_jax | Python |\n| --- | --- |\n| 0.2 | 3.12 to 3.15 |\n",
}


def test_the_repository_agrees_on_its_version():
    texts = [(ROOT / file).read_text(encoding="utf-8") for file in release.FILES]
    assert release.notes(*texts).strip()


def test_notes_are_the_section_of_the_version():
    for tag in (None, "v0.2.0"):
        assert release.notes(**READY, tag=tag) == "- **New.** One.\n\n"
    undated = {name: text.replace("2027-01-31", "unreleased") for name, text in READY.items()}
    assert release.notes(**undated) == "- **New.** One.\n\n"


@pytest.mark.parametrize(
    ("change", "tag", "message"),
    [
        ({}, "v0.2.1", "the tag is v0.2.1, and the version 0.2.0"),
        ({}, "0.2.0", "the tag is 0.2.0, and the version 0.2.0"),
        ({"package": '__version__ = "0.1.0"\n'}, None, "__init__.py says 0.1.0, CITATION.cff 0.2.0"),
        ({"citation": "version: 0.1.0\n"}, None, "CITATION.cff 0.1.0"),
        ({"changelog": "## 0.1.0 (2027-01-31)\n\nOne.\n"}, None, "CHANGELOG.md begins with 0.1.0"),
        ({"changelog": "## 0.2.0 (unreleased)\n\nOne.\n"}, "v0.2.0", "is of 2027-01-31, and CHANGELOG.md unreleased"),
        ({"changelog": "## 0.2.0 (2027-02-01)\n\nOne.\n"}, "v0.2.0", "is of 2027-01-31, and CHANGELOG.md 2027-02-01"),
        ({"citation": "version: 0.2.0\n"}, "v0.2.0", "no date-released in CITATION.cff"),
        ({"page": "| 0.1 | 3.11 |\n"}, None, "no row for 0.2.0 in docs/releases.md"),
    ],
)
def test_a_release_that_is_not_ready(change, tag, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        release.notes(**READY | change, tag=tag)


def test_the_newest_row_is_what_the_project_and_ci_say():
    page = (ROOT / "docs/releases.md").read_text(encoding="utf-8")
    table = page.partition("| posenc_jax | Python | JAX | Flax | NumPy |\n")[2].partition("\n\n")[0]
    _, row, *_ = table.splitlines()
    version, pythons, *lowest = [cell.strip() for cell in row.strip("|").split("|")]
    assert version == release.only(r'^__version__ = "(\d+\.\d+)', (ROOT / release.FILES[0]).read_text(), "version")
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert pythons == f"{named[0]} to {named[-1]}" and PROJECT["requires-python"] == f">={named[0]}"
    needs = [f"{need.partition('>=')[2]} or newer" for need in PROJECT["dependencies"]]
    assert [need.partition(">=")[0] for need in PROJECT["dependencies"]] == ["jax", "flax", "numpy"]
    assert lowest == needs, "docs/releases.md and pyproject.toml differ"
    # On each of these Pythons, CI runs all tests and a release tries the wheel.
    assert re.findall(r'session: tests_all, python: "(3\.\d+)"', WORKFLOWS["ci.yml"]) == named
    assert re.findall(r"^ {12}(3\.\d+)$", WORKFLOWS["release.yml"], re.MULTILINE) == named
    assert f"for version in {tuple(named)}:".replace("'", '"') in (ROOT / "noxfile.py").read_text(encoding="utf-8")


def test_only_tags_are_published_and_no_secret_is_stored():
    assert "secrets." not in "".join(WORKFLOWS.values())
    jobs = dict(re.findall(r"^  ([\w-]+):\n((?:^ {4}.*\n)+)", WORKFLOWS["release.yml"].partition("\njobs:\n")[2], re.M))
    assert list(jobs) == ["all-but-publish", "publish", "notes", "docs"]
    assert "if: github.ref_type == 'tag'" in jobs["publish"] and "needs: all-but-publish" in jobs["publish"]
    assert all("needs: publish" in jobs[name] for name in ("notes", "docs"))  # skipped if that is
    assert [name for name, text in jobs.items() if "id-token: write" in text] == ["publish"]
    assert "permissions:\n  contents: read\n" in WORKFLOWS["release.yml"]


def test_addresses_are_those_that_the_build_is_told(monkeypatch, tmp_path):
    pytest.importorskip("hatchling", reason="hatchling is not installed: it builds the wheel")
    hook = loaded(ROOT / "hatch_build.py").Addresses(str(ROOT), {})
    monkeypatch.delenv("REPO_URL", raising=False)
    plain = {"version": "0.1.0"}
    hook.update(plain)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "urls" not in plain and plain["readme"]["text"] == readme
    monkeypatch.setenv("REPO_URL", "https://example.org/a/b/")
    told = {"version": "0.1.0"}
    hook.update(told)
    assert told["urls"]["Source"] == "https://example.org/a/b"
    links = re.findall(r'\]\(([^)]*)\)|src(?:set)?="([^"]*)"', told["readme"]["text"])
    assert len(links) > 10 and all("".join(link).startswith("https://example.org/a/b/") for link in links)
