"""The views of the story: their mathematics is the library's, and each scene shows what its text says."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import colormaps
from visits import LIBRARY, PHONE, ROOT, SITE, WIDE, settle, show, watch

import posenc_jax as pe

SCENES = ("shuffle", "count", "waves", "hands", "rope", "stretch", "grid")
DOG = [0.2, 1.8, 1, 0]
WORDS = np.array([[1.4, 0.2, 0, 0.4], DOG, [0, 1, 2, 0.6], [1.2, 0, 0.4, 1], DOG])
SCALINGS = {"none": lambda d, base, s, length: pe.geometric(d, base)} | LIBRARY
CLOSE = {"rtol": 0, "atol": 1e-12}


def drawn_settings(count):
    """Widths, bases, positions and offsets, drawn at random."""
    rng = np.random.default_rng(0)
    places = rng.integers(-(2**30), 2**30, (2, count))
    columns = rng.integers(2, 65, count), (10 ** rng.uniform(1, 7, count)).astype(int), *places
    return [tuple(int(value) for value in row) for row in zip(*columns, strict=True)]


def waves(p, frequencies):
    """sin and cos of ω·p, in float64 of exact phases."""
    angles = [2 * np.pi * ((p * turn + 2**127) % 2**128 - 2**127) / 2**128 for turn in frequencies.cycles]
    return np.sin(angles), np.cos(angles)


def table(p, frequencies):
    return np.stack(waves(p, frequencies), -1).ravel()


@pytest.fixture(scope="module")
def mathematics(browser):
    """A page with nothing but the mathematics."""
    page = browser.new_page()
    page.add_script_tag(path=ROOT / "docs" / "assets" / "posenc.js")
    yield lambda code, *given: page.evaluate(f"(given) => {{ const {{geometric}} = posenc; {code} }}", given)
    page.close()


@pytest.mark.parametrize("pairs, base, p, k", drawn_settings(12))
def test_encodings_are_the_librarys(mathematics, pairs, base, p, k):
    d = 2 * pairs
    f = pe.geometric(d, base)
    turns, here, moved, alike = mathematics(
        """const [d, base, p, k] = given, turns = geometric(d, base), here = posenc.sinusoidal(p, turns);
        return [turns.map(String), here, posenc.shift(here, posenc.sinusoidal(k, turns)), posenc.offsetSimilarity(k, turns)];""",
        *(d, base, p, k),
    )
    assert max(abs(int(a) - b) for a, b in zip(turns, f.cycles, strict=True)) <= 4
    np.testing.assert_allclose(here, table(p, f), **CLOSE)
    np.testing.assert_allclose(moved, table(p + k, f), **CLOSE)
    np.testing.assert_allclose(alike, waves(k, f)[1].sum(), **CLOSE)
    np.testing.assert_allclose(here, pe.sinusoidal(jnp.int32(p), f), rtol=0, atol=9e-8)
    np.testing.assert_allclose(alike, pe.offset_similarity(jnp.int32(k), f), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("pairs, base, p, k", drawn_settings(6))
def test_rotations_are_the_librarys(mathematics, pairs, base, p, k, layout):
    d = 2 * pairs
    f, x = pe.geometric(d, base), np.random.default_rng(d).normal(size=d)
    turned = mathematics(
        "const [x, p, d, base, layout] = given; return posenc.rotary(x, p, geometric(d, base), layout);",
        *(x.tolist(), p, d, base, layout),
    )
    sine, cosine = waves(p, f)
    order = np.arange(d).reshape((2, -1) if layout == "half" else (-1, 2))
    first, second = order if layout == "half" else order.T
    expected = np.empty(d)
    expected[first], expected[second] = x[first] * cosine - x[second] * sine, x[first] * sine + x[second] * cosine
    np.testing.assert_allclose(turned, expected, **CLOSE)
    library = pe.rotary(jnp.float32(x)[None], jnp.int32([p]), f, layout=layout, head_axis=None)[0]
    np.testing.assert_allclose(turned, library, rtol=0, atol=2e-6)


@pytest.mark.parametrize("pairs, base, p, k", drawn_settings(6))
def test_grids_are_the_librarys(mathematics, pairs, base, p, k):
    d = 2 * pairs
    one, both = pe.geometric(d, base), pe.axial(2 * d, 2, base)
    code = "const [at, d, base] = given, turns = geometric(d, base); return [posenc.axial(at, turns), posenc.axialSimilarity(at, turns)];"
    encoding, alike = mathematics(code, [p, k], d, base)
    np.testing.assert_allclose(encoding, np.concatenate([table(p, one), table(k, one)]), **CLOSE)
    np.testing.assert_allclose(encoding, pe.sinusoidal(jnp.int32([p, k]), both), rtol=0, atol=9e-8)
    np.testing.assert_allclose(alike, waves(p, one)[1].sum() + waves(k, one)[1].sum(), **CLOSE)


@pytest.mark.parametrize("pairs, base, p, k", drawn_settings(6))
@pytest.mark.parametrize("scaling", SCALINGS)
def test_scalings_are_the_librarys(mathematics, scaling, pairs, base, p, k):
    d = 2 * pairs
    settings = {"d": max(d, 8), "base": base, "factor": 1 + p % 631 / 10, "original": 64 + k % 100_000}
    given = mathematics("const [name, settings] = given; return posenc.scalings[name](settings);", scaling, settings)
    expected = SCALINGS[scaling](*settings.values())
    np.testing.assert_allclose(given["omega"], expected.angular, rtol=1e-12)
    assert given.get("amplitude", 1) == pytest.approx(expected.attention_factor, rel=1e-14)


# The scenes


@pytest.fixture(scope="module")
def visit(reader, origin):
    page = reader.new_page()
    faults = watch(page, origin)
    page.goto(f"{origin}/story.html")
    settle(page)
    yield page, faults
    page.close()


@pytest.fixture
def story(visit):
    """The story as it is at first."""
    page, faults = visit
    page.evaluate(
        "document.querySelectorAll('pe-view').forEach((view) => view.show(views.kinds[view.getAttribute('kind')].settings))"
    )
    settle(page)
    yield page
    assert not faults, "\n".join(faults)


def scene(page, kind):
    return page.locator(f"pe-view[kind={kind}]")


def put(page, kind, **settings):
    scene(page, kind).evaluate("(view, settings) => view.show(settings)", settings)


def texts(page, kind, which="text"):
    return scene(page, kind).locator(f"svg {which}").all_text_contents()


def numbers(text):
    return [float(n.replace("−", "-").replace(",", "")) for n in re.findall(r"[−-]?\d[\d,]*\.?\d*", text)]


def words(page, kind):
    return scene(page, kind).locator(".pe-words").text_content()


def press(page, kind, name, key, times=1):
    scene(page, kind).locator(f"[name={name}]").focus()
    for _ in range(times):
        page.keyboard.press(key)
    settle(page)


def test_shuffling_moves_the_weights_and_changes_none(story):
    weights = np.asarray(jax.nn.softmax(WORDS @ WORDS.T / 2))
    for _ in range(4):
        scene(story, "shuffle").get_by_role("button", name="Shuffle").click()
        settle(story)
        order = scene(story, "shuffle").evaluate("(view) => view.settings.order")
        seats = scene(story, "shuffle").evaluate(
            """(view) => view.cells.map(({cell, text}) =>
              [...cell.style.transform.matchAll(/[\\d.]+/g)].map(Number).concat(Number(text.textContent)))"""
        )
        seats.sort(key=lambda seat: (round(seat[1]), seat[0]))
        seen = np.array([seat[2] for seat in seats]).reshape(5, 5)
        np.testing.assert_allclose(seen, weights[np.ix_(order, order)], atol=0.0051)
    assert sorted(order) == list(range(5)) and order != list(range(5))
    np.testing.assert_array_equal(seen[order.index(1)], seen[order.index(4)])


@pytest.mark.parametrize("p", [4, 7, 100, 127])
def test_three_ways_to_count(story, p):
    put(story, "count", p=p)
    share, *others = texts(story, "count", ".said")
    part = np.linalg.norm(DOG) / (np.linalg.norm(DOG) + np.linalg.norm([p] * 4))
    assert f"{100 * part:.0f}%" in share.replace("under 1%", "1%")
    assert numbers(others[0])[-1] == pytest.approx(1 / (p + 1), abs=0.00051)
    assert numbers(others[1]) == [(p ^ (p + 1)).bit_count()]


def test_bits_become_waves_and_the_jumps_go(story):
    p, periods = np.arange(32), 2.0 ** np.arange(1, 6)
    codes = {0: np.where(p[:, None] >> np.arange(5) & 1, 1, -1), 100: -np.sin(2 * np.pi * (p[:, None] + 0.5) / periods)}
    for rounded, code in codes.items():
        put(story, "waves", round=rounded)
        steps = np.linalg.norm(np.diff(code, axis=0), axis=1)
        assert numbers(words(story, "waves")) == pytest.approx([steps.min(), steps.max()], abs=0.051)
        heights = scene(story, "waves").locator(".sample").evaluate_all("(all) => all.map((e) => e.cy.baseVal.value)")
        drawn = np.array(heights).reshape(5, 32).T
        drawn = drawn - (drawn.max(0) + drawn.min(0)) / 2
        assert np.all(np.sign(drawn) == -np.sign(code))


def test_sines_differ_where_turns_stay(story):
    turn = np.degrees(3 * pe.geometric(8, 100).angular)
    seen = []
    for before in (0, 1, 50):
        put(story, "hands", before=before)
        labels = np.array([numbers(text)[0] for text in texts(story, "hands", "text.strong")]).reshape(4, 2).T
        sines = np.asarray(pe.sinusoidal(jnp.int32([before + 1, before + 4]), pe.geometric(8, 100)))[:, ::2]
        np.testing.assert_allclose(labels[0], sines[1] - sines[0], atol=0.0051)
        np.testing.assert_allclose(labels[1], turn, atol=0.5)
        seen.append(labels[0])
    assert np.abs(np.diff(seen, axis=0)).max() > 0.1


def rope_score(page):
    """The score that the view says, and the library's of its settings."""
    settings = scene(page, "rope").evaluate("(view) => view.settings")
    places = jnp.int32([settings["before"] + 1, settings["before"] + 1 + settings["apart"]])
    x = jnp.float32([settings["k"], settings["q"]])
    key, query = np.asarray(pe.rotary(x, places, pe.geometric(16).angular[1:2].astype(np.float32), head_axis=None))
    return numbers(words(page, "rope"))[2], float(key @ query)


