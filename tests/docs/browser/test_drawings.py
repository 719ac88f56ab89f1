"""What the views draw, as Chromium lays it out, beside the values that it stands for, in every state of their controls.

Expected values come from the spectra of the library and from NumPy, never from the scripts that draw.
"""

import re
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib import colormaps
from visits import LIBRARY, settle, watch

import posenc_jax as pe

TAU = 2 * np.pi
DOG = [0.2, 1.8, 1, 0]
WORDS = np.array([[1.4, 0.2, 0, 0.4], DOG, [0, 1, 2, 0.6], [1.2, 0, 0.4, 1], DOG])
ROUNDED = 2e-3  # radians: paths are written in hundredths of a pixel

# Reads pictures; paths as they are written.
READ = """globalThis.read = (() => {
  const d = (path) => path?.getAttribute("d") ?? null;
  const all = (root, which, of) => [...root.querySelectorAll(which)].map(of);
  const number = (...names) => (e) => names.map((name) => Number(e.getAttribute(name)));
  const text = (e) => e.textContent;
  const label = (e) => [...number("x", "y")(e), e.textContent];
  // The labels of both axes of a frame, each with its pixel; those of y stand beside a line of the grid.
  const axes = (root) => ({
    x: all(root, "text:not([class]), text[class='']", (e) => [Number(e.getAttribute("x")), e.textContent]).slice(0, -1),
    y: all(root, "text.end", (e) => [Number(d(e.previousElementSibling).match(/ (.*)H/)[1]), e.textContent]),
  });
  return {d, all, number, text, label, axes};
})();
// All positions of a control: a slider, or the buttons of a choice.
globalThis.positions = (form) => {
  const sliders = [...form.querySelectorAll("input[type=range]")].map((input) => {
    const [low, high, step] = [input.min, input.max, input.step].map(Number);
    return Array.from({length: Math.round((high - low) / step) + 1}, (_, i) => () => {
      input.value = low + i * step;
      input.dispatchEvent(new Event("input", {bubbles: true}));
    });
  });
  const choices = [...form.querySelectorAll("fieldset")].map((choice) =>
    [...choice.querySelectorAll("input")].map((input) => () => input.click()));
  return [...sliders, ...choices];
};
// What is drawn in each state that the controls of a view can be in.
globalThis.everyState = (kind, of) => {
  const view = document.querySelector(`pe-view[kind=${kind}]`);
  let states = [[]];
  for (const control of positions(view)) states = states.flatMap((state) => control.map((put) => [...state, put]));
  return states.map((state) => {
    for (const put of state) put();
    view.draw();
    return {settings: {...view.settings}, ...of(view)};
  });
};"""


@pytest.fixture(scope="module")
def visit(reader, origin):
    page = reader.new_page()
    faults = watch(page, origin)
    page.goto(f"{origin}/story.html")
    page.add_script_tag(content=READ)
    settle(page)
    yield page, faults
    page.close()


@pytest.fixture
def every_state(visit):
    """What a function in JavaScript reads of a scene of the story, in every state of its controls."""
    page, faults = visit
    page.evaluate(
        "document.querySelectorAll('pe-view').forEach((v) => v.show(views.kinds[v.getAttribute('kind')].settings))"
    )
    yield lambda kind, of: page.evaluate(f"everyState('{kind}', {of})")
    assert not faults, "\n".join(faults)


def column(states, name):
    """One thing that was read, of all states."""
    return np.array([state[name] for state in states], float)


def setting(states, name):
    return column([state["settings"] for state in states], name)


def numbers(text):
    return [float(n.replace("−", "-").replace(",", "")) for n in re.findall(r"[−-]?\d[\d,]*\.?\d*(?:e[+−-]?\d+)?", text)]


def value(label):
    """The number that a label says; powers of ten may be written as such."""
    if label.startswith("10") and label[-1] in "⁰¹²³⁴⁵⁶⁷⁸⁹":
        return 10.0 ** int("".join(str("⁰¹²³⁴⁵⁶⁷⁸⁹".index(digit)) for digit in label[2:]))
    (number,) = numbers(label)
    return number


def points(d):
    """The corners of a line, in pixels."""
    return np.array([corner.split() for corner in re.split("[ML]", d)[1:]], float)


def rgb(fills):
    return np.array([re.findall(r"\d+", fill) for fill in fills], float)


def colours(name, shares):
    return 255 * colormaps[name](np.asarray(shares))[..., :3]


