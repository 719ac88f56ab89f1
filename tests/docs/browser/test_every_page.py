"""Every page of the site in Chromium: no error, no request to another host, no violation of axe, no cut-off code.

On a phone, no page scrolls sideways. The fixture `page` fails on errors in the console and on requests that fail or go
elsewhere.
"""

import pathlib

import pytest
from visits import PHONE, ROOT, SITE, WIDE, report, settle, show

PAGES = sorted(path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md"))
AXE = pathlib.Path(__file__).parent / "axe" / "axe.min.js"
# Formulas that KaTeX did not typeset, or could not read.
FORMULAS = """() => [
  ...[...document.querySelectorAll(".katex-error")].map((e) => `KaTeX cannot read ${e.textContent}`),
  ...[...document.querySelectorAll(".arithmatex:not(:has(.katex))")].map((e) => `not typeset: ${e.textContent}`),
]"""
# Pictures that are broken, or belong to the other scheme. They need not wait until they are near the window.
PICTURES = """async (scheme) => {
  for (const image of document.images) image.loading = "eager";
  await Promise.allSettled([...document.images].map((image) => image.decode()));
  return [...document.images].flatMap((image) => {
  const source = image.getAttribute("src"), only = /#only-(light|dark)$/.exec(source);
  if (image.closest(".pe-wide, .pe-phone")?.offsetHeight === 0) return [];  // the form for other windows
  if (!image.naturalWidth) return [`${source} does not load`];
  return only && image.offsetWidth > 0 !== (only[1] === scheme) ? [`${source} in the ${scheme} scheme`] : [];
})}"""
# Whether the page is wider than the window, and which elements stick out first.
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
  .map((e) => e.textContent.split("\\n").reduce((a, b) => (a.length > b.length ? a : b)))
  .map((line) => `clipped at ${innerWidth} px: ${line}`)"""
RUN_AXE = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.flatMap((rule) =>
  rule.nodes.map((node) => `axe ${rule.id}: ${node.target.join(" ")}: ${node.failureSummary.replace(/\\s+/g, " ")}`))"""
STILL = "* {transition: none !important}"
# Pages that axe reads in the dark scheme too. Of its rules only contrast depends on the scheme; all pages share the
# colours, and together these have each kind of content.
DARK = ("index", "story", "explorer", "inference", "api/configs", "api/rotary")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_accessible(page, origin, name):
    """One visit: light on a wide screen with axe, dark on a wide screen, dark on a phone."""
    assert page.goto(f"{origin}/{name}.html").ok, f"{name}.html does not exist"
    page.add_script_tag(path=AXE)
    page.add_style_tag(content=STILL)
    show(page, "light", WIDE)
    faults = [*page.evaluate(FORMULAS), *page.evaluate(PICTURES, "light"), *page.evaluate(RUN_AXE)]
    report(f"{name}.html, light on a wide screen", faults)
    # Below 1440 px some signatures and lines scroll within their blocks.
    show(page, "dark", {"width": 1440, "height": 900})
    faults = [*page.evaluate(CLIPPED), *page.evaluate(PICTURES, "dark")]
    show(page, "dark", PHONE)
    faults += [*page.evaluate(TOO_WIDE), *(page.evaluate(RUN_AXE) if name in DARK else [])]
    report(f"{name}.html, dark, wide and then on a phone", faults)


@pytest.mark.parametrize("name", ["index", "rotations", "api/rotary"])
def test_a_page_opened_from_disk_sets_formulas_and_loads_pictures(page, name):
    page.goto(f"{SITE.as_uri()}/{name}.html")
    settle(page)
    report(f"{name}.html", [*page.evaluate(FORMULAS), *page.evaluate(PICTURES, "light")])