def test_the_score_stands_still_and_then_moves(story):
    first, library = rope_score(story)
    assert first == pytest.approx(library, abs=6e-4)
    handles = scene(story, "rope").locator(".pe-handle")
    tips = [handle.get_attribute("transform") for handle in handles.all()]
    press(story, "rope", "before", "ArrowRight", 7)
    assert rope_score(story)[0] == first
    assert not {handle.get_attribute("transform") for handle in handles.all()} & set(tips)
    press(story, "rope", "apart", "ArrowRight", 4)
    after, library = rope_score(story)
    assert abs(after - first) > 0.1 and after == pytest.approx(library, abs=6e-4)


@pytest.mark.parametrize("name, which", [("k", 0), ("q", 1)])
def test_arrows_are_dragged_and_stepped(story, name, which):
    handle = scene(story, "rope").locator(".pe-handle").nth(which)
    handle.scroll_into_view_if_needed()
    before = rope_score(story)[0]
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    story.mouse.move(x, y)
    story.mouse.down()
    story.mouse.move(x - 40, y + 60, steps=4)
    story.mouse.up()
    settle(story)
    box = handle.bounding_box()
    assert (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) == pytest.approx((x - 40, y + 60), abs=1.5)
    dragged, library = rope_score(story)
    assert dragged != before and dragged == pytest.approx(library, abs=6e-4)

    settings = scene(story, "rope").evaluate("(view) => view.settings")
    handle.focus()
    angle = int(handle.get_attribute("aria-valuenow"))
    story.keyboard.press("ArrowRight")
    settle(story)
    assert (int(handle.get_attribute("aria-valuenow")) - angle) % 360 == pytest.approx(5, abs=1)
    story.keyboard.press("ArrowUp")
    settle(story)
    moved = scene(story, "rope").evaluate("(view) => view.settings")
    assert np.hypot(*moved[name]) == pytest.approx(min(np.hypot(*settings[name]) + 0.05, 1.4))
    for key, said in (("Home", -180), ("PageUp", -135), ("End", 180), ("PageDown", 135)):
        story.keyboard.press(key)
        settle(story)
        assert int(handle.get_attribute("aria-valuenow")) == said, key


