"""Flax attention with rotary embeddings and a position bias, shared by NNX and Linen."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._flax import masks
from posenc_jax._frequencies.angles import Angles
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._frequencies.parser import parse_coordinates, parse_static
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import align, compute_dtype, unwrap_array
from posenc_jax._jax.checks import Layout, RotatedPart
from posenc_jax._jax.errors import callback, describe, invalid, labelled, require, require_type
from posenc_jax._rotary.parser import parse_pope, parse_rotary
from posenc_jax._rotary.pope import polar_vectors
from posenc_jax._rotary.rotary import rotate_vectors
from posenc_jax._rotary.rotation import RotationSettings

Rotation = Callable[..., tuple[jax.Array, jax.Array]]  # of query, key and the positions of each
PositionKind = Literal["input", "index"]
Biases = tuple[Callable[..., Any] | None, Callable[..., Any] | None]  # of positions; of positions and content
# Options of `attention` that the attention_fn sets, so that they cannot be bound.
_RESERVED = {f"{side}_{what}" for side in ("query", "key") for what in ("data", "positions", "order", "segments")}
_RESERVED |= {"bias", "mask", "return_residual"}
# Options of Flax's function that change nothing in `attention`.
_IGNORED = ("dropout_rng", "broadcast_dropout", "force_fp32_for_softmax")


@dataclasses.dataclass(frozen=True)
class PositionalSettings:
    """All settings but functions: hashable, without arrays, so that layers with equal settings compile once."""

    frequencies: Frequencies | None  # of a rotation or of PoPE; None if a function rotates, or nothing does
    layout: Layout
    part: RotatedPart
    polar: bool  # PoPE instead of a rotation
    num_axes: int  # of a position
    bias_positions: PositionKind

    @classmethod
    def parse(
        cls, rotation: Any, layout: Any, part: Any, num_axes: Any, bias_positions: Any, pope: Any, rotary: Any
    ) -> tuple[PositionalSettings, Any]:
        """The settings, and what they do not hold: a module of the class `pope`, or a function that rotates.

        A module of the class `rotary` is its settings.
        """
        given = checks.layout("layout", layout), checks.part("part", part)
        function, frequencies, polar = None, None, isinstance(rotation, pope)
        is_module = polar or isinstance(rotation, rotary)
        if is_module:
            frequencies, layout, part = rotation.frequencies, rotation.layout, getattr(rotation, "part", part)
            function = rotation if polar else None
            message = "rotation must be a module with head_axis -2, got {} with {}"
            require(rotation.head_axis == -2, message, type(rotation).__name__, rotation.head_axis)
        elif isinstance(rotation, (Frequencies, int, np.integer)) and not isinstance(rotation, bool):
            with labelled("rotation"):
                frequencies = parse_static(rotation, even=True)
        else:
            expected = (
                "a width, Frequencies, PoPE, RotaryEncoding, a function of query, key and their positions, or None"
            )
            require_type(rotation is None or callable(rotation), "rotation", expected, rotation)
            function = rotation
        message = "layout and part must be left out unless rotation is a width or Frequencies, got {!r} and {!r}"
        by_width = frequencies is not None and not is_module
        require(given == ("half", "first") or by_width, message, *given)
        own_axes = None if frequencies is None else frequencies.num_axes
        axes = own_axes or 1 if num_axes is None else checks.positive_int("num_axes", num_axes)
        message = "num_axes must be {}, as in the frequencies, or None, got {}"
        require(own_axes in (None, axes), message, own_axes, axes)
        checks.one_of("bias_positions", bias_positions, get_args(PositionKind))
        return cls(frequencies, layout, part, polar, axes, bias_positions), function

    def attend(
        self,
        attention_fn: Callable[..., jax.Array],
        attention: Callable[..., jax.Array] | None,
        rotation: jax.Array | Rotation | None,
        biases: Biases,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: ArrayLike | None = None,
        mask: Any = None,
        *args: Any,
        input_positions: ArrayLike | None = None,
        key_positions: ArrayLike | None = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Calls `attention_fn` with query (..., queries, heads, head_dim) and key rotated, and all biases summed.

        With `attention`, calls that instead, with a function that gives the biases of a tile. `rotation` is the phase
        of PoPE, or the function that rotates.
        """
        query, key, value = map(unwrap_array, (query, key, value))
        segments = sorted({"query_segments", "key_segments"} & {*kwargs})
        require(not segments, "{} must be given as mask=SegmentMask(query_segments, key_segments)", ", ".join(segments))
        queries, keys = self._parse_positions(query, key, input_positions, key_positions)
        mask, is_causal = masks.parse(mask, query, key), kwargs.get("is_causal")
        if keys is None and queries is not None:
            masks.require_cache(query, key, queries, mask, is_causal)
        elif queries is not None:
            if self.num_axes > 1 or not _are_integers(queries, keys):
                masks.require_indices(attention, query, key)
            if self.num_axes == 1 and biases[1] is None:  # content may tell documents apart
                masks.require_apart(attention, queries, keys, mask, is_causal)
        if attention is not None:
            options = _parse_options(attention_fn, query, key, value, bias, None, *args, **kwargs)
            options |= masks.options(mask)
            options |= self._tile_options(attention, biases, query, key, queries, keys, options.get("causal", False))
            if self.polar and "scale" not in getattr(attention, "keywords", ()):
                options["scale"] = query.shape[-1] ** -0.5
            return attention(*self._encode(query, key, queries, keys, rotation), value, **options)
        encoded = self._encode(query, key, queries, keys, rotation, math.sqrt(2))  # Flax divides by √(2d) with PoPE
        arguments = masks.for_flax(mask), *args
        if any(function is not None for function in biases):
            bias = _add_biases(bias, biases, query, key, *self._bias_positions(query, key, queries, keys))
            with jax.numpy_dtype_promotion("standard"):  # 16-bit scores plus a float32 bias are float32
                return attention_fn(*encoded, value, bias, *arguments, **kwargs)
        return attention_fn(*encoded, value, bias, *arguments, **kwargs)

    def _bias_positions(self, query: Any, key: Any, queries: Any, keys: Any) -> tuple[Any, Any]:
        """The positions of queries and keys that the biases read."""
        if self.bias_positions == "index" and keys is not None:  # those of Flax's cache are indices already
            queries = keys = None
        queries = checks.counted("query", query.shape[-3]) if queries is None else queries
        return queries, checks.counted("key", key.shape[-3]) if keys is None else keys

    def _tile_options(
        self, attention: Any, biases: Biases, query: Any, key: Any, queries: Any, keys: Any, causal: bool
    ) -> dict[str, Any]:
        """The biases, positions and orders of queries and keys, as options of `posenc_jax.attention`."""
        options: dict[str, Any] = {}
        data: dict[str, tuple[Any, Any]] = {} if biases[1] is None else {"content": (query, key)}
        has_bias, has_batch = any(function is not None for function in biases), True
        if queries is not None:
            indices = checks.counted("query", query.shape[-3]), checks.counted("key", key.shape[-3])
            given = queries, indices[1] if keys is None else keys
            biased_by_input = self.bias_positions == "input" or keys is None
            masks_by_input = self.num_axes == 1 and _are_integers(*given)
            if not biased_by_input and masks.bound_masks(attention) == (False, (None, None)):
                masks_by_input = False  # nothing masks by position
            options |= dict(
                zip(("query_positions", "key_positions"), given if masks_by_input else indices, strict=True)
            )
            if causal:  # Flax's causal mask compares indices, not positions
                options |= dict(zip(("query_order", "key_order"), indices, strict=True))
            if has_bias and biased_by_input != masks_by_input:
                positions = self._bias_positions(query, key, queries, keys)
                has_coordinates = self.num_axes > 1
                has_batch = any(x.ndim > 1 + has_coordinates for x in positions)
                of_queries, of_keys = (_as_data(x, query.ndim, has_coordinates) for x in positions)
                data["positions"] = of_queries, of_keys
        if data:
            options |= {f"{side}_data": {n: x[i] for n, x in data.items()} for i, side in enumerate(("query", "key"))}
        return options | ({"bias": functools.partial(_tile_bias, biases, has_batch)} if has_bias else {})

    def _encode(
        self, query: Any, key: Any, queries: Any, keys: Any, rotation: Any, factor: float = 1.0
    ) -> tuple[Any, Any]:
        """Query and key at their positions: rotated, or by PoPE, where the query is multiplied by the factor."""
        if self.frequencies is None:
            return (query, key) if rotation is None else self._rotate_by_function(rotation, query, key, queries, keys)
        if not self.frequencies.dim:
            return query, key
        if queries is None and self.num_axes == query.shape[-3] == 1:
            queries = keys = np.zeros(1, np.int32)  # any position gives the same score: there is one key
        keys_name = "input_positions" if keys is queries else "key_positions"
        if self.polar:
            query = self._pope("query", query, "input_positions", queries, None, factor)
            return query, self._pope("key", key, keys_name, keys, rotation)
        query = self._rotate("query", query, "input_positions", queries)
        return query, self._rotate("key", key, keys_name, keys)

    def _rotate_by_function(
        self, rotation: Rotation, query: Any, key: Any, queries: Any, keys: Any
    ) -> tuple[jax.Array, jax.Array]:
        """What the function returns for query and key, which must keep their shapes and dtypes."""
        queries = checks.counted("query", query.shape[-3]) if queries is None else queries
        keys = checks.counted("key", key.shape[-3]) if keys is None else keys
        with callback():
            rotated = rotation(query, key, queries, keys)
        expected = f"query and key as {describe(query)} and {describe(key)}"
        is_pair = isinstance(rotated, (tuple, list)) and len(rotated) == 2
        require_type(is_pair, "what rotation returns", expected, rotated)
        types = [(getattr(x, "shape", None), getattr(x, "dtype", None)) for x in (*rotated, query, key)]
        got = " and ".join(map(describe, rotated))
        require(types[:2] == types[2:], "rotation must return {}, got {}", expected, got)
        return rotated[0], rotated[1]

    def _rotate(self, name: str, x: Any, positions_name: str, positions: Any) -> jax.Array:
        """`rotary` of the query or the key, which errors call `name`."""
        options = self.frequencies, self.layout, -2, self.part
        parsed = parse_rotary(x, positions, *options, name=name, positions_name=positions_name)
        x, positions, frequencies, heads = parsed
        settings = RotationSettings(self.layout, self.part == "last")
        return rotate_vectors(settings, x, Angles(positions, frequencies), heads)

    def _pope(
        self, name: str, x: Any, positions_name: str, positions: Any, phase: jax.Array | None, factor: float = 1.0
    ) -> jax.Array:
        """`pope` of the query or the key, which errors call `name`, times a factor."""
        frequencies: Any = self.frequencies
        frequencies = frequencies.with_attention_factor(factor * frequencies.attention_factor)
        options = frequencies, phase, self.layout, -2
        parsed = parse_pope(x, positions, *options, name=name, positions_name=positions_name)
        x, positions, frequencies, phase, heads = parsed
        return polar_vectors(x, positions, frequencies, phase, layout=self.layout, heads=heads)

    def _parse_positions(self, query: Any, key: Any, input_positions: Any, key_positions: Any) -> tuple[Any, Any]:
        """The positions of queries and of keys, each an array, or None if they are counted."""
        axes = (..., "seq", "heads", "head_dim")
        queries, keys = (checks.floats(n, x, axes).shape[-3] for n, x in (("query", query), ("key", key)))
        differ = f"where queries and keys differ in number, {queries} and {keys}"
        if input_positions is None:
            axes = self.num_axes
            require(axes == 1, "input_positions must be given for positions of {} coordinates, got None", axes)
            require(key_positions is None, "input_positions must be given with key_positions, got None")
            require(queries == keys, "input_positions must be given {}, got None", differ)
            return None, None
        input_positions = self._parse_each("input_positions", input_positions, "query", query)
        if key_positions is not None:
            return input_positions, self._parse_each("key_positions", key_positions, "key", key)
        return input_positions, input_positions if queries == keys else None

    def _parse_each(self, name: str, positions: Any, side: str, x: jax.Array) -> jax.Array:
        """Positions, one per token: a single one would give all tokens the same position."""
        x_length, positions = x.shape[-3], checks.array(name, positions)
        if self.num_axes > 1:
            positions = parse_coordinates(name, positions, self.num_axes)
        leading = positions.shape[: positions.ndim - (self.num_axes > 1)]
        is_grid = positions.ndim > 1 and self.num_axes == 1 and positions.shape[-2] == x_length
        hint = f"; for coordinates set num_axes={positions.shape[-1]}" if is_grid else ""
        message = "{} must hold {} along the sequence, got shape {}{}"
        require((leading or (1,))[-1] == x_length, message, name, x_length, leading, hint)
        checks.broadcastable(name, leading, f"{side} without heads", x.shape[:-2])
        # Positions that are an array of the caller's stay so: a check reads what is concrete.
        return positions if leading else positions.reshape(1, *positions.shape)


