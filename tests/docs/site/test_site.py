"""The built site (`nox -s docs`): links and anchors lead somewhere, every entry of the reference is whole, and programs
find each page as a notebook and as Markdown. tests/docs/browser finds what comes from other hosts.
"""

import collections
import html
import html.parser
import importlib
import inspect
import json
import os
import re
from urllib.parse import unquote, urlsplit

import pytest

from helpers.pages import ROOT, program
from tools import budget

DOCS, SITE = ROOT / "docs", ROOT / "site"
ENTRIES, MOVED = program("entries"), program("moved").read()


class Page(html.parser.HTMLParser):
    """The ids of a page, and every attribute that points somewhere."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.targets = collections.Counter(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        """Called for every tag."""
        attributes = dict(attributes)
        self.ids.update(filter(None, [attributes.get("id")]))
        if attributes.get("rel") != "canonical":
            self.targets += [attributes[name] for name in ("href", "src") if attributes.get(name)]


@pytest.fixture(scope="module")
def pages():
    assert SITE.exists(), "no site: nox -s docs builds it"
    found = {path.relative_to(SITE).as_posix(): Page(path) for path in SITE.rglob("*.html")}
    del found["404.html"]  # the one page that is shown in place of others, so its links begin at the site's address
    for name in MOVED.keys() - {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}:
        del found[name]
    assert len(found) == len(list(DOCS.rglob("*.md")))
    return found


def text_of(name):
    return (SITE / name).read_text(encoding="utf-8")


def without_tags(text):
    return html.unescape(re.sub(r"<[^>]+>", "", text))


def test_text_of_figures_is_legible_on_a_phone():
    """At 390 pixels, of which the column has 358: every figure has a form whose text is at least 10 pixels there."""
    includes = list((ROOT / "build" / "docs" / "figures").glob("*.md"))
    assert includes
    for include in includes:
        svg = (SITE / "figures" / f"{include.stem}_phone.svg").read_text(encoding="utf-8")
        width = float(re.search(r'<svg [^>]*width="([\d.]+)pt"', svg)[1])
        sizes = [float(size) for size in re.findall(r"font(?:-size)?: (?:\d+ )?([\d.]+)px", svg)]
        assert not sizes or min(sizes) * 358 / width >= 10, f"{include.stem}: {min(sizes) * 358 / width:.1f} pixels"


# Links


def test_links_lead_somewhere(pages):
    broken = []
    for name, page in pages.items():
        for target in page.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            path = ((SITE / name).parent / unquote(url.path) if url.path else SITE / name).resolve()
            if not path.is_relative_to(SITE.resolve()) or target.startswith("/") or not path.is_file():
                broken.append(f"{name}: {target}")
            elif url.fragment not in ("", "__skip") and path.suffix == ".html":
                if unquote(url.fragment) not in pages[path.relative_to(SITE.resolve()).as_posix()].ids:
                    broken.append(f"{name}: {target} has no such anchor")
    assert broken == []


def test_old_addresses_lead_to_pages_and_sections_that_exist(pages):
    for new in (new for sections in MOVED.values() for new in sections.values()):
        page, _, section = new.partition("#")
        assert page in pages and (not section or section in pages[page].ids), new


def test_a_section_that_has_moved_is_gone(pages):
    left = {name: sections.keys() & pages[name].ids.keys() for name, sections in MOVED.items() if name in pages}
    assert {name: ids for name, ids in left.items() if ids} == {}


def test_ids_are_unique(pages):
    assert [(name, id_) for name, page in pages.items() for id_, n in page.ids.items() if n > 1] == []


def test_an_address_that_does_not_exist_leads_on():
    base = urlsplit(os.environ.get("SITE_URL", "")).path.rstrip("/")  # of the site, under any address
    links = re.findall(rf'<a href="{re.escape(base)}/(\w+\.html)"', text_of("404.html"))
    assert links and all((SITE / link).exists() for link in links)


# The reference


def test_each_entry_of_the_reference_leads_to_a_guide_and_shows_source_arguments_and_public_defaults():
    for path in (DOCS / "api").glob("*.md"):
        for name in ENTRIES.ENTRY.findall(ENTRIES.completed(path.read_text(encoding="utf-8"))):
            _, _, entry = text_of(f"api/{path.stem}.html").partition(f'id="{name}"')
            entry = re.split(r'<h3 id="posenc_jax', entry)[0]
            assert re.search(r"<p>Guides: <a href=\"\.\./\w+\.html", entry), name
            module, _, public = name.rpartition(".")
            value = getattr(importlib.import_module(module), public)
            if inspect.isfunction(value):
                source = entry.partition('<details class="mkdocstrings-source" data-search-exclude>')[2]
                assert re.search(r"posenc_jax/[\w/]+\.py", source) and '"""' not in source, name
                signature = without_tags(re.search(r"doc-signature[^>]*>(.*?)</div>", entry, re.DOTALL)[1])
                for argument in inspect.signature(value).parameters:
                    assert re.search(rf"\b{argument}\b", signature), f"{name}: {argument}"
            shown = without_tags(entry.partition('<details class="mkdocstrings-source"')[0])
            assert not re.search(r"(=|default:)\s*(_[a-zA-Z]|\w*MappingProxyType|\w+_init\b)", shown), name


def test_examples_of_docstrings_are_no_quotations():
    for path in SITE.glob("api/*.html"):
        assert not re.search(r"<blockquote>\s*<blockquote>", path.read_text(encoding="utf-8")), path.name


# Pages


def test_no_mathematics_is_left_as_text(pages):
    for name in pages:
        assert "arithmatex" not in re.sub(r'<(div|span) class="arithmatex"><span class="katex', "", text_of(name)), name
        text = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", text_of(name), flags=re.S)
        assert not re.search(r"(?<!\\)\$[^$\n]{1,80}\$", re.sub(r"<[^>]*>", "", text)), name


def test_each_page_says_what_it_is_about_where_links_to_it_are_shown(pages):
    summaries = []
    for name in pages:
        found = re.findall(r'<meta (?:name|property)="(\S+)" content="([^"]*)">', text_of(name))
        said = {key: html.unescape(text) for key, text in found}
        assert said["og:title"] and said["og:description"] == said["description"], name
        assert 20 < len(said["description"]) and not re.search(r"[`$]|\]\(", said["description"]), name
        summaries.append(said["description"])
    assert len(summaries) == len({*summaries})


def test_the_home_page_is_within_its_budget():
    limits = budget.allowed(budget.BUDGET.read_text(encoding="utf-8"))
    assert budget.measured(ROOT)["site.home_kilobytes"] <= limits["site.home_kilobytes"]


# Programs and notebooks


def test_programs_find_each_page_as_markdown():
    listed = dict(re.findall(r"^- \[.+?\]\(([\w/]+\.md)\): (.+)$", text_of("llms.txt"), flags=re.MULTILINE))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {*listed} == {name for name in pages if not name.startswith("api/")}
    for name in listed:
        assert not re.search("--8<--|<pe-view", text_of(name)), name
        assert text_of(name).count("```python") == (DOCS / name).read_text(encoding="utf-8").count("```python"), name


def test_notebooks_are_linked_and_hold_nothing_that_only_the_site_understands(pages):
    linked = {target.rpartition("/")[2] for page in pages.values() for target in page.targets if ".ipynb" in target}
    written = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in (SITE / "downloads").glob("*.ipynb")}
    assert linked == {*written} != set()
    for name, notebook in written.items():
        source = "\n".join(cell["source"] for cell in notebook["cells"])
        assert not re.search(r"--8<--|<pe-view|\]\([\w/]+\.md", source), name
