"""The built site, served under a path of its own, and one headless Chromium for the whole session.

Playwright is imported where it is used: the ordinary tests collect this folder without it.
"""

import os

import pytest
from visits import SITE, WIDE, report, watch

from helpers.serving import serve


@pytest.fixture(scope="session")
def origin():
    """Where the site answers over HTTP, without a slash at the end."""
    assert (SITE / "index.html").exists(), "there is no site/: nox -s docs builds it"
    with serve(SITE) as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def reader(browser):
    """A reader on a wide screen."""
    context = browser.new_context(viewport=WIDE, color_scheme="light")
    context.set_default_timeout(10_000)
    yield context
    context.close()


@pytest.fixture
def page(reader, origin):
    """A new page; what goes wrong in it fails the test, and what it stores, such as the scheme, goes with it."""
    page = reader.new_page()
    page.faults = watch(page, origin)
    yield page
    page.evaluate("location.protocol === 'about:' || localStorage.clear()")
    page.close()
    report(page.url, page.faults)
