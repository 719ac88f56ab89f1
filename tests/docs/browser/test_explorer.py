"""The explorer: its controls move its pictures, its numbers are those of the library, and its address keeps them."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_drawings import colours, drawn, numbers, picture, said, tips_of
from visits import WIDE, settle, show

import posenc_jax as pe

# The corners of a path.
POINTS = """e.getAttribute("d").slice(1).split("L").map((point) => point.split(" ").map(Number))"""
VIEWS = ("table", "clocks", "similarity", "spectrum")
# What each slider moves; what is not named stays as it is.
MOVED = {
    "d": "table clocks similarity spectrum",
    "base": "table clocks similarity spectrum",
    "length": "table similarity",
    "p": "table clocks",
    "k": "table clocks similarity",
    "factor": "spectrum",
    "original": "spectrum",
}


@pytest.fixture
def explorer(page, origin):
    page.goto(f"{origin}/explorer.html")
    settle(page)
    return page


def put(page, **settings):
    """Settings by the address."""
    page.evaluate("(hash) => { location.hash = hash; }", "&".join(f"{k}={v}" for k, v in settings.items()))
    settle(page)


def slider(page, name):
    return page.locator(f".explorer input[type=range][name={name}]")


def shown(page, *names):
    """The values beside sliders."""
    return [page.locator(f".pe-control:has([name={name}]) output").text_content() for name in names]


def pictures(page):
    image = "document.querySelector('pe-view canvas').toDataURL()"
    return {view: [*picture(page, view), *([page.evaluate(image)] if view == "table" else [])] for view in VIEWS}


def moved(before, after):
    return {view for view in VIEWS if before[view] != after[view]}


def assert_shows(pixels, values):
    """Pixels are a linear picture of the values, larger ones higher up."""
    slope, start = np.polyfit(values, pixels, 1)
    assert slope < 0
    np.testing.assert_allclose(pixels, slope * np.asarray(values) + start, atol=0.03)


@pytest.mark.parametrize("name", MOVED)
def test_a_slider_moves_its_pictures_and_reaches_its_ends(explorer, name):
    control, before = slider(explorer, name), pictures(explorer)
    assert explorer.locator(f"label[for={control.get_attribute('id')}]").count() == 1
    control.focus()
    for key in ("ArrowRight", "Home", "End"):
        explorer.keyboard.press(key)
        settle(explorer)
        assert moved(before, before := pictures(explorer)) == {*MOVED[name].split()}, key
    assert control.input_value() == control.get_attribute("max")
    assert [control.get_attribute("aria-valuetext")] == shown(explorer, name)


def test_choices_and_things_to_try_move_pictures(explorer):
    put(explorer, p=2_000_000_000)
    controls = explorer.locator(".explorer fieldset input:not(:checked), .explorer-tries button")
    for control in controls.element_handles():
        before = pictures(explorer)
        control.click()
        settle(explorer)
        assert moved(before, pictures(explorer)), control


def test_a_position_can_be_typed(explorer):
    explorer.locator("#explorer-p-number").fill("2000000000")
    explorer.wait_for_function("document.querySelector('#explorer-status').textContent.includes('2,000,000,000')")
    assert shown(explorer, "p") == ["2,000,000,000"] and explorer.evaluate("location.hash") == "#p=2000000000"


def test_it_plays_and_pauses(explorer):
    play, before = explorer.locator("#explorer-play"), pictures(explorer)
    play.click()
    explorer.wait_for_function("document.getElementById('explorer-clocks').settings.p >= 11")
    play.click()
    settle(explorer)
    assert "clocks" in moved(before, before := pictures(explorer))
    explorer.wait_for_timeout(300)
    assert not moved(before, pictures(explorer))


def test_the_dark_scheme_is_drawn_anew(explorer):
    light = pictures(explorer)
    show(explorer, "dark", WIDE)
    dark = pictures(explorer)
    show(explorer, "light", WIDE)
    assert "table" in moved(light, dark) and not moved(light, pictures(explorer))


def test_the_address_keeps_the_settings(page, origin):
    page.goto(f"{origin}/explorer.html#d=16&base=100&p=300000&k=-3&scaling=ntk&factor=4")
    settle(page)
    assert shown(page, "d", "base", "p", "k", "factor") == ["16", "100", "300,000", "−3", "4"]
    assert page.locator("#explorer-scaling input:checked").input_value() == "ntk"
    slider(page, "k").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash.includes('k=-2')")
    page.goto(f"{origin}/explorer.html#d=7000&p=nonsense&base=-1&scaling=none")
    settle(page)
    assert shown(page, "d", "base", "p") == ["128", "10", "10"]


# What is drawn


@pytest.mark.parametrize(("d", "base", "p", "k"), [(8, 10_000, 2_000_000_000, -64), (128, 500_000, 123_456_789, 64)])
def test_numbers_and_hands_are_the_librarys(explorer, d, base, p, k):
    put(explorer, d=d, base=base, p=p, k=k)
    f, at, after = pe.geometric(d, base), jnp.int32(p), jnp.int32(p + k)
    f32, first, second = f.with_precision("float32"), pe.sinusoidal(at, f), pe.sinusoidal(after, f)
    cells = [numbers(cell) for cell in explorer.locator("#explorer-numbers td").all_text_contents()]
    want = np.stack([first, second, second, pe.sinusoidal(after, f32)], 1)
    np.testing.assert_allclose(np.reshape(cells, (d, 4)), want, rtol=0, atol=7e-7)
    for hand, wave in (("first", first), ("second", second)):
        tips = tips_of(explorer, "clocks", f".{hand}")
        np.testing.assert_allclose(tips, np.asarray(wave).reshape(-1, 2), atol=2e-3)


@pytest.mark.parametrize(("arithmetic", "p", "first"), [("exact", 3, 0), ("float32", 2_000_000_000, 1_999_999_992)])
def test_the_table_is_the_librarys(explorer, arithmetic, p, first):
    put(explorer, d=8, length=16, p=p, arithmetic=arithmetic)
    pixels = explorer.locator("#explorer-heatmap").evaluate(
        """({raster}) => {
          const copy = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
          copy.drawImage(raster, 0, 0);
          return [...copy.getImageData(0, 0, 8, 16).data];
        }"""
    )
    values = pe.sinusoidal(jnp.arange(16) + first, pe.geometric(8).with_precision(arithmetic))
    want = colours("RdBu_r", np.asarray(values) / 2 + 0.5)
    np.testing.assert_allclose(np.reshape(pixels, (16, 8, 4))[..., :3], want, atol=4)


def test_the_curve_is_the_similarity(explorer):
    put(explorer, d=4, base=10, length=64, k=-7)
    want = np.asarray(pe.offset_similarity(jnp.arange(65), pe.geometric(4, 10)))
    assert_shows(np.transpose(drawn(explorer, "similarity", ".first", POINTS)[0])[1], want)
    assert said(explorer, "similarity")[0] == pytest.approx(float(want[7]), abs=1e-5)


def test_spectra_are_the_librarys(explorer):
    put(explorer, d=128, base=500_000, scaling="yarn", factor=32, original=4096)
    plain, scaled = pe.geometric(128, 500_000).wavelengths, pe.yarn(128, 500_000, 32, 4096).wavelengths
    (first,), (second,) = (drawn(explorer, "spectrum", f"path.{line}", POINTS) for line in ("first", "second"))
    assert_shows(np.transpose([*first, *second])[1], np.log10([*plain, *scaled]))
    assert said(explorer, "spectrum")[0] == round(scaled.max())
