"""What the views draw, read from their elements, beside the values that it stands for, in every state of their controls.

Expected values come from the spectra of the library and from NumPy, never from the scripts that draw.
"""

import re
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib import colormaps
from visits import LIBRARY, WIDE, settle, watch

import posenc_jax as pe

TAU = 2 * np.pi
DOG = [0.2, 1.8, 1, 0]
WORDS = np.array([[1.4, 0.2, 0, 0.4], DOG, [0, 1, 2, 0.6], [1.2, 0, 0.4, 1], DOG])
ROUNDED = 2e-3  # radians: paths are written in hundredths of a pixel
TEN_STOPS = 20  # of 255: the views have ten colours of a map of 256, and what lies between

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
    const outputs = [...view.querySelectorAll("output")].map((output) => output.textContent);
    return {settings: {...view.settings}, outputs, ...of(view)};
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
    return [
        float(n.replace("−", "-").replace(",", "")) for n in re.findall(r"[−-]?\d[\d,]*\.?\d*(?:e[+−-]?\d+)?", text)
    ]


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
        np.testing.assert_allclose(np.hypot(*points.T), float(r), rtol=0.02)  # it goes round the origin
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


def scale(labels, of=np.asarray):
    """From values to pixels, as the labels of an axis say: a line, of the values or of their logarithms."""
    pixels, words = zip(*labels, strict=True)
    values = of([value(word) for word in words])
    line = np.polyfit(values, np.array(pixels, float), 1)
    np.testing.assert_allclose(np.polyval(line, values), pixels, atol=0.02)
    return lambda values: np.polyval(line, of(values))


@pytest.mark.parametrize("flags", ["0 0", "0 1", "1 0", "1 1"])
def test_arcs_are_read_as_chromium_draws_them(visit, flags):
    x0, y0, r, x, y = 3.0, -4.0, 5.0, -4.8, 1.4  # both ends at distance 5 from the origin
    drawn = visit[0].evaluate(
        """(d) => {
          const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
          path.setAttribute("d", d);
          const at = (share) => path.getPointAtLength(share * path.getTotalLength());
          return [0, 0.25, 0.5, 0.75, 1].map(at).map(({x, y}) => [x, y]);
        }""",
        f"M{x0} {y0}A{r} {r} 0 {flags} {x} {y}",
    )
    large, sweep = (flag == "1" for flag in flags.split())
    np.testing.assert_allclose(quarters(x0, y0, r, large, sweep, x, y), drawn, atol=0.02)


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
    said = [[s["settings"]["before"], s["settings"]["apart"]] for s in states]
    assert [[number for words in s["outputs"] for number in numbers(words)] for s in states] == said
    assert not any(re.match("1 words", words) for state in states for words in state["outputs"])
    states += visit[0].evaluate(ROUND)
    before, apart = setting(states, "before"), setting(states, "apart")
    places = {"key": before + 1, "query": before + 1 + apart}
    vectors = {"key": setting(states, "k"), "query": setting(states, "q")}
    _, turn, *_ = pe.geometric(16).cycles
    unit = column(states, "face") / 1.4
    now, tips = {}, {}
    for kind, vector in vectors.items():
        now[kind] = angles(vector) + phase(places[kind], turn)
        for name, angle in ((kind, now[kind]), (f"{kind}Before", angles(vector))):
            tips[name] = np.stack([tip(state[name]) for state in states])
            assert_same_angle(angles(tips[name], clock=True), angle)
            np.testing.assert_allclose(np.hypot(*tips[name].T) / unit, np.hypot(*vector.T), atol=1e-3)
        # The way from one to the other; from a full turn on, a ring.
        ways, turns = [arc(state[f"{kind}Way"]) for state in states], TAU * places[kind] * (turn / 2**128)
        np.testing.assert_allclose([-way.opening for way in ways], np.minimum(turns, TAU), atol=ROUNDED)
        assert_same_angle(angles([way.start for way in ways], clock=True), angles(vector))

    between = wrapped(now["query"] - now["key"])
    wedges = [arc(state["wedge"]) for state in states]
    np.testing.assert_allclose([-wedge.opening for wedge in wedges], between, atol=ROUNDED)
    assert_same_angle(angles([wedge.start for wedge in wedges], clock=True), now["key"])
    assert_same_angle(angles([wedge.end for wedge in wedges], clock=True), now["query"])

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
        stands = wrapped(angles(name, clock=True) - now[kind])
        clear = (0.02 < abs(between)) & (abs(between) < np.pi - 0.02)
        side = np.sign(between) * (1 if kind == "query" else -1)
        assert np.all((np.sign(stands) == side)[clear])