def _are_integers(*positions: Any) -> bool:
    """Whether all are arrays of integers."""
    return all(x is not None and jnp.issubdtype(x.dtype, jnp.integer) for x in positions)


def _add_biases(
    bias: ArrayLike | None, biases: Biases, query: Any, key: Any, queries: Any, keys: Any
) -> ArrayLike | None:
    """The sum of `bias` and of what the functions `biases` return, (..., heads, queries, keys)."""
    shape = query.shape[-2], query.shape[-3], key.shape[-3]
    arguments = {"bias": (queries, keys), "content_bias": (queries, keys, query, key)}
    for (name, inputs), function in zip(arguments.items(), biases, strict=True):
        if function is None:
            continue
        with callback():
            values = function(*inputs)
        values = checks.floats(f"what {name} returns", values, (..., "heads", "queries", "keys"))
        if values.shape[-3:] != shape:
            raise invalid(f"{name} must return shape (..., {', '.join(map(str, shape))}), got {values.shape}")
        checks.broadcastable(f"what {name} returns,", values.shape, "the scores", (*query.shape[:-3], *shape))
        values = align(values, query.ndim)
        bias = values if bias is None else _sum(values, jnp.asarray(bias))
    return bias


def _sum(values: jax.Array, bias: jax.Array) -> jax.Array:
    dtype = compute_dtype(values, bias)
    return values.astype(dtype) + align(bias, values.ndim).astype(dtype)


