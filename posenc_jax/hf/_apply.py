"""`RotaryPlan.rotate` and `shift_keys`: one layer of a plan, static or traced, applied to queries, keys and so on."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._frequencies.angles import Angles, SinCosTable, features
from posenc_jax._frequencies.frequencies import Frequencies, geometric
from posenc_jax._frequencies.parser import parse_positions
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import compute_dtype, unwrap_array
from posenc_jax._jax.errors import public, require, require_type
from posenc_jax._jax.workarounds import compiled, product
from posenc_jax._numerics.exponentials import expm1
from posenc_jax._rotary.parser import parse_rotary
from posenc_jax._rotary.primitive import apply_rotation
from posenc_jax._rotary.rotary import expand_positions
from posenc_jax._rotary.rotation import RotationSettings

Role = Literal["query", "key", "value", "output"]
ROLES: tuple[Role, ...] = get_args(Role)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadScale:
    r"""A learned factor of the queries of head $h$ that grows with their position: $s_h \ln(p + 1) + b_h$.

    Examples:
      >>> from posenc_jax.hf import HeadScale, RotaryLayer, RotaryPlan
      >>> scale = HeadScale("scaling.s", "scaling.b", num_heads=64)
      >>> plan = RotaryPlan((RotaryLayer(32, head_dim=128, query_scale=scale),), "half")
      >>> plan.parameters
      (('scaling.s', (64,)), ('scaling.b', (64,)))

    Args:
      scale: the name of $s$, one number per head.
      bias: the name of $b$, one number per head.
      num_heads: the number of heads.

    Notes:
      It holds names, not arrays. Pass the arrays to `RotaryPlan.rotate` as `parameters`. Mistral Large 4 has such a
      factor.
    """

    scale: str
    bias: str
    num_heads: int

    @public
    def __post_init__(self) -> None:
        """Checks the fields."""
        for name in ("scale", "bias"):
            require_type(isinstance(getattr(self, name), str), name, "a string", getattr(self, name))
        require(self.scale != self.bias, "scale and bias must have different names, got {!r}", self.scale)
        vars(self).update(num_heads=checks.positive_int("num_heads", self.num_heads))  # frozen


def shapes_of(layer: Any, num_heads: Any = None) -> dict[str, tuple[Any, ...]]:
    """The shapes of a layer's parameters, for `num_heads` heads, by default all heads of the model."""
    learned, scale = layer.learned_log_factor, layer.query_scale
    result = {} if learned is None else {learned: (layer.frequencies.num_pairs,)}
    if isinstance(scale, HeadScale):
        result |= dict.fromkeys((scale.scale, scale.bias), (scale.num_heads if num_heads is None else num_heads,))
    return result


class LayerRotation(NamedTuple):
    """How a layer rotates and scales its queries or its keys; equal for layers that do the same."""

    frequencies: Frequencies
    query_scale: Any = None  # a QueryScale or a HeadScale
    softmax_scale: float = 1.0
    learned_log_factor: str | None = None  # the name of the learned parameter of the frequencies


def parse_layer(layer: Any, layers: Sequence[Any]) -> int | jax.Array:
    """The index of a layer of a plan, a Python integer unless it is traced."""
    layer = unwrap_array(layer)
    if not checks.is_concrete(layer):
        widths = sorted({each.head_dim for each in layers})
        require(not widths[1:], "layer must be a Python integer where head_dim differs between layers, got {}", widths)
        return checks.zero_dimensional("layer", layer, checks.Kind("an integer", floats=False))
    if getattr(layer, "ndim", None) == 0 and jnp.issubdtype(layer.dtype, jnp.integer):
        layer = layer.item()
    layer = checks.integer("layer", layer)
    require(0 <= layer < len(layers), "layer must be from 0 to {}, got {}", len(layers) - 1, layer)
    return layer


def parse_width(x: Any, widths: set[int], name: str = "x") -> jax.Array:
    """x, whose last axis has one of these sizes."""
    x = checks.floats(name, x, (..., "head_dim"), static_axes=(-1,))
    expected = " or ".join(map(str, sorted(widths, reverse=True)))
    require(x.shape[-1] in widths, "{} must have {} features in this layer, got shape {}", name, expected, x.shape)
    return x