def test_shuffled_words(every_state, visit):
    page, _ = visit
    weights = np.exp(WORDS @ WORDS.T / 2)
    weights /= weights.sum(1, keepdims=True)
    view = page.locator("pe-view[kind=shuffle]")
    for _ in range(5):
        view.get_by_role("button", name="Shuffle").click()
        settle(page)
        drawn = view.evaluate(
            """(view) => {
              const box = (e) => { const {left, top, width, height} = e.getBoundingClientRect(); return [left, top, width, height]; };
              return {
                cells: view.cells.map(({cell, text}) => [...box(cell.querySelector("rect")), Number(text.textContent)]),
                fills: view.cells.map(({cell}) => cell.querySelector("rect").getAttribute("fill")),
                names: view.names.map(({of, text}) => [of, text.textContent, ...box(text)]),
                frames: view.frames.map(({rect}) => box(rect)),
              };
            }"""
        )
        cells = np.array(drawn["cells"])
        middles = cells[:, :2] + cells[:, 2:4] / 2
        columns, rows = (np.unique(np.round(axis, 1)) for axis in middles.T)
        assert len(columns) == len(rows) == 5
        seats = [
            [int(np.abs(line - x).argmin()) for line, x in zip((rows, columns), m[::-1], strict=True)] for m in middles
        ]
        assert sorted(seats) == [[row, column] for row in range(5) for column in range(5)]
        order = {}
        for of, name, left, top, width, height in drawn["names"]:
            seat = (
                np.abs(rows - top - height / 2).argmin()
                if of == "query"
                else np.abs(columns - left - width / 2).argmin()
            )
            order[of, int(seat)] = ["The", "dog ①", "chased", "another", "dog ②"].index(name)
        assert len(order) == 10
        expected = np.array([weights[order["query", row], order["key", column]] for row, column in seats])
        np.testing.assert_allclose(cells[:, 4], expected, atol=0.0051)
        np.testing.assert_allclose(rgb(drawn["fills"]), colours("magma", expected / 0.75), atol=TEN_STOPS)
        framed = {int(np.abs(rows - top - height / 2).argmin()) for _, top, _, height in drawn["frames"]}
        assert {order["query", row] for row in framed} == {1, 4}


COUNT = """(view) => {
  const [lengths, parts, codes] = view.drawing.children;
  return {
    word: read.number("x", "width")(lengths.querySelector(".word")),
    place: read.number("x", "width")(lengths.querySelector(".place")),
    lines: read.all(parts, ".axis", read.d),
    dogs: read.all(parts, ".dog", read.number("cx", "cy")),
    rule: read.d(parts.querySelector(".rule")),
    bits: read.all(codes, "rect", (e) => [...read.number("x", "y")(e), Number(e.nextSibling.textContent)]),
    fills: read.all(codes, "rect", (e) => e.getAttribute("fill")),
    flipped: read.all(codes, "rect", (e) => e.classList.contains("flipped")),
    numbers: read.all(codes, "text.end", read.text),
    said: read.all(view.drawing, ".said", read.text),
  };
}"""