def test_a_patch_goes_to_the_ends_of_the_picture(story):
    handle = scene(story, "grid").locator(".pe-handle")
    handle.focus()
    for key, said in (("End", [15, 15]), ("PageUp", [11, 15]), ("Home", [0, 0]), ("PageDown", [4, 0])):
        story.keyboard.press(key)
        settle(story)
        assert [settings_of(story, "grid")[name] for name in ("row", "column")] == said, key


# Chromium takes a finger's path as its own after some moves, unless it is told not to.
MOVES = 16


def swipe(page, x, y, across, down):
    """A finger goes from a point by a way in each of many moves; yields after each, with the finger where it says."""
    session = page.context.new_cdp_session(page)
    touch = lambda kind, *at: session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [*at]})  # noqa: E731
    touch("touchStart", {"x": x, "y": y})
    for move in range(1, MOVES + 1):
        finger = {"x": x + move * across, "y": y + move * down}
        touch("touchMove", finger)
        settle(page)
        yield finger["x"], finger["y"]
    touch("touchEnd")


def middle(handle):
    box = handle.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.fixture
def phone(browser, origin):
    """A page on a phone, by its name."""
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)

    def opened(name):
        page = context.new_page()
        page.goto(f"{origin}/{name}.html")
        settle(page)
        return page

    yield opened
    context.close()


