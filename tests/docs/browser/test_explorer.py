"""The explorer: its controls move its pictures, and its numbers are those of the library."""

import base64
import io
import itertools
import math
import re

import jax.numpy as jnp
import numpy as np
import pytest
from visits import LIBRARY, SITE, WIDE, settle, show, watch

import posenc_jax as pe

VISITS = itertools.count()
HEATMAP, CLOCKS, SIMILARITY, SPECTRUM = "heatmap", "clocks", "similarity", "spectrum"
# What each slider moves; what is not named stays as it is.
MOVED = {
    "d": {HEATMAP, CLOCKS, SIMILARITY, SPECTRUM},
    "base": {HEATMAP, CLOCKS, SIMILARITY, SPECTRUM},
    "length": {HEATMAP, SIMILARITY},
    "p": {HEATMAP, CLOCKS},
    "k": {HEATMAP, CLOCKS, SIMILARITY},
    "factor": {SPECTRUM},
    "original": {SPECTRUM},
}
ENCODINGS = [(64, 10_000, 10, 5), (8, 10_000, 2_000_000_000, -64), (128, 500_000, 123_456_789, 64), (4, 10, 0, 1)]
SCALINGS = [(64, 10_000, 8, 8192), (128, 500_000, 32, 4096), (8, 100, 1, 512), (128, 10_000_000, 64, 131_072)]


@pytest.fixture(scope="module")
def visit(reader, origin):
    """One page for all, and what goes wrong in it."""
    page = reader.new_page()
    faults = watch(page, origin)
    page.goto(f"{origin}/explorer.html")
    yield page, faults
    page.close()


@pytest.fixture
def explorer(visit):
    """The explorer as it is at first."""
    page, faults = visit
    put(page)
    yield page
    assert not faults, "\n".join(faults)


def put(page, **settings):
    """Settings by the address, which is new each time, and nothing else is otherwise than at first."""
    settings["visit"] = next(VISITS)
    page.evaluate("(hash) => { location.hash = hash; }", "&".join(f"{k}={v}" for k, v in settings.items()))
    settle(page)


def text(page, name):
    return page.locator(f"#explorer-{name}").text_content()


def words(page, view):
    return page.locator(f"#explorer-{view} .pe-words").text_content()


def slider(page, name):
    return page.locator(f".explorer input[type=range][name={name}]")


def shown(page, *names):
    """The values beside sliders."""
    return [page.locator(f".pe-control:has([name={name}]) output").text_content() for name in names]


def number(text):
    return float(text.replace("−", "-").replace(",", ""))


def pictures(page):
    return page.evaluate(
        """() => Object.fromEntries(["heatmap", "clocks", "similarity", "spectrum"].map((name) => {
          const e = document.querySelector(`#explorer-${name} > :is(canvas, svg)`);
          return [name, [e.toDataURL ? e.toDataURL() : e.innerHTML, e.getAttribute("aria-label")]];
        }))"""
    )


def curve(page, name, line):
    """The points of a line, (n, 2) in pixels."""
    drawn = page.locator(f"#explorer-{name} path.{line}").get_attribute("d")
    return np.array([point.split() for point in re.split("[ML]", drawn)[1:]], float)


def assert_shows(pixels, values):
    """Pixels are a linear picture of the values, larger ones higher up."""
    slope, start = np.polyfit(values, pixels, 1)
    assert slope < 0
    np.testing.assert_allclose(pixels, slope * np.asarray(values) + start, atol=0.03)


@pytest.mark.parametrize("name", MOVED)
def test_a_slider_moves_its_pictures(explorer, name):
    before, value = pictures(explorer), shown(explorer, name)
    slider(explorer, name).focus()
    explorer.keyboard.press("ArrowRight")
    settle(explorer)
    after = pictures(explorer)
    assert shown(explorer, name) != value
    assert [slider(explorer, name).get_attribute("aria-valuetext")] == shown(explorer, name)
    for what in (0, 1):  # the picture, and what is said of it
        changed = {view for view in before if before[view][what] != after[view][what]}
        assert changed == MOVED[name], f"{name} changes the {('pictures', 'words')[what]} of {changed}"


def test_every_slider_has_a_label_and_reaches_its_ends(explorer):
    for name in MOVED:
        identity = slider(explorer, name).get_attribute("id")
        assert explorer.locator(f"label[for={identity}]").count() == 1
        slider(explorer, name).focus()
        for key in ("Home", "End"):
            explorer.keyboard.press(key)
            settle(explorer)
    values = dict(zip(MOVED, shown(explorer, *MOVED), strict=True))
    assert values == {
        **{"d": "128", "base": "10,000,000", "length": "512", "p": "2,147,483,647"},
        **{"k": "64", "factor": "64", "original": "131,072"},
    }