def test_three_ways_to_count(every_state):
    states = every_state("count", COUNT)
    p = setting(states, "p").astype(int)
    np.testing.assert_array_equal(p, np.arange(4, 128))
    assert [numbers(*state["outputs"]) for state in states] == [[last] for last in p]
    word, place = column(states, "word"), column(states, "place")
    np.testing.assert_allclose(place[:, 1] / word[:, 1], 2 * p / np.linalg.norm(DOG), rtol=1e-9)
    np.testing.assert_allclose(place[:, 0], word.sum(1), rtol=1e-9)
    for state, last in zip(states, p, strict=True):
        share = np.linalg.norm(DOG) / (np.linalg.norm(DOG) + 2 * last)
        assert numbers(state["said"][0]) == [round(100 * share)]
        # Two lines with a mark for each word; dog ① is the second.
        axes = [re.fullmatch(r"M(\S+) (\S+)H(\S+)", d) for d in state["lines"]]
        marks = [re.fullmatch(r"M(\S+) (\S+)V(\S+)", d) for d in state["lines"]]
        lines = [[float(n) for n in line.groups()] for line in axes if line]
        ticks = np.array([[float(n) for n in mark.groups()] for mark in marks if mark])
        for (low, y, high), length, dog in zip(lines, (5, last + 1), state["dogs"], strict=True):
            here = ticks[np.abs(ticks[:, 1:].mean(1) - y) < 1e-9, 0]
            np.testing.assert_allclose((here - low) / (high - low), np.arange(length) / length, atol=1e-9)
            assert dog == pytest.approx([low + (high - low) / length, y])
        assert np.reshape(re.split("[M L]", state["rule"])[1:], (2, 2)).astype(float) == pytest.approx(
            np.array(state["dogs"])
        )
        assert numbers(state["said"][1])[-1] == pytest.approx(1 / (last + 1), abs=0.00051)

        codes = np.array([[last + row >> bit & 1 for bit in range(7, -1, -1)] for row in (0, 1)])
        x, y, bits = np.moveaxis(np.reshape(state["bits"], (2, 8, 3)), -1, 0)
        assert np.all(np.diff(x) > 0) and np.all(y[0] < y[1])  # the highest bit is on the left
        np.testing.assert_array_equal(bits, codes)
        np.testing.assert_allclose(rgb(state["fills"]), colours("RdBu_r", 0.1 + 0.8 * codes.ravel()), atol=4)
        np.testing.assert_array_equal(np.reshape(state["flipped"], (2, 8)), [codes[0] != codes[1]] * 2)
        assert [numbers(n) for n in state["numbers"]] == [[last], [last + 1]]
        assert numbers(state["said"][2]) == [(codes[0] != codes[1]).sum()]


WAVES = """(view) => ({
  waves: read.all(view.drawing, ".wave", read.d),
  middles: read.all(view.drawing, ".grid", (e) => Number(read.d(e).match(/ (.*)H/)[1])),
  samples: read.all(view.drawing, ".sample", read.number("cx", "cy")),
  fills: read.all(view.drawing, ".sample", (e) => e.getAttribute("fill")),
  bars: read.all(view.drawing, ".step", read.number("x", "width", "y", "height")),
  axis: read.d(view.drawing.querySelector(".axis")),
  ticks: read.all(view.drawing, "text[class='']", read.label),
  words: view.words.textContent,
})"""


