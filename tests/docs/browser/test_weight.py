"""What a page loads before a reader does anything: at most 200 kB of it, the search only when it opens, pictures of one
scheme, and nothing that moves what is being read.
"""

import gzip
import re
from urllib.parse import urlsplit

import pytest
from visits import SITE, WIDE, settle, show

from helpers.serving import UnderPath

LIMIT, SHIFT = 200_000, 0.05  # bytes, and the sum of layout shifts, of which 0.1 is called good
TOUCH = {"width": 390, "height": 844}
# Adds up what moves, as https://web.dev/articles/cls does for one session.
SHIFTS = """
  globalThis.shifts = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      const moved = entry.sources.map(({node}) => node?.outerHTML?.slice(0, 90));
      if (!entry.hadRecentInput) shifts.push([entry.value, ...moved]);
    }
  }).observe({type: "layout-shift", buffered: true});"""
# A reader who scrolls to the end of the page, and back.
SCROLL = """async () => {
  for (let y = 0; y < document.body.scrollHeight; y += innerHeight / 2) {
    scrollTo({top: y, behavior: "instant"});
    await new Promise((resolve) => setTimeout(resolve, 60));
  }
  scrollTo({top: 0, behavior: "instant"});
  await new Promise((resolve) => setTimeout(resolve, 60));
}"""


def weight(path):
    """The bytes of a file as servers send it; fonts are compressed already."""
    data = path.read_bytes()
    return len(data) if path.suffix in (".woff2", ".png") else len(gzip.compress(data, 6, mtime=0))


@pytest.fixture
def loaded(page):
    """The files of the site that the page has asked for, as a list that grows."""
    files = []
    page.on("request", lambda request: files.append(urlsplit(request.url).path.removeprefix(f"{UnderPath.prefix}/")))
    return files


@pytest.mark.parametrize("name", ["index", "story"])
def test_a_first_page_is_light(page, origin, loaded, name):
    page.goto(f"{origin}/{name}.html", wait_until="networkidle")
    settle(page)
    bytes_of = {file: weight(SITE / file) for file in {*loaded}}
    heaviest = sorted(bytes_of.items(), key=lambda item: -item[1])
    print(f"{name}: {sum(bytes_of.values()):,} bytes:", *heaviest, sep="\n  ")
    assert sum(bytes_of.values()) <= LIMIT, heaviest


@pytest.mark.parametrize("address", ["served", "from disk"])
def test_the_search_is_loaded_when_it_opens(page, origin, loaded, address):
    page.goto(f"{origin if address == 'served' else SITE.as_uri()}/index.html", wait_until="networkidle")
    assert not [file for file in loaded if "search" in file]
    page.keyboard.press("/")
    page.keyboard.type("yarn")
    page.locator(".md-search-result__item a").first.wait_for()
    assert any("workers/search" in file for file in loaded) and any("search_index" in file for file in loaded)
    page.goto(f"{page.url}?h=rotary", wait_until="networkidle")  # who comes from a result sees its words
    page.locator("mark", has_text="rotary").first.wait_for()


def test_pictures_of_the_other_scheme_are_not_loaded(page, origin, loaded):
    """By the reader's setting, and by the switch in the header."""
    page.goto(f"{origin}/rope.html", wait_until="networkidle")
    page.evaluate(SCROLL)
    pictures = [file for file in loaded if file.startswith("figures/")]
    assert pictures and not [file for file in pictures if "_dark" in file]
    show(page, "dark", WIDE)
    page.evaluate(SCROLL)
    page.wait_for_load_state("networkidle")
    assert {file.replace("_dark", "") for file in loaded if "_dark" in file} == {*pictures}
    assert len(loaded) == len({*loaded})  # and nothing again


def test_every_picture_has_its_size_before_it_is_loaded():
    for path in SITE.rglob("*.html"):
        for image in re.findall(r"<img\b[^>]*>", path.read_text(encoding="utf-8")):
            assert all(f"{name}=" in image for name in ("width", "height", "loading")), f"{path.name}: {image}"


@pytest.mark.parametrize("name", ["index", "story", "rope", "api/rotary"])
@pytest.mark.parametrize("size", [TOUCH, WIDE], ids=["phone", "wide"])
def test_nothing_moves_while_a_page_is_loaded_and_read(browser, origin, name, size):
    """A touch screen, where the page does not scroll sideways either."""
    context = browser.new_context(viewport=size, has_touch=size is TOUCH)
    context.add_init_script(SHIFTS)
    page = context.new_page()
    page.goto(f"{origin}/{name}.html", wait_until="networkidle")
    settle(page)
    page.evaluate(SCROLL)
    shifts = page.evaluate("shifts")
    wide = page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
    context.close()
    print(f"{name} at {size['width']} px: {sum(value for value, *_ in shifts):.4f}")
    assert sum(value for value, *_ in shifts) <= SHIFT, shifts
    assert wide <= 0
