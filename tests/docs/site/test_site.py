"""The built site (`nox -s docs`): links, anchors, names, and nothing from other hosts."""

import collections
import html.parser
import importlib
import inspect
import json
import operator
import os
import re
import struct
import urllib.parse
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from helpers.pages import program
from tools import budget

ROOT = Path(__file__).parents[3]
SITE = ROOT / "site"
ENTRIES = program("entries")
LOADING = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("use", "href")}


class Page(html.parser.HTMLParser):
    """The ids of a page, and every attribute that points somewhere."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.targets, self.without_alt = collections.Counter(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        """Called for every tag."""
        attributes = dict(attrs)
        if attributes.get("id"):
            self.ids[attributes["id"]] += 1
        if tag == "img" and not attributes.get("alt"):
            self.without_alt.append(attributes.get("src"))
        canonical = tag == "link" and attributes.get("rel") == "canonical"
        for name in ("href", "src"):
            if attributes.get(name) is not None and not canonical:
                self.targets.append((tag, name, attributes[name]))


@pytest.fixture(scope="module")
def pages():
    assert SITE.exists(), "no site: nox -s docs builds it"
    found = {path.relative_to(SITE).as_posix(): Page(path) for path in SITE.rglob("*.html")}
    found.pop("404.html")  # the one page that is shown in place of others, so its links begin at the site's address
    assert len(found) == len(list((ROOT / "docs").rglob("*.md")))
    return found


def test_links_lead_somewhere(pages):
    broken = []
    for name, page in pages.items():
        for _, _, target in page.targets:
            url = urllib.parse.urlsplit(target)
            if url.scheme or url.netloc:
                continue
            path = (SITE / name).parent / urllib.parse.unquote(url.path) if url.path else SITE / name
            if not path.resolve().is_relative_to(SITE.resolve()) or target.startswith("/") or not path.is_file():
                broken.append(f"{name}: {target}")
            elif url.fragment and path.suffix == ".html":
                there = pages[path.resolve().relative_to(SITE.resolve()).as_posix()]
                if urllib.parse.unquote(url.fragment) not in there.ids and url.fragment != "__skip":
                    broken.append(f"{name}: {target} has no such anchor")
    assert broken == []


def test_nothing_is_loaded_from_other_hosts(pages):
    foreign = [
        f"{name}: {target}"
        for name, page in pages.items()
        for tag, attribute, target in page.targets
        if (tag, attribute) in LOADING and urllib.parse.urlsplit(target).netloc
    ]
    assert foreign == []
    for path in SITE.rglob("*.css"):
        for target in re.findall(
            r"@import\s+[\"']([^\"']+)|url\(\s*[\"']?([^\"')]+)", path.read_text(encoding="utf-8")
        ):
            target = "".join(target)
            assert target.startswith("data:") or not urllib.parse.urlsplit(target).netloc, f"{path.name}: {target}"


def test_ids_are_unique_and_pictures_are_described(pages):
    assert [f"{name}: {id_}" for name, page in pages.items() for id_, n in page.ids.items() if n > 1] == []
    assert [f"{name}: {src}" for name, page in pages.items() for src in page.without_alt] == []


def test_every_public_name_has_an_anchor(pages):
    for path in (ROOT / "docs" / "api").glob("*.md"):
        if path.stem != "index":
            names = ENTRIES.ENTRY.findall(ENTRIES.completed(path.read_text(encoding="utf-8")))
            assert names and set(names) <= set(pages[f"api/{path.stem}.html"].ids), path.stem


def names_of_the_reference():
    """Each public name, its page, and its entry as it is shown."""
    for path in (ROOT / "docs" / "api").glob("*.md"):
        names = ENTRIES.ENTRY.findall(ENTRIES.completed(path.read_text(encoding="utf-8")))
        shown = (SITE / "api" / f"{path.stem}.html").read_text(encoding="utf-8")
        for name in names:
            _, _, entry = shown.partition(f'id="{name}"')
            assert entry, name
            yield name, re.split(r'<h2 id="posenc_jax', entry)[0]


def test_each_entry_leads_to_a_guide_and_to_its_source():
    for name, entry in names_of_the_reference():
        assert re.search(r"<p>Guides: <a href=\"\.\./\w+\.html", entry), name
        if name.rpartition(".")[2][0].islower():  # a function
            source = entry.partition('<details class="mkdocstrings-source" data-search-exclude>')[2]
            assert re.search(r"posenc_jax/[\w/]+\.py", source), name
            assert '"""' not in source, f"{name}: its docstring stands twice"


def arguments(function, added_by_flax=()):
    """What a call takes; the defaults that have no public name, initialisers, are written as `...`."""
    taken = [p for p in inspect.signature(function).parameters.values() if p.name not in {"self", *added_by_flax}]
    return [p.replace(default=...) if inspect.isfunction(p.default) else p for p in taken]


