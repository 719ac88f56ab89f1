"""A release is ready only if versions agree, notes and addresses are there, and workflows publish tags alone."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def loaded(path):
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = loaded(ROOT / ".github/release.py")
# The texts of the files of a release that is ready
READY = {
    "package": '__version__ = "0.2.0"\n',
    "citation": "version: 0.2.0\ndate-released: 2027-01-31\n",
    "changelog": "# Changelog\n\n## 0.2.0 (2027-01-31)\n\nNew.\n\n## 0.1.0 (2026-12-01)\n\nThe first.\n",
    "page": "| posenc_jax |\n| 0.2 |\n",
    "readme": "pip install posenc_jax\n",
}


def test_the_repository_agrees_on_its_version_and_notes_are_its_section():
    assert release.notes(*((ROOT / file).read_text(encoding="utf-8") for file in release.FILES)).strip()
    assert release.notes(**READY, tag="v0.2.0") == "New.\n\n"


@pytest.mark.parametrize(
    ("part", "text", "message"),
    [
        ("tag", "0.2.0", "the tag is 0.2.0"),
        ("package", '__version__ = "0.1.0"\n', "__init__.py says 0.1.0"),
        ("citation", "version: 0.1.0\n", "CITATION.cff 0.1.0"),
        ("changelog", "## 0.2.0 (unreleased)\n\nOne.\n", "CHANGELOG.md unreleased"),
        ("page", "| 0.1 |\n", "no row for 0.2.0"),
        ("readme", "pip install .  # in a clone\n", "README.md installs a clone"),
    ],
)
def test_a_release_that_is_not_ready_says_why(part, text, message):
    with pytest.raises(ValueError, match=message):
        release.notes(**READY | {"tag": "v0.2.0", part: text})


def test_the_newest_row_of_releases_is_what_the_project_and_ci_say():
    """Pythons and lowest versions on docs/about.md are the ones of pyproject.toml and the workflows."""
    page = (ROOT / "docs/about.md").read_text(encoding="utf-8")
    row = page.partition("| posenc_jax | Python | JAX | Flax | NumPy |\n")[2].splitlines()[1]
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    lowest = [f"{need.partition('>=')[2]} or newer" for need in PROJECT["dependencies"]]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [f"{pythons[0]} to {pythons[-1]}", *lowest]
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    # On each of these Pythons, CI runs all tests and a release tries the wheel.
    assert re.findall(r'session: tests_all, python: "(3\.\d+)"', WORKFLOWS["ci.yml"]) == pythons
    assert re.findall(r"^ {12}(3\.\d+)$", WORKFLOWS["release.yml"], re.MULTILINE) == pythons


def test_only_tags_are_published_and_no_secret_is_stored():
    assert "secrets." not in "".join(WORKFLOWS.values())
    jobs = dict(re.findall(r"^  ([\w-]+):\n((?:^ {4}.*\n)+)", WORKFLOWS["release.yml"].partition("\njobs:\n")[2], re.M))
    assert "if: github.ref_type == 'tag'" in jobs["publish"] and "needs: all-but-publish" in jobs["publish"]
    assert all("needs: publish" in jobs[name] for name in ("notes", "docs"))  # skipped if "publish" is skipped
    assert [name for name, text in jobs.items() if "id-token: write" in text] == ["publish"]


def test_addresses_are_those_that_the_build_is_told(monkeypatch):
    """REPO_URL gives the links of the metadata, and turns README's relative links into full ones."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: it builds the wheel")
    hook, metadata = loaded(ROOT / "hatch_build.py").Addresses(str(ROOT), {}), {"version": "0.1.0"}
    monkeypatch.setenv("REPO_URL", "https://example.org/a/b/")
    hook.update(metadata)
    assert metadata["urls"]["Source"] == "https://example.org/a/b"
    links = re.findall(r'\]\(([^)]*)\)|src(?:set)?="([^"]*)"', metadata["readme"]["text"])
    assert len(links) > 10 and all("".join(link).startswith("https://example.org/a/b/") for link in links)
