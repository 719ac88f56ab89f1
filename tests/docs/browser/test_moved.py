"""Who follows an old address arrives where the page or the section is now, over HTTP and from the file system."""

import pytest
from visits import SITE

from helpers.pages import program

moved = program("moved")
OLD = {f"{page}#{old}".rstrip("#"): new for page, sections in moved.read().items() for old, new in sections.items()}
PAGE = '<html><head>{}</head><body><p id="here"></p><p id="there"></p></body></html>'


def arrives(page, address, wanted):
    """By its end."""
    page.goto(address, wait_until="commit")
    page.wait_for_url(f"**/{wanted}", wait_until="commit")


@pytest.mark.parametrize("address", ["served", "from disk"])
def test_each_old_address_leads_to_the_new_one(browser, origin, address):
    page = browser.new_page()
    for old, new in OLD.items() if address == "from disk" else [*OLD.items()][::10]:
        arrives(page, f"{origin if address == 'served' else SITE.as_uri()}/{old}", new)
    page.close()


@pytest.mark.parametrize(
    ("old", "wanted"),
    [
        ("gone.html", "new.html#here"),
        ("gone.html#there", "api/new.html#there"),
        ("gone.html#elsewhere", "new.html#elsewhere"),  # a section that is not listed
        ("api/gone.html", "new.html"),
        ("api/gone.html#posenc_jax.yarn", "new.html#posenc_jax.yarn"),
        ("new.html#left", "api/new.html#here"),
        ("new.html#there", "new.html#there"),
    ],
)
def test_a_page_that_is_gone_keeps_or_maps_its_sections(browser, tmp_path, monkeypatch, old, wanted):
    monkeypatch.setattr(moved, "MOVED", tmp_path / "moved.toml")
    moved.MOVED.write_text(
        '"gone.html" = "new.html#here"\n"gone.html#there" = "api/new.html#there"\n"api/gone.html" = "new.html"\n'
        '"new.html#left" = "api/new.html#here"\n'
    )
    (tmp_path / "api").mkdir()
    for name in ("new.html", "api/new.html"):
        (tmp_path / name).write_text(PAGE.format(moved.script(name)))
    moved.write(tmp_path, "")
    page = browser.new_page()
    arrives(page, f"{tmp_path.as_uri()}/{old}", wanted)
    page.close()


@pytest.mark.parametrize(
    ("line", "message"),
    [('"new.html" = "other.html"', "is still there"), ('"gone.html#a" = "new.html"', "needs an address")],
)
def test_what_leads_nowhere_fails_the_build(tmp_path, monkeypatch, line, message):
    monkeypatch.setattr(moved, "MOVED", tmp_path / "moved.toml")
    moved.MOVED.write_text(line)
    (tmp_path / "new.html").write_text(PAGE)
    with pytest.raises(ValueError, match=message):
        moved.write(tmp_path, "")
