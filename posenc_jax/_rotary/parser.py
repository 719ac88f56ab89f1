"""Parses the arguments of rotary embeddings: queries and keys, their head axes, and what rotates them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax._frequencies.frequencies import AnyFrequencies
from posenc_jax._frequencies.parser import (
    dim_of,
    parse,
    parse_positions_of,
    refuse_one_position,
    require_rows_fit,
    shape_of_rows,
)
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import describe, require, wrong_type


def _one_position_hint(name: str, x: jax.Array, heads: tuple[int, ...]) -> str:
    """The end of the error for one position that serves a whole sequence: what the caller may have wanted instead."""
    head_axis_hint = "" if heads or x.ndim < 3 else "; if axis -2 holds the heads, pass head_axis=-2"
    return head_axis_hint + ("; to move rotated keys, use shift_keys" if name == "x" else "")


def parse_vectors(name: str, x: Any, head_axis: Any) -> tuple[jax.Array, tuple[int, ...]]:
    """x, and its head axes counted from the front."""
    axes = (..., "head_dim") if head_axis is None else (..., "heads", "head_dim")
    x = checks.floats(name, x, axes, static_axes=(-1,))
    return x, parse_head_axis(name, x, head_axis)


def parse_head_axis(name: str, x: jax.Array, head_axis: Any) -> tuple[int, ...]:
    """The head axes of x counted from the front, in their order; none for None."""
    if head_axis is None:
        return ()
    given = head_axis if isinstance(head_axis, (tuple, list)) else [head_axis]
    expected = "an integer, a tuple of integers or None"
    axes = [checks.integer("head_axis", axis, expected=expected) for axis in given]
    fits = all(-x.ndim <= axis < x.ndim and axis not in (-1, x.ndim - 1) for axis in axes)
    require(fits, "head_axis must be an axis of {} other than its last, shape {}, got {}", name, x.shape, head_axis)
    heads = {axis % x.ndim for axis in axes}
    require(len(heads) == len(axes), "head_axis must name each axis of {} once, got {}", name, head_axis)
    return tuple(sorted(heads))


def _unsharded_pairs(name: str, x: jax.Array, layout: Any, dim: int) -> None:
    """Raises if an Explicit axis of a mesh shards the features of x where a rotation needs them whole."""
    if dim and (layout == "half" or dim < x.shape[-1]):
        checks.unsharded(name, x)


def parse_rotary_by_cos_sin(
    x: Any, cos_sin: Any, layout: Any, head_axis: Any, part: Any
) -> tuple[jax.Array, jax.Array, tuple[int, ...]]:
    """x, cosines and sines as one array (..., 2·pairs), sines first, and the head axes counted from the front."""
    checks.layout("layout", layout)
    checks.part("part", part)
    x, heads = parse_vectors("x", x, head_axis)
    columns: Any = getattr(cos_sin, "columns", None)  # of a `CosSin`
    if columns is None:
        constructor = 'CosSin(cosine, sine, columns=…) with columns "pair", "half" or "interleaved"'
        raise wrong_type(f"cos_sin must be what cos_sin returns, or {constructor}, got {type(cos_sin).__name__}")
    names = "cos_sin[0]", "cos_sin[1]"
    cosine, sine = (
        checks.floats(*each, (..., "columns"), static_axes=(-1,)) for each in zip(names, cos_sin, strict=True)
    )
    agree = cosine.shape == sine.shape and cosine.dtype == sine.dtype
    require(agree, "cos_sin must have one shape and one dtype, got {} and {}", *map(describe, (cosine, sine)))
    if columns != "pair":
        message = "cos_sin must have a column per pair, or per feature in layout {!r}, got columns={!r}"
        require(columns == layout, message, layout, columns)
        require(cosine.shape[-1] % 2 == 0, "cos_sin must have an even number of columns, got {}", cosine.shape[-1])
        cosine, sine = (_columns_of_pairs(name, a, columns) for name, a in zip(names, (cosine, sine), strict=True))
    dim = 2 * cosine.shape[-1]
    message = "cos_sin of {} pairs must fit into head_dim, x has shape {}"
    require(dim <= x.shape[-1], message, cosine.shape[-1], x.shape)
    _unsharded_pairs("x", x, layout, dim)
    for each in (cosine, sine):
        checks.unsharded("cos_sin", each)
        require_rows_fit("cos_sin", each, "x", x, "x without its head axis and its last", heads)
    if dim:
        rows, hint = shape_of_rows(x, heads), _one_position_hint("x", x, heads)
        refuse_one_position("cos_sin", cosine.shape[:-1], "x", rows, hint, positions="positions")
    return x, jnp.concatenate(sharding.agreeing((sine, cosine)), axis=-1), heads


def _columns_of_pairs(name: str, x: jax.Array, layout: Layout) -> jax.Array:
    """One of the two columns of each pair; NaN where they differ."""
    checks.unsharded("cos_sin", x)

    def members(x: Any) -> list[Any]:
        pairs = x.reshape(*x.shape[:-1], *((2, x.shape[-1] // 2) if layout == "half" else (x.shape[-1] // 2, 2)))
        return [pairs[..., i, :] if layout == "half" else pairs[..., i] for i in range(2)]

    tolerance = 0.01  # a compiler and 16 bits may round the two differently
    if checks.is_concrete(x):
        first, second = members(np.asarray(x, np.float32))
        order = "all of them and then all again" if layout == "half" else "each twice in a row"
        message = "{} with columns={!r} must have {}"
        require(not (np.abs(first - second) > tolerance).any(), message, name, layout, order)
    first, second = members(x)
    return jnp.where(jnp.abs(first - second) > tolerance, np.array(np.nan, x.dtype), first)


def parse_rotary(
    x: Any,
    positions: Any,
    frequencies: Any,
    layout: Any,
    head_axis: Any,
    part: Any = "first",
    *,
    name: str = "x",
    positions_name: str = "positions",
    ndim: int = 1,
    shared: bool = False,
    reads_positions: bool = False,
) -> tuple[jax.Array, jax.Array | None, AnyFrequencies, tuple[int, ...]]:
    """x, positions with an axis of coordinates or None, frequencies, and the head axes counted from the front.

    `ndim` is the highest rank of frequencies that are an array; `shared` is as for `parse_positions_of`, and needs
    frequencies. A width of 0 reads no positions, unless a scale does.
    """
    checks.layout("layout", layout)
    checks.part("part", part)
    x, heads = parse_vectors(name, x, head_axis)
    if frequencies is None and not shared:
        frequencies = x.shape[-1]
    frequencies = parse(frequencies, even=True, unsharded=True, ndim=ndim)
    dim = dim_of(frequencies)
    base_hint = f"; for a base of {dim}, pass geometric({x.shape[-1]}, {dim})" if dim >= 2**12 else ""
    message = "frequencies of width {} must fit into head_dim, {} has shape {}{}"
    require(dim <= x.shape[-1], message, dim, name, x.shape, base_hint)
    _unsharded_pairs(name, x, layout, dim)
    if isinstance(frequencies, jax.Array) and frequencies.ndim == 3:
        fits = heads and frequencies.shape[0] == math.prod(x.shape[axis] for axis in heads)
        message = "frequencies must have one entry for each head of {}, shape {}, got shape {}"
        require(fits, message, name, x.shape, frequencies.shape)
    shared = shared or not (dim or reads_positions)
    rows_name, hint = f"{name} without its head axis and its last", _one_position_hint(name, x, heads)
    positions = parse_positions_of(
        positions_name, positions, name, x, frequencies, rows_name, heads=heads, shared=shared, hint=hint
    )
    return x, positions, frequencies, heads


def parse_pope(
    x: Any,
    positions: Any,
    frequencies: Any,
    phase: Any,
    layout: Any,
    head_axis: Any,
    *,
    name: str = "x",
    positions_name: str = "positions",
) -> tuple[jax.Array, jax.Array | None, AnyFrequencies, jax.Array | None, tuple[int, ...]]:
    """x, positions with an axis of coordinates or None, frequencies, the phase at x's rank or None, the head axes."""
    checks.layout("layout", layout)
    x, heads = parse_vectors(name, x, head_axis)
    checks.unsharded(name, x)
    width = 2 * x.shape[-1]
    frequencies = parse(width if frequencies is None else frequencies, even=True, unsharded=True)
    message = "frequencies must have width {}, twice the features of {}, shape {}, got {}"
    require(dim_of(frequencies) == width, message, width, name, x.shape, dim_of(frequencies))
    rows_name, hint = f"{name} without its head axis and its last", _one_position_hint(name, x, heads)
    positions = parse_positions_of(positions_name, positions, name, x, frequencies, rows_name, heads=heads, hint=hint)
    return x, positions, frequencies, None if phase is None else _phase_beside(name, x, phase, heads), heads


def _phase_beside(name: str, x: jax.Array, phase: Any, heads: tuple[int, ...]) -> jax.Array:
    """A phase (head_dim,) or (heads, head_dim), at x's rank."""
    phase = checks.on_device(checks.array("phase", phase, checks.FLOATS))
    head_counts, features = [x.shape[axis] for axis in heads], x.shape[-1]
    shapes = [(features,), *([(math.prod(head_counts), features)] if heads else [])]
    message = "phase must have shape {} beside {}, shape {}, got {}"
    require(phase.shape in shapes, message, " or ".join(map(str, shapes)), name, x.shape, phase.shape)
    checks.unsharded("phase", phase)
    phase_axes = heads if phase.ndim == 2 else ()
    if len(phase_axes) > 1:
        phase = phase.reshape(*head_counts, features)
    phase = jnp.expand_dims(phase, [i for i in range(x.ndim - 1) if i not in phase_axes])
    checks.sharded_together({each: tuple(jax.typeof(a).sharding.spec) for each, a in (("phase", phase), (name, x))})
    return phase
