"""The built site, served under a path of its own, and one headless Chromium for the whole session.

Playwright is imported where it is used: the ordinary tests collect this folder without it.
"""

import functools
import http.server
import os
import threading

import pytest
from visits import PHONE, SITE, WIDE, watch


class UnderPath(http.server.SimpleHTTPRequestHandler):
    """Serves the site at /sub/path/ and nothing above it, as project pages of a host do."""

    prefix = "/sub/path"

    def do_GET(self):
        if not self.path.startswith(self.prefix + "/"):
            return self.send_error(404)
        self.path = self.path.removeprefix(self.prefix)
        return super().do_GET()

    def log_message(self, *args):
        pass


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args):
        """A browser may close a connection early."""


@pytest.fixture(scope="session")
def origin():
    """Where the site answers over HTTP, without a slash at the end."""
    if not (SITE / "index.html").exists():
        pytest.fail("there is no site/: nox -s docs builds it")
    with Quiet(("127.0.0.1", 0), functools.partial(UnderPath, directory=SITE)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}{UnderPath.prefix}"
        server.shutdown()
        thread.join()


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


@pytest.fixture(scope="session")
def still_reader(browser):
    """A reader on a phone who wants no motion."""
    context = browser.new_context(viewport=PHONE, color_scheme="light", reduced_motion="reduce", has_touch=True)
    context.set_default_timeout(10_000)
    yield context
    context.close()


@pytest.fixture
def page(reader):
    page = reader.new_page()
    yield page
    page.close()


@pytest.fixture
def faults(page, origin):
    """What goes wrong in the page."""
    return watch(page, origin)
