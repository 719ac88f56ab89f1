"""Attention biases."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

import posenc_jax as pe
from drawings import AMBER, QUERY, colour_bar, for_phone, panels
from posenc_jax.plot import _drawing


@functools.cache
def _trained() -> dict[str, dict[str, jax.Array]]:
    """What T5's bias and FIRE learned: see `trained_biases.py`."""
    kept = json.loads((pathlib.Path(__file__).parent / "trained_biases.json").read_text(encoding="utf-8"))
    return {name: {key: jnp.float32(value) for key, value in kept[name].items()} for name in ("t5", "fire")}


def _t5(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """The trained bias of four heads, less that at distance 0."""
    table = _trained()["t5"]["embedding"]
    return pe.t5(queries, keys, table - table[0], bidirectional=False, max_distance=32)


def _fire(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """The same of FIRE, whose threshold began at 32."""
    f = _trained()["fire"]
    mlp = f["kernel1"][0], f["bias1"], f["kernel2"], f["bias2"]
    c, threshold = jax.nn.softplus(f["free_c"]), 32 * jax.nn.softplus(f["free_multiplier"])
    bias = pe.fire(queries, keys, mlp, c=c, threshold=threshold)
    return bias - pe.fire(queries, queries[:1], mlp, c=c, threshold=threshold)[:, :1]


def bias_curves() -> Figure:
    """Six panels of bias against distance, up to 256, for T5 up to 48.

    ALiBi: straight lines of different slope. T5, trained: four staircases; the first three heads rise by 3 at distance
    1 or 2 and fall from there to minus 2 or 3 beyond distance 32, where all are level. KERPLE log: curves that flatten.
    KERPLE power: curves between lines and steps. FIRE, trained: one curve that falls from 0 to minus 25 and flattens,
    and is stretched wider as the query moves from position 128 to 256. Sandwich: curves that fall fast, wave a little
    and flatten.
    """
    distance = jnp.arange(257)
    query = jnp.array([256])
    keys = query - distance

    def rows(bias: jax.Array) -> np.ndarray:
        return np.asarray(bias)[:, 0]

    slopes = -np.asarray(pe.alibi(jnp.array([1]), jnp.array([0]), 8))[:, 0, 0]
    some = (2, 3, 4, 7)
    two = jnp.array([2.0, 1.0, 2.0, 0.5]), jnp.array([1.0, 0.3, 0.05, 0.02])
    powers = jnp.array([0.02, 0.25, 1.0, 3.0]), jnp.array([1.0, 0.7, 0.4, 0.1])
    near = jnp.arange(49)
    curves = {
        "ALiBi": [(f"m = 1/{1 / slopes[h]:.0f}", rows(pe.alibi(query, keys, 8))[h]) for h in some],
        "T5, trained": [(f"head {h + 1}", row) for h, row in enumerate(rows(_t5(query, query - near)))],
        "KERPLE, log": [
            (f"{a:g}, {b:g}", row) for a, b, row in zip(*two, rows(pe.kerple_log(query, keys, *two)), strict=True)
        ],
        "KERPLE, power": [
            (f"{a:g}, {b:g}", row)
            for a, b, row in zip(*powers, rows(pe.kerple_power(query, keys, *powers)), strict=True)
        ],
        "FIRE, trained": [(f"p = {p}", rows(_fire(jnp.array([p]), p - jnp.arange(p + 1)))[0]) for p in (64, 128, 256)],
        "Sandwich": [(f"head {h}", rows(pe.sandwich(query, keys, 8, 128))[h - 1]) for h in (1, 2, 4, 8)],
    }
    figure, grid = panels((2, 3, 560), (6, 1, 1300), curves, "distance (tokens)", "bias")
    for axes, (name, labelled) in zip(grid, curves.items(), strict=True):
        for i, (label, values) in enumerate(labelled):
            style = _drawing.line(i) | {"marker": ""}
            drawstyle = "steps-mid" if name.startswith("T5") else "default"
            axes.plot(np.arange(len(values)), values, label=label, drawstyle=drawstyle, **style)
        low, high = axes.get_ylim()
        axes.set_ylim(low - 0.32 * (high - low), high)  # room for the legend
        axes.legend(handlelength=1.4, columnspacing=0.9, ncols=2, loc="lower center")
        axes.xaxis.set_major_locator(_drawing.whole_ticks())
    return figure


def bias_tiles() -> Figure:
    """Four heatmaps of queries by keys, white at zero, blue below it and red above.

    ALiBi: white on the diagonal, evenly bluer to both sides. T5, trained, below the diagonal only: a thin red stripe
    two keys before the query, pale stripes next to it, and even blue from a distance of 32 on. Sandwich: white on the
    diagonal, blue within a few keys and then evenly so. FIRE, trained, 256 by 256, below the diagonal only: white on
    the diagonal and bluer to the left, for the first 88 queries at one rate, then ever more slowly.
    """
    p, long = jnp.arange(48), jnp.arange(256)
    tiles = {
        "ALiBi": pe.alibi(p, p, 8)[2],
        "T5, trained": _t5(p, p)[0],
        "Sandwich": pe.sandwich(p, p, 8, 128)[7],
        "FIRE, trained": _fire(long, long)[0],
    }
    figure, grid = panels((1, 4, 270), (2, 2, 470), tiles, "key", "query")
    for axes, (name, tile) in zip(grid, tiles.items(), strict=True):
        tile = np.array(tile)
        if "trained" in name:
            tile[np.triu_indices(len(tile), 1)] = np.nan
        limit = np.nanmax(np.abs(tile))
        image = _drawing.image(axes, tile, "RdBu_r", -limit, limit, "equal")
        figure.colorbar(image, ax=axes, location="bottom", ticks=MaxNLocator(3))
    return figure


def offset_table() -> Figure:
    """Left, a table of 7 by 7 offsets in red and blue, red in the middle, with two frames of 4 by 4 cells, one in the
    upper left corner and one around the middle. Right, two grids of 4 by 4 patches, one for each frame: the bias that
    a query at the upper left patch and a query near the middle give to all patches, each a frame rotated by 180°
    so that the reddest cell lies on the query."""
    window = 4
    offsets = np.mgrid[1 - window : window, 1 - window : window]
    noise = np.asarray(jax.random.normal(jax.random.key(11), offsets.shape[1:]))
    table = 3 * np.exp(-((offsets**2).sum(0)) / 3) - 1 + 0.35 * noise
    queries = {(0, 0): (AMBER, "#a87400"), (2, 1): (QUERY, "#00785c")}  # of a title, and of frames in either scheme
    grid = pe.grid_positions((window, window))
    bias = np.asarray(pe.relative_position_bias(grid, grid, jnp.float32(table)[..., None]))[0]
    titles = ("the table T", *(f"query at {query}" for query in queries))
    ratios = {"height_ratios" if for_phone() else "width_ratios": [7, 4, 4]}
    figure, (whole, *crops) = panels((1, 3, 330), (3, 1, 740), titles, layout="constrained", **ratios)
    image = _drawing.image(whole, table, "RdBu_r", -2.5, 2.5, "equal")
    whole.set_xticks(range(7), range(-3, 4))
    whole.set_yticks(range(7), range(-3, 4))
    whole.set(xlabel="p₂ − q₂", ylabel="p₁ − q₁")
    for axes, ((row, column), (ink, colour)) in zip(crops, queries.items(), strict=True):
        of_query = bias[row * window + column].reshape(window, window)
        _drawing.image(axes, of_query, "RdBu_r", -2.5, 2.5, "equal")
        axes.set_title(axes.get_title("left"), color=ink)
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=colour, lw=3))
        whole.add_patch(Rectangle((column - 0.5, row - 0.5), window, window, fill=False, edgecolor=colour, lw=3))
    colour_bar(image, figure.axes, "bias")
    return figure