def angles(points, *, clock=False):
    """Of points [right, up]: anticlockwise from the right, or clockwise from twelve."""
    right, up = np.moveaxis(np.asarray(points, float), -1, 0)
    return np.arctan2(right, up) if clock else np.arctan2(up, right)


class Arc(NamedTuple):
    """What a path draws about its origin: its first and last point, [right, up], and how far it goes, anticlockwise."""

    start: np.ndarray
    end: np.ndarray
    opening: float


def quarters(x0, y0, r, large, sweep, x, y):
    """Five points of an arc, in pixels, as "Elliptical arc implementation notes" of SVG says (F.6.5 and F.6.6)."""
    half = np.array([x0 - x, y0 - y]) / 2
    length = np.hypot(*half)
    if not length:
        return np.array([[x, y]] * 5)
    r = max(r, length)
    centre = np.sqrt(r**2 / length**2 - 1) * (1 if large != sweep else -1) * half[::-1] * [1, -1]
    first, last = (np.arctan2(*(end - centre)[::-1]) for end in (half, -half))
    by = (last - first) % TAU if sweep else -((first - last) % TAU)
    angle = first + by * np.linspace(0, 1, 5)
    return np.array([x0 + x, y0 + y]) / 2 + centre + r * np.stack([np.cos(angle), np.sin(angle)], -1)


def arc(d):
    """The arcs of a path, or of a wedge from the origin."""
    x, y = map(float, re.match(r"M(?:0 0L)?(\S+) ([^\sA]+)A", d).groups())
    points, by = [[x, y]], 0.0
    for r, large, sweep, *end in re.findall(r"A(\S+) \S+ 0 ([01]) ([01]) (\S+) ([^\sAZ]+)", d):
        points = quarters(*points[-1], float(r), large == "1", sweep == "1", *map(float, end))
        by += wrapped(np.diff(angles(points * [1, -1]))).sum()
    return Arc(np.array([x, -y]), points[-1] * [1, -1], by)


def tip(d):
    """Where a path begins, [right, up]."""
    return np.array(re.match(r"M(\S+) ([^\sLHVA]+)", d).groups(), float) * [1, -1]


def wrapped(angle):
    """The angle from -π, open, to π."""
    return angle - TAU * np.ceil(angle / TAU - 0.5)


def phase(positions, turn):
    """Position times frequency in radians, whole turns left out, of an exact spectrum."""
    exact = [((int(p) * turn + 2**127) % 2**128 - 2**127) / 2**128 for p in np.ravel(positions)]
    return TAU * np.reshape(exact, np.shape(positions))


def assert_same_angle(drawn, expected, atol=ROUNDED):
    np.testing.assert_allclose(wrapped(np.asarray(drawn) - expected), 0, atol=atol)


def scale(labels):
    """The line from values to pixels that the labels of an axis say."""
    pixels, words = zip(*labels, strict=True)
    line = np.polyfit([value(word) for word in words], np.array(pixels, float), 1)
    np.testing.assert_allclose(np.polyval(line, [value(word) for word in words]), pixels, atol=0.02)
    return lambda values: np.polyval(line, values)


# The scenes of the story


ROPE = """(view) => {
  const [plane, scores] = view.drawing.children;
  const path = (which) => read.d(plane.querySelector(`path[class='${which}']`));
  const point = scores.querySelector(".point");
  return {
    face: Number(plane.querySelector(".face").getAttribute("r")),
    wedge: path("wedge"), keyWay: path("key way"), queryWay: path("query way"),
    key: path("key head"), query: path("query head"),
    keyBefore: path("key before head"), queryBefore: path("query before head"),
    names: read.all(plane, "text", (e) => [Number(e.getAttribute("x")), -Number(e.getAttribute("y")) + 4, e.textContent]),
    grips: [...view.handles.children].map((g) => g.getAttribute("transform").match(/[-\\d.]+/g).map(Number)),
    centre: plane.getAttribute("transform").match(/[-\\d.]+/g).map(Number),
    axes: view.settings.before ? null : read.axes(scores),
    curve: read.d(scores.querySelector(".scores")),
    rule: read.d(scores.querySelector(".rule")),
    point: read.number("cx", "cy")(point),
    fill: point.style.fill,
    words: view.words.textContent,
  };
}"""
# The arrows go round, too: 72 steps of the keyboard each.
ROUND = f"""() => {{
  const view = document.querySelector("pe-view[kind=rope]"), states = [], of = {ROPE};
  for (const before of [0, 37]) for (const handle of view.handles.children) for (let step = 0; step < 72; step++) {{
    handle.dispatchEvent(new KeyboardEvent("keydown", {{key: step % 9 ? "ArrowLeft" : "ArrowDown"}}));
    handle.dispatchEvent(new KeyboardEvent("keydown", {{key: "ArrowLeft"}}));
    view.show({{before}});
    states.push({{settings: structuredClone(view.settings), ...of(view)}});
  }}
  return states;
}}"""


