r"""Learned parameters, which `plan.rotate` takes as arrays: factors of frequencies, scales of queries.

A learned factor $e^\alpha$ of a frequency $\omega$ is applied as a correction of the exact one,

$$\theta = \omega p + \left(\omega\,(e^\alpha - 1)\right) p.$$

Only the second frequency is rounded to float32, and it is small if little was learned: the error of the phase is at
most $2^{-22}\,|\omega\,(e^\alpha - 1)\,p| + 2^{-48}\,|\omega p|$ above that of an exact spectrum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax._frequencies.angles import Angles, SinCosTable, features
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import compute_dtype
from posenc_jax._jax.errors import public, require, require_type
from posenc_jax._jax.workarounds import product
from posenc_jax._numerics.exponentials import expm1


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadScale:
    r"""A learned factor of the queries of each head $h$ that grows with their position: $s_h \ln(p + 1) + b_h$.

    Mistral Large 4 has one. It holds names, not arrays: pass the arrays as `parameters` of `RotaryPlan.rotate`.

    Examples:
      >>> from posenc_jax.hf import HeadScale, RotaryLayer, RotaryPlan
      >>> scale = HeadScale("scaling.s", "scaling.b", num_heads=64)
      >>> plan = RotaryPlan((RotaryLayer(32, head_dim=128, query_scale=scale),), "half")
      >>> plan.parameters
      (('scaling.s', (64,)), ('scaling.b', (64,)))

    Args:
      scale: the name of $s$, one number for each head.
      bias: the name of $b$, one number for each head.
      num_heads: the number of heads.
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


def parse_parameters(parameters: Any, layer: Any, head_counts: Sequence[Any]) -> dict[str, jax.Array]:
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


def learned_sines(frequencies: Frequencies, log_factor: jax.Array, positions: jax.Array) -> SinCosTable:
    """The sines and cosines at positions (..., 1) by the frequencies times exp(log_factor), with the amplitude."""
    exact = frequencies.angular
    high = exact.astype(np.float32)
    low = (exact - high).astype(np.float32)
    correction = low + product(jnp.asarray(high), expm1(log_factor.astype(np.float32)))
    angles = Angles(jnp.concatenate([positions, positions], axis=-1), jnp.concatenate([high, correction]))
    return SinCosTable(features(angles, "half") * np.float32(frequencies.attention_factor))


def head_factors(
    scale: HeadScale, positions: jax.Array, arrays: Mapping[str, jax.Array], x: jax.Array, heads: tuple[int, ...]
) -> jax.Array:
    """The factors of queries x at positions (..., 1), which have axes of size 1 for the heads."""
    counts, others = [x.shape[axis] for axis in heads], [axis for axis in range(x.ndim) if axis not in heads]
    both = arrays[scale.scale], arrays[scale.bias]
    dtype = compute_dtype(*both)
    slope, bias = (jnp.expand_dims(array.astype(dtype).reshape(counts), others) for array in both)
    return slope * jnp.log1p(positions.astype(dtype)) + bias
