"""A plan as a table, in text and in HTML: a row for each group of equal layers."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax.hf._parameters import HeadScale

_NONE, _UNKNOWN = "none", "?"


def text_of(plan: Any) -> str:
    """The table of a plan, and that of its indexer, with aligned columns."""
    rows = rows_of(plan)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    indexer = ["", f"indexer: {text_of(plan.indexer)}"] if plan.indexer else []
    return "\n".join([title_of(plan), *lines, *indexer])


def html_of(plan: Any, label: str = "") -> str:
    """The same in HTML."""
    head, *body = (map(html.escape, row) for row in rows_of(plan))
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
    caption, head = html.escape(label + title_of(plan)), "".join(f"<th>{name}</th>" for name in head)
    indexer = html_of(plan.indexer, "indexer: ") if plan.indexer else ""
    return f"<table><caption>{caption}</caption><tr>{head}</tr>{rows}</table>{indexer}"


def title_of(plan: Any) -> str:
    """What is the same for all layers."""
    facts = {"softmax_scale": 1.0, "length": None, "rotates_values": False, "slices": 1, "table": None}
    values = {name: getattr(plan, name, usual) for name, usual in facts.items()}
    others = [
        f"{name} {value if isinstance(value, str) else _number(value)}"
        for name, value in values.items()
        if value != facts[name]
    ]
    count = len(plan.layers)
    return ", ".join([f"{type(plan).__name__} of {count} layer{'s' * (count > 1)}", *others])


def rows_of(plan: Any) -> list[list[str]]:
    """The names of the columns, and a row for each group of equal layers. A column without facts is left out."""
    groups: dict[Any, list[int]] = {}
    for i, key in enumerate(zip(plan.layers, getattr(plan, "grids", (None,) * len(plan.layers)), strict=True)):
        groups.setdefault(key, []).append(i)
    rows = [{"layers": _indices(group)} | _cells(plan, *key) for key, group in groups.items()]
    names = [name for name in rows[0] if any(row[name] not in ("", _UNKNOWN) for row in rows)]
    return [names, *([row[name] for name in names] for row in rows)]


def _cells(plan: Any, layer: Any, grid: Any) -> dict[str, str]:
    """The cells of a layer: "" for a fact that most layers do not have, "?" for one that is not known."""
    f, settings = layer.frequencies, dict(layer.settings)
    base = settings.get("rope_theta", _base_of(f))
    rope_type = [settings.get("rope_type", _UNKNOWN if base is None else "default")]
    rope_type += [f"{name} {_number(settings[name])}" for name in ("factor", "alpha") if settings.get(name) is not None]
    rope_type += ["learned"] if layer.learned_log_factor else []
    sections = "+".join(str(f.axes.count(axis)) for axis in range(f.num_axes)) if f.num_axes > 1 else ""
    last = "last " if plan.part == "last" and 0 < f.dim < layer.head_dim else ""
    return {
        "kind": layer.kind or _UNKNOWN,
        "base": _NONE if not f.dim else _UNKNOWN if base is None else _number(base),
        "rotated": f"{last}{f.dim} of {layer.head_dim}",
        "rope type": ", ".join(rope_type) if f.dim else _NONE,
        "amplitude": "" if f.attention_factor == 1 else _number(f.attention_factor),
        "coordinates": sections,
        "layout": plan.layout if f.dim else "",
        "window": _window(layer),
        "query scale": _query_scale(layer.query_scale),
        "score scale": _UNKNOWN if layer.score_scale is None else _number(layer.score_scale),
        "grid": "" if grid is None else _changes(grid),
    }


def _base_of(f: Frequencies) -> float | None:
    """The base of geometric frequencies, the same for each coordinate; None for others."""
    bases = []
    for axis in range(f.num_axes):
        angular = f.angular[np.array(f.axes) == axis]
        pairs = len(angular)
        if pairs < 2 or min(angular) <= 0:
            return None
        base = float(angular[0] / angular[-1]) ** (pairs / (pairs - 1))
        if not np.allclose(angular, base ** (-np.arange(pairs) / pairs), rtol=1e-9, atol=0):
            return None
        bases.append(base)
    return bases[0] if bases and np.allclose(bases, bases[0]) else None


def _window(layer: Any) -> str:
    if layer.chunk:
        return f"chunks of {layer.chunk}"
    if layer.window is None:
        return _UNKNOWN
    sides = zip(layer.window, ("back", "ahead"), strict=True)
    return ", ".join(f"{count} {side}" for count, side in sides if count is not None) or _NONE


def _query_scale(scale: Any) -> str:
    if scale is None:
        return ""
    return (
        "learned" if isinstance(scale, HeadScale) else f"{scale.variant}, {_number(scale.coefficient)}, {scale.period}"
    )


def _changes(grid: Any) -> str:
    """The fields of a grid that differ from its defaults."""
    usual = type(grid)()
    names = [name for name in vars(grid) if getattr(grid, name) != getattr(usual, name)]
    return ", ".join(f"{name} {getattr(grid, name)}" for name in names) or "row by row"


def _indices(indices: Sequence[int]) -> str:
    """Indices as ranges: 0-4, 6."""
    runs = [[i for _, i in run] for _, run in itertools.groupby(enumerate(indices), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _number(value: Any) -> str:
    """A float with six digits, and a whole one with all."""
    return f"{value:.6g}" if isinstance(value, float) and not value.is_integer() else f"{value:.0f}"