def test_rope(every_state, visit):
    states = every_state("rope", ROPE)
    assert len(states) == 101 * 25
    states += visit[0].evaluate(ROUND)
    before, apart = setting(states, "before"), setting(states, "apart")
    places = {"key": before + 1, "query": before + 1 + apart}
    vectors = {"key": setting(states, "k"), "query": setting(states, "q")}
    _, turn, *_ = pe.geometric(16).turns
    unit = column(states, "face") / 1.4
    now, tips = {}, {}
    for kind, vector in vectors.items():
        now[kind] = angles(vector) + phase(places[kind], turn)
        for name, angle in ((kind, now[kind]), (f"{kind}Before", angles(vector))):
            tips[name] = np.stack([tip(state[name]) for state in states])
            assert_same_angle(angles(tips[name]), angle)
            np.testing.assert_allclose(np.hypot(*tips[name].T) / unit, np.hypot(*vector.T), atol=1e-3)
        # The way from one to the other; from a full turn on, a ring.
        ways, turns = [arc(state[f"{kind}Way"]) for state in states], TAU * places[kind] * (turn / 2**128)
        part = turns < TAU
        gone = np.array([way.opening for way in ways])
        np.testing.assert_allclose(np.where(part, gone, abs(gone)), np.minimum(turns, TAU), atol=ROUNDED)
        assert_same_angle(angles([way.start for way in ways])[part], angles(vector)[part])

    between = wrapped(now["query"] - now["key"])
    wedges = [arc(state["wedge"]) for state in states]
    np.testing.assert_allclose([wedge.opening for wedge in wedges], between, atol=ROUNDED)
    assert_same_angle(angles([wedge.start for wedge in wedges]), now["key"])
    assert_same_angle(angles([wedge.end for wedge in wedges]), now["query"])

    score = np.prod([np.hypot(*vector.T) for vector in vectors.values()], 0) * np.cos(between)
    at = {axis: scale(states[0]["axes"][axis]) for axis in "xy"}
    point = np.stack([at["x"](apart), at["y"](score)], -1)
    np.testing.assert_allclose(column(states, "point"), point, atol=0.02)
    rule = np.array([re.split("[M V]", state["rule"])[1:] for state in states], float)
    np.testing.assert_allclose(rule, np.insert(point, 1, at["y"](0), axis=1), atol=0.02)
    np.testing.assert_allclose(rgb(s["fill"] for s in states), colours("RdBu_r", score / 4 + 0.5), atol=4)
    assert [numbers(s["words"]) for s in states] == pytest.approx(
        np.stack([places["key"], places["query"], score], -1), abs=6e-4
    )

    for d in {state["curve"] for state in states}:
        here = [state["curve"] == d for state in states].index(True)
        right, down = points(d).T
        offsets = np.linspace(0, 24, len(right))
        waves = np.hypot(*vectors["query"][here]) * np.hypot(*vectors["key"][here])
        waves *= np.cos(angles(vectors["query"][here]) - angles(vectors["key"][here]) + TAU * offsets * (turn / 2**128))
        np.testing.assert_allclose(right, at["x"](offsets), atol=0.02)
        np.testing.assert_allclose(down, at["y"](waves), atol=0.02)

    for which, (kind, name) in enumerate((("key", "k"), ("query", "q"))):
        grip = np.array([s["grips"][which] for s in states]) - column(states, "centre")
        np.testing.assert_allclose(grip, tips[kind] * [1, -1], atol=0.02)
        # A name stands beside its arrow, on the side that the other arrow is not on.
        assert {s["names"][which][2] for s in states} == {name}
        name = np.array([s["names"][which][:2] for s in states])
        reach = np.hypot(*tips[kind].T)[:, None]
        assert np.all(np.hypot(*(name - tips[kind] * (1 - 22 / reach)).T) < 13)
        stands = wrapped(angles(name) - now[kind])
        clear = (0.02 < abs(between)) & (abs(between) < np.pi - 0.02)
        side = np.sign(between) * (1 if kind == "query" else -1)
        assert np.all((np.sign(stands) == side)[clear])
