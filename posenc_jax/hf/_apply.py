"""`RotaryPlan.rotate`: one layer of a plan, static or traced, applied to queries, keys, values or outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from posenc_jax._frequencies.angles import Angles
from posenc_jax._frequencies.frequencies import Frequencies, geometric
from posenc_jax._frequencies.parser import parse_positions
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import compute_dtype, unwrap_array
from posenc_jax._jax.errors import invalid, require
from posenc_jax._jax.workarounds import compiled
from posenc_jax._rotary.parser import parse_rotary
from posenc_jax._rotary.primitive import apply_rotation
from posenc_jax._rotary.rotary import expand_positions
from posenc_jax._rotary.rotation import RotationSettings
from posenc_jax.hf._parameters import HeadScale, Shapes, head_factors, learned_sines, parse_parameters, shapes_of

Role = Literal["query", "key", "value", "output"]
ROLES: tuple[Role, ...] = ("query", "key", "value", "output")


class LayerTurn(NamedTuple):
    """What a layer does to its queries or to its keys; equal for layers that do the same."""

    frequencies: Frequencies
    query_scale: Callable[[jax.Array], jax.Array] | HeadScale | None = None
    softmax_scale: float = 1.0
    learned_log_factor: str | None = None  # the name of what the model has learned of its frequencies


def parse_layer(layer: Any, head_dims: Sequence[int]) -> int | jax.Array:
    """The index of a layer, a Python integer unless it is traced."""
    layer, count = unwrap_array(layer), len(head_dims)
    if isinstance(layer, Tracer):
        first = {n: head_dims.index(n) for n in head_dims}
        differ = ", ".join(f"{n} in layer {i}" for n, i in first.items())
        require(len(first) == 1, "layer must be a Python integer where head_dim differs between layers, {}", differ)
        return checks.zero_dimensional("layer", layer, checks.Kind("an integer", floats=False))
    if checks.is_array(layer) and not layer.ndim and jnp.issubdtype(layer.dtype, jnp.integer):
        layer = int(layer)
    layer = checks.integer("layer", layer)
    require(0 <= layer < count, "layer must be from 0 to {}, got {}", count - 1, layer)
    return layer


def parse_width(x: Any, widths: set[int] | None = None, name: str = "x") -> jax.Array:
    """x, whose last axis has one of these sizes, if any are given."""
    x = checks.floats(name, x, (..., "head_dim"), static_axes=(-1,))
    expected = " or ".join(map(str, sorted(widths or (), reverse=True)))
    fits = not widths or x.shape[-1] in widths
    require(fits, "{} must have {} features in this layer, got shape {}", name, expected, x.shape)
    return x


def rotate(
    settings: RotationSettings,
    layers: tuple[LayerTurn, ...],
    x: jax.Array,
    positions: Any,
    layer: int | jax.Array,
    head_axis: Any,
    parameters: Any = None,
    **names: Any,
) -> jax.Array:
    """Checks positions, head_axis and parameters, then rotates and scales x as one layer does.

    `names` are options of `parse_rotary`: those of the arguments in errors, and whether one position may be shared.
    """
    applied, index = (layers[layer : layer + 1], None) if isinstance(layer, int) else (layers, layer)
    first, *others = dict.fromkeys(how.frequencies for how in applied if how.frequencies.dim) or [geometric(0)]
    if not first.dim:
        positions = _first_coordinate(positions, layers)
    options = settings.layout, head_axis, "last" if settings.last else "first"
    parse = functools.partial(parse_rotary, **names)
    for frequencies in others:  # a traced layer may choose any
        parse(x, positions, frequencies, *options)
    scaled = any(how.query_scale for how in applied)
    x, positions, _, heads = parse(x, positions, first, *options, reads_positions=scaled)
    if positions is not None and scaled:
        _check_scaled(positions)
    arrays = parse_parameters(parameters, _shapes(applied, x, heads))
    for name in dict.fromkeys(how.learned_log_factor for how in applied):
        if name is not None:
            checks.unsharded(f"parameters[{name!r}]", arrays[name])
    return _rotate(settings, applied, x, positions, index, arrays, heads)


def _shapes(layers: Sequence[LayerTurn], x: jax.Array, heads: tuple[int, ...]) -> Shapes:
    """The parameters that these layers need."""
    if not heads and any(isinstance(how.query_scale, HeadScale) for how in layers):
        raise invalid("head_axis must be given, because each head has its own scale of queries, got None")
    count = math.prod(x.shape[axis] for axis in heads)
    return {name: shape for how in dict.fromkeys(layers) for name, shape in shapes_of(how, count).items()}


def _first_coordinate(positions: Any, layers: Sequence[LayerTurn]) -> Any:
    """The first coordinate, if other layers read several: query scales of layers that do not rotate depend on it."""
    widest = max((how.frequencies for how in layers), key=lambda f: f.num_axes)
    if positions is None or widest.num_axes == 1:
        return positions
    return parse_positions("positions", positions, widest)[..., 0]


def _check_scaled(positions: jax.Array) -> None:
    """Raises for known positions below 0, at which a query scale may be infinite."""
    if positions.size and not isinstance(positions, Tracer):
        with jax.ensure_compile_time_eval():
            least = positions.min()
        require(not least < 0, "positions must be at least 0 where a layer scales its queries, got {}", least)


@compiled("rotate", static_argnums=(0, 1, 6))
def _rotate(
    settings: RotationSettings,
    layers: tuple[LayerTurn, ...],
    x: jax.Array,
    positions: jax.Array | None,
    layer: jax.Array | None,
    parameters: dict[str, jax.Array],
    heads: tuple[int, ...],
) -> jax.Array:
    """Applies to x the turn that `layer` selects, NaN if there is none; without a layer, the only turn."""
    positions, distinct = expand_positions(x, positions, heads), list(dict.fromkeys(layers))
    branches: list[Callable[..., Any]] = [functools.partial(_applied, settings, heads, how) for how in distinct]
    if layer is None:
        return branches[0](x, positions, parameters)
    branches.append(functools.partial(_nan, settings))
    branch_of_layer = np.array([distinct.index(how) for how in layers], np.int32)
    branch = lax.dynamic_index_in_dim(branch_of_layer, layer, keepdims=False)
    chosen = jnp.where((layer >= 0) & (layer < len(layers)), branch, len(distinct))
    return lax.switch(chosen, branches, x, positions, parameters)


def _nan(settings: RotationSettings, x: jax.Array, positions: jax.Array, _: Any) -> jax.Array:
    return apply_rotation(settings, x, Angles(positions, geometric(0))) * np.array(np.nan, x.dtype)


def _applied(
    settings: RotationSettings,
    heads: tuple[int, ...],
    how: LayerTurn,
    x: jax.Array,
    positions: jax.Array,
    parameters: Mapping[str, jax.Array],
) -> jax.Array:
    """Rotates and scales x, rounded once."""
    dtype, angles = np.dtype(compute_dtype(x)), Angles(positions, how.frequencies)
    if how.learned_log_factor is not None:
        angles = learned_sines(how.frequencies, parameters[how.learned_log_factor], positions)
    if how.query_scale is None and how.softmax_scale == 1:
        return apply_rotation(settings, x, angles)
    y = apply_rotation(settings._replace(result=dtype), x, angles)
    scale = np.ones((), dtype)
    if isinstance(how.query_scale, HeadScale):
        scale = head_factors(how.query_scale, positions[..., :1], parameters, x, heads).astype(dtype)
    elif how.query_scale:
        scale = how.query_scale(positions[..., :1]).astype(dtype)
    return (y * (scale * np.array(how.softmax_scale, dtype))).astype(x.dtype)