def test_bits_become_waves(every_state):
    states = every_state("waves", WAVES)
    np.testing.assert_array_equal(setting(states, "round"), np.arange(101))
    assert [s["outputs"] for s in states] == [["bits"], *([f"{share}%"] for share in range(1, 100)), ["waves"]]
    p, rows = np.arange(32), np.arange(5)
    samples = column(states, "samples").reshape(101, 5, 32, 2)
    heights = (column(states, "middles")[..., None] - samples[..., 1]) / 14
    sines = -np.sin(TAU * (p + 0.5) / 2.0 ** (rows[:, None] + 1))
    np.testing.assert_allclose(heights[-1], sines, atol=1e-9)  # at last; at first, bits
    np.testing.assert_allclose(heights[0], np.where(p >> rows[:, None] & 1, 1, -1), atol=0.06)
    assert np.all(np.sign(heights) == np.sign(sines)) and np.abs(heights).max() < 1 + 1e-9
    # The higher the slider, the rounder.
    assert np.all(np.diff(np.abs(heights), axis=0) < 1e-9)
    fills = np.array([rgb(state["fills"]) for state in states]).reshape(101, 5, 32, 3)
    np.testing.assert_allclose(fills, colours("RdBu_r", 0.4 * heights + 0.5), atol=4)
    # Each point lies on its wave, and one step in x is one position, in the waves, the bars and the labels below.
    for state, at in zip(states, samples, strict=True):
        for d, wave in zip(state["waves"], at, strict=True):
            x, y = points(d).T
            np.testing.assert_allclose(np.interp(wave[:, 0], x, y), wave[:, 1], atol=0.02)
        place = np.polyfit(p, at[0, :, 0], 1)
        np.testing.assert_allclose(at[..., 0], np.broadcast_to(np.polyval(place, p), (5, 32)), atol=1e-9)
        assert [x for x, _, _ in state["ticks"]] == pytest.approx(
            np.polyval(place, [int(t) for *_, t in state["ticks"]])
        )
        x, width, y, height = np.transpose(state["bars"])
        np.testing.assert_allclose(x + width / 2, np.polyval(place, p[:-1] + 0.5), atol=0.2)
        np.testing.assert_allclose(y + height, float(re.search(r" (\S+)H", state["axis"])[1]), rtol=1e-9)
    steps = np.linalg.norm(np.diff(heights, axis=2), axis=1)
    bars = column(states, "bars")[..., 3]
    np.testing.assert_allclose(bars / steps, (bars / steps)[0, 0], rtol=1e-9)
    said = np.array([numbers(state["words"]) for state in states])
    np.testing.assert_allclose(said, np.stack([steps.min(1), steps.max(1)], 1), atol=0.051)


HANDS = """(view) => {
  const groups = [...view.drawing.children].filter((e) => e.tagName === "g");
  const strips = groups.filter((e) => e.querySelector(".span")), clocks = groups.filter((e) => e.querySelector(".face"));
  const x = (name) => strips.map((g) => Number(g.querySelector(name).getAttribute("cx")));
  return {
    face: clocks.map((g) => Number(g.querySelector(".face").getAttribute("r"))),
    keyDot: x(".key.dot"), queryDot: x(".query.dot"),
    span: strips.map((g) => read.d(g.querySelector(".span"))),
    turn: clocks.map((g) => read.d(g.querySelector(".turn"))),
    keyHand: clocks.map((g) => read.d(g.querySelector(".key.hand"))),
    queryHand: clocks.map((g) => read.d(g.querySelector(".query.hand"))),
    said: [strips, clocks].map((all) => all.map((g) => g.querySelector("text").textContent)),
  };
}"""


def hand(d):
    """The angle of a hand, clockwise from twelve."""
    x, y = map(float, re.fullmatch(r"M0 0L(\S+) (\S+)", d).groups())
    return np.arctan2(x, -y)


def test_two_hands(every_state):
    states = every_state("hands", HANDS)
    before = setting(states, "before")
    np.testing.assert_array_equal(before, np.arange(81))
    assert [numbers(*state["outputs"]) for state in states] == [[p] for p in before]
    f = pe.geometric(8, 100)
    first, second = (np.stack([phase(before + 1 + apart, turn) for turn in f.cycles], -1) for apart in (0, 3))
    radius = column(states, "face")
    np.testing.assert_allclose(column(states, "keyDot") / radius, np.sin(first), atol=1e-9)
    np.testing.assert_allclose(column(states, "queryDot") / radius, np.sin(second), atol=1e-9)
    spans = np.array([[re.fullmatch(r"M(\S+) 0H(\S+)", d).groups() for d in state["span"]] for state in states], float)
    np.testing.assert_allclose(spans / radius[..., None], np.stack([np.sin(first), np.sin(second)], -1), atol=1e-9)
    for name, angle in (("keyHand", first), ("queryHand", second)):
        assert_same_angle([[hand(d) for d in state[name]] for state in states], angle)
    turns = [[arc(d) for d in state["turn"]] for state in states]
    assert_same_angle(angles([[turn.start for turn in row] for row in turns], clock=True), first)
    np.testing.assert_allclose([[-turn.opening for turn in row] for row in turns], [3 * f.angular] * 81, atol=ROUNDED)
    said = np.array([[[numbers(text)[0] for text in row] for row in state["said"]] for state in states])
    np.testing.assert_allclose(said[:, 0], np.sin(second) - np.sin(first), atol=0.0051)
    np.testing.assert_allclose(said[:, 1], [np.degrees(3 * f.angular)] * 81, atol=0.51)


