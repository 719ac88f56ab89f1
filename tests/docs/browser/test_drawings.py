"""The drawings of the story: controls, labels, links and numbers.

- Every control moves the picture by keys; two arrows follow the mouse. Every scene plays and pauses.
- Labels fit into their views on three widths. A link leads to a state.
- What is drawn and said are the numbers of NumPy's formulas and of the library.
"""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import colormaps
from visits import SITE, WIDE, settle

import posenc_jax as pe

SCENES = ("shuffle", "count", "waves", "hands", "rope", "stretch", "grid")
STATES = {
    "shuffle": {"order": [4, 2, 0, 1, 3]},
    "count": {"p": 100},
    "waves": {"round": 40},
    "hands": {"before": 33},
    "rope": {"before": 37, "apart": 5, "q": [-0.5, 0.875], "k": [0.3, 0]},
    "stretch": {"factor": 4.5, "scaling": "yarn"},
    "grid": {"row": 3, "column": 11, "count": "two"},
}


@pytest.fixture
def story(page, origin):
    page.goto(f"{origin}/story.html")
    settle(page)
    return page


def scene(page, kind):
    return page.locator(f"pe-view[kind={kind}]")


def put(page, kind, **settings):
    scene(page, kind).evaluate("(view, settings) => view.show(settings)", settings)
    settle(page)


def settings_of(page, kind):
    return scene(page, kind).evaluate("(view) => structuredClone(view.settings)")


def drawn(page, kind, selector, expression):
    """What an expression of JavaScript reads of each element e of a scene's picture."""
    return scene(page, kind).locator(f"svg {selector}").evaluate_all(f"(all) => all.map((e) => {expression})")


def tips_of(page, kind, hands):
    """Sine and cosine that hands of a clock show: the sine to the right, the cosine up."""
    lines = drawn(page, kind, hands, "e.getAttribute('d').match(/L(.*)/)[1].split(' ').map(Number)")
    return np.array(lines) / np.hypot(*np.transpose(lines))[:, None] * [1, -1]


def picture(page, kind):
    """What is drawn, and what is said of it."""
    return scene(page, kind).evaluate("({picture: p}) => [p.innerHTML, p.getAttribute('aria-label')]")


def numbers(text):
    return [float(n.replace("−", "-").replace(",", "")) for n in re.findall(r"[−-]?\d[\d,]*\.?\d*", text)]


def said(page, kind):
    return numbers(scene(page, kind).locator(".pe-words").text_content())


def colours(name, shares):
    return 255 * colormaps[name](np.asarray(shares))[..., :3]


# Controls


@pytest.mark.parametrize("kind", SCENES)
def test_every_control_moves_what_is_drawn(story, kind):
    view, seen = scene(story, kind), [picture(story, kind)]

    def changed(control):
        settle(story)
        seen.append(picture(story, kind))
        assert all(before != after for before, after in zip(*seen[-2:], strict=True)), control

    for slider in view.locator("input[type=range]").all():
        assert story.locator(f"label[for={slider.get_attribute('id')}]").count() == 1
        slider.focus()
        for key, end in (("End", "max"), ("Home", "min"), ("End", "max")):
            story.keyboard.press(key)
            changed(key)
            assert slider.input_value() == slider.get_attribute(end) and slider.get_attribute("aria-valuetext")
    for value in view.locator("input[type=radio]:not(:checked)").evaluate_all("(all) => all.map((e) => e.value)"):
        view.locator(f"input[value={value}]").check()
        changed(value)
    for handle in view.locator(".pe-handle").all():
        handle.focus()
        for key in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowDown", "End", "PageUp", "Home", "PageDown"):
            story.keyboard.press(key)
            changed(key)
    for button in view.get_by_role("button", name="Shuffle").all():
        button.click()
        changed("Shuffle")
    assert len(seen) > 1


@pytest.mark.parametrize("kind", SCENES)
def test_each_scene_plays_and_pauses(story, kind):
    before = settings_of(story, kind)
    scene(story, kind).get_by_role("button", name="Play").click()
    story.wait_for_function(
        "([kind, before]) => JSON.stringify(document.querySelector(`pe-view[kind=${kind}]`).settings) !== before",
        arg=[kind, story.evaluate("JSON.stringify", before)],
    )
    scene(story, kind).get_by_role("button", name="Pause").click()
    settle(story)
    paused = settings_of(story, kind)
    story.wait_for_timeout(150)
    assert settings_of(story, kind) == paused != before


