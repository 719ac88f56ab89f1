"""The site's own search finds a page of the reference first for each public name.

No term of its index makes it throw. A check that is folded on its page is not in the index.
"""

import json
import re

import pytest
from visits import ROOT, SITE

from helpers.pages import program


@pytest.fixture(scope="module")
def search(reader):
    """A function that types a query and returns the page that is found first, such as "api/rotary"."""
    page = reader.new_page()
    page.goto(f"{SITE.as_uri()}/index.html")
    page.keyboard.press("/")

    def found(query):
        field = page.locator(".md-search__input")
        # First a word that no page has, so that no results of the last query are left.
        for text, has_results in (("qqzzqq", False), (query, True)):
            field.fill(text[:-1])
            field.press(text[-1])  # fill() starts no search, and typing would start one with each key
            page.wait_for_function(
                "(some) => some === !!document.querySelector('.md-search-result__item')",
                arg=has_results,
            )
        return re.sub(r"^.*/site/|\.html.*$", "", page.locator(".md-search-result__item a").first.get_attribute("href"))

    yield found
    page.close()


# Runs the theme's worker on the pages; returns the terms that a query may expand to and that no page has.
TERMS_WITHOUT_PAGES = """async (data) => {
  let index;
  const {build} = lunr.Builder.prototype;
  lunr.Builder.prototype.build = function () {
    return (index = build.call(this));
  };
  dispatchEvent(new MessageEvent("message", {data: {type: 0, data}}));
  while (!index) await new Promise((resolve) => setTimeout(resolve, 50));
  return index.tokenSet.toArray().filter((term) => !(term in index.invertedIndex));
}"""


@pytest.fixture(scope="module")
def site_index():
    return json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))


def test_every_term_that_a_query_may_expand_to_is_in_the_index(browser, site_index):
    """One that is not makes the worker throw, and the search find nothing."""
    (worker,) = (SITE / "assets" / "javascripts" / "workers").glob("search.*.min.js")
    # docs/hooks.py mends this: lunr takes the edge "1" from "x" to node 222 for the edges "1", "2" from "c" to node 2.
    unlucky = {"location": "page.html", "title": "", "text": f"0 c1 c2 d{214 * 'e'} x1y"}
    page = browser.new_page()
    page.add_script_tag(path=worker)
    for docs in (site_index["docs"], [unlucky]):
        assert page.evaluate(TERMS_WITHOUT_PAGES, site_index | {"docs": docs, "options": {"suggest": True}}) == []
    page.close()


def test_a_folded_check_is_not_in_the_index_and_its_definition_is(site_index):
    """That of docs/inference.md."""
    text = " ".join(entry["text"] for entry in site_index["docs"])
    assert "out, whole[:, 5:6]" not in text and "def step(cache, q" in text


def test_a_page_of_the_reference_comes_first_for_its_names(search):
    """Not always the page of that name: others use it too."""
    entries = program("entries")
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")]
    names = [name for page in pages for name in entries.ENTRY.findall(entries.completed(page))]
    assert len(names) > 50
    first = {name: search(name.rpartition(".")[2]) for name in names}
    assert {name: page for name, page in first.items() if not page.startswith("api/")} == {}


@pytest.mark.parametrize("query", ["flux 2", "wan", "qwen-image", "ltx-2", "hunyuanvideo", "cogvideox", "z-image"])
def test_the_page_of_diffusion_models_comes_first_for_their_names(search, query):
    assert search(query) == "diffusion"
