"""Attention biases."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from posenc_jax import _figure


def _mlp(heads: int, hidden: int = 32) -> tuple[jax.Array, ...]:
    """Weights as the module of FIRE begins with."""
    keys = jax.random.split(jax.random.key(7), 4)
    shapes = (hidden,), (hidden,), (hidden, heads), (heads,)
    bounds = 1.0, 1.0, hidden**-0.5, 1.0
    draws = zip(keys, shapes, bounds, strict=True)
    return tuple(jax.random.uniform(key, shape, minval=-b, maxval=b) for key, shape, b in draws)


def bias_curves() -> Figure:
    """Six panels of bias against distance up to 256.

    ALiBi: straight lines of different slope. T5: staircases of buckets whose steps become longer, and level beyond
    a hundred or so. KERPLE log: curves that flatten. KERPLE power: curves between lines and steps. FIRE: one curve that
    is stretched wider as the query moves from position 64 to 128 to 256. Sandwich: curves that fall fast, wave a
    little and flatten.
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
    panels = {
        "ALiBi": [(f"m = 1/{1 / slopes[h]:.0f}", rows(pe.alibi(query, keys, 8))[h]) for h in some],
        "T5: the bucket": [
            (f"{n} buckets", rows(pe.t5(query, keys, jnp.arange(float(n))[:, None], bidirectional=False))[0])
            for n in (32, 16)
        ],
        "KERPLE, log": [
            (f"{a:g}, {b:g}", row) for a, b, row in zip(*two, rows(pe.kerple_log(query, keys, *two)), strict=True)
        ],
        "KERPLE, power": [
            (f"{a:g}, {b:g}", row)
            for a, b, row in zip(*powers, rows(pe.kerple_power(query, keys, *powers)), strict=True)
        ],
        "FIRE, random weights": [],
        "Sandwich": [(f"head {h}", rows(pe.sandwich(query, keys, 8, 128))[h - 1]) for h in (1, 2, 4, 8)],
    }
    for p in (64, 128, 256):
        reach = jnp.arange(p + 1)
        value = pe.fire(jnp.array([p]), p - reach, _mlp(1), c=0.1, threshold=64.0)[0, 0]
        panels["FIRE, random weights"].append((f"p = {p}", np.asarray(value)))
    figure = Figure(figsize=(5.8, 7.4), layout="constrained")
    for axes, (name, curves) in zip(figure.subplots(3, 2, sharex=True).flat, panels.items(), strict=True):
        axes.set_title(name, size="medium")
        for i, (label, values) in enumerate(curves):
            style = _figure.line(i) | {"marker": ""}
            axes.plot(np.arange(len(values)), values, label=label, **style)
        low, high = axes.get_ylim()
        axes.set_ylim(low - 0.32 * (high - low), high)  # room for the legend
        axes.legend(frameon=False, fontsize="small", handlelength=1.8, columnspacing=0.9, ncols=2, loc="lower center")
        axes.xaxis.set_major_locator(_figure.whole_ticks())
    for axes in figure.axes[-2:]:
        axes.set_xlabel("distance (tokens)")
    for axes in figure.axes[::2]:
        axes.set_ylabel("bias")
    figure.axes[1].set_ylabel("bucket")
    return figure


def bias_tiles() -> Figure:
    """Four heatmaps of 48 queries by 48 keys.

    ALiBi: zero on the diagonal, falling evenly to both sides. T5 with a random table: stripes along diagonals, thin
    near the main one and wide far from it, different above and below. Sandwich: zero on the diagonal, falling fast
    and then slowly to both sides. FIRE, below the diagonal only: highest on the diagonal and falling to the left,
    for the first 24 queries at one rate, then ever more slowly.
    """
    p = jnp.arange(48)
    table = 0.3 * jax.random.normal(jax.random.key(1), (32, 1))
    fire = np.array(pe.fire(p, p, _mlp(1), c=0.5, threshold=24.0)[0])
    fire[np.triu_indices(48, 1)] = np.nan
    tiles = {
        "ALiBi": pe.alibi(p, p, 8)[2],
        "T5, a random table": pe.t5(p, p, table)[0],
        "Sandwich": pe.sandwich(p, p, 8, 128)[7],
        "FIRE, random weights": fire,
    }
    figure = Figure(figsize=(5.6, 5.1), layout="constrained")
    for axes, (name, tile) in zip(figure.subplots(2, 2).flat, tiles.items(), strict=True):
        tile = np.asarray(tile)
        image = _figure.image(axes, tile, "viridis", np.nanmin(tile), np.nanmax(tile), "equal")
        axes.set_title(name, size="medium")
        figure.colorbar(image, ax=axes, shrink=0.8)
    for axes in figure.axes[:4:2]:
        axes.set_ylabel("query")
    for axes in figure.axes[2:4]:
        axes.set_xlabel("key")
    return figure