def test_without_motion_a_press_is_a_step_and_the_end_leads_to_the_start(browser, origin):
    page = browser.new_page(reduced_motion="reduce")
    page.goto(f"{origin}/story.html")
    put(page, "count", p=127)
    scene(page, "count").get_by_role("button", name="Next step").click()
    settle(page)
    assert settings_of(page, "count")["p"] == 4  # where the slider starts
    page.close()


def middle(handle):
    box = handle.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize("which", [0, 1])
def test_an_arrow_follows_the_mouse(story, which):
    handle = scene(story, "rope").locator(".pe-handle").nth(which)
    handle.scroll_into_view_if_needed()
    x, y = middle(handle)
    story.mouse.move(x, y)
    story.mouse.down()
    story.mouse.move(x - 40, y + 60, steps=4)
    story.mouse.up()
    settle(story)
    assert middle(handle) == pytest.approx((x - 40, y + 60), abs=1.5)


def test_a_finger_on_an_arrow_does_not_scroll(story):
    """Otherwise Chromium takes the drag for scrolling after a few moves."""
    touch = "(e) => !e.dispatchEvent(new Event('touchstart', {bubbles: true, cancelable: true}))"
    assert scene(story, "rope").locator(".pe-handle").first.evaluate(touch)


# Addresses, screens, and readers without scripts


@pytest.mark.parametrize("kind", ["shuffle", "rope", "grid"])
def test_a_link_leads_to_a_state(story, kind):
    """From the file system, where a browser lets a page load little."""
    put(story, kind, **STATES[kind])
    settings = settings_of(story, kind)
    link = scene(story, kind).get_by_role("link", name="Link to this").get_attribute("href")
    story.goto(f"{SITE.as_uri()}/story.html{link}")
    settle(story)
    assert settings_of(story, kind) == settings
    box = scene(story, kind).bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= WIDE["height"], f"not in sight: {box}"


def test_settings_of_an_address_are_clamped_and_wrong_ones_are_ignored(story):
    """The sliders end at 100 and 0; q and k stay as they were."""
    story.evaluate("location.hash = 'view=rope&before=900&apart=-3&q=9,9&k=1&constructor=1'")
    settle(story)
    found, taken = settings_of(story, "rope"), {"before": 100, "apart": 0, "q": [1.1, -0.4], "k": [0.02, 1]}
    assert found | taken == found and "constructor" not in found


# Labels outside of their view, which has room around the picture, or on another label
LABEL_FAULTS = """() => [...document.querySelectorAll("pe-view")].flatMap((view) => {
  const all = view.getBoundingClientRect();
  const boxes = [...view.querySelectorAll("svg text")].map((e) => [e.textContent, e.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], i) => {
    const outside = a.left < all.left || a.right > all.right || a.top < all.top || a.bottom > all.bottom;
    const on = boxes.slice(0, i).filter(([, b]) =>
      Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0 &&
      Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3  // lines may be that close
    );
    return [...(outside ? [`outside: ${text}`] : []), ...on.map(([other]) => `on another: ${other} | ${text}`)];
  });
})"""


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_label_leaves_its_view_or_lies_on_another(story, width):
    story.set_viewport_size({"width": width, "height": 740})
    settle(story)
    found = story.evaluate(LABEL_FAULTS)
    heights = {kind: scene(story, kind).bounding_box()["height"] for kind in SCENES}
    for kind, state in STATES.items():
        put(story, kind, **state)
    found += story.evaluate(LABEL_FAULTS)
    assert found == []
    if width == 360:  # on a phone a view and its controls are seen together, below the header
        assert max(heights.values()) <= 740 - 48, heights


def test_without_scripts_the_story_shows_described_pictures(browser):
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"{SITE.as_uri()}/story.html")
    for kind in SCENES:
        picture = scene(page, kind).locator("img").first
        assert picture.is_visible() and len(picture.get_attribute("alt")) > 100
    page.close()


# What is drawn


