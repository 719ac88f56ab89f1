"""The learned parameters of a layer, which `plan.rotate` takes as arrays: their names and shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require, require_type


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
