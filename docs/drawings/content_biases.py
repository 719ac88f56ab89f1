"""Biases that see the tokens."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from drawings import UPRIGHT, colour_bar, legend, panels
from posenc_jax.plot import _drawing

TOKENS = "the", "dog"  # two queries at one place


def content_terms() -> Figure:
    """Two heatmaps of nine words by nine words in red and blue. Left, a bias: every diagonal has one colour. Right,
    the term of queries and offsets: each row is irregular in its own way; the two rows of the word the hold the
    same values, moved by five, and so do the two rows of sat."""
    sentence = "the cat sat down and the dog sat up".split()
    words = sorted(set(sentence))
    keys = jax.random.split(jax.random.key(4), 3)
    content = jax.random.normal(keys[0], (len(words), 16))[np.array([words.index(word) for word in sentence])]
    p = np.arange(len(sentence))
    offset = p - p[:, None]
    furthest = len(sentence) - 1
    vectors = jax.random.normal(keys[1], (2 * furthest + 1, 16))
    numbers = 4 * jax.random.normal(keys[2], (2 * furthest + 1,))
    terms = {
        "a bias": numbers[offset + furthest],
        "Shaw’s term": jnp.einsum("qd,qkd->qk", content, vectors[offset + furthest]),
    }
    figure, both = panels((1, 2, 440), (1, 2, 290), terms, "key", "query", sharey=True)
    for axes, values in zip(both, terms.values(), strict=True):
        image = _drawing.image(axes, np.asarray(values), "RdBu_r", -10, 10, "equal")
        axes.set_xticks(p, sentence, **UPRIGHT)
        axes.set_yticks(p, sentence)
    colour_bar(image, both, "part of the score")
    return figure


def _smooth(seed: int, rows: int, width: int, reach: float) -> np.ndarray:
    """Random vectors, (rows, width), each close to its neighbours within the reach."""
    noise = np.asarray(jax.random.normal(jax.random.key(seed), (rows, width)))
    distance = np.arange(rows) - np.arange(rows)[:, None]
    kernel = np.exp(-((distance / reach) ** 2))
    return (kernel / np.sqrt((kernel**2).sum(1, keepdims=True)) @ noise).astype(np.float32)


def _of_two(offsets: np.ndarray, table: np.ndarray, **rows: object) -> np.ndarray:
    """The biases of two queries at 0, (2, offsets)."""
    query = jax.random.normal(jax.random.key(21), (2, 1, table.shape[-1]))
    bias = pe.content_bias(jnp.zeros(2, jnp.int32), -jnp.asarray(offsets), table, query=query, **rows)  # type: ignore
    return np.asarray(bias)[0] * table.shape[-1] ** -0.5


def content_methods() -> Figure:
    """Six panels of bias against offset, in each a blue and an orange curve for two queries. Shaw: curves that wave
    and are level beyond an offset of 16 to both sides. DeBERTa: steps that are one offset wide up to 16 and wider
    beyond. Transformer-XL: waves without an end. Inkling: curves for offsets from 0 to 39, exactly 0 elsewhere.
    WavLM: one staircase, stretched up and down for one of the two queries. Forgetting attention: two falling curves
    of steep and level parts, those of the second twelve offsets before those of the first."""
    near, before = np.arange(-48, 49), np.arange(-8, 65)
    sinusoids = np.asarray(pe.sinusoidal(jnp.arange(-48, 49), 64))
    projection = np.asarray(jax.random.normal(jax.random.key(24), (64, 16))) / 4
    staircase = jnp.asarray(_smooth(26, 32, 1, 2))
    staircase = staircase.at[16:].set(staircase[16:] + staircase[0] - staircase[16])
    gates = jnp.array([[1.9], [1.1]])
    forget = np.asarray(jax.nn.log_sigmoid(5 * jax.random.normal(jax.random.key(28), (128,)) + 5))
    summed = np.cumsum(forget)
    methods = {
        "Shaw, clipped at 16": (near, _of_two(near, _smooth(22, 33, 16, 3), out_of_range="nearest")),
        "DeBERTa, 64 rows": (near, _of_two(near, _smooth(23, 64, 16, 2), max_distance=64)),
        "Transformer-XL": (near, _of_two(near, sinusoids @ projection)),
        "Inkling, 40 rows": (before, _of_two(before, _smooth(25, 40, 16, 3), first=0, out_of_range="zeros")),
        "WavLM": (
            near,
            np.asarray(gates * pe.t5(jnp.zeros(1, jnp.int32), -jnp.asarray(near), staircase, max_distance=64)[0]),
        ),
        "forgetting": (np.arange(64), np.stack([summed[p] - summed[p - np.arange(64)] for p in (100, 88)])),
    }
    figure, grid = panels((2, 3, 480), (3, 2, 580), methods, "offset i − j", "bias")
    for axes, (name, (offsets, curves)) in zip(grid, methods.items(), strict=True):
        for i, curve in enumerate(curves):
            stepped = name.startswith(("DeBERTa", "WavLM"))
            style = _drawing.line(i) | {"marker": "", "drawstyle": "steps-mid" if stepped else "default"}
            axes.plot(offsets, curve, label=f"“{TOKENS[i]}”", **style)
        axes.xaxis.set_major_locator(_drawing.whole_ticks())
    legend(figure, handles=grid[0].lines, ncols=2)
    return figure