def test_words_counters_and_waves_say_their_numbers(story):
    dog = np.array([0.2, 1.8, 1, 0])
    x = np.array([[1.4, 0.2, 0, 0.4], dog, [0, 1, 2, 0.6], [1.2, 0, 0.4, 1], dog])
    weights = np.exp(x[2] @ x.T / 2)
    cells = np.array(drawn(story, "shuffle", ".moves text", "e.textContent"), float)[10:15]  # of "chased", word 2
    np.testing.assert_allclose(cells, weights / weights.sum(), atol=0.0051)  # two decimals

    put(story, "count", p=11)
    assert "".join(drawn(story, "count", "rect[fill] + text", "e.textContent")) == "0000101100001100"

    put(story, "waves", round=100)
    waves = -np.sin(2 * np.pi * (np.arange(32) + 0.5) / 2.0 ** np.arange(1, 6)[:, None])
    samples = np.reshape(drawn(story, "waves", ".sample", "e.cy.baseVal.value"), (5, 32))
    np.testing.assert_allclose(samples - samples[:, :1], 14 * (waves[:, :1] - waves), atol=1e-4)  # 14 px for 1
    steps = np.linalg.norm(np.diff(waves), axis=0)
    assert said(story, "waves") == pytest.approx([steps.min(), steps.max()], abs=0.051)


def test_sines_differ_where_turns_stay(story):
    f = pe.geometric(8, 100)
    for before in (0, 50):
        put(story, "hands", before=before)
        first, second = np.asarray(pe.sinusoidal(jnp.int32([before + 1, before + 4]), f)).reshape(2, 4, 2)
        for name, waves in (("key", first), ("query", second)):
            np.testing.assert_allclose(tips_of(story, "hands", f".{name}.hand"), waves, atol=2e-3)
        labels = [numbers(text)[0] for text in drawn(story, "hands", "text.strong", "e.textContent")]
        apart = np.stack([second[:, 0] - first[:, 0], np.degrees(3 * f.angular)], 1)
        assert np.all(abs(np.reshape(labels, (4, 2)) - apart) < [0.0051, 0.51])


def test_query_and_key_turn_and_their_score_is_shown(story):
    settings = STATES["rope"]
    put(story, "rope", **settings)
    places = settings["before"] + 1, settings["before"] + 1 + settings["apart"]
    vectors, turn = jnp.float32([settings["k"], settings["q"]]), jnp.float32(pe.geometric(16).angular[1:2])
    turned = np.asarray(pe.rotary(vectors, jnp.int32(places), turn, head_axis=None))
    assert said(story, "rope") == pytest.approx([*places, turned[0] @ turned[1]], abs=6e-4)
    (unit,) = drawn(story, "rope", ".face", "e.r.baseVal.value / 1.4")  # the radius of the face is 1.4
    tips = unit * turned[:, ::-1] * [1, -1]  # the first number up, the second to the right
    for tip, name in zip(tips, ("key", "query"), strict=True):
        (head,) = drawn(
            story, "rope", f".{name}.head:not(.before)", "e.getAttribute('d').match(/M(.*?)L/)[1].split(' ')"
        )
        np.testing.assert_allclose(np.array(head, float), tip, atol=0.02)


def test_longer_texts_reach_new_angles(story):
    put(story, "stretch", factor=8, scaling="ntk")
    plain, slowed = pe.geometric(16).wavelengths, pe.ntk(16, 10_000, 8).wavelengths
    new = np.minimum(8 * 512 / slowed, 1) - np.minimum(512 / plain, 1)
    shown = [numbers(text)[0] for text in drawn(story, "stretch", "text.strong", "e.textContent")]
    assert shown == [round(100 * share) for share in new if share > 1e-9]


def test_a_click_chooses_a_patch_and_shows_its_likeness(story):
    put(story, "grid", count="two")
    view = scene(story, "grid").locator("svg")
    view.scroll_into_view_if_needed()
    view.click(position={"x": view.bounding_box()["width"] * 0.75, "y": view.bounding_box()["height"] * 0.3})
    settle(story)
    settings = settings_of(story, "grid")
    at = settings["row"] * 16 + settings["column"]
    encoding = np.asarray(pe.sinusoidal(pe.grid_positions((16, 16)), pe.axial(64, 2, 100)))
    alike = encoding @ encoding[at] / 32
    assert said(story, "grid") == pytest.approx([alike[at + 1], alike[at + 16]], abs=0.0051)
    fills = [re.findall(r"\d+", fill) for fill in drawn(story, "grid", "rect[fill]", "e.getAttribute('fill')")]
    # Of 255: the page interpolates ten colours.
    assert np.abs(np.array(fills, int) - colours("viridis", (alike + 0.5) / 1.5)).max() < 20