@pytest.mark.parametrize("name, which", [("story", 0), ("story", 1), ("index", 1)])
def test_a_finger_drags_an_arrow_and_the_page_stays(phone, name, which):
    page = phone(name)
    handle = scene(page, "rope").locator(".pe-handle").nth(which)
    handle.scroll_into_view_if_needed()
    x, y = middle(handle)
    top = page.evaluate("scrollY")
    # Towards the middle of the plane and past it, so that the arrow's length is never its least or greatest for long.
    centre = scene(page, "rope").locator(".face").bounding_box()
    by = [(2 * (centre[s] + centre[e] / 2 - at)) / MOVES for s, e, at in (("x", "width", x), ("y", "height", y))]
    for move, finger in enumerate(swipe(page, x, y, *by)):
        if abs(move + 1 - MOVES / 2) > 2:  # elsewhere the finger is closer to the middle than the shortest arrow
            assert middle(handle) == pytest.approx(finger, abs=2), f"move {move + 1}"
    assert page.evaluate("scrollY") == top


def test_beside_the_arrows_a_finger_scrolls_the_page(phone):
    page = phone("story")
    view = scene(page, "rope")
    view.locator(".pe-handle").first.scroll_into_view_if_needed()
    face = view.locator(".face").bounding_box()
    before, top = settings_of(page, "rope"), page.evaluate("scrollY")
    for _ in swipe(page, face["x"] + 8, face["y"] + face["height"] - 8, 0, -8):
        pass
    assert page.evaluate("scrollY") > top + 50 and settings_of(page, "rope") == before


@pytest.mark.parametrize("scaling", ["none", "linear", "ntk", "yarn"])
def test_longer_texts_reach_new_angles(story, scaling):
    put(story, "stretch", factor=8, scaling=scaling)
    plain, slowed = pe.geometric(16).wavelengths, SCALINGS[scaling](16, 10_000, 8, 512).wavelengths
    new = np.clip(np.minimum(8 * 512 / slowed, 1) - np.minimum(512 / plain, 1), 0, 1)
    new = new[new > 1e-9]
    shown = [numbers(text)[0] for text in texts(story, "stretch", "text.strong")]
    assert shown == [round(100 * n) for n in new]
    assert {"none": 4, "linear": 0, "ntk": 3, "yarn": 0}[scaling] == len(new)
    assert scene(story, "stretch").locator(".unseen").count() == len(new)
    blurred = "neighbours blur" in words(story, "stretch")
    assert blurred == (scaling == "linear") == (slowed[0] > 1.01 * plain[0])