@pytest.mark.parametrize("width", [360, 390, 720])
def test_the_longest_numbers_fit_their_controls(explorer, width):
    explorer.set_viewport_size({"width": width, "height": 740})
    put(explorer, d=128, base=10_000_000, length=512, p=2_147_483_647, k=-64)
    wide = explorer.locator(".pe-control").evaluate_all(
        "(all) => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent)"
    )
    explorer.set_viewport_size(WIDE)
    assert not wide


@pytest.mark.parametrize("d, base, p, k", ENCODINGS)
def test_numbers_are_the_librarys(explorer, d, base, p, k):
    put(explorer, d=d, base=base, p=p, k=k)
    cells = explorer.locator("#explorer-numbers td").all_text_contents()
    here, moved, there, there32 = np.array([number(cell) for cell in cells]).reshape(d, 4).T
    f = pe.geometric(d, base)
    f32 = f.with_precision("float32")
    at, after = jnp.int32(p), jnp.int32(p + k)
    close = {"rtol": 0, "atol": 7e-7}  # the sixth decimal shown
    np.testing.assert_allclose(here, pe.sinusoidal(at, f), **close)
    np.testing.assert_allclose(there, pe.sinusoidal(after, f), **close)
    np.testing.assert_allclose(moved, pe.shift(pe.sinusoidal(at, f), k, f), **close)
    np.testing.assert_allclose(there32, pe.sinusoidal(after, f32), **close)

    error = np.abs(pe.sinusoidal(at, f32) - pe.sinusoidal(at, f)).max()
    assert number(text(explorer, "error32")) == pytest.approx(error, rel=0.01, abs=2e-7)
    broken = np.abs(pe.shift(pe.sinusoidal(at, f32), k, f32) - pe.sinusoidal(after, f32)).max()
    assert number(text(explorer, "difference32")) == pytest.approx(broken, rel=0.01, abs=1e-6)
    assert number(text(explorer, "difference")) < 1e-14


@pytest.mark.parametrize("d, base, p, k", ENCODINGS)
def test_turns_are_the_librarys(explorer, d, base, p, k):
    """The frequencies, to a few units of 2^-128 turn."""
    turns = explorer.evaluate("([d, base]) => posenc.geometric(d, base).map(String)", [d, base])
    exact = pe.geometric(d, base).cycles
    assert max(abs(int(a) - b) for a, b in zip(turns, exact, strict=True)) <= 4


@pytest.mark.parametrize("d, base, p, k", ENCODINGS)
def test_hands_point_where_the_encoding_says(explorer, d, base, p, k):
    put(explorer, d=d, base=base, p=p, k=k)
    for hand, position in (("first", p), ("second", p + k)):
        lines = explorer.locator(f"#explorer-clocks path.{hand}").evaluate_all(
            "(all) => all.map((hand) => hand.getAttribute('d').match(/L(.*)/)[1].split(' ').map(Number))"
        )
        tips = np.array(lines) / np.hypot(*np.array(lines[0]))
        waves = np.asarray(pe.sinusoidal(jnp.int32(position), pe.geometric(d, base))).reshape(-1, 2)
        np.testing.assert_allclose(tips, waves * [1, -1], atol=2e-3)


@pytest.mark.parametrize("arithmetic", ["exact", "float32"])
@pytest.mark.parametrize("p", [3, 2_000_000_000])
def test_the_heatmap_shows_the_table(explorer, p, arithmetic):
    """The colour in the middle of each cell is red above zero, blue below."""
    mpl_image = pytest.importorskip("matplotlib.image")
    d, length = 8, 16
    put(explorer, d=d, length=length, p=p, k=0, arithmetic=arithmetic)
    url = explorer.evaluate("document.querySelector('#explorer-heatmap canvas').toDataURL()")
    image = mpl_image.imread(io.BytesIO(base64.b64decode(url.split(",")[1])))
    opaque = image[..., 3] == 1  # the table; round it is only text
    rows, columns = (np.flatnonzero(opaque.mean(axis) > 0.5)[[0, -1]] + [0, 1] for axis in (1, 0))
    y, x = (np.linspace(a, b, 2 * n + 1)[1::2].astype(int) for (a, b), n in ((rows, length), (columns, d)))
    seen = image[np.ix_(y, x)]
    first = 0 if p < length else p - length // 2
    f = pe.geometric(d).with_precision(arithmetic)
    values = np.asarray(pe.sinusoidal(jnp.arange(length, dtype=jnp.int32) + jnp.int32(first), f))
    redness = seen[..., 0] - seen[..., 2]
    clear = (0.1 < np.abs(values)) & (np.abs(values) < 0.95)
    assert np.all(np.sign(redness[clear]) == np.sign(values[clear]))
    near_zero = np.abs(values) < 0.02
    assert np.all(np.abs(redness[near_zero]) < 0.1)


