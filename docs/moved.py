"""Leads from where a page or a section was to where it is, over HTTP and from the file system: docs/moved.toml."""

import json
import posixpath
import tomllib
from html import escape
from pathlib import Path

MOVED = Path(__file__).parent / "moved.toml"
STUB = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>This page has moved</title>
<link rel="canonical" href="{canonical}">
{script}
<meta http-equiv="refresh" content="0; url={target}">
</head>
<body><p>This page has moved: <a href="{target}">{target}</a></p></body>
</html>
"""
# Of a page that is gone: a section that has not moved elsewhere is looked for where the page went.
AWAY = (
    "<script>{{const moved = {moved}, [id, to] = [location.hash.slice(1), moved[''] ?? ''];"
    " location.replace(moved[id] ?? to.split('#')[0] + location.hash)}}</script>"
)
# Of a page that is still there.
SECTIONS = (
    "<script>{{const moved = {moved};"
    " const go = () => {{const to = moved[location.hash.slice(1)]; if (to) location.replace(to)}};"
    " go(); addEventListener('hashchange', go)}}</script>"
)


def read() -> dict[str, dict[str, str]]:
    """The new addresses by the old page, and by the old section there, "" for the page."""
    pages: dict[str, dict[str, str]] = {}
    for old, new in tomllib.loads(MOVED.read_text(encoding="utf-8")).items():
        page, _, section = old.partition("#")
        pages.setdefault(page, {})[section] = new
    return pages


def script(page: str) -> str:
    """The script of a page from which sections have moved."""
    sections = read().get(page)
    return SECTIONS.format(moved=_said(page, sections)) if sections else ""


def write(site: Path, address: str) -> None:
    """Writes a page for each that is gone; raises ValueError if one of them is still there, or lacks a new address."""
    for page, sections in read().items():
        there = (site / page).exists()
        if there == ("" in sections):
            raise ValueError(f"{MOVED.name}: {page} {'is still there' if there else 'is gone, so it needs an address'}")
        if not there:
            target = escape(_relative(sections[""], page))
            canonical = escape(f"{address.rstrip('/')}/{sections['']}") if address else target
            text = STUB.format(canonical=canonical, target=target, script=AWAY.format(moved=_said(page, sections)))
            (site / page).parent.mkdir(parents=True, exist_ok=True)
            (site / page).write_text(text, encoding="utf-8")


def _said(page: str, sections: dict[str, str]) -> str:
    """The addresses as a script of the old page takes them."""
    return json.dumps({section: _relative(new, page) for section, new in sections.items()})


def _relative(address: str, page: str) -> str:
    """An address as a page has it in a link."""
    path, mark, section = address.partition("#")
    return posixpath.relpath(path, posixpath.dirname(page) or ".") + mark + section
