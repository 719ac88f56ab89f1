"""The scenes of the story as they are before anyone moves them."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle, Wedge

import posenc_jax as pe
from drawings import COLOURS, GREY, KEY, NEW, QUERY, SEEN, colour_bar, panels
from posenc_jax.plot import _drawing

_WORDS = ("The", "dog ①", "chased", "another", "dog ②")
_DOG = [0.2, 1.8, 1.0, 0.0]
_VECTORS = np.array([[1.4, 0.2, 0.0, 0.4], _DOG, [0.0, 1.0, 2.0, 0.6], [1.2, 0.0, 0.4, 1.0], _DOG])


def _ink() -> str:
    """The colour of text in the scheme that is drawn."""
    return matplotlib.rcParams["text.color"]


def _bare(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    """A square plane without axes."""
    axes.set(xlim=x, ylim=y, aspect="equal")
    axes.set_axis_off()


def _arrow(axes: Axes, to: np.ndarray, colour: str, alpha: float = 1.0) -> None:
    axes.annotate("", to, (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2, "alpha": alpha})


def story_shuffle() -> Figure:
    """Two 5 by 5 tables of attention weights, for the sentence The dog chased another dog and for its words in another
    order. The second holds the numbers of the first, with rows and columns moved. In both, the rows of the two dogs
    are framed, and equal."""
    figure, both = panels((1, 2, 400), (2, 1, 680), (), "attends to")
    for axes, order in zip(both, ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]), strict=True):
        weights = _drawing.self_attention(_VECTORS[order])
        image = _drawing.image(axes, weights, "magma", 0.0, 0.75, "equal")
        _drawing.write_cells(axes, image, weights)
        for dog in (order.index(1), order.index(4)):
            axes.add_patch(Rectangle((-0.5, dog - 0.5), 5, 1, fill=False, color=_ink(), lw=2, clip_on=False))
        names = [_WORDS[word] for word in order]
        axes.set_xticks(range(5), names, rotation=25)
        axes.set_yticks(range(5), names)
    return figure


def story_count() -> Figure:
    """Three panels for position 7. Adding 7 to each number of a word leaves the word a small part of the sum's length.
    Divided by the length, dog 1 is at 0.2 among five words and at 0.125 among eight. In bits, four bits flip from 7
    to 8."""
    titles = ("add p", "add p / L", "add the bits of p")
    figure, (lengths, fractions, bits) = panels((1, 3, 190), (3, 1, 430), titles)
    word, place = np.linalg.norm(_DOG), np.linalg.norm(np.full(4, 7.0))
    lengths.barh([0], [word], color=KEY, label="word")
    lengths.barh([0], [place], left=[word], color=SEEN, label="number")
    lengths.set(ylim=(-1, 1.6), yticks=[], xlabel="length")
    lengths.legend(ncols=2, loc="upper left")
    for y, length in ((1, 5), (0, 8)):
        fractions.plot(np.arange(length) / length, np.full(length, y), "|", color=_ink(), markersize=9)
        fractions.plot([1 / length], [y], "o", color=KEY)
    fractions.plot([1 / 5, 1 / 8], [1, 0], ":", color=GREY)
    fractions.set(ylim=(-0.6, 1.6), xlim=(-0.05, 1))
    fractions.set_yticks([0, 1], ["8 words", "5 words"])
    codes = np.array([[(p >> bit) & 1 for bit in range(7, -1, -1)] for p in (7, 8)])
    image = _drawing.image(bits, codes * 1.6 - 0.8, "RdBu_r", -1, 1, "auto")
    rgba = image.to_rgba(codes * 1.6 - 0.8)
    for (row, column), bit in np.ndenumerate(codes):
        dark = rgba[row, column, :3].sum() < 1.5
        bits.text(column, row, bit, ha="center", va="center", color="white" if dark else "black")
    bits.set(yticks=[0, 1], yticklabels=["7", "8"], xticks=[])
    return figure


def story_waves() -> Figure:
    """Five square waves over positions 0 to 31, the bits of the position, that flip every 2, 4, 8, 16 and 32 positions.
    Behind each lies a sine of the same speed, with a point at each position, red above zero and blue below. Bars below
    them say how far one step moves the code: by 2.0 to 4.5 for bits, by 2.1 to 2.6 for sines."""
    figure, (*rows, steps) = panels((6, 1, 430), (6, 1, 430), sharex=True)
    fine, whole = np.linspace(-0.5, 31.5, 2000), np.arange(32)
    codes = []
    for axes, period in zip(rows, (2, 4, 8, 16, 32), strict=True):
        spectrum = np.array([2 * np.pi / period], np.float32)

        def wave(p, spectrum=spectrum):
            return -np.asarray(pe.sinusoidal((p + 0.5).astype(np.float32), spectrum))[:, 0]

        axes.plot(fine, np.sign(wave(fine)), color=GREY, lw=1)
        axes.plot(fine, wave(fine), color=_ink(), lw=1)
        colours = {"c": wave(whole), "cmap": "RdBu_r", "vmin": -1, "vmax": 1, "edgecolors": GREY}
        axes.scatter(whole, wave(whole), s=28, zorder=3, **colours)
        axes.set_ylabel(f"every\n{period}", rotation=0, ha="right", va="center")
        axes.set(yticks=[], ylim=(-1.3, 1.3), xlim=(-0.7, 31.7))
        axes.spines[:].set_visible(False)
        axes.grid(False)
        codes.append(wave(whole))
    for code, style in (
        (np.sign(codes), {"fill": False, "edgecolor": GREY}),
        (codes, {"color": _ink(), "alpha": 0.6}),
    ):
        steps.bar(whole[:-1] + 0.5, np.linalg.norm(np.diff(code), axis=0), width=0.7, **style)
    steps.set_ylabel("step", rotation=0, ha="right", va="center")
    steps.set(yticks=[], xlabel="position")
    steps.spines["left"].set_visible(False)
    steps.grid(False)
    return figure


def story_hands() -> Figure:
    """Two rows of four clocks, for the sentence at the start of the text and after 20 other words. On each clock stand
    the hands of dog 1 and dog 2. The hands differ between rows, the angle between them is the same in each column."""
    figure, dials = panels((2, 4, 400), (2, 4, 290))
    spectrum = pe.geometric(8, 100)
    for line, before in zip((dials[:4], dials[4:]), (0, 20), strict=True):
        waves = np.asarray(pe.sinusoidal(np.array([before + 1, before + 4]), spectrum)).reshape(2, 4, 2)
        for i, axes in enumerate(line):
            _bare(axes, (-1.1, 1.1), (-1.1, 1.1))
            axes.add_patch(Circle((0, 0), 1, fill=False, color=GREY))
            for tip, colour in zip(waves[:, i], (KEY, QUERY), strict=True):
                _arrow(axes, tip, colour)
            start = np.degrees(np.arctan2(waves[0, i, 1], waves[0, i, 0]))
            turn = np.degrees(3 * spectrum.angular[i])
            axes.add_patch(Wedge((0, 0), 0.5, start - turn, start, width=0.12, color=GREY, alpha=0.6))
            axes.set_title(f"{before} words before\n{turn:.0f}°" if i == 0 else f"{turn:.0f}°")
    return figure


def story_rope() -> Figure:
    """Two planes with the arrow of a key and the arrow of a query, before and after their rotations. The sentence
    stands at the start of the text in the first one and after 8 other words in the second one. The arrows point
    elsewhere, the angle between them and the score above the plane are equal. The arrows before their rotations are
    faint."""
    figure, planes = panels((1, 2, 420), (2, 1, 740))
    spectrum = pe.geometric(16).angular[1:2].astype(np.float32)
    query, key = np.array([[1.1, -0.4], [0.02, 1.0]], np.float32)
    for axes, before in zip(planes, (0, 8), strict=True):
        _bare(axes, (-1.45, 1.45), (-1.45, 1.45))
        axes.add_patch(Circle((0, 0), 1.4, fill=False, color=GREY))
        places = {KEY: (key, before + 1), QUERY: (query, before + 4)}
        tips = []
        for colour, (vector, position) in places.items():
            # The first number up, the second to the right: so they turn like the hands of the clocks.
            _arrow(axes, vector[::-1], colour, 0.35)
            tips.append(np.asarray(pe.rotary(vector[None], np.array([position]), spectrum, head_axis=None))[0, ::-1])
            _arrow(axes, tips[-1], colour)
        for tip, name, colour in zip(tips, "kq", places, strict=True):
            beyond = tip * (1 + 0.16 / np.linalg.norm(tip))
            axes.text(*beyond, name, color=colour, ha="center", va="center", size="large")
        at = f"key at {before + 1}, query at {before + 4}"
        axes.set_title(f"{at}: q · k = {tips[0] @ tips[1]:.3f}")
    figure.supxlabel("faint: before the rotation", size="medium")
    return figure


def story_layouts() -> Figure:
    """Eight numbered boxes, twice. In the layout called interleaved, brackets join 0 with 1, 2 with 3, 4 with 5 and 6
    with 7. In the layout called half, they join 0 with 4, 1 with 5, 2 with 6 and 3 with 7."""
    steps = {"interleaved": 1, "half": 4}
    figure, rows = panels((2, 1, 300), (2, 1, 260), steps)
    for axes, step in zip(rows, steps.values(), strict=True):
        _bare(axes, (-0.2, 8.2), (-0.1, 2.3))
        for i in range(4):
            first = 2 * i if step == 1 else i
            for feature in (first, first + step):
                axes.add_patch(Rectangle((feature + 0.06, 0), 0.88, 0.88, color=COLOURS[i], alpha=0.35))
                axes.text(feature + 0.5, 0.42, f"{feature}", ha="center", va="center")
            top = 1.25 if step == 1 else 1.1 + 0.27 * i
            ends = (first + 0.5, first + step + 0.5)
            axes.plot([ends[0], ends[0], ends[1], ends[1]], [0.95, top, top, 0.95], color=COLOURS[i], lw=2)
    return figure


def story_stretch() -> Figure:
    """Two rows of eight rings for a text eight times as long as in training. Without a scaling, the rings of the slow
    arrows 4 to 7 have large parts in orange, angles that never occurred in training. With YaRN no ring has any."""
    figure, rings = panels((2, 8, 250), (2, 8, 170))
    plain = pe.geometric(16)
    rows = {"none": plain, "YaRN": pe.yarn(16, 10_000, 8, 512)}
    for line, (name, spectrum) in zip((rings[:8], rings[8:]), rows.items(), strict=True):
        for i, axes in enumerate(line):
            _bare(axes, (-1.2, 1.2), (-1.2, 1.2))
            seen, used = min(1.0, 512 / plain.wavelengths[i]), min(1.0, 4096 / spectrum.wavelengths[i])
            axes.add_patch(Circle((0, 0), 0.85, fill=False, color=GREY, alpha=0.4, lw=2))
            for start, end, colour in ((0.0, seen, SEEN), (seen, used, NEW)):
                if end > start + 1e-9:
                    axes.add_patch(Wedge((0, 0), 1, 90 - 360 * end, 90 - 360 * start, width=0.3, color=colour))
            axes.set_title(f"{name}\n0" if i == 0 else f"{i}", loc="center")
    return figure


def story_grid() -> Figure:
    """Two grids of 16 by 16 patches: how similar the encoding of one patch is to all others, yellow for similar. With
    the patches numbered in one line, a bright band lies along its row. With row and column, a bright cross lies along
    both."""
    cells = np.asarray(pe.grid_positions((16, 16)))
    encodings = {
        "in one line": pe.sinusoidal(np.arange(16 * 16), pe.geometric(64, 100)),
        "row and column": pe.sinusoidal(cells, pe.axial(64, 2, 100)),
    }
    figure, both = panels((1, 2, 430), (1, 2, 260), encodings)
    for axes, table in zip(both, encodings.values(), strict=True):
        table = np.asarray(table)
        likeness = table @ table[8 * 16 + 3] / 32
        image = _drawing.image(axes, likeness.reshape(16, 16), "viridis", -0.5, 1, "equal")
        axes.add_patch(Rectangle((2.5, 7.5), 1, 1, fill=False, color="black", lw=1.5))
        axes.set(xticks=[], yticks=[])
    colour_bar(image, both, "cosine similarity", [-0.5, 0, 0.5, 1])
    return figure