def parse_functions(settings: PositionalSettings, rotation: Any, bias: Any, content_bias: Any, attention: Any) -> None:
    """Raises unless the functions of an attention_fn can be called, and there is anything for it to do."""
    functions = {"bias": (bias, "positions"), "content_bias": (content_bias, "positions, query and key")}
    for name, (function, arguments) in functions.items():
        require_type(function is None or callable(function), name, f"a function of {arguments}", function)
    if attention is not None:
        require_type(callable(attention), "attention", "posenc_jax.attention or None", attention)
        bound = sorted(_RESERVED & {*getattr(attention, "keywords", ())})
        hint = "; pass mask=SegmentMask to the layer" if "query_segments" in bound else ""
        require(not bound, "attention must not bind {}: the attention_fn gives it{}", ", ".join(bound), hint)
    rotates = rotation is not None or settings.frequencies is not None and settings.frequencies.dim
    given = rotates or any(function is not None for function in (bias, content_bias, attention))
    require(given, "rotation, bias, content_bias or attention must be given, got none")


def _parse_options(attention_fn: Callable[..., Any], *args: Any, is_causal: Any = False, **kwargs: Any) -> dict:
    """The arguments of Flax's function as `posenc_jax.attention` takes them; raises for those that it does not take."""
    bound = inspect.signature(attention_fn).bind(*args, **kwargs)
    defaults = {name: parameter.default for name, parameter in bound.signature.parameters.items()}
    options = {n: x for n, x in bound.arguments.items() if n not in _IGNORED and x is not defaults[n]}
    query, key, _ = (options.pop(name) for name in ("query", "key", "value"))
    is_causal = options.pop("is_causal", is_causal)
    if options.pop("deterministic", False):
        options.pop("dropout_rate", None)
    if not options.get("dropout_rate", True):
        del options["dropout_rate"]
    if "dtype" in options and options["dtype"] == query.dtype:  # to NumPy, float64 is equal to None
        del options["dtype"]
    for name, x in options.items():
        expected = f"{defaults[name]} with attention (Flax's own attention takes it)"
        raise invalid(f"{name} must be {expected}, got {getattr(x, 'shape', x)}")
    return {"causal": True} if checks.flag("is_causal", is_causal) else {}


def _as_data(positions: Any, ndim: int, has_coordinates: bool) -> jax.Array:
    """Positions (..., length), or coordinates, as data of a query with `ndim` axes, (..., length, 1) or more."""
    positions = jnp.expand_dims(positions, -1 - has_coordinates)
    return align(positions, ndim - 1 + has_coordinates)


def _tile_bias(
    biases: Biases, has_batch: bool, i: Any, j: Any, query_data: Any = None, key_data: Any = None
) -> jax.Array:
    """The sum of the biases of a tile of scores."""
    query_data, key_data = query_data or {}, key_data or {}
    if "positions" in query_data:  # without their axis of heads, and that of the batch if they were given without
        i, j = (data["positions"][slice(None) if has_batch else 0, :, 0] for data in (query_data, key_data))
    content = (query_data["content"], key_data["content"]) if "content" in query_data else ()
    terms = [f(i, j, *extra) for f, extra in zip(biases, ((), content), strict=True) if f is not None]
    return terms[0] if len(terms) == 1 else _sum(*sorted(terms, key=jnp.ndim, reverse=True))
