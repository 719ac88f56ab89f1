"""What the tests in Chromium share: where the site is, sizes, the library's scalings, and waiting until a page is still."""

import functools
import inspect
import pathlib
import re

from conformance.adapters.posenc_jax import scaling_call
from conformance.run import load

ROOT = pathlib.Path(__file__).parents[3]
SITE = ROOT / "site"
SCREENSHOTS = ROOT / "build" / "screenshots"
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
# What the pages draw, and settings of each, by the name that they share with the conformance vectors.
DRAWN = re.findall(
    r"^    (\w+)(?:: )?\(\{d, base, ", (ROOT / "docs/assets/posenc.js").read_text(encoding="utf-8"), re.M
)
SETTINGS = {s["type"]: s for case in reversed(load()) if (s := case["parameters"].get("scaling"))}


def _library(name, d, base, factor, original):
    """The library's spectrum; other settings are those of the vectors."""
    f, arguments = scaling_call(d, base, **SETTINGS[name])
    given = {"factor": factor, "original_max": original}
    return f(**arguments | {k: v for k, v in given.items() if k in inspect.signature(f).parameters})


# By the names that pages give them, of width, base, factor and original length.
LIBRARY = {name: functools.partial(_library, name) for name in DRAWN}


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
    found = []

    def asked(request):
        if not request.url.startswith((origin + "/", "file://", "data:", "blob:")):
            found.append(f"asks another host: {request.url}")

    def answered(response):
        if response.status >= 400:
            found.append(f"{response.status} for {response.url}")

    def failed(request):
        # Who leaves a page at once does not wait for its icon.
        if not (request.url.endswith("/favicon.svg") and request.failure == "net::ERR_ABORTED"):
            found.append(f"no answer ({request.failure}): {request.url}")

    def said(message):
        if message.type in ("error", "warning", "assert"):
            found.append(f"console.{message.type}: {message.text}")

    page.on("console", said)
    page.on("pageerror", lambda error: found.append(f"uncaught {error}"))
    page.on("request", asked)
    page.on("requestfailed", failed)
    page.on("response", answered)
    return found
