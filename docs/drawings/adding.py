"""Encodings added to embeddings, and learned tables."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import posenc_jax as pe
from drawings import UPRIGHT, colour_bar, panels, single
from posenc_jax.plot import _drawing


def content_over_position() -> Figure:
    """Ratio of the norms of content and position against the width, on logarithmic axes.

    Two cases lie on one level line at 1.4: variance 1 without the factor, and variance 1/d with the root of d.
    Variance 1 with the factor rises to 128 at width 8192; variance 1/d without it falls to 0.016; 0.02 stays at
    0.028 without the factor and crosses 1 near width 1250 with it.
    """
    figure, axes = single("width d", "‖s x‖ / ‖PE‖", 400, 420)
    widths = 2 ** np.arange(6, 14)
    cases = (
        ("N(0, 1), s = √d", lambda d: 1.0, True),
        ("N(0, 1), s = 1", lambda d: 1.0, False),
        ("N(0, 1/d), s = √d", lambda d: d**-0.5, True),
        ("N(0, 0.02²), s = √d", lambda d: 0.02, True),
        ("N(0, 0.02²), s = 1", lambda d: 0.02, False),
        ("N(0, 1/d), s = 1", lambda d: d**-0.5, False),
    )
    measured = {}
    for d in widths.tolist():
        x = jax.random.normal(jax.random.key(d), (256, d))
        measured[d] = float(jnp.linalg.norm(x, axis=-1).mean() / jnp.linalg.norm(pe.sinusoidal(7, d)))
    for i, (label, sigma, scaled) in enumerate(cases):
        s = np.array([sigma(d) * (d**0.5 if scaled else 1.0) for d in widths])
        style = _drawing.line(i)
        lines = {key: style[key] for key in ("color", "linestyle")}
        # The two that coincide: marks of one inside those of the other.
        size = 9 if i == 1 else 5
        axes.plot(widths, s * 2**0.5, **lines)
        axes.plot(widths, s * np.array(list(measured.values())), **style | {"linestyle": "none", "markersize": size})
        axes.lines[-2].set_label("_")
        axes.lines[-1].set_label(label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(widths, [str(d) for d in widths])
    axes.minorticks_off()
    _drawing.legend(figure)
    return figure


def four_terms() -> Figure:
    """Four heatmaps of nine words by nine words.

    Content with content is large on the diagonal and where the repeated words the and sat meet themselves; content
    with position and position with content are weak and irregular, mirror images of each other; position with
    position is constant along diagonals and falls with the distance.
    """
    sentence = "the cat sat down and the dog sat up".split()
    words = sorted(set(sentence))
    embedding = jax.random.normal(jax.random.key(2), (len(words), 64))
    content = embedding[jnp.array([words.index(word) for word in sentence])]
    places = pe.sinusoidal(jnp.arange(len(sentence)), 64)
    parts = {"content": content, "position": places}
    terms = {f"{of}, {to}": a @ b.T for of, a in parts.items() for to, b in parts.items()}
    figure, grid = panels((1, 4, 300), (2, 2, 470), terms, "key", "query", sharex=True, sharey=True)
    limit = float(jnp.abs(content @ content.T).max())
    for axes, term in zip(grid, terms.values(), strict=True):
        image = _drawing.image(axes, np.asarray(term), "RdBu_r", -limit, limit, "equal")
        axes.set_xticks(range(len(sentence)), sentence, **UPRIGHT)
        axes.set_yticks(range(len(sentence)), sentence)
    colour_bar(image, grid, "part of the score")
    return figure


def table_similarity() -> Figure:
    """Cosine similarities of 64 positions with each other, in two panels.

    Sinusoidal encodings show a bright band along the diagonal with fainter stripes beside it, the same for every
    position, and all cosines are positive. A random table shows a thin bright diagonal on dark noise around zero.
    """
    tables = {
        "sinusoidal": pe.sinusoidal(jnp.arange(64), 64),
        "untrained table": 0.02 * jax.random.normal(jax.random.key(0), (64, 64)),
    }
    figure, both = panels((1, 2, 430), (1, 2, 260), tables, "position", "position", sharey=True)
    for axes, table in zip(both, tables.values(), strict=True):
        rows = np.asarray(table) / np.linalg.norm(table, axis=1, keepdims=True)
        image = _drawing.image(axes, rows @ rows.T, "viridis", -0.5, 1.0, "equal")
    colour_bar(image, both, "cosine similarity")
    return figure
