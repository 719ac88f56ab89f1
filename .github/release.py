"""Checks that the version is the same everywhere, and writes the notes of its release to build/release/notes.md.

    python .github/release.py [TAG]

With a tag, its release must be ready: the tag names the version, and the changelog and CITATION.cff say its date.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("posenc_jax/__init__.py", "CITATION.cff", "CHANGELOG.md", "docs/about.md", "README.md")


def only(pattern: str, text: str, what: str) -> str:
    """What the first group matches, or an error that says what is missing."""
    if not (found := re.search(pattern, text, re.MULTILINE | re.DOTALL)):
        raise ValueError(f"there is no {what}")
    return found[1]


def notes(package: str, citation: str, changelog: str, page: str, readme: str, tag: str | None = None) -> str:
    """The changelog's section of the version, if the texts of FILES agree on it and are ready for the tag."""
    version = only(r'^__version__ = "([^"]+)"', package, f"__version__ in {FILES[0]}")
    cited = only(r"^version: (\S+)$", citation, f"version in {FILES[1]}")
    named, said = re.search(r"^## (\S+) \((.+?)\)$", changelog, re.MULTILINE).groups()
    if not version == cited == named:
        raise ValueError(f"{FILES[0]} says {version}, {FILES[1]} {cited}, and {FILES[2]} begins with {named}")
    only(rf"^\| ({re.escape(version.rpartition('.')[0])}) \|", page, f"row for {version} in {FILES[3]}")
    if tag:
        if tag != f"v{version}":
            raise ValueError(f"the tag is {tag}, and the version {version}")
        if "pip install ." in readme:
            raise ValueError(f"{FILES[4]} installs a clone, and not the release")
        date = only(r"^date-released: (\d{4}-\d\d-\d\d)$", citation, f"date-released in {FILES[1]}")
        if said != date:
            raise ValueError(f"{FILES[1]} says that {version} is of {date}, and {FILES[2]} {said}")
    return only(r"^## .*?$\n+(.*?)(?=^## |\Z)", changelog, f"text for {version} in {FILES[2]}")


if __name__ == "__main__":
    written = ROOT / "build/release/notes.md"
    written.parent.mkdir(parents=True, exist_ok=True)
    texts = [(ROOT / file).read_text(encoding="utf-8") for file in FILES]
    try:
        written.write_text(notes(*texts, *sys.argv[1:]), encoding="utf-8")
    except ValueError as error:
        sys.exit(f"not ready: {error}")
    print(f"wrote {written.relative_to(ROOT)}")
