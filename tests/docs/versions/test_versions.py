"""Two versions of the site side by side, as `nox -s versions` puts them: a selector leads from one to the other."""

import json
import os
import re
from pathlib import Path

import pytest

import posenc_jax
from helpers.serving import serve

ROOT = Path(__file__).parents[3]
SERVED = ROOT / "build/versions/served"
MINOR = posenc_jax.__version__.rpartition(".")[0]


def settings(page):
    """What the theme's program is told."""
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script id="__config" type="application/json">(.*?)</script>', text)[1])


def test_each_version_is_a_whole_site():
    listed = json.loads((SERVED / "versions.json").read_text())
    assert {entry["version"]: entry["aliases"] for entry in listed} == {MINOR: ["latest"], "dev": []}
    assert "latest/" in (SERVED / "index.html").read_text()
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    for version in (MINOR, "dev", "latest"):
        folder = SERVED / version
        built = {path.relative_to(folder) for path in folder.rglob("*.html")}
        assert pages <= built, version
        assert all(settings(folder / page).get("version") == {"provider": "mike"} for page in pages)


def test_the_site_from_the_file_system_has_no_selector():
    pages = [*(ROOT / "site").rglob("*.html")]
    assert pages, "no site: nox -s docs builds it"
    for page in pages:
        assert not settings(page).get("version"), f"{page} would ask for a list of versions"


@pytest.mark.skipif(not os.environ.get("CHROMIUM"), reason="no Chromium here: the selector was not opened")
def test_the_selector_leads_to_the_other_version():
    sync_api = pytest.importorskip("playwright.sync_api")
    with serve(SERVED) as origin, sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        page = chromium.new_page()
        page.set_default_timeout(30_000)
        faults = []
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("response", lambda answer: faults.append(answer.url) if answer.status >= 400 else None)
        page.goto(f"{origin}/")
        page.wait_for_url(f"{origin}/latest/**")
        for start, other in ((MINOR, "dev"), ("dev", MINOR)):
            page.goto(f"{origin}/{start}/rope.html")
            assert start in page.locator(".md-version__current").inner_text()
            page.locator(".md-version__current").focus()
            page.locator(".md-version__link", has_text=other).click()
            page.wait_for_url(f"{origin}/{other}/**")
            assert other in page.locator(".md-version__current").inner_text()
            # The same page, not the first.
            assert page.url == f"{origin}/{other}/rope.html"
        chromium.close()
    assert faults == []