def shown_arguments(entry):
    """The same of the first signature of an entry, without types."""
    signature = re.search(r"doc-signature[^>]*>(.*?)</div>", entry, re.DOTALL)
    assert signature, f"no signature: {entry[:80]}"
    code, scope = html.unescape(re.sub(r"<[^>]+>", "", signature[1])), {}
    exec(f"def {code.strip()}: ...", {"jnp": jnp}, scope)
    return arguments(*scope.values())


def shown_types(entry):
    """What the list of parameters says between a name and its dash: the type, and the default."""
    listed = re.findall(r"<b><code>\*?(\w+)</code></b>(.*?)–", entry, re.DOTALL)
    return {name: " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split()) for name, text in listed}


def typed(argument):
    """The same of an argument, with the names of types that stand behind modules' names."""
    words = re.sub(r"\b(?:\w+\.)+(?=\w)", "", argument.annotation)
    if argument.default in (argument.empty, ...):
        return f"({words} )" if argument.default is ... else f"({words})"
    default = argument.default.__name__ if inspect.isclass(argument.default) else repr(argument.default)
    return f"({words}, default: {default.replace('mappingproxy({})', '{}')} )"


def test_each_class_and_function_shows_its_arguments_types_and_defaults():
    untyped = operator.attrgetter("name", "kind", "default")
    methods = 0
    for name, entry in names_of_the_reference():
        module, _, public = name.rpartition(".")
        value = getattr(importlib.import_module(module), public)
        first, *members = re.split(r'<h3 id="[\w.]+\.(?=\w+")', entry)
        constructor = value.__init__ if inspect.isclass(value) else value
        expected = arguments(constructor, {"parent", "name"} if ".linen." in name else ())
        assert list(map(untyped, shown_arguments(first))) == list(map(untyped, expected)), name
        assert {a.name: typed(a) for a in expected} == shown_types(first), name
        for member in members:
            method = getattr(value, re.match(r"\w+", member)[0])
            if inspect.isfunction(method):
                assert list(map(untyped, shown_arguments(member))) == list(map(untyped, arguments(method))), method
                methods += 1
    assert methods > 20


def test_signatures_have_no_private_defaults():
    signatures = [
        re.sub(r"<[^>]+>", "", signature)
        for path in SITE.glob("api/*.html")
        for signature in re.findall(
            r'<div class="[^"]*doc-signature.*?</div>', path.read_text(encoding="utf-8"), flags=re.DOTALL
        )
    ]
    assert len(signatures) > 80
    private = r"=\s*(_\w+|MappingProxyType\b.*|\w+_init)\s*[,)\n]"
    assert [s for s in signatures if re.search(private, s)] == []
    listed = [
        re.sub(r"<[^>]+>", "", default)
        for path in SITE.glob("api/*.html")
        for default in re.findall(r"default:\s*<code>(.*?)</code>", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    ]
    assert len(listed) > 150
    assert [d for d in listed if re.search(r"^_|MappingProxyType|_init$", d)] == []


def test_the_reference_reads_docstrings_as_they_are_meant():
    """Examples are code and no quotations, and words are not set as types."""
    for path in SITE.glob("api/*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<blockquote>\s*<blockquote>", text), path.name
        types = re.findall(r'<li class="doc-section-item field-body">\s*<code>([^<]*)</code>', text)
        assert [t for t in types if " " in t and not re.search(r"[|\[]", t)] == [], path.name


def test_no_entry_of_a_list_begins_with_a_year():
    """A line of Markdown that begins with "2021." begins a list."""
    assert (
        re.findall(r"^ *\d{2,}\. ", (ROOT / "docs" / "bibliography.md").read_text(encoding="utf-8"), re.MULTILINE) == []
    )


def test_the_search_finds_pages_and_functions():
    entries = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    places = {entry["location"] for entry in entries}
    assert {"rope.html", "api/rotary.html#posenc_jax.rotary"} <= places
    reference = [entry for entry in entries if entry["location"].startswith("api/")]
    assert not [e["location"] for e in reference if "_arguments." in e["text"]], "the search reads sources"
    assert (SITE / "search" / "search_index.js").exists()  # from the file system


def test_an_address_that_does_not_exist_leads_on():
    text = (SITE / "404.html").read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
    base = urllib.parse.urlsplit(os.environ.get("SITE_URL", "")).path.rstrip("/")  # of the site, under any address
    links = re.findall(rf'<a href="{re.escape(base)}/([^"]+)"', text)
    assert {"index.html", "recipes.html", "api/index.html"} <= set(links)
    assert all((SITE / link).exists() for link in links) and not (SITE / "theme").exists()


def test_notebooks_show_each_figure_once():
    """A cell that draws holds its figure as its output, and the text below does not show it again."""
    cells = json.loads((SITE / "downloads" / "from_scratch.ipynb").read_text(encoding="utf-8"))["cells"]
    drawing = [cell for cell in cells if cell["cell_type"] == "code" and "plt.tight_layout" in cell["source"]]
    assert len(drawing) == 4 and all("image/svg+xml" in cell["outputs"][-1]["data"] for cell in drawing)
    assert not [cell["id"] for cell in cells if cell["cell_type"] == "markdown" and "image/svg" in cell["source"]]


def test_programs_find_each_page_as_markdown():
    listed = dict(re.findall(r"^- \[.+?\]\(([\w/]+\.md)\): (.+)$", (SITE / "llms.txt").read_text(), flags=re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {*listed} == {name for name in pages if not name.startswith("api/")} - {"changelog.md"}
    for name in listed:
        text = (SITE / name).read_text(encoding="utf-8")
        assert "--8<--" not in text and "<pe-view" not in text, name
        assert text.count("```python") == (ROOT / "docs" / name).read_text(encoding="utf-8").count("```python"), name


def test_notebooks_are_offered_where_they_are(pages):
    offered = {target for page in pages.values() for *_, target in page.targets if target.endswith(".ipynb")}
    written = {path.name for path in (SITE / "downloads").glob("*.ipynb")}
    assert {target.rpartition("/")[2] for target in offered} == written and len(written) > 15
    for path in (SITE / "downloads").glob("*.ipynb"):
        source = "\n".join(cell["source"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
        assert not re.search(r"--8<--|<pe-view|\]\([\w/]+\.md", source), path.name


def test_each_page_says_what_it_is_about_where_links_to_it_are_shown(pages):
    found = {}
    for name in pages:
        head = (SITE / name).read_text(encoding="utf-8").partition("</head>")[0]
        said = re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)">', head)
        said = {key: html.unescape(text) for key, text in said}
        assert said["og:title"] and said["og:description"] == said["description"], name
        assert 20 < len(said["description"]) < 400 and not re.search(r"[`$]|\]\(", said["description"]), name
        found[name] = said["description"]
    pairs = collections.Counter(found.values()).most_common(1)
    assert pairs[0][1] == 1, f"two pages say {pairs[0][0]}"


def test_the_picture_of_links_has_the_size_that_is_said():
    data = (SITE / "assets" / "card.png").read_bytes()
    assert data.startswith(b"\x89PNG") and struct.unpack(">II", data[16:24]) == (1200, 630)


def test_links_show_the_picture_where_the_site_has_an_address():
    pytest.importorskip("mkdocs")
    hooks = program("hooks")
    page = SimpleNamespace(
        meta={"description": 'A "summary"'}, title="RoPE", canonical_url="https://example.org/pe/rope.html"
    )
    config = SimpleNamespace(site_name="pe", site_description="What it is", site_url="https://example.org/pe/")
    said = dict(re.findall(r'<meta property="([\w:]+)" content="([^"]*)">', hooks.shared(page, config)))
    assert said["og:image"] == "https://example.org/pe/assets/card.png" and said["og:image:width"] == "1200"
    assert said["og:url"] == page.canonical_url and said["og:description"] == "A &quot;summary&quot;"
    config.site_url = ""
    assert "og:image" not in hooks.shared(page, config)


def test_notebooks_open_in_colab_where_a_branch_holds_them(monkeypatch):
    pytest.importorskip("mkdocs")
    hooks = program("hooks")
    page = SimpleNamespace(abs_src_path=str(ROOT / "docs" / "rope.md"), src_uri="rope.md")
    config = SimpleNamespace(repo_url="https://github.com/owner/name/")
    monkeypatch.setenv("NOTEBOOKS_BRANCH", "gh-pages/dev")
    text = hooks.downloadable("# RoPE\n\nText.\n", page, config)
    assert "(downloads/rope.ipynb)" in text
    assert "(https://colab.research.google.com/github/owner/name/blob/gh-pages/dev/downloads/rope.ipynb)" in text
    config.repo_url = ""
    assert "colab" not in hooks.downloadable("# RoPE\n\nText.\n", page, config)


def test_at_most_five_recipes_of_an_entry_are_unfolded():
    folded = 0
    for name, entry in names_of_the_reference():
        line, _, rest = entry.partition("<p>Recipes: ")[2].partition("</p>")
        assert line.count("<a ") <= 5, name
        folded += bool(re.match(r'\s*<details class="more">\s*<summary>\d+ more recipes</summary>', rest))
    assert folded > 0


def test_no_mathematics_is_left_as_text(pages):
    for name in pages:
        text = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", (SITE / name).read_text(encoding="utf-8"), flags=re.S)
        assert not re.search(r"(?<!\\)\$[^$\n]{1,80}\$", re.sub(r"<[^>]*>", "", text)), name


def test_the_home_page_is_within_its_budget():
    limits = budget.allowed(budget.BUDGET.read_text(encoding="utf-8"))
    assert budget.measured(ROOT)["site.home_kilobytes"] <= limits["site.home_kilobytes"]
