"""What the tests in Chromium share: where the site is, sizes of windows, and waiting until a page is still."""

import pytest

from helpers.pages import ROOT

SITE = ROOT / "site"
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


def settle(page):
    """Until fonts are there, transitions are over, and what is drawn by frames has been drawn."""
    page.evaluate(
        """async () => {
          await document.fonts.ready;
          const frame = () => new Promise(requestAnimationFrame);
          await frame(); await frame();
          const running = document.getAnimations().filter((a) => a.effect.getComputedTiming().endTime < Infinity);
          // A transition of what is no longer shown may never end.
          const second = new Promise((resolve) => setTimeout(resolve, 1000));
          await Promise.race([Promise.allSettled(running.map((a) => a.finished)), second]);
        }"""
    )


def show(page, scheme, size):
    """The page in a scheme of colours, by the theme's own switch, and in a window."""
    page.set_viewport_size(size)
    wanted = "slate" if scheme == "dark" else "default"
    page.evaluate("(wanted) => document.querySelector(`input[data-md-color-scheme=${wanted}]`).click()", wanted)
    page.wait_for_function("(wanted) => document.body.dataset.mdColorScheme === wanted", arg=wanted)
    settle(page)


def watch(page, origin):
    """A list that fills with messages of the console, errors, requests that fail or leave for another host."""
    found, ours = [], (f"{origin}/", "file://", "data:", "blob:")
    page.on("console", lambda said: said.type in ("log", "info", "debug") or found.append(said.text))
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("response", lambda answer: answer.status < 400 or found.append(f"{answer.status}: {answer.url}"))
    page.on("request", lambda request: request.url.startswith(ours) or found.append(request.url))
    # Who leaves a page at once does not wait for its icon.
    page.on("requestfailed", lambda sent: sent.url.endswith("/favicon.svg") or found.append(f"failed: {sent.url}"))
    return found


def report(where, faults):
    if faults:
        pytest.fail("\n".join([f"{where}:", *faults]), pytrace=False)