@pytest.mark.parametrize("d, base, length, k", [(64, 10_000, 128, 5), (4, 10, 512, -7), (128, 10_000_000, 16, 40)])
def test_the_curve_is_the_similarity(explorer, d, base, length, k):
    put(explorer, d=d, base=base, length=length, k=k)
    f, points = pe.geometric(d, base), curve(explorer, SIMILARITY, "first")
    offsets = np.arange(max(length, abs(k)) + 1)
    assert_shows(points[:, 1], np.asarray(pe.offset_similarity(jnp.asarray(offsets, jnp.int32), f)))
    np.testing.assert_allclose(np.diff(points[:, 0]), np.diff(points[:, 0]).mean(), atol=0.02)
    point = explorer.locator("#explorer-similarity .point")
    drawn = [float(point.get_attribute(name)) for name in ("cx", "cy")]
    np.testing.assert_allclose(drawn, points[abs(k)], atol=0.02)
    total = number(words(explorer, SIMILARITY).split(" = ")[1])
    assert total == pytest.approx(float(pe.offset_similarity(jnp.int32(k), f)), abs=1e-5)


@pytest.mark.parametrize("d, base, factor, original", SCALINGS)
@pytest.mark.parametrize("scaling", LIBRARY)
def test_spectra_are_the_librarys(explorer, scaling, d, base, factor, original):
    put(explorer, d=d, base=base, scaling=scaling, factor=factor, original=original)
    settings = {"d": d, "base": base, "factor": factor, "original": original}
    given = explorer.evaluate("([name, settings]) => posenc.scalings[name](settings)", [scaling, settings])
    expected = LIBRARY[scaling](d, base, factor, original)
    np.testing.assert_allclose(given["omega"], expected.angular, rtol=1e-12)
    assert given.get("amplitude", 1) == pytest.approx(expected.attention_factor, rel=1e-14)

    plain = pe.geometric(d, base)
    turning = np.isfinite(expected.wavelengths)
    unscaled, scaled = (curve(explorer, SPECTRUM, line)[:, 1] for line in ("first", "second"))
    waves = np.log10(np.concatenate([plain.wavelengths, expected.wavelengths[turning]]))
    assert_shows(np.concatenate([unscaled, scaled]), waves)
    slowest = f"{round(expected.wavelengths[turning].max()):,}"
    said = words(explorer, SPECTRUM)
    assert f"takes {slowest} positions a turn" in said
    within = int((expected.wavelengths <= original * (1 + 1e-12)).sum())
    assert f"{within} of {d // 2} pairs make a full turn" in said


@pytest.mark.parametrize("scaling, d, base, original", [("proportional", 4, 10_000, 512)])
def test_what_the_library_refuses_is_said(explorer, scaling, d, base, original):
    with pytest.raises(ValueError):
        LIBRARY[scaling](d, base, 8, original)
    put(explorer, scaling=scaling, d=d, base=base, original=original)
    assert "leaves none" in words(explorer, SPECTRUM)
    assert explorer.locator("#explorer-spectrum circle.dot").count() == 0


def test_a_position_can_be_typed(explorer):
    explorer.locator("#explorer-p-number").fill("2000000000")
    settle(explorer)
    assert shown(explorer, "p") == ["2,000,000,000"]
    assert number(text(explorer, "error32")) > 0.5
    label = explorer.locator("#explorer-heatmap canvas").get_attribute("aria-label")
    assert "p at 2,000,000,000, p + k at 2,000,000,005" in label
    explorer.wait_for_function("document.querySelector('#explorer-status').textContent.includes('2,000,000,000')")
    assert explorer.evaluate("location.hash") == "#p=2000000000"