STRETCH = """(view) => ({
  rings: [...view.drawing.children].map((g) => ["never", "seen", "unseen"].map((kind) => read.d(g.querySelector(`.${kind}`)))),
  texts: [...view.drawing.children].map((g) => [...g.querySelectorAll("text")].map((e) => e.textContent)),
  words: view.words.textContent,
})"""


def test_longer_texts(every_state):
    states = every_state("stretch", STRETCH)
    assert len(states) == 15 * 4
    plain = pe.geometric(16)
    for state in states:
        factor, scaling = state["settings"]["factor"], state["settings"]["scaling"]
        assert numbers(*state["outputs"]) == [factor, 512, 512 * factor]
        slowed = plain if scaling == "none" else LIBRARY[scaling](16, 10_000, factor, 512)
        seen = np.minimum(512 / plain.wavelengths, 1)
        used = np.maximum(np.minimum(512 * factor / slowed.wavelengths, 1), seen)
        new = np.where(used - seen > 1e-8, used - seen, 0)
        for i, (never, there, more) in enumerate(state["rings"]):
            assert abs(arc(never).opening) == pytest.approx(TAU, abs=ROUNDED)
            for d, start, share in ((there, 0, seen[i]), (more, seen[i], new[i])):
                assert bool(d) == (share > 0)
                if d:
                    ring = arc(d)
                    assert_same_angle(angles(ring.start, clock=True), TAU * start)
                    assert -ring.opening == pytest.approx(TAU * share, abs=ROUNDED)
            texts = state["texts"][i]
            assert ("new" in texts) == (new[i] > 0)
            if new[i]:
                assert numbers(texts[0]) == [max(round(100 * new[i]), 1)]
            assert numbers(texts[-2]) == [i]
            slower = plain.angular[i] / slowed.angular[i]
            said = numbers(texts[-1])
            assert said == pytest.approx([slower], abs=0.051) if said else slower < 1.0051
        assert (numbers(state["words"].replace("No arrow", "0"))[0]) == (new > 0).sum()


# From the corner to each row, then to each column, in either way of counting.
GRID = """() => {
  const view = document.querySelector("pe-view[kind=grid]"), [grip] = view.handles.children, states = [];
  const press = (key) => grip.dispatchEvent(new KeyboardEvent("keydown", {key}));
  for (const [count] of positions(view)[0].entries()) {
    positions(view)[0][count]();
    for (let i = 0; i < 32; i++) press(i % 2 ? "ArrowUp" : "ArrowLeft");
    for (let i = 0; i < 31; i++) {
      view.draw();
      const box = read.number("x", "y", "width", "height");
      states.push({
        settings: {...view.settings},
        places: read.all(view.drawing, "rect[fill]", box),
        fills: read.all(view.drawing, "rect[fill]", (e) => e.getAttribute("fill")),
        picture: read.all(view.drawing, "rect.patch", box),
        chosen: read.all(view.drawing, "rect.chosen", box),
        grip: grip.getAttribute("transform").match(/[-\\d.]+/g).map(Number),
        words: view.words.textContent,
      });
      press(i % 2 ? "ArrowDown" : "ArrowRight");
    }
  }
  return states;
}"""


