"""The site's own search finds what people type: a page of the reference first for each public name, and the page that
answers first or second for questions in their words.

No term of its index makes it throw. What it shows are sentences, without formulas, code and folded checks.
"""

import json
import re

import pytest
from visits import ROOT, SITE

from helpers.pages import program

# What people type, and the pages that answer.
QUESTIONS = {
    "gguf": ["huggingface"],
    "colab": ["notebooks/features", "notebooks/from_scratch"],
    "int8": ["about"],
    "license": ["about"],
    "cite": ["about"],
    "flash attention bias": ["tiles", "api/attention"],
    "2d rope vit": ["dimensions", "vision"],
    "rope theta": ["rope", "huggingface", "api/configs"],
    "kv cache": ["inference", "api/attention"],
    "sliding window": ["masks", "inference"],
    "packing": ["masks"],
    "yarn": ["api/frequencies"],
    "ntk": ["api/frequencies"],
    "longrope": ["api/frequencies"],
    "llama 3 rope": ["contexts", "rope"],
    "alibi slopes": ["biases", "api/biases"],
    "t5 buckets": ["biases", "api/biases"],
    "relative position bias": ["biases", "api/biases"],
    "nan gradient": ["phases", "adding"],
    "bfloat16": ["phases", "adding"],
    "float16": ["phases", "adding"],
    "tpu": ["tiles", "devices", "speed"],
    "gpu": ["tiles", "devices", "speed"],
    "install": ["index", "choose"],
    "pip": ["index", "choose"],
    "jax version": ["about"],
    "python version": ["about"],
    "huggingface config": ["huggingface", "api/configs"],
    "m-rope": ["dimensions", "vision"],
    "video": ["dimensions", "vision", "diffusion"],
    "vit": ["dimensions", "vision"],
    "sinusoidal table": ["sinusoidal", "api/encodings"],
    "learned embedding": ["adding", "choose"],
    "interpolate position embedding": ["adding", "vision"],
    "context extension": ["contexts"],
    "speed": ["speed"],
    "accuracy": ["phases", "evidence"],
    "dropout": ["flax", "about"],
    "cross attention": ["masks", "flax"],
    "decode": ["inference"],
    "export": ["inference"],
    "shard": ["devices", "api/positions"],
    "linen": ["flax", "api/flax"],
    "nnx": ["flax", "api/flax"],
    "contributing": ["about"],
    "changelog": ["about"],
}


@pytest.fixture(scope="module")
def search(reader):
    """A function that types a query and returns the pages that are found, such as "api/rotary", the best first."""
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
        links = "(items) => items.map((item) => item.querySelector('a').href)"
        items = page.locator(".md-search-result__item").evaluate_all(links)
        return [re.sub(r"^.*/site/|\.html.*$", "", link) for link in items]

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


def test_what_the_search_shows_are_sentences(site_index):
    """Without formulas and blocks of code, whose names are found, and without checks that are folded on their pages."""
    text = "<p>A sine of \\(p\\) &amp; \\(\\omega_k\\).</p>\n<pre><code>y = pe.rotary(x, head_axis=-2)</code></pre>"
    entry = program("searching").entry({"location": "a.html", "title": "A", "text": text})
    assert entry["text"].strip() == "<p>A sine of p &amp; ωₖ.</p>" and entry["code"] == "rotary head_axis"
    for entry in site_index["docs"]:
        assert not re.search(r"<pre>|\\[a-zA-Z(\[]", entry["text"]), entry["location"]
    for path in SITE.rglob("*.html"):
        for folded in re.findall(r'<details class="success"[^>]*>', path.read_text(encoding="utf-8")):
            assert "data-search-exclude" in folded, path.name


def test_formulas_are_written_in_characters_where_they_can_be():
    plain = program("mathematics").plain
    assert [plain(tex) for tex in (r"9\cdot10^{-8}", r"p\omega_k", r"\frac{a}{b}")] == ["9·10⁻⁸", "pωₖ", "…"]


@pytest.mark.parametrize("query", QUESTIONS)
def test_the_page_that_answers_is_first_or_second(search, query):
    assert {*search(query)[:2]} & {*QUESTIONS[query]}, search(query)[:4]


def test_a_page_of_the_reference_comes_first_for_its_names(search):
    """Not always the page of that name: others use it too."""
    entries = program("entries")
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")]
    names = [name for page in pages for name in entries.ENTRY.findall(entries.completed(page))]
    assert len(names) > 50
    first = {name: search(name.rpartition(".")[2])[0] for name in names}
    assert {name: page for name, page in first.items() if not page.startswith("api/")} == {}


@pytest.mark.parametrize("query", ["flux 2", "wan", "qwen-image", "ltx-2", "hunyuanvideo", "cogvideox", "z-image"])
def test_the_page_of_diffusion_models_comes_first_for_their_names(search, query):
    assert search(query)[0] == "diffusion"