def test_things_to_try(explorer):
    """Each does something, and none leaves the explorer with an error."""
    for button in explorer.locator(".explorer-tries button").all():
        before = pictures(explorer)
        button.click()
        settle(explorer)
        assert pictures(explorer) != before, button.text_content()


def test_play_moves_on_and_pauses(explorer):
    play = explorer.locator("#explorer-play")
    assert play.text_content() == "Play"  # nothing moves by itself
    before = pictures(explorer)
    explorer.wait_for_timeout(600)
    assert pictures(explorer) == before
    play.click()
    explorer.wait_for_function("document.getElementById('explorer-clocks').settings.p >= 12")
    assert play.text_content() == "Pause"
    play.click()
    settle(explorer)
    stopped = pictures(explorer)
    assert play.text_content() == "Play" and stopped[CLOCKS] != before[CLOCKS]
    explorer.wait_for_timeout(600)
    assert pictures(explorer) == stopped


def test_without_motion_a_press_is_a_step(still_reader, origin):
    page = still_reader.new_page()
    page.goto(f"{origin}/explorer.html")
    settle(page)
    play = page.locator("#explorer-play")
    assert play.text_content() == "Next position"
    play.click()
    settle(page)
    assert shown(page, "p") == ["11"]
    before = pictures(page)
    page.wait_for_timeout(600)
    assert pictures(page) == before
    play.click()
    settle(page)
    assert shown(page, "p") == ["12"]
    page.close()


def test_the_dark_scheme_is_drawn_anew(explorer):
    light = pictures(explorer)[HEATMAP][0]
    show(explorer, "dark", WIDE)
    dark = pictures(explorer)[HEATMAP][0]
    show(explorer, "light", WIDE)
    assert dark != light and pictures(explorer)[HEATMAP][0] == light


@pytest.mark.parametrize("where", ["http", "file"])
def test_the_address_keeps_the_settings(page, faults, origin, where):
    start = origin if where == "http" else SITE.as_uri()
    page.goto(f"{start}/explorer.html#d=16&base=100&p=300000&k=-3&scaling=ntk&factor=4")
    settle(page)
    assert shown(page, "d", "base", "p", "k", "factor") == ["16", "100", "300,000", "−3", "4"]
    assert page.locator("#explorer-scaling input:checked").input_value() == "ntk"
    slider(page, "k").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash.includes('k=-2')")
    page.goto(f"{start}/explorer.html#d=7000&p=nonsense&base=-1&scaling=none")
    settle(page)
    assert shown(page, "d", "base", "p") == ["128", "10", "10"]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("where", ["http", "file"])
@pytest.mark.parametrize(
    "name, view, settings",
    [
        ("rope", CLOCKS, {"d": 128, "p": 2, "k": 3}),
        ("rotations", SIMILARITY, {"d": 16, "length": 20}),
        ("contexts", SPECTRUM, {"d": 128, "scaling": "yarn", "factor": 8, "original": 4096}),
    ],
)
def test_pages_open_their_figure_in_the_explorer(page, faults, origin, where, name, view, settings):
    page.goto(f"{origin if where == 'http' else SITE.as_uri()}/{name}.html")
    page.get_by_role("link", name=re.compile("^Open .*in the explorer")).click()
    page.wait_for_load_state("load")
    settle(page)
    shown_there = page.evaluate("(view) => document.getElementById(`explorer-${view}`).settings", view)
    assert {key: shown_there[key] for key in settings} == settings
    box = page.locator(f"#explorer-{view}").bounding_box()
    assert 0 < box["y"] < WIDE["height"], f"{view} is not in sight"
    # Once something moves, the address alone says everything.
    slider(page, "d").focus()
    page.keyboard.press("Home")
    page.wait_for_function("location.hash.includes('d=4') && !location.search")
    page.reload()
    settle(page)
    assert shown(page, "d") == ["4"]
    assert not faults, "\n".join(faults)


def test_canvases_are_sharp(browser, origin):
    page = browser.new_page(device_scale_factor=3, viewport={"width": 360, "height": 740})
    page.goto(f"{origin}/explorer.html")
    settle(page)
    wide, drawn = page.evaluate("(({clientWidth, width}) => [clientWidth, width])(document.querySelector('canvas'))")
    assert math.isclose(drawn, 3 * wide, abs_tol=1)
    page.close()


def test_without_scripts_the_page_says_so(browser, origin):
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"{origin}/explorer.html")
    assert page.locator(".explorer-noscript").is_visible()
    assert not page.locator(".explorer").is_visible()
    page.close()
