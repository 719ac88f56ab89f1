"""Every page of the site in Chromium: nothing fails, nothing leaves the host, everyone can read it, on a phone too."""

import pathlib
import re

import pytest
from visits import PHONE, ROOT, SCREENSHOTS, SITE, WIDE, settle, show

PAGES = sorted(path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md"))
AXE = pathlib.Path(__file__).parent / "axe" / "axe.min.js"
SHOWN = (
    *("index", "story", "why", "sinusoidal", "rotations", "rope", "contexts", "phases"),
    *("explorer", "choose", "benchmarks", "api/rotary"),
)

# Formulas that are not set, or are set wrongly.
FORMULAS = """() => [
  ...[...document.querySelectorAll(".katex-error")].map((e) => `KaTeX cannot read ${e.textContent}`),
  ...[...document.querySelectorAll(".arithmatex:not(:has(.katex))")].map((e) => `not set: ${e.textContent}`),
]"""
# Pictures that are broken, say nothing, or belong to the other scheme.
PICTURES = """(dark) => [...document.images].flatMap((image) => {
  const faults = [];
  if (!image.naturalWidth) faults.push("does not load");
  if (!image.alt.trim()) faults.push("has no alt text");
  const only = /#only-(light|dark)$/.exec(image.getAttribute("src"));
  if (only && (image.offsetWidth > 0) !== (only[1] === (dark ? "dark" : "light"))) {
    faults.push(`is ${image.offsetWidth ? "shown" : "hidden"} in the ${dark ? "dark" : "light"} scheme`);
  }
  return faults.map((fault) => `${image.getAttribute("src")} ${fault}`);
})"""
# What is wider than the window. The names of the first that stick out say where to look.
TOO_WIDE = """() => {
  const {scrollWidth, clientWidth} = document.scrollingElement;
  if (scrollWidth <= clientWidth) return [];
  const out = [...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > clientWidth + 1);
  const names = out.slice(0, 4).map((e) => `${e.tagName.toLowerCase()}.${e.className}`);
  return [`scrolls sideways at ${clientWidth} px, is ${scrollWidth} px wide: ${names.join(", ")}`];
}"""
# Code that is cut off at the right edge of its block.
CLIPPED = """() => [...document.querySelectorAll(".md-typeset pre > code")]
  .filter((e) => e.offsetParent && e.scrollWidth > e.clientWidth)
  .map((e) => `clipped at 1440 px: ${e.textContent.split("\\n").reduce((a, b) => (a.length > b.length ? a : b))}`)"""
RUN_AXE = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.flatMap((rule) =>
  rule.nodes.map((node) => `axe ${rule.id}: ${node.target.join(" ")}: ${node.failureSummary.replace(/\\s+/g, " ")}`))"""


def report(where, faults):
    if faults:
        pytest.fail("\n".join([f"{where}:", *faults]), pytrace=False)


def picture(page, name, what):
    if name in SHOWN:
        page.screenshot(path=SCREENSHOTS / f"{name.replace('/', '_')}_{what}.png", full_page=True)


@pytest.mark.parametrize("name", PAGES)
def test_page(page, faults, origin, name):
    """One visit: light on a wide screen, dark, dark on a phone, light on a phone; axe in the first and the third."""
    assert page.goto(f"{origin}/{name}.html").ok, f"{name}.html does not exist"
    page.add_script_tag(path=AXE)
    show(page, "light", WIDE)
    faults += page.evaluate(FORMULAS)
    faults += page.evaluate(PICTURES, False)
    faults += [f"light, wide: {fault}" for fault in page.evaluate(RUN_AXE)]
    picture(page, name, "light")

    show(page, "dark", {"width": 1440, "height": 900})
    faults += page.evaluate(CLIPPED)
    faults += page.evaluate(PICTURES, True)
    picture(page, name, "dark")

    show(page, "dark", PHONE)
    faults += page.evaluate(TOO_WIDE)
    faults += [f"dark, phone: {fault}" for fault in page.evaluate(RUN_AXE)]

    if name in SHOWN:
        show(page, "light", PHONE)
        picture(page, name, "phone")
    report(f"{name}.html", faults)


@pytest.mark.parametrize("where", ["http", "file"])
def test_search_finds(page, faults, origin, where):
    """Over HTTP below a path, and from the file system, where a browser lets a page load little."""
    page.goto(f"{origin if where == 'http' else SITE.as_uri()}/index.html")
    page.keyboard.press("/")
    page.keyboard.type("rotary", delay=20)
    found = page.locator(".md-search-result__link")
    found.first.wait_for()
    assert any("rotary" in link.get_attribute("href") for link in found.all()), "no result leads to a page on rotary"
    found.first.click()
    page.wait_for_load_state()
    assert page.locator("h1").count(), f"{page.url} is no page"
    report(page.url, faults)


@pytest.mark.parametrize("name", ["index", "story", "explorer", "rotations", "api/rotary"])
def test_page_from_file(page, faults, name):
    page.goto(f"{SITE.as_uri()}/{name}.html")
    settle(page)
    faults += page.evaluate(FORMULAS)
    faults += page.evaluate(PICTURES, False)
    report(f"{name}.html", faults)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sheet_is_one_page_of_paper(browser, scheme):
    page = browser.new_page(color_scheme=scheme)
    page.goto(f"{SITE.as_uri()}/sheet.html")
    settle(page)
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    width, height = (float(side) for side in re.search(rb"/MediaBox \[0 0 (\S+) ([^\s\]]+)", printed).groups())
    assert (width, height) == pytest.approx((595, 842), abs=1)  # A4, in points
    page.set_viewport_size({"width": 703, "height": 1000})  # what lies between its margins
    page.emulate_media(media="print")
    assert page.evaluate(TOO_WIDE) == []
    left = page.evaluate("Math.min(...[...document.querySelectorAll('td')].map((e) => e.getBoundingClientRect().left))")
    ink = page.evaluate("getComputedStyle(document.querySelector('td')).color")
    assert left >= 0 and max(map(int, re.findall(r"\d+", ink)[:3])) < 100  # dark on white
    page.close()


@pytest.mark.parametrize("wanted, scheme", [("light", "default"), ("dark", "slate")])
def test_the_scheme_is_the_readers(browser, origin, wanted, scheme):
    page = browser.new_page(color_scheme=wanted)
    page.goto(f"{origin}/index.html")
    assert page.evaluate("document.body.dataset.mdColorScheme") == scheme
    page.close()
