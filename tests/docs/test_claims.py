"""Paths, sessions, versions and references that pages, docstrings and the paper name: each exists, and is the same."""

import re
import tomllib

from helpers.pages import ROOT, program, text_of

NOXFILE, PROJECT, BIB, PAPER = (
    text_of("noxfile.py"),
    tomllib.loads(text_of("pyproject.toml")),
    *(text_of(f"paper/paper.{kind}") for kind in ("bib", "md")),
)
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
OUTSIDE = ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG", "conformance/README", "benchmarks/NOTES")
PAGES |= {f"{name}.md": text_of(f"{name}.md") for name in OUTSIDE}
ENTRY = re.compile(r'^- <a id="(\w+)"></a>(.*?)(?=^- <a|\Z)', flags=re.MULTILINE | re.DOTALL)
BIBLIOGRAPHY = {name: " ".join(entry.split()) for name, entry in ENTRY.findall(PAGES["docs/bibliography.md"])}


def test_every_session_that_is_named_exists_and_is_in_the_tables():
    sessions = set(re.findall(r"^def (\w+)\(session", NOXFILE, re.MULTILINE))
    for page, text in PAGES.items():
        named = {name for found in re.findall(r'nox -s "?([a-z0-9_ ]+)', text) for name in found.split()}
        assert named - {"on", "NAME"} <= sessions, page
    rows = re.findall(r"^\| `(\w+)` \| .+ \|$", "\n".join(program("outputs").sessions(NOXFILE)), re.MULTILINE)
    assert len(rows) == len(set(rows)) == NOXFILE.count("\n@nox.session") and set(rows) <= sessions


def test_every_path_that_is_named_exists():
    places = "tests|benchmarks|examples|demo|docs|conformance|posenc_jax"
    for page, text in PAGES.items():
        paths = re.findall(rf"`(?:python )?((?:{places})/[\w/-]*(?:\.\w+)?)", text)
        assert [path for path in paths if not (ROOT / path).exists()] == [], page


def test_files_of_readme_are_shipped():
    links = re.findall(r"\]\(([^)#:]+)\)|src(?:set)?=\"([^\"]+)\"", PAGES["README.md"])
    paths = {"".join(link).strip("#") for link in links}
    shipped = {path.strip("/") for path in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    assert "docs/phase_error.png" in paths and all((ROOT / path).exists() for path in paths)
    assert {path.partition("/")[0] for path in paths} <= shipped | {"LICENSE"}  # which hatchling adds


def test_every_python_that_is_supported_is_tried():
    tried = re.findall(r'session: tests_all, python: "(3\.\d+)"', text_of(".github/workflows/ci.yml"))
    assert tried == re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    assert PROJECT["project"]["requires-python"] == f">={tried[0]}"


def test_actions_are_pinned_by_their_commit():
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    used = re.findall(r"uses: (?!\./)(.*)", workflows)
    assert used and [use for use in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)] == []


def plain(title):
    return re.sub(r"\W+", " ", title).lower().strip()


def test_papers_of_docstrings_are_those_of_the_bibliography():
    titles = {name: plain(re.search(r"\*(.*?)\*", entry)[1]) for name, entry in BIBLIOGRAPHY.items()}
    cited = 0
    for path in (ROOT / "posenc_jax").rglob("*.py"):
        text = " ".join(path.read_text(encoding="utf-8").split())
        for author, title, year in re.findall(r'([A-Z]\w+) et al\., "([^"]+)",? (\d{4})', text):
            same = {
                name
                for name, full in titles.items()
                if full.startswith(plain(title)) and name.startswith(author.lower())
            }
            near = {name for name in titles if name == author.lower() + year}
            assert not same | near or any(name.startswith(author.lower() + year) for name in same), f"{path}: {title}"
            cited += bool(same)
    assert cited


def test_references_of_the_paper_resolve():
    entries = dict(re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", BIB, re.MULTILINE | re.DOTALL))
    assert set(re.findall(r"@(\w+)", PAPER)) == set(entries)
    for name in entries.keys() & BIBLIOGRAPHY.keys():
        number, title = (re.search(rf"{field} = \{{(.*)\}},", entries[name])[1] for field in ("eprint", "title"))
        assert number in BIBLIOGRAPHY[name] and re.sub(r"[{}]", "", title) in BIBLIOGRAPHY[name], name