def test_patches(every_state, visit):
    states = visit[0].evaluate(GRID)
    one, both = pe.geometric(64, 100).angular, pe.geometric(32, 100).angular
    row, column_ = np.divmod(np.arange(256), 16)
    for state in states:
        at = state["settings"]
        down, right = row - at["row"], column_ - at["column"]
        offsets = np.stack([down, right], -1)

        def alike(offsets, one_line=at["count"] == "one"):
            if one_line:
                return np.cos(np.multiply.outer(offsets @ [16, 1], one)).mean(-1)
            return np.cos(np.multiply.outer(offsets, both)).sum((-1, -2)) / 32

        places, picture = np.array(state["places"]), np.array(state["picture"])
        order = np.lexsort((places[:, 0].round(3), places[:, 1].round(3)))
        fills = rgb(state["fills"])[order]
        np.testing.assert_allclose(fills, colours("viridis", (alike(offsets) + 0.5) / 1.5), atol=TEN_STOPS)
        assert numbers(state["words"]) == pytest.approx(alike(np.array([[0, 1], [1, 0]])), abs=0.0051)
        # The frames and the grip lie on the patch of the same row and column of both grids.
        here = at["row"] * 16 + at["column"]
        patches = picture[np.lexsort((picture[:, 0].round(3), picture[:, 1].round(3)))], places[order]
        for frame, patch in zip(state["chosen"], (grid[here] for grid in patches), strict=True):
            np.testing.assert_allclose(np.add(frame[:2], np.divide(frame[2:], 2)), patch[:2] + patch[2:] / 2, atol=0.5)
        np.testing.assert_allclose(state["grip"], patches[1][here, :2] + patches[1][here, 2:] / 2, atol=0.5)
    seen = {(s["settings"]["count"], s["settings"]["row"], s["settings"]["column"]) for s in states}
    assert len(seen) == 2 * 31 and {row for _, row, _ in seen} == {column for *_, column in seen} == set(range(16))


@pytest.mark.parametrize("width", [360, 700, 1280])
def test_no_label_lies_on_another(every_state, visit, width):
    page, _ = visit
    page.set_viewport_size({"width": width, "height": 800})
    settle(page)
    crossing = page.evaluate(
        """() => [...document.querySelectorAll("pe-view")].flatMap((view) => [0, 0.1, 0.5, 1].flatMap((share) => {
          for (const control of positions(view)) control[Math.round(share * (control.length - 1))]();
          view.draw();
          const boxes = [...view.querySelectorAll("svg text")].map((e) => [e.textContent, e.getBoundingClientRect()]);
          return boxes.flatMap(([text, a], i) => boxes.slice(0, i).filter(([, b]) =>
            Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3  // lines may be that close
          ).map(([other]) => `${view.getAttribute("kind")}: ${other} | ${text}`));
        }))"""
    )
    page.set_viewport_size(WIDE)
    settle(page)
    assert crossing == []


# The explorer

# Each control through its positions, while the others are as at first and then, in shorter steps, somewhere else.
EXPLORE = """async ({of, start, step}) => {
  const views = Object.fromEntries([...document.querySelectorAll("pe-view")].map((v) => [v.getAttribute("kind"), v]));
  const states = [];
  const look = eval(of);
  location.hash = start;
  await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  for (const control of positions(document.querySelector(".explorer"))) {
    for (let i = 0; i < control.length; i += control.length > 9 ? Math.ceil(step * control.length / 130) : 1) {
      control[i]();
      await new Promise(requestAnimationFrame);
      states.push({settings: {...views.clocks.settings, ...views.table.settings, ...views.spectrum.settings}, ...look(views)});
    }
    location.hash = `${start}&again=${states.length}`;
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
  }
  return states;
}"""
# What is drawn on a canvas is written down as it is drawn.
CANVAS = """{
  const {prototype} = CanvasRenderingContext2D;
  for (const name of ["putImageData", "drawImage", "fillText", "strokeRect"]) {
    const before = prototype[name];
    prototype[name] = function (...given) {
      if (name === "putImageData") {
        this.canvas.image = given[0];
        return before.apply(this, given);
      }
      if (name === "drawImage") this.canvas.drawn = {};
      const drawn = name === "drawImage" ? given.slice(1) : given;
      ((this.canvas.drawn ??= {})[name] ??= []).push([...drawn, this.getLineDash().length]);
      return before.apply(this, given);
    };
  }
}"""


