"""The plan: how each layer of a model rotates its queries and keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from posenc_jax._attention.parser import parse_window
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._frequencies.parser import parse_static
from posenc_jax._jax import checks
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import public, require, require_type
from posenc_jax._jax.workarounds import compiled
from posenc_jax._rotary.parser import parse_vectors
from posenc_jax.hf import _apply
from posenc_jax.hf._apply import ROLES, HeadScale, Role, shapes_of
from posenc_jax.hf._table import html_of, text_of


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class QueryScale:
    r"""A factor of the queries that grows with their position $p$, so that attention stays sharp in long contexts.

    | variant | factor | for example |
    | --- | --- | --- |
    | "steps" | $1 + c \ln\left(1 + \lfloor (p + o) / n \rfloor\right)$ | Llama 4 ($o = 1$), Ministral 3 ($o = 0$) |
    | "log" | $1 + c \ln \max\left((p + o) / n, 1\right)$ | Qwen 1 ($o = 1$, $c = 1 / \ln n$) |
    | "power" | $\left(1 + (p + o) / n\right)^c$ | Beam ($o = 1$) |

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.hf import QueryScale
      >>> QueryScale(0.1, 8192, 1)(jnp.array([0, 8190, 8191])).round(3).tolist()
      [1.0, 1.0, 1.069000005722046]

    Args:
      coefficient: $c$.
      period: $n$, an integer of at least 1.
      offset: $o$, an integer from 0 to below the period.
      variant: "steps", "log" or "power".
    """

    coefficient: float
    period: int
    offset: int = 0
    variant: Literal["steps", "log", "power"] = "steps"

    @public
    def __post_init__(self) -> None:
        """Checks the fields."""
        coefficient, period = checks.number("coefficient", self.coefficient), checks.length("period", self.period)
        offset = checks.integer("offset", self.offset, 0)
        require(offset < period, "offset must be below the period, {}, got {}", period, offset)
        checks.one_of("variant", self.variant, ("steps", "log", "power"))
        vars(self).update(coefficient=coefficient, period=period, offset=offset)  # frozen

    @public
    def __call__(self, positions: ArrayLike) -> jax.Array:
        """Returns the factor, a float32 array, for positions of any shape that are at least 0."""
        return _query_scale(checks.array("positions", positions), self)


@compiled("query_scale", static_argnums=1)
def _query_scale(positions: jax.Array, scale: QueryScale) -> jax.Array:
    c, n, o, variant = dataclasses.astuple(scale)
    if variant == "steps":
        steps = positions // n + (positions % n >= n - o).astype(positions.dtype)  # p + o could wrap
        return c * jnp.log1p(steps.astype(jnp.float32)) + 1
    share = (positions.astype(jnp.float32) + o) / n
    return c * jnp.log(jnp.maximum(share, 1)) + 1 if variant == "log" else jnp.exp(c * jnp.log1p(share))


@dataclasses.dataclass(frozen=True)
class RotaryLayer:
    r"""How one layer rotates its queries and keys, and what else the config says about its attention.

    Examples:
      >>> import posenc_jax as pe
      >>> from posenc_jax.hf import RotaryLayer
      >>> RotaryLayer(pe.geometric(32), head_dim=128).rotary_dim
      32

    Args:
      frequencies: `Frequencies` of an even width; of width 0 for a layer without positions.
      head_dim: the number of features of a query or key, of which `rotary_dim` are rotated.
      query_scale: the factor of the queries that depends on their position, or None.
      settings: the complete rope settings, sorted, for `plan_to_config` to write.
      learned_log_factor: the name of a learned parameter $\alpha$, one number per feature pair, which makes the
        frequency $\omega_i e^{\alpha_i}$. None if frequencies are not learned.
      kind: the layer type, as transformers names it: "full_attention", "sliding_attention", "conv" and so on.
      window: (left, right), as in `posenc_jax.attention`; (None, None) without a window. In a decoder, use it with
        causal=True, because the window bounds only the left.
      chunk: the number of tokens per chunk, for layers that attend within chunks (Llama 4). Chunks are not a window.
      score_scale: the factor of the scores, softmax_scale included. Pass it as `scale` of `posenc_jax.attention`, for
        queries rotated with `scaled=False`.

    Notes:
      kind, window, chunk and score_scale are None if they are not known. `rotate` does not apply them.
    """

    frequencies: Frequencies
    head_dim: int
    query_scale: QueryScale | HeadScale | None = None
    settings: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), repr=False)
    learned_log_factor: str | None = None
    kind: str | None = None
    window: tuple[int | None, int | None] | None = None
    chunk: int | None = None
    score_scale: float | None = None

    @public
    def __post_init__(self) -> None:
        """Checks the fields."""
        f, head_dim = parse_static(self.frequencies, even=True), checks.positive_int("head_dim", self.head_dim)
        require(f.dim <= head_dim, "frequencies of width {} must fit into a head_dim of {}", f.dim, head_dim)
        fits = isinstance(self.query_scale, QueryScale | HeadScale | None)
        require_type(fits, "query_scale", "a QueryScale, a HeadScale or None", self.query_scale)
        for name in ("learned_log_factor", "kind"):
            value = getattr(self, name)
            require_type(isinstance(value, str | None), name, "a string or None", value)
        fits = self.learned_log_factor is None or f.dim and f.num_axes == 1 and f.precision == "exact"
        require(fits, "frequencies must be exact, of one coordinate, with a learned_log_factor, got {!r}", f)
        vars(self).update(  # frozen
            frequencies=f,
            head_dim=head_dim,
            window=None if self.window is None else parse_window(self.window),
            chunk=None if self.chunk is None else checks.positive_int("chunk", self.chunk),
            score_scale=None if self.score_scale is None else checks.number("score_scale", self.score_scale),
        )

    @property
    def rotary_dim(self) -> int:
        """The number of features that are rotated."""
        return self.frequencies.dim


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RotaryPlan:
    r"""How a model rotates its queries and keys. Plans are immutable and hashable, so they are static under `jax.jit`.

    Examples:
      >>> from posenc_jax.hf import rotary_from_config
      >>> config = {"model_type": "gpt_neox", "head_dim": 64, "num_hidden_layers": 2}
      >>> plan = rotary_from_config(config)
      >>> plan.layers[0].frequencies
      Frequencies(dim=16, angular=1 … 0.000316228)

    Args:
      layers: one `RotaryLayer` per layer of the model.
      layout: which features form a pair, "half" or "interleaved"; see `rotary`.
      part: which features are rotated, "first" or "last"; see `rotary`. "last" is for latent attention, which stores
        the features without positions first.
      softmax_scale: a factor of the scores, in addition to $1/\sqrt{\text{head\_dim}}$ or the model's own scale.
      length: the length for which the spectra were chosen. None if they do not depend on the length.
      indexer: the plan of the sparse attention's indexer, or None.
      rotates_values: whether values are rotated like keys, and outputs of attention are rotated back (DeepSeek-V4).
    """

    layers: tuple[RotaryLayer, ...]
    layout: Layout
    part: Literal["first", "last"] = "first"
    softmax_scale: float = 1.0
    length: int | None = None
    indexer: RotaryPlan | None = None
    rotates_values: bool = False

    @public
    def __post_init__(self) -> None:
        """Checks the fields."""
        layers = checks.sequence("layers", self.layers, "RotaryLayer")
        fits = layers and all(isinstance(layer, RotaryLayer) for layer in layers)
        require_type(fits, "layers", "a sequence of at least one RotaryLayer", self.layers)
        checks.layout("layout", self.layout)
        checks.part("part", self.part)
        vars(self).update(layers=layers, softmax_scale=checks.number("softmax_scale", self.softmax_scale))  # frozen
        require_type(isinstance(self.indexer, RotaryPlan | None), "indexer", "a RotaryPlan or None", self.indexer)
        checks.flag("rotates_values", self.rotates_values)

    def __str__(self) -> str:
        """A table with one row per group of equal layers. Notebooks show it too."""
        return text_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

    @property
    def parameters(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The names and shapes of the learned parameters that `rotate` needs.

        Names are the names in the checkpoint, with `{layer}` instead of the layer's index: `name.format(layer=3)` is
        the name in the fourth layer. The plan of an indexer has its own parameters. A checkpoint has them only for the
        layers that have an indexer.
        """
        return tuple(dict.fromkeys(item for layer in self.layers for item in shapes_of(layer).items()))

    @public
    def rotate(
        self,
        x: ArrayLike,
        layer: int | jax.Array,
        positions: ArrayLike | None = None,
        *,
        head_axis: int | tuple[int, ...] | None,
        role: Role | None = None,
        scaled: bool | None = None,
        parameters: Mapping[str, ArrayLike] | None = None,
    ) -> jax.Array:
        r"""Rotates queries, keys, values or outputs of one layer as the model does, and scales its queries.

        With $R$ the rotation of the layer, a key $k$ at position $p$ becomes $R_p k$, and a query $q$ becomes

        $$\text{softmax\_scale} \cdot \text{query\_scale}(p)\, R_p q,$$

        where softmax_scale is applied only with `scaled=True`.

        Examples:
          >>> import jax.numpy as jnp
          >>> from posenc_jax.hf import rotary_from_config
          >>> config = {"model_type": "smollm3", "head_dim": 8, "num_hidden_layers": 4}
          >>> plan = rotary_from_config(config)  # its last layer has no positions
          >>> x = jnp.ones((1, 5, 2, 8))
          >>> [bool((plan.rotate(x, layer, head_axis=-2) == x).all()) for layer in range(4)]
          [False, False, False, True]

        Args:
          x: queries or keys, float array of shape (..., seq, heads, head_dim), with the head_dim of the layer; or only
            the features that are rotated. Values and outputs that are rotated have the same shape.
          layer: the index of the layer, from 0. A traced index, as in a scan over the layers, selects the layer at run
            time.
          positions: see `rotary`; at least 0 if a layer scales its queries.
          head_axis: the axis of the heads; see `rotary`.
          role: what x is: "query", "key", "value" or "output". It must be given if a layer of the plan scales its
            queries, if values are rotated, or with `scaled=True`.
          scaled: whether queries are multiplied by softmax_scale. Pass False if your attention multiplies the scores by
            it. If softmax_scale is not 1, it must be given for queries and for x without a role.
          parameters: the learned arrays of this layer, by the names of `plan.parameters`. An array with one number per
            head must fit the heads of x. Keys need only the parameters of the frequencies.

        Returns:
          An array with the shape and dtype of x, rounded once. Differentiable in x, in float positions and in
          parameters. It is NaN if a traced layer is out of range, and NaN or infinite where a traced position is below
          0 and the layer scales its queries.

        Raises:
          TypeError: if layer is not an integer, parameters are not a mapping of names to float arrays, or for the same
            reasons as in `rotary`.
          ValueError: if layer is out of range, or is traced while the layers differ in head_dim.
          ValueError: if role or scaled is missing, or role is not one of the four.
          ValueError: if x does not have the width of the layer, a parameter is missing or has another shape, head_axis
            is None where each head has its own scale, or for the same reasons as in `rotary`.

        Notes:
          - A layer without positions does not rotate x.
          - If values are rotated (`rotates_values`), a value $v$ at position $p$ becomes $R_p v$, and the output $o$ of
            a query at position $p$ becomes $R_{-p}\, o$, so that only the distance between value and query matters.
            Both have the amplitude of the frequencies. In all other models, values and outputs are returned unchanged.

        Reference:
          Hugging Face transformers 5.23.0: the attention of the models' own modules.
        """
        softmax_scale = self._scale_of(role, scaled)
        if role in ("value", "output") and not self.rotates_values:
            _apply.parse_layer(layer, self.layers)
            return parse_vectors("x", x, head_axis)[0]
        return _apply.rotate(self, x, layer, positions, head_axis, parameters, role=role, softmax_scale=softmax_scale)

    @public
    def shift_keys(
        self,
        keys: ArrayLike,
        layer: int | jax.Array,
        offset: ArrayLike,
        *,
        head_axis: int | tuple[int, ...] | None,
        parameters: Mapping[str, ArrayLike] | None = None,
    ) -> jax.Array:
        """Moves rotated keys (and rotated values) of one layer by an offset; see `posenc_jax.shift_keys`.

        Examples:
          >>> import jax.numpy as jnp
          >>> from posenc_jax.hf import rotary_from_config
          >>> config = {"model_type": "smollm3", "head_dim": 8, "num_hidden_layers": 4}
          >>> plan, x = rotary_from_config(config), jnp.ones((1, 5, 2, 8))
          >>> cached = plan.rotate(x, 0, jnp.arange(1000, 1005), head_axis=-2)
          >>> shifted = plan.shift_keys(cached, 0, -1000, head_axis=-2)
          >>> bool(jnp.allclose(shifted, plan.rotate(x, 0, head_axis=-2), atol=1e-6))
          True

        Args:
          keys: keys rotated by `rotate`, float array of shape (..., seq, heads, head_dim), or only the features that
            are rotated.
          layer: the index of the layer; see `rotate`. In a layer without positions, keys are returned unchanged.
          offset: integers or float32; see `posenc_jax.shift_keys`.
          head_axis: the axis of the heads; see `rotate`.
          parameters: the learned arrays of this layer; see `rotate`.

        Returns:
          The keys at their new positions, with their shape and dtype.

        Raises:
          TypeError: for the same reasons as in `rotate`.
          ValueError: for the same reasons as in `rotate`.
        """
        require_type(offset is not None, "offset", checks.POSITIONS.text, offset)
        return _apply.rotate(self, keys, layer, offset, head_axis, parameters, moves=True)

    def _scale_of(self, role: Any, scaled: Any) -> float:
        """The factor by which `scaled` multiplies x in this role; each must be given if it matters."""
        if scaled is not None:
            checks.flag("scaled", scaled)
        needs_role = scaled or self.rotates_values or any(layer.query_scale for layer in self.layers)
        why = "where a layer scales its queries, where values rotate, or with scaled=True"
        require(role is not None or not needs_role, "role must be one of {} {}, got None", ROLES, why)
        if role is not None:
            checks.one_of("role", role, ROLES)
        is_scaled = role in ("query", None) and self.softmax_scale != 1  # queries alone are scaled
        message = "scaled must be True or False, because the plan has a softmax_scale of {}, got None"
        require(scaled is not None or not is_scaled, message, self.softmax_scale)
        return self.softmax_scale if scaled and role == "query" else 1.0
