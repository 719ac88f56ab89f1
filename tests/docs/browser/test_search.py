"""The site's own search: it finds each public name in the reference first, and never throws."""

import json
import re

import pytest
from visits import ROOT, SITE

from helpers.pages import program


@pytest.fixture(scope="module")
def search(reader):
    """Types what is looked for; returns the page that is found first."""
    page = reader.new_page()
    page.goto(f"{SITE.as_uri()}/index.html")
    page.keyboard.press("/")

    def found(query):
        field = page.locator(".md-search__input")
        # A word that no page has comes before each, so that the results of the one before are gone.
        for text, answer in (("qqzzqq", False), (query, True)):
            field.fill(text[:-1])
            field.press(text[-1])  # one search, of the whole, where each key would start one
            page.wait_for_function(
                "(some) => some === !!document.querySelector('.md-search-result__item')",
                arg=answer,
            )
        return re.sub(r"^.*/site/|\.html.*$", "", page.locator(".md-search-result__item a").first.get_attribute("href"))

    yield found
    page.close()


# Builds the index as the worker does.
INDEX = """async (data) => {
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
    # The node behind "x1" has the number 222: lunr took its edge for the edges 1 and 2 of "c" to the node 2.
    unlucky = {"location": "page.html", "title": "", "text": f"0 c1 c2 d{214 * 'e'} x1y"}
    page = browser.new_page()
    page.add_script_tag(path=worker)
    for docs in (site_index["docs"], [unlucky]):
        assert page.evaluate(INDEX, site_index | {"docs": docs, "options": {"suggest": True}}) == []
    page.close()


def test_folded_checks_are_not_in_the_index(site_index):
    text = " ".join(entry["text"] for entry in site_index["docs"])
    assert "step = jax.jit(decode)" not in text and "def decode(cache" in text


def test_the_reference_comes_first_for_its_names(search):
    entries = program("entries")
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")]
    names = [name for page in pages for name in entries.ENTRY.findall(entries.completed(page))]
    first = {name: search(name.rpartition(".")[2]) for name in names}
    assert {name: page for name, page in first.items() if not page.startswith("api/")} == {}
