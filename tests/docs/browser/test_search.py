"""What people look for, typed into the site's own search: the right page is among the first three, of a name the first."""

import json
import re

import pytest
from visits import ROOT, SITE

from helpers.pages import program

WANTED = {
    "shard a cache": {"devices.html", "recipes.html"},
    "jvp": {"recipes.html"},
    "Pixtral": {"model_types.html", "huggingface.html"},
    "YaRN": {"contexts.html", "recipes.html", "api/scalings.html"},
    "left-padded": {"masks.html", "api/positions.html"},
    "MultiHeadAttention": {"flax.html", "recipes.html"},
    "dot_product_attention": {"kernels.html", "recipes.html", "flax.html"},
    "context parallel": {"recipes.html", "devices.html"},
    "export": {"recipes.html"},
    "float32 phases": {"phases.html", "conformance.html", "mistakes.html"},
    "Splash": {"kernels.html"},
    "T5 bias linen": {"api/linen.html", "flax.html", "recipes.html"},
    "bucket": {"biases.html", "api/learned_bias.html"},
    "M-RoPE": {"dimensions.html", "api/multimodal.html", "recipes.html"},
    "paged cache": {"recipes.html"},
    "how to install": {"index.html"},
    "pytorch class": {"coming_from.html"},
    "notebook": {"notebooks/index.html"},
    "why 10000": {"sinusoidal.html"},
    "reuse a cached prefix": {"recipes.html"},
    "speculative decoding": {"masks.html"},
    "llama 3": {"contexts.html", "recipes.html", "huggingface.html", "api/scalings.html"},
    "gemma 3": {"attention_models.html", "huggingface.html"},
    "gemma 3 image": {"attention_models.html"},
    "gpt 2": {"model_types.html", "learned.html"},
    "image tokens bidirectional": {"attention_models.html"},
    "soft cap": {"attention_models.html"},
    "dino interpolate offset": {"learned.html"},
    "dinov2": {"learned.html"},
    "gguf": {"huggingface.html"},
}
RESULTS = """() => [...document.querySelectorAll(".md-search-result__item")].map(
  (item) => item.querySelector("a").getAttribute("href"))"""


@pytest.fixture(scope="module")
def search(reader):
    """Types what is looked for; returns the pages that are found, best first."""
    page = reader.new_page()
    page.goto(f"{SITE.as_uri()}/index.html")
    page.keyboard.press("/")

    def found(query):
        field = page.locator(".md-search__input")
        # A word that no page has comes before each, so that the results of the one before are gone.
        for text, answer in (("qqzzqq", "none"), (query, "some")):
            field.fill(text[:-1])
            field.press(text[-1])  # one search, of the whole, where each key would start one
            page.wait_for_function(
                """(some) => some === (document.querySelectorAll(".md-search-result__item").length ? "some" : "none")""",
                arg=answer,
            )
        pages = [re.sub(r"^.*/site/|[?#].*$", "", href) for href in page.evaluate(RESULTS)]
        return list(dict.fromkeys(pages))

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


# The node behind "x1" has the number 222: lunr took its edge for the edges 1 and 2 of "c" to the node 2.
UNLUCKY = ["0", "c1", "c2", "d" + 214 * "e", "x1y"]


@pytest.mark.parametrize("what", ["the site", "unlucky words"])
def test_every_term_that_a_query_may_expand_to_is_in_the_index(browser, site_index, what):
    """One that is not makes the worker throw, and the search find nothing."""
    (worker,) = (SITE / "assets" / "javascripts" / "workers").glob("search.*.min.js")
    unlucky = [{"location": "page.html", "title": "", "text": " ".join(UNLUCKY)}]
    given = {"docs": site_index["docs"] if what == "the site" else unlucky, "options": {"suggest": True}}
    page = browser.new_page()
    page.add_script_tag(path=worker)
    assert page.evaluate(INDEX, site_index | given) == []
    page.close()


def test_printed_numbers_and_folded_checks_are_not_in_the_index(site_index):
    text = " ".join(entry["text"] for entry in site_index["docs"])
    assert "print(f&quot;float32:" in text or 'print(f"float32:' in text  # code is
    assert "0.369263679" not in text  # what it prints
    assert "assert jnp.array_equal(tokens" not in text


@pytest.mark.parametrize("digit", "0123456789")
def test_a_digit_finds_pages(search, digit):
    assert search(digit) and search(f"llama {digit}")


@pytest.mark.parametrize("query", WANTED)
def test_the_right_page_is_among_the_first_three(search, query):
    found = search(query)[:3]
    assert WANTED[query] & set(found), f"{query}: {found}"


def test_the_reference_comes_first_for_its_names(search):
    entries = program("entries")
    missed = []
    for path in sorted((ROOT / "docs" / "api").glob("*.md")):
        if path.stem == "index":
            continue
        for name in entries.ENTRY.findall(entries.completed(path.read_text(encoding="utf-8"))):
            first, *_ = search(name.rpartition(".")[2])
            if not first.startswith("api/"):
                missed.append(f"{name}: {first}")
    assert not missed, "\n".join(missed)
