"""Whatever pages and README name exists: sessions of nox, paths, files, references.

And the actions of workflows are pinned by their commits.
"""

import re

from helpers.pages import ROOT, text_of

OUTSIDE = ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG", "conformance/README")
PAGES = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
PAGES = {name: text_of(name) for name in PAGES | {f"{name}.md" for name in OUTSIDE}}


def test_every_session_and_path_that_is_named_exists():
    sessions = {
        option: set(re.findall(r"^def (\w+)\(session", text_of(file), re.MULTILINE))
        for option, file in (("", "noxfile.py"), ("-f maintenance.py ", "maintenance.py"))
    }
    for page, text in PAGES.items():
        for option, known in sessions.items():
            named = {x for found in re.findall(rf'nox {option}-s "?([a-z0-9_ ]+)', text) for x in found.split()}
            assert named - {"on", "NAME"} <= known, page  # "on" is prose after a name, NAME a placeholder
        folders = "tests|benchmarks|examples|demo|docs|conformance|posenc_jax"
        for path in re.findall(rf"`(?:python )?((?:{folders})/[\w/-]*(?:\.\w+)?)", text):
            assert (ROOT / path).exists(), f"{page}: {path}"


def test_files_of_readme_exist():
    links = re.findall(r"\]\(([^)#:]+)\)|src(?:set)?=\"([^\"#]+)", PAGES["README.md"])
    assert links and all((ROOT / "".join(link)).exists() for link in links)


def test_actions_are_pinned_by_their_commit():
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    used = re.findall(r"uses: (?!\./)(.*)", workflows)
    assert used and [use for use in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)] == []
