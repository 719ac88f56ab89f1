"""The plan: how each layer of a model rotates its queries and keys, as a value."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from posenc_jax import _checks
from posenc_jax._checks import public, require
from posenc_jax._frequencies import Frequencies, Layout
from posenc_jax._xla import compiled


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class QueryScale:
    r"""A factor of the queries that grows with their position, so that attention stays sharp in long contexts.

    $$1 + c \ln\left(1 + \left\lfloor\frac{p + o}{n}\right\rfloor\right)$$

    Args:
      coefficient: $c$.
      period: $n$, an integer of at least 1.
      offset: $o$, an integer from 0 to below the period: 1 for Llama 4, 0 for Ministral 3.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.hf import QueryScale
      >>> QueryScale(0.1, 8192, 1)(jnp.array([0, 8190, 8191])).round(3).tolist()
      [1.0, 1.0, 1.069000005722046]
    """

    coefficient: float
    period: int
    offset: int = 0

    @public
    def __post_init__(self) -> None:
        """Checks the fields."""
        _checks.number("coefficient", self.coefficient)
        period, offset = _checks.length("period", self.period), self.offset
        fits = isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset < period
        require(fits, "offset must be an integer from 0 to below {}, got {!r}", period, offset)

    @public
    def __call__(self, positions: jax.typing.ArrayLike) -> jax.Array:
        """The factor, float32, for positions of at least 0, of any shape."""
        return _query_scale(jnp.asarray(_checks.array("positions", positions)), self)


@compiled("query_scale", static_argnums=1)
def _query_scale(positions: jax.Array, scale: QueryScale) -> jax.Array:
    if jnp.issubdtype(positions.dtype, jnp.integer):  # p + o would wrap at the last position
        period, last = (np.asarray(n, positions.dtype) for n in (scale.period, scale.period - scale.offset))
        periods = positions // period + (positions % period >= last).astype(positions.dtype)
    else:
        periods = jnp.floor((positions + scale.offset) / scale.period)
    return (scale.coefficient * jnp.log1p(periods.astype(jnp.float32)) + 1).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class RotaryLayer:
    """How one layer rotates.

    Args:
      frequencies: as `rotary` takes them, or None for a layer without positions.
      head_dim: the number of features of a query or key; `rotary_dim` of them rotate.
      query_scale: a factor of the queries by position, or None.
      parameters: the rope settings, complete and sorted, for `plan_to_config` to write.

    Examples:
      >>> import posenc_jax as pe
      >>> from posenc_jax.hf import RotaryLayer
      >>> RotaryLayer(pe.geometric(32), head_dim=128).rotary_dim
      32
    """

    frequencies: Frequencies | None
    head_dim: int
    query_scale: QueryScale | None = None
    parameters: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), repr=False)

    @property
    def rotary_dim(self) -> int:
        """The number of features that rotate."""
        return 0 if self.frequencies is None else self.frequencies.dim


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RotaryPlan:
    r"""How a model rotates its queries and keys: immutable, hashable, static under `jax.jit`.

    Args:
      layers: one for each layer of the model.
      layout: which features make a pair, as `rotary` takes it.
      part: which features are rotated, as `rotary` takes it: "last" for latent attention, which stores the
        features without positions first.
      softmax_scale: a factor of the scores, on top of $1/\sqrt{\text{head\_dim}}$ or the model's own.
      length: the length for which the spectra were chosen; None if they do not depend on it.

    Examples:
      >>> from posenc_jax.hf import rotary_from_config
      >>> plan = rotary_from_config({"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 2})
      >>> plan.layers[0]
      RotaryLayer(frequencies=Frequencies(dim=16, angular=1 … 0.000316228), head_dim=64, query_scale=None)
    """

    layers: tuple[RotaryLayer, ...]
    layout: Layout
    part: Literal["first", "last"] = "first"
    softmax_scale: float = 1.0
    length: int | None = None
