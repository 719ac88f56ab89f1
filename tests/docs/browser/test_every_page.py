"""Every page of the site in Chromium: nothing fails, nothing leaves the host, everyone can read it, on a phone too."""

import pathlib
import re

import pytest
from visits import PHONE, ROOT, SITE, WIDE, report, settle, show

PAGES = sorted(path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md"))
AXE = pathlib.Path(__file__).parent / "axe" / "axe.min.js"
# Formulas that are not set, or are set wrongly.
FORMULAS = """() => [
  ...[...document.querySelectorAll(".katex-error")].map((e) => `KaTeX cannot read ${e.textContent}`),
  ...[...document.querySelectorAll(".arithmatex:not(:has(.katex))")].map((e) => `not set: ${e.textContent}`),
]"""
# Pictures that are broken, or belong to the other scheme.
PICTURES = """(scheme) => [...document.images].flatMap((image) => {
  const source = image.getAttribute("src"), only = /#only-(light|dark)$/.exec(source);
  if (!image.naturalWidth) return [`${source} does not load`];
  return only && image.offsetWidth > 0 !== (only[1] === scheme) ? [`${source} in the ${scheme} scheme`] : [];
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
STILL = "* {transition: none !important}"
# Of axe's rules, only contrast depends on the scheme, and all pages share its colours. These have each kind of content.
DARK = ("index", "story", "explorer", "sheet", "recipes", "model_types", "api/rotary")


@pytest.mark.parametrize("name", PAGES)
def test_page(page, origin, name):
    """One visit: light on a wide screen with axe, dark, dark on a phone."""
    assert page.goto(f"{origin}/{name}.html").ok, f"{name}.html does not exist"
    page.add_script_tag(path=AXE)
    page.add_style_tag(content=STILL)
    show(page, "light", WIDE)
    faults = [*page.evaluate(FORMULAS), *page.evaluate(PICTURES, "light"), *page.evaluate(RUN_AXE)]
    report(f"{name}.html, light on a wide screen", faults)
    show(page, "dark", {"width": 1440, "height": 900})
    faults = [*page.evaluate(CLIPPED), *page.evaluate(PICTURES, "dark")]
    show(page, "dark", PHONE)
    faults += [*page.evaluate(TOO_WIDE), *(page.evaluate(RUN_AXE) if name in DARK else [])]
    report(f"{name}.html, dark, at last on a phone", faults)


@pytest.mark.parametrize("name", ["index", "rotations", "api/rotary"])
def test_page_from_file(page, name):
    page.goto(f"{SITE.as_uri()}/{name}.html")
    settle(page)
    report(f"{name}.html", [*page.evaluate(FORMULAS), *page.evaluate(PICTURES, "light")])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sheet_is_one_page_of_paper_and_its_scheme_the_readers(browser, scheme):
    page = browser.new_page(color_scheme=scheme)
    page.goto(f"{SITE.as_uri()}/sheet.html")
    assert page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
    settle(page)
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    page.set_viewport_size({"width": 703, "height": 1000})  # what lies between its margins
    page.emulate_media(media="print")
    assert page.evaluate(TOO_WIDE) == []
    ink = page.evaluate("getComputedStyle(document.querySelector('td')).color")
    assert max(map(int, re.findall(r"\d+", ink)[:3])) < 100  # dark on white
    page.close()