CLOCKS = """({clocks: view}) => ({
  radius: Number(view.querySelector(".face").getAttribute("r")),
  first: read.all(view, ".first", read.d), second: read.all(view, ".second", read.d), arcs: read.all(view, ".arc", read.d),
  names: read.all(view, "text", read.text),
})"""
CURVES = """({similarity, spectrum}) => ({
  like: {
    axes: read.axes(similarity.picture),
    curve: read.d(similarity.querySelector(".first")),
    point: read.number("cx", "cy")(similarity.querySelector(".point")),
    rule: read.d(similarity.querySelector(".rule")),
  },
  waves: {
    axes: read.axes(spectrum.picture),
    first: read.d(spectrum.querySelector(".first")),
    second: read.d(spectrum.querySelector(".second")),
    dots: read.all(spectrum, ".dot", read.number("cx", "cy")),
    rule: read.d(spectrum.querySelector(".rule")),
    said: [...spectrum.querySelectorAll("text.start")].map(read.text)[0],
  },
})"""
TABLE = """({table: view}) => {
  const {width, height, data} = view.raster.image;
  const row = (i) => [i, [...data.subarray(4 * i * width, 4 * (i + 1) * width)]];
  return {drawn: view.picture.drawn, size: [width, height], rows: [row(0), row(height - 1)]};
}"""


@pytest.fixture(scope="module")
def explored(reader, origin):
    """What the views of the explorer draw in its states."""
    page = reader.new_page()
    page.add_init_script(CANVAS)
    faults = watch(page, origin)
    page.goto(f"{origin}/explorer.html")
    page.add_script_tag(content=READ)
    settle(page)
    of = f"(views) => ({{clocks: ({CLOCKS})(views), curves: ({CURVES})(views), table: ({TABLE})(views)}})"
    else_where = "d=20&base=300&p=2000000000&k=-20&length=49&scaling=llama3&factor=3"
    states = [
        state
        for start, step in (("k=5", 1), (else_where, 4))
        for state in page.evaluate(EXPLORE, {"of": of, "start": start, "step": step})
    ]
    page.close()
    assert not faults, "\n".join(faults)
    return states


