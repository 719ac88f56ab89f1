"""A plan as a table, in text and in HTML: a row for each group of equal layers."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax.hf._apply import HeadScale

_NONE, _UNKNOWN = "none", "?"
_IN_ROWS = {"layers", "layout", "part", "indexer", "grids"}  # the fields of a plan that its title leaves out


def text_of(plan: Any) -> str:
    """The table of a plan, and that of its indexer, with aligned columns."""
    tables = []
    for title, rows in _tables(plan):
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        tables.append("\n".join([title, *lines]))
    return "\n\n".join(tables)


def html_of(plan: Any) -> str:
    """The same in HTML."""
    result = ""
    for title, rows in _tables(plan):
        names, *lines = ([html.escape(cell) for cell in row] for row in rows)
        result += f"<table><caption>{html.escape(title)}</caption><tr><th>{'</th><th>'.join(names)}</th></tr>"
        result += "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in lines) + "</table>"
    return result


def _tables(plan: Any, label: str = "") -> Iterator[tuple[str, list[list[str]]]]:
    """The title, with what all layers share, and the rows of a table: the names of the columns, then equal layers.

    A column without facts is left out. An indexer has a table of its own.
    """
    count = len(plan.layers)
    title = ", ".join([f"{label}{type(plan).__name__} of {count} layer{'s' * (count > 1)}", *_changes(plan)])
    groups: dict[Any, list[int]] = {}
    for i, layer in enumerate(zip(plan.layers, getattr(plan, "grids", [None] * count), strict=True)):
        groups.setdefault(layer, []).append(i)
    rows = [{"layers": _ranges(equal)} | _cells(plan, *layer) for layer, equal in groups.items()]
    names = [name for name in rows[0] if {row[name] for row in rows} - {"", _UNKNOWN}]
    yield title, [names, *([row[name] for name in names] for row in rows)]
    if plan.indexer:
        yield from _tables(plan.indexer, "indexer: ")


def _cells(plan: Any, layer: Any, grid: Any) -> dict[str, str]:
    """The cells of a layer: "" for a fact that most layers do not have, "?" for one that is not known."""
    f, settings, scale = layer.frequencies, dict(layer.settings), layer.query_scale
    base = settings.get("rope_theta", _base(f))
    rope_type = settings.get("rope_type", _UNKNOWN if base is None else "default")
    rope_type += "".join(f", {name} {_text(settings[name])}" for name in ("factor", "alpha") if name in settings)
    rope_type += ", learned" if layer.learned_log_factor else ""
    last = "last " if plan.part == "last" and 0 < f.dim < layer.head_dim else ""
    query_scale = "" if scale is None else "learned"
    if scale and not isinstance(scale, HeadScale):
        query_scale = f"{scale.variant}, {_text(scale.coefficient)}, {scale.period}"
    return {
        "kind": _text(layer.kind),
        "base": _text(base) if f.dim else _NONE,
        "rotated": f"{last}{f.dim} of {layer.head_dim}",
        "rope type": rope_type if f.dim else _NONE,
        "amplitude": "" if f.attention_factor == 1 else _text(f.attention_factor),
        "coordinates": "+".join(str(f.axes.count(axis)) for axis in range(f.num_axes)) if f.num_axes > 1 else "",
        "layout": plan.layout if f.dim else "",
        "window": _window(layer),
        "query scale": query_scale,
        "score scale": _text(layer.score_scale),
        "grid": "" if grid is None else ", ".join(_changes(grid)) or "row by row",
    }


def _base(f: Frequencies) -> float | None:
    """The base of geometric frequencies, whether the coordinates share or repeat them; None for others."""
    spectrum = np.unique(f.angular)[::-1]
    count = len(spectrum)
    if count < 2 or spectrum[-1] <= 0:
        return None
    base = float(spectrum[-1]) ** (count / (1 - count))
    return base if np.allclose(spectrum, base ** (-np.arange(count) / count), rtol=1e-9, atol=0) else None


def _window(layer: Any) -> str:
    if layer.chunk:
        return f"chunks of {layer.chunk}"
    if layer.window is None:
        return _UNKNOWN
    sides = zip(layer.window, ("back", "ahead"), strict=True)
    return ", ".join(f"{count} {side}" for count, side in sides if count is not None) or _NONE


def _changes(instance: Any) -> list[str]:
    """The fields that differ from their defaults, but for those of a plan that are in rows."""
    fields = [(name, value) for name, value in vars(instance).items() if name not in _IN_ROWS]
    return [f"{name} {_text(value)}" for name, value in fields if value != getattr(type(instance), name)]


def _ranges(indices: Sequence[int]) -> str:
    """Indices as ranges: 0-4, 6."""
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    return ", ".join("-".join(map(str, np.unique(run[[0, -1]]))) for run in runs)


def _text(value: Any) -> str:
    """A value: of a float six digits, or all if it is whole."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.6g}"
    return _UNKNOWN if value is None else str(value)
