"""Two versions of the site side by side (`nox -f maintenance.py -s versions`): a selector leads to the other."""

import json
import os
import re

import pytest

import posenc_jax
from helpers.pages import ROOT
from helpers.serving import serve

SERVED = ROOT / "build/versions/served"
MINOR = posenc_jax.__version__.rpartition(".")[0]


def settings(page):
    """What the theme's program is told."""
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script id="__config" type="application/json">(.*?)</script>', text)[1])


def test_each_version_is_a_whole_site_with_a_selector_and_the_site_from_files_has_none():
    listed = json.loads((SERVED / "versions.json").read_text())
    assert {entry["version"]: entry["aliases"] for entry in listed} == {MINOR: ["latest"], "dev": []}
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    for folder in (SERVED / MINOR, SERVED / "dev", SERVED / "latest", ROOT / "site"):
        wanted = None if folder == ROOT / "site" else {"provider": "mike"}
        assert [page for page in pages if settings(folder / page).get("version") != wanted] == [], folder


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
            page.wait_for_url(f"{origin}/{other}/rope.html")  # the same page, not the first
        chromium.close()
    assert faults == []