def test_clocks(explored):
    for settings, state in ((s["settings"], s["clocks"]) for s in explored):
        d, base, p, k = map(settings.get, ("d", "base", "p", "k"))
        f = pe.geometric(d, base)
        here, there = (np.array([phase(at, turn) for turn in f.cycles]) for at in (p, p + k))
        rounded = 0.015 / state["radius"]
        assert_same_angle([hand(path) for path in state["first"]], here, rounded)
        assert_same_angle([hand(path) for path in state["second"]], there, rounded)
        assert [int(name) for name in state["names"]] == list(range(d // 2))
        arcs, turns = [arc(path) for path in state["arcs"]], k * f.angular
        part = abs(turns) < TAU  # else a ring
        np.testing.assert_allclose([-a.opening for a in arcs], np.clip(turns, -TAU, TAU), atol=4 * rounded)
        assert_same_angle(angles([a.start for a in arcs], clock=True), here, 2 * rounded)
        assert_same_angle(angles([a.end for a in arcs], clock=True)[part], there[part], 2 * rounded)


def test_curves(explored):
    for settings, state in ((s["settings"], s["curves"]) for s in explored):
        d, base, length, k, factor, original = map(settings.get, ("d", "base", "length", "k", "factor", "original"))
        plain, like, waves = pe.geometric(d, base), state["like"], state["waves"]
        x, y = (scale(like["axes"][axis]) for axis in "xy")
        offsets = np.arange(max(length, abs(k)) + 1)
        alike = np.cos(np.multiply.outer(offsets, plain.angular)).mean(-1)
        np.testing.assert_allclose(points(like["curve"]), np.stack([x(offsets), y(alike)], -1), atol=0.03)
        assert like["point"] == pytest.approx([x(abs(k)), y(alike[abs(k)])], abs=0.03)
        assert float(re.match(r"M(\S+) ", like["rule"])[1]) == pytest.approx(x(abs(k)), abs=0.03)

        scaled = LIBRARY[settings["scaling"]](d, base, factor, original)
        turning = np.flatnonzero(np.isfinite(scaled.wavelengths))
        pairs = np.arange(d // 2)
        x, y = scale(waves["axes"]["x"]), scale(waves["axes"]["y"], np.log10)
        second = np.stack([x(turning), y(scaled.wavelengths[turning])], -1)
        np.testing.assert_allclose(points(waves["first"]), np.stack([x(pairs), y(plain.wavelengths)], -1), atol=0.03)
        np.testing.assert_allclose(points(waves["second"]), second, atol=0.03)
        np.testing.assert_allclose(waves["dots"], second, atol=0.03)
        assert float(re.search(r" (\S+)H", waves["rule"])[1]) == pytest.approx(y(original), abs=0.03)
        assert numbers(waves["said"]) == [original]


def test_table(explored):
    for settings, state in ((s["settings"], s["table"]) for s in explored):
        d, base, length, p, k = map(settings.get, ("d", "base", "length", "p", "k"))
        f = pe.geometric(d, base)
        ((left, top, width, height, _),) = state["drawn"]["drawImage"]
        assert state["size"] == [d, length]
        *labels, feature = [words for words in state["drawn"]["fillText"] if words[0] not in ("p", "p + k")]
        assert feature[0] == "feature"
        columns = [(x, words) for words, x, y, _ in labels if y > top + height]
        rows = [(y, words) for words, x, y, _ in labels if x < left]
        assert len(columns) + len(rows) == len(labels)
        for x, words in columns:
            assert x == pytest.approx(left + (value(str(words)) + 0.5) / d * width)
        # A row's label stands at its middle, but for the first and the last, which stay beside the table.
        first = 0 if p < length else min(p - length // 2, 2**31 - length)
        middle = {
            row: top + (row - first + 0.5) / length * height
            for row in (*map(int, (value(w) for _, w in rows)), p, p + k)
        }
        for y, words in rows:
            assert y == pytest.approx(np.clip(middle[int(value(words))], 8, top + height - 6))
        marked = {"p": p, "p + k": p + k}
        inside = {name: row for name, row in marked.items() if first <= row < first + length}
        frames = state["drawn"]["strokeRect"]
        assert len(frames) == 2 * len(inside)  # a light line below a dark one
        for name, pair in zip(inside, (frames[i : i + 2] for i in range(0, len(frames), 2)), strict=True):
            for x, y, w, h, _ in pair:
                assert [x, w, y + h / 2] == pytest.approx([left, width, middle[inside[name]]])
            assert (pair[1][4] > 0) == (name != "p")  # a broken line
        names = {words[0]: words[2] for words in state["drawn"]["fillText"] if words[0] in marked}
        assert names.keys() == inside.keys() - ({"p + k"} if k == 0 else set())
        for name, y in names.items():
            assert abs(y - middle[marked[name]]) < 15
        if len(names) == 2:
            assert np.sign(names["p + k"] - names["p"]) == np.sign(k)
        for row, pixels in state["rows"]:
            values = TABLES[settings["arithmetic"]](first + row, f)
            np.testing.assert_allclose(np.reshape(pixels, (d, 4))[:, :3], colours("RdBu_r", values / 2 + 0.5), atol=4)


def exact_row(p, f):
    angle = np.array([phase(p, turn) for turn in f.cycles])
    return np.stack([np.sin(angle), np.cos(angle)], -1).ravel()


def float32_row(p, f):
    angle = (np.float32(p) * f.angular.astype(np.float32)).astype(np.float64)
    return np.stack([np.sin(angle), np.cos(angle)], -1).ravel()


TABLES = {"exact": exact_row, "float32": float32_row}