@pytest.mark.parametrize("count", ["one", "two"])
def test_a_dragged_patch_shows_its_likeness(story, count):
    put(story, "grid", count=count)
    view = scene(story, "grid").locator("svg")
    view.scroll_into_view_if_needed()
    view.click(position={"x": view.bounding_box()["width"] * 0.75, "y": view.bounding_box()["height"] * 0.3})
    settle(story)
    story.keyboard.press("ArrowDown")
    story.keyboard.press("ArrowLeft")
    settle(story)
    settings = scene(story, "grid").evaluate("(view) => view.settings")
    at = settings["row"] * 16 + settings["column"]
    cells = np.asarray(pe.grid_positions((16, 16)))
    encoding = pe.sinusoidal(np.arange(256), pe.geometric(64, 100))
    if count == "two":
        encoding = pe.sinusoidal(cells, pe.axial(64, 2, 100))
    alike = np.asarray(encoding) @ np.asarray(encoding)[at] / 32
    assert numbers(words(story, "grid")) == pytest.approx([alike[at + 1], alike[at + 16]], abs=0.0051)
    fills = scene(story, "grid").locator("rect[fill]").evaluate_all("(all) => all.map((e) => e.getAttribute('fill'))")
    shown = np.array([re.findall(r"\d+", fill) for fill in fills], int)
    assert np.abs(shown - 255 * colormaps["viridis"]((alike + 0.5) / 1.5)[:, :3]).max() < 20  # of ten stops
    if count == "two":  # a cross: nothing is as alike as what shares the row or the column
        shares = (cells == cells[at]).any(1)
        assert alike[shares].min() > 0.5


# Everyone can use them


def test_each_slider_goes_from_end_to_end(story):
    for kind in SCENES:
        for slider in scene(story, kind).locator("input[type=range]").all():
            label = story.locator(f"label[for={slider.get_attribute('id')}]")
            assert label.count() == 1 and label.text_content()
            for key in ("End", "Home"):
                slider.focus()
                story.keyboard.press(key)
                settle(story)
                assert slider.input_value() == slider.get_attribute("max" if key == "End" else "min")
                assert slider.get_attribute("aria-valuetext")


def settings_of(page, kind):
    return scene(page, kind).evaluate("(view) => structuredClone(view.settings)")


@pytest.mark.parametrize("kind", SCENES)
def test_each_scene_plays_and_pauses(story, kind):
    before = settings_of(story, kind)
    play = scene(story, kind).get_by_role("button", name="Play")
    story.wait_for_timeout(300)
    assert settings_of(story, kind) == before  # nothing moves by itself
    play.click()
    story.wait_for_function(
        "([kind, before]) => JSON.stringify(document.querySelector(`pe-view[kind=${kind}]`).settings) !== before",
        arg=[kind, story.evaluate("JSON.stringify", before)],
    )
    scene(story, kind).get_by_role("button", name="Pause").click()
    settle(story)
    paused = settings_of(story, kind)
    assert paused != before and play.is_visible()
    story.wait_for_timeout(300)
    assert settings_of(story, kind) == paused


def test_without_motion_a_press_is_a_step_and_the_end_leads_to_the_start(still_reader, origin):
    page = still_reader.new_page()
    page.goto(f"{origin}/story.html")
    settle(page)
    for kind, name, last, first in (("count", "p", 127, 4), ("stretch", "factor", 8, 1), ("rope", "before", 100, 0)):
        step = scene(page, kind).get_by_role("button", name="Next step")
        put(page, kind, **{name: last})
        seen = []
        for _ in range(2):
            step.click()
            settle(page)
            seen.append(settings_of(page, kind)[name])
        assert seen == [first, first + (0.5 if kind == "stretch" else 1)]
        page.wait_for_timeout(300)
        assert settings_of(page, kind)[name] == seen[1]
    put(page, "grid", row=15, column=15)
    scene(page, "grid").get_by_role("button", name="Next step").click()
    settle(page)
    assert [settings_of(page, "grid")[name] for name in ("row", "column")] == [0, 0]
    page.close()


STATES = {
    "shuffle": {"order": [4, 2, 0, 1, 3]},
    "count": {"p": 100},
    "waves": {"round": 40},
    "hands": {"before": 33},
    "rope": {"before": 37, "apart": 5, "q": [-0.5, 0.875], "k": [0.3, 0]},
    "stretch": {"factor": 4.5, "scaling": "yarn"},
    "grid": {"row": 3, "column": 11, "count": "two"},
}


