"""What pages fold away: checks in the corner of their block, and the facts of model types, which a box filters."""

import pytest
from visits import PHONE, WIDE, settle

LINE = 26  # pixels of a row with one line of text, with its borders


def test_a_check_takes_no_room_until_it_is_opened(page, origin):
    page.goto(f"{origin}/rope.html")
    settle(page)
    check = page.locator("details.success").first
    block = check.locator("xpath=preceding-sibling::*[1]").bounding_box()
    assert check.bounding_box()["height"] == 0
    corner = check.locator("summary").bounding_box()
    right, bottom = block["x"] + block["width"], block["y"] + block["height"]
    assert corner["x"] > block["x"] + block["width"] / 2 and corner["x"] + corner["width"] <= right
    assert corner["y"] < bottom < corner["y"] + corner["height"] and corner["height"] >= 24
    check.locator("summary").focus()
    page.keyboard.press("Enter")
    assert check.locator("pre").is_visible() and check.bounding_box()["height"] > 40
    assert page.locator("details.success").count() == page.get_by_text("checked", exact=True).count()


@pytest.mark.parametrize(("size", "lines"), [(WIDE, 1), (PHONE, 2)], ids=["wide", "phone"])
def test_model_types_are_short_rows_that_a_box_filters(page, origin, size, lines):
    page.set_viewport_size(size)
    page.goto(f"{origin}/api/configs.html")
    rows = page.locator(".pe-types tbody tr")
    heights = rows.evaluate_all("(rows) => rows.map((row) => row.offsetHeight)")
    assert len(heights) > 200 and max(heights) <= lines * LINE
    page.get_by_label("Filter").fill("gemma3")
    shown = page.locator(".pe-types tbody tr:visible").all_inner_texts()
    assert 0 < len(shown) < 20 and all("gemma3" in text for text in shown)
    facts = page.locator(".pe-types tr:visible summary").first
    before = facts.bounding_box()["height"]
    facts.press("Enter")
    assert facts.bounding_box()["height"] > before  # all of it, in as many lines as it takes
    page.get_by_label("Filter").fill("")
    assert rows.evaluate_all("(rows) => rows.every((row) => row.offsetHeight)")


def test_model_types_are_complete_without_scripts(browser, origin):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{origin}/api/configs.html")
    assert page.locator(".pe-types tr:visible").count() > 200
    context.close()
