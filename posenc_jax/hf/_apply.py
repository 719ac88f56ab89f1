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


class LayerRotation(NamedTuple):
    """How a layer rotates and scales its queries or its keys; equal for layers that do the same."""

    frequencies: Frequencies
    query_scale: Callable[[jax.Array], jax.Array] | HeadScale | None = None
    softmax_scale: float = 1.0
    learned_log_factor: str | None = None  # the name of the learned parameter of the frequencies


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
    rotations: tuple[LayerRotation, ...],
    x: jax.Array,
    positions: Any,
    layer: int | jax.Array,
    head_axis: Any,
    parameters: Any = None,
    **names: Any,
) -> jax.Array:
    """Checks positions, head_axis and parameters, then rotates and scales x as one layer does.

    `names` are options of `parse_rotary`: how errors name the arguments, and whether all vectors may share a position.
    """
    candidates, index = (rotations[layer : layer + 1], None) if isinstance(layer, int) else (rotations, layer)
    rotating = dict.fromkeys(rotation.frequencies for rotation in candidates if rotation.frequencies.dim)
    first, *others = rotating or [geometric(0)]
    if not first.dim:
        positions = _first_coordinate(positions, rotations)
    options = settings.layout, head_axis, "last" if settings.last else "first"
    parse = functools.partial(parse_rotary, **names)
    for frequencies in others:  # a traced layer may choose any
        parse(x, positions, frequencies, *options)
    scaled = any(rotation.query_scale for rotation in candidates)
    x, positions, _, heads = parse(x, positions, first, *options, reads_positions=scaled)
    if positions is not None and scaled:
        _check_scaled_positions(positions)
    arrays = parse_parameters(parameters, _shapes(candidates, x, heads))
    for name in dict.fromkeys(rotation.learned_log_factor for rotation in candidates):
        if name is not None:
            checks.unsharded(f"parameters[{name!r}]", arrays[name])
    return _rotate(settings, candidates, x, positions, index, arrays, heads)


def _shapes(rotations: Sequence[LayerRotation], x: jax.Array, heads: tuple[int, ...]) -> Shapes:
    """The shapes of the parameters that these rotations need."""
    if not heads and any(isinstance(rotation.query_scale, HeadScale) for rotation in rotations):
        raise invalid("head_axis must be given, because each head has its own scale of queries, got None")
    count = math.prod(x.shape[axis] for axis in heads)
    return {name: shape for rotation in dict.fromkeys(rotations) for name, shape in shapes_of(rotation, count).items()}


def _first_coordinate(positions: Any, rotations: Sequence[LayerRotation]) -> Any:
    """The first coordinate, if other layers read several: query scales of layers that do not rotate depend on it."""
    widest = max((rotation.frequencies for rotation in rotations), key=lambda f: f.num_axes)
    if positions is None or widest.num_axes == 1:
        return positions
    return parse_positions("positions", positions, widest)[..., 0]


def _check_scaled_positions(positions: jax.Array) -> None:
    """Raises for concrete positions below 0, at which a query scale may be infinite."""
    if positions.size and not isinstance(positions, Tracer):
        with jax.ensure_compile_time_eval():
            least = positions.min()
        require(not least < 0, "positions must be at least 0 where a layer scales its queries, got {}", least)


@compiled("rotate", static_argnums=(0, 1, 6))
def _rotate(
    settings: RotationSettings,
    rotations: tuple[LayerRotation, ...],
    x: jax.Array,
    positions: jax.Array | None,
    layer: jax.Array | None,
    parameters: dict[str, jax.Array],
    heads: tuple[int, ...],
) -> jax.Array:
    """Applies to x the rotation that `layer` selects, NaN if there is none; without a layer, the only rotation."""
    positions, distinct = expand_positions(x, positions, heads), list(dict.fromkeys(rotations))
    branches: list[Callable[..., Any]] = [functools.partial(_rotate_and_scale, settings, heads, r) for r in distinct]
    if layer is None:
        return branches[0](x, positions, parameters)
    branches.append(functools.partial(_nan, settings))
    branch_of_layer = np.array([distinct.index(rotation) for rotation in rotations], np.int32)
    branch = lax.dynamic_index_in_dim(branch_of_layer, layer, keepdims=False)
    chosen = jnp.where((layer >= 0) & (layer < len(rotations)), branch, len(distinct))
    return lax.switch(chosen, branches, x, positions, parameters)


def _nan(settings: RotationSettings, x: jax.Array, positions: jax.Array, _: Any) -> jax.Array:
    return apply_rotation(settings, x, Angles(positions, geometric(0))) * np.array(np.nan, x.dtype)


def _rotate_and_scale(
    settings: RotationSettings,
    heads: tuple[int, ...],
    rotation: LayerRotation,
    x: jax.Array,
    positions: jax.Array,
    parameters: Mapping[str, jax.Array],
) -> jax.Array:
    """Rotates and scales x, rounded once."""
    dtype, angles = np.dtype(compute_dtype(x)), Angles(positions, rotation.frequencies)
    if rotation.learned_log_factor is not None:
        angles = learned_sines(rotation.frequencies, parameters[rotation.learned_log_factor], positions)
    if rotation.query_scale is None and rotation.softmax_scale == 1:
        return apply_rotation(settings, x, angles)
    y = apply_rotation(settings._replace(result=dtype), x, angles)
    scale = np.ones((), dtype)
    if isinstance(rotation.query_scale, HeadScale):
        scale = head_factors(rotation.query_scale, positions[..., :1], parameters, x, heads).astype(dtype)
    elif rotation.query_scale:
        scale = rotation.query_scale(positions[..., :1]).astype(dtype)
    return (y * (scale * np.array(rotation.softmax_scale, dtype))).astype(x.dtype)