def rotate_slices(x: jax.Array, slices: int, rotate: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Rotates each slice of the features, whose pairs have their members in the halves of the slice."""
    if slices == 1:
        return rotate(x)
    checks.unsharded("x", x)
    *rows, width = x.shape  # for `rotate`, pairs have their members in the halves of all features
    halves = x.reshape(*rows, slices, 2, width // (2 * slices)).swapaxes(-3, -2)
    return rotate(halves.reshape(x.shape)).reshape(halves.shape).swapaxes(-3, -2).reshape(x.shape)


def rotate(
    plan: Any,
    x: Any,
    layer: Any,
    positions: Any,
    head_axis: Any,
    parameters: Any,
    *,
    role: Role | None = None,
    softmax_scale: float = 1.0,
    moves: bool = False,
) -> jax.Array:
    """Checks the arguments, then rotates and scales x as one layer of a plan does.

    With `moves`, x are rotated keys, whose amplitude stays, and positions are an offset, which all may share.
    """
    names: Any = {"name": "keys", "positions_name": "offset", "shared": True} if moves else {"name": "x"}
    layers, index = plan.layers, parse_layer(layer, plan.layers)
    if isinstance(index, int):
        layers, index = (layers[index],), None
    x = parse_width(x, _widths(layers, plan.layers), names["name"])
    rotations = tuple(
        LayerRotation(
            each.frequencies.with_attention_factor(1.0) if moves else each.frequencies,
            each.query_scale if role == "query" else None,
            softmax_scale,
            each.learned_log_factor,
        )
        for each in layers
    )
    rotating = dict.fromkeys(rotation.frequencies for rotation in rotations if rotation.frequencies.dim)
    if positions is not None and not rotating:
        widest = max((each.frequencies for each in plan.layers), key=lambda f: f.num_axes)
        if widest.num_axes > 1:  # of other layers: query scales depend on the first coordinate
            positions = parse_positions("positions", positions, widest)[..., 0]
    names["reads_positions"] = scales = any(rotation.query_scale for rotation in rotations)
    parsed = [
        parse_rotary(x, positions, frequencies, plan.layout, head_axis, plan.part, **names)
        for frequencies in rotating or [geometric(0)]  # a traced layer may choose any
    ]
    x, positions, _, heads = parsed[0]
    if positions is not None and scales and checks.is_concrete(positions):
        least = np.asarray(positions).min(initial=0)
        require(not least < 0, "positions must be at least 0 where a layer scales its queries, got {}", least)
    arrays: dict[str, jax.Array] = {}
    for rotation in dict.fromkeys(rotations):
        arrays |= _parse_parameters(parameters, rotation, [x.shape[axis] for axis in heads])
    settings = RotationSettings(plan.layout, plan.part == "last", backward=role == "output")
    return _rotate(settings, rotations, x, positions, index, arrays, heads)


def _parse_parameters(parameters: Any, layer: Any, head_counts: Sequence[Any]) -> dict[str, jax.Array]:
    """The learned arrays of a layer, for x whose head axes have these sizes; other parameters are ignored."""
    fits = head_counts or not isinstance(layer.query_scale, HeadScale)
    require(fits, "head_axis must be given, because each head has its own scale of queries, got None")
    require_type(isinstance(parameters, Mapping | None), "parameters", "a mapping of names to arrays", parameters)
    arrays, shapes = parameters or {}, shapes_of(layer, math.prod(head_counts))
    missing = {name: shape for name, shape in shapes.items() if name not in arrays}
    message = "parameters must hold arrays of these shapes, which this model has learned, {}, got {}"
    require(not missing, message, missing, sorted(map(str, arrays)) or "none")
    result = {}
    for name, shape in shapes.items():
        label = f"parameters[{name!r}]"
        result[name] = array = checks.floats(label, arrays[name], ("size",))
        require(array.shape == shape, "{} must have shape {}, got {}", label, shape, array.shape)
        if name == layer.learned_log_factor:
            checks.unsharded(label, array)
    return result


def _widths(layers: Sequence[Any], all_layers: Sequence[Any]) -> set[int]:
    """The widths that x may have: head_dim, and the rotated width if it is the same in these layers, or else in all."""
    head_dim, rotated = layers[0].head_dim, {each.rotary_dim for each in layers} - {0}
    rotated = rotated or {each.rotary_dim for each in all_layers if each.head_dim == head_dim} - {0}
    return {head_dim, *rotated} if len(rotated) == 1 else {head_dim}


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
    positions = expand_positions(x, positions, heads)

    def rotated(rotation: LayerRotation) -> jax.Array:
        """The rotation of x, scaled and rounded once."""
        frequencies, scale, softmax_scale, learned = rotation
        angles = Angles(positions, frequencies)
        if learned is not None:
            angles = _learned_sines(frequencies, parameters[learned], positions)
        if scale is None and softmax_scale == 1:
            return apply_rotation(settings, x, angles)
        dtype = np.dtype(compute_dtype(x))
        y = apply_rotation(settings._replace(result=dtype), x, angles)
        factor, position = np.array(softmax_scale, dtype), positions[..., :1]
        if isinstance(scale, HeadScale):
            counts, others = [x.shape[axis] for axis in heads], [axis for axis in range(x.ndim) if axis not in heads]
            arrays = parameters[scale.scale], parameters[scale.bias]
            wide = compute_dtype(*arrays)
            slope, bias = (jnp.expand_dims(array.astype(wide).reshape(counts), others) for array in arrays)
            factor = factor * (slope * jnp.log1p(position.astype(wide)) + bias).astype(dtype)
        elif scale:
            factor = factor * scale(position).astype(dtype)
        return (y * factor).astype(x.dtype)

    outside = LayerRotation(geometric(0), softmax_scale=math.nan)
    by_layer = outside, *rotations, outside
    distinct = list(dict.fromkeys(by_layer))
    if layer is None:
        return rotated(distinct[-1])
    branch_of_layer = np.array([distinct.index(each) for each in by_layer], np.int32)
    branch = lax.dynamic_index_in_dim(branch_of_layer, jnp.clip(layer, -1, len(rotations)) + 1, keepdims=False)
    return lax.switch(branch, [functools.partial(rotated, each) for each in distinct])


def _learned_sines(frequencies: Frequencies, log_factor: jax.Array, positions: jax.Array) -> SinCosTable:
    r"""The sines and cosines at positions (..., 1) by the frequencies times exp(log_factor), with the amplitude.

    A learned factor $e^\alpha$ of a frequency $\omega$ is applied as a correction of the exact one,

    $$\theta = \omega p + \left(\omega\,(e^\alpha - 1)\right) p.$$

    Only the second frequency is rounded to float32, and it is small if little was learned: the error of the phase is at
    most $2^{-22}\,|\omega\,(e^\alpha - 1)\,p| + 2^{-48}\,|\omega p|$ above that of an exact spectrum.
    """
    exact = frequencies.angular
    high = exact.astype(np.float32)
    low = (exact - high).astype(np.float32)
    correction = low + product(jnp.asarray(high), expm1(log_factor.astype(np.float32)))
    angles = Angles(jnp.concatenate([positions, positions], axis=-1), jnp.concatenate([high, correction]))
    return SinCosTable(features(angles, "half") * np.float32(frequencies.attention_factor))