@pytest.mark.parametrize("where", ["http", "file"])
def test_a_link_leads_to_each_state(story, page, faults, origin, where):
    start = f"{origin if where == 'http' else SITE.as_uri()}/story.html"
    for kind, state in STATES.items():
        link = scene(story, kind).get_by_role("link", name="Link to this")
        assert link.get_attribute("href") == f"#view={kind}"  # as at first
        put(story, kind, **state)
        page.goto("about:blank")
        page.goto(start + link.get_attribute("href"))
        settle(page)
        assert settings_of(page, kind) == settings_of(story, kind), kind
        box = scene(page, kind).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= WIDE["height"], f"{kind} is not in sight: {box}"
        others = [k for k in SCENES if k != kind]
        assert all(settings_of(page, k) == page.evaluate("(k) => views.kinds[k].settings", k) for k in others)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "said, shown",
    [
        ("view=rope&before=900&apart=-3&q=9,9&k=1", {"before": 100, "apart": 0, "q": [1.1, -0.4], "k": [0.02, 1]}),
        ("view=rope&before=&apart=nonsense&constructor=1", {"before": 0, "apart": 3}),
        ("view=stretch&factor=2.2&scaling=toString", {"factor": 2, "scaling": "none"}),
        ("view=grid&row=99&column=-1&count=three", {"row": 15, "column": 3, "count": "one"}),
        ("view=shuffle&order=0,1,2,3,3", {"order": [0, 1, 2, 3, 4]}),
        ("view=none&p=5", {}),
    ],
)
def test_what_no_control_can_say_is_not_taken_from_an_address(page, faults, origin, said, shown):
    page.goto(f"{origin}/story.html#{said}")
    settle(page)
    kind = said.split("&")[0].removeprefix("view=")
    found = settings_of(page, kind) if shown else {}
    assert {name: found[name] for name in shown} == shown and "constructor" not in found
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("width", [360, 768, 1280, 1920])
def test_no_text_leaves_its_picture(story, width):
    story.set_viewport_size({"width": width, "height": 800})
    settle(story)
    for kind in SCENES:
        outside = scene(story, kind).evaluate(
            """(view) => {
              const {left, right, top, bottom} = view.getBoundingClientRect();
              return [...view.querySelectorAll("svg text")].filter((text) => {
                const box = text.getBoundingClientRect();
                return box.left < left || box.right > right || box.top < top || box.bottom > bottom;
              }).map((text) => text.textContent);
            }"""
        )
        assert not outside, f"{kind} at {width} px"
    story.set_viewport_size(WIDE)
    settle(story)


def test_on_a_phone_a_view_and_its_controls_are_seen_together(story):
    show(story, "light", PHONE)
    heights = {kind: scene(story, kind).bounding_box()["height"] for kind in SCENES}
    show(story, "light", WIDE)
    assert max(heights.values()) <= PHONE["height"] - 48, heights  # below the header


def test_without_motion_words_jump_to_their_seats(still_reader, origin):
    page = still_reader.new_page()
    page.goto(f"{origin}/story.html")
    cell = page.locator(".pe-shuffle .moves").first
    assert cell.evaluate("(e) => getComputedStyle(e).transitionDuration") == "0s"
    page.close()


def test_without_scripts_the_story_reads(browser):
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"{SITE.as_uri()}/story.html")
    for kind in SCENES:
        picture = scene(page, kind).locator("img").first
        assert picture.is_visible() and len(picture.get_attribute("alt")) > 100
    page.close()


def test_an_unknown_kind_keeps_its_picture_and_attributes_are_settings(page, faults, origin):
    page.goto(f"{origin}/story.html")
    kept, settings = page.evaluate(
        """() => {
          const [unknown, rope] = ["<pe-view kind='none'>as it was</pe-view>", "<pe-view kind='rope' before='5' q='0.5,-1'></pe-view>"]
            .map((html) => {
              const box = document.querySelector("article").appendChild(document.createElement("div"));
              box.innerHTML = html;
              return box.firstChild;
            });
          return [unknown.textContent, rope.settings];
        }"""
    )
    assert kept == "as it was"
    assert [settings[name] for name in ("before", "apart", "q")] == [5, 3, [0.5, -1]]
    assert not faults, "\n".join(faults)
