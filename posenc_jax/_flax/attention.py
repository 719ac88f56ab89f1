"""Flax attention with rotary embeddings and a position bias, shared by NNX and Linen."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._frequencies.angles import Angles
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._frequencies.parser import parse_positions, parse_static
from posenc_jax._jax import checks
from posenc_jax._jax.arrays import align, compute_dtype, unwrap_array
from posenc_jax._jax.checks import Layout, RotatedPart
from posenc_jax._jax.errors import callback, invalid, require, require_type
from posenc_jax._rotary.parser import parse_pope, parse_rotary
from posenc_jax._rotary.pope import polar_vectors
from posenc_jax._rotary.rotary import rotate_vectors
from posenc_jax._rotary.rotation import RotationSettings

Biases = tuple[Callable[..., Any] | None, Callable[..., Any] | None]  # of positions; of positions and content
# Options of `attention` that the attention_fn sets, so that they cannot be bound.
_RESERVED = {f"{side}_{what}" for side in ("query", "key") for what in ("data", "positions", "order", "segments")}
_RESERVED |= {"bias", "return_residual"}
# Options of Flax's function that change nothing in `attention`.
_IGNORED = ("dropout_rng", "broadcast_dropout", "force_fp32_for_softmax")


@dataclasses.dataclass(frozen=True)
class PositionalSettings:
    """All settings but the biases: hashable, without arrays, so that layers with equal settings compile once."""

    frequencies: Frequencies
    layout: Layout
    part: RotatedPart
    polar: bool = False  # PoPE instead of a rotation

    def __post_init__(self) -> None:
        """Checks the settings."""
        object.__setattr__(self, "frequencies", parse_static(self.frequencies, even=True))
        checks.layout("layout", self.layout)
        checks.part("part", self.part)

    @classmethod
    def parse(cls, frequencies: Any, layout: Any, part: Any, pope: Any) -> PositionalSettings:
        """The settings of a rotation, or of `frequencies` if that is a module of the class `pope`."""
        if not isinstance(frequencies, pope):
            return cls(frequencies, layout, part)
        message = "layout and part must be left out with PoPE, which has its own, got {!r} and {!r}"
        require((layout, part) == ("half", "first"), message, layout, part)
        module: Any = frequencies
        require(module.head_axis == -2, "frequencies must be PoPE with head_axis -2, got {}", module.head_axis)
        return cls(module.frequencies, module.layout, part, polar=True)

    def parse_biases(self, bias: Any, content_bias: Any) -> Biases:
        """Returns both functions, or raises if these settings do not allow them."""
        biased, axes = bias is not None or content_bias is not None, self.frequencies.num_axes
        message = "bias or content_bias must be given with frequencies of width 0, got None"
        require(biased or self.frequencies.dim, message)
        functions = {"bias": (bias, "positions"), "content_bias": (content_bias, "positions, query and key")}
        for name, (function, arguments) in functions.items():
            if function is not None:
                require_type(callable(function), name, f"a function of {arguments}", function)
                require(axes == 1, "{} must be None with frequencies of {} axes: it has positions of one", name, axes)
        return bias, content_bias

    def attend(
        self,
        attention_fn: Callable[..., jax.Array],
        attention: Callable[..., jax.Array] | None,
        biases: Biases,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: ArrayLike | None = None,
        *args: Any,
        input_positions: ArrayLike | None = None,
        key_positions: ArrayLike | None = None,
        phase: jax.Array | None = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Calls `attention_fn` with query (..., queries, heads, head_dim) and key rotated, and all biases summed.

        With `attention`, calls that instead, with a function that gives the biases of a tile. `phase` is that of PoPE.
        """
        query, key, value = map(unwrap_array, (query, key, value))
        queries, keys = self._parse_positions(query, key, input_positions, key_positions)
        if keys is None and queries is not None:
            _require_cache(query, key, queries, args[0] if args else kwargs.get("mask"), kwargs.get("is_causal"))
        if attention is not None:
            options = _parse_options(attention_fn, query, key, value, bias, *args, **kwargs)
            options |= self._tile_options(biases, query, key, queries, keys, options.get("causal", False))
            if self.polar and "scale" not in getattr(attention, "keywords", ()):
                options["scale"] = query.shape[-1] ** -0.5
            return attention(*self._encode(query, key, queries, keys, phase), value, **options)
        encoded = self._encode(query, key, queries, keys, phase, math.sqrt(2))  # Flax divides by √(2d) with PoPE
        if any(function is not None for function in biases):
            bias = _add_biases(bias, biases, query, key, queries, keys)
            with jax.numpy_dtype_promotion("standard"):  # 16-bit scores plus a float32 bias are float32
                return attention_fn(*encoded, value, bias, *args, **kwargs)
        return attention_fn(*encoded, value, bias, *args, **kwargs)

    def _tile_options(
        self, biases: Biases, query: Any, key: Any, queries: Any, keys: Any, causal: bool
    ) -> dict[str, Any]:
        """The biases, positions and orders of queries and keys, as options of `posenc_jax.attention`."""
        lengths = {"query": query.shape[-3], "key": key.shape[-3]}
        options: dict[str, Any] = {}
        if any(function is not None for function in biases):
            options["bias"] = functools.partial(_tile_bias, biases)
        if biases[1] is not None:
            options |= {"query_data": query, "key_data": key}
        if queries is None:
            return options
        if self.frequencies.num_axes == 1:
            options |= {"query_positions": queries}
            options |= {"key_positions": checks.counted("key", lengths["key"]) if keys is None else keys}
        if causal:  # Flax's causal mask compares indices, not positions
            options |= {f"{side}_order": checks.counted(side, n) for side, n in lengths.items()}
        return options

    def _encode(
        self, query: Any, key: Any, queries: Any, keys: Any, phase: jax.Array | None, factor: float = 1.0
    ) -> tuple[Any, Any]:
        """Query and key at their positions: rotated, or by PoPE, where the query is multiplied by the factor."""
        if not self.frequencies.dim:
            return query, key
        if queries is None and self.frequencies.num_axes == query.shape[-3] == 1:
            queries = keys = np.zeros(1, np.int32)  # any position gives the same score: there is one key
        keys_name = "input_positions" if keys is queries else "key_positions"
        if self.polar:
            query = self._pope("query", query, "input_positions", queries, None, factor)
            return query, self._pope("key", key, keys_name, keys, phase)
        query = self._rotate("query", query, "input_positions", queries)
        return query, self._rotate("key", key, keys_name, keys)

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
        frequencies = self.frequencies.with_attention_factor(factor * self.frequencies.attention_factor)
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
            require(key_positions is None, "input_positions must be given with key_positions, got None")
            require(queries == keys, "input_positions must be given {}, got None", differ)
            return None, None
        input_positions = self._parse_each("input_positions", input_positions, "query", query)
        if key_positions is not None:
            return input_positions, self._parse_each("key_positions", key_positions, "key", key)
        return input_positions, input_positions if queries == keys else None

    def _parse_each(self, name: str, positions: ArrayLike, side: str, x: jax.Array) -> jax.Array:
        """Positions, one per token: a single one would give all tokens the same position."""
        frequencies = self.frequencies
        coordinates = parse_positions(name, positions, frequencies)
        leading, length = coordinates.shape[:-1], x.shape[-3]
        shape = leading or (1,)
        require(shape[-1] == length, "{} must hold {} along the sequence, got shape {}", name, length, leading)
        checks.broadcastable(name, shape, f"{side} without heads", x.shape[:-2])
        return coordinates.reshape(shape if frequencies.num_axes == 1 else (*shape, frequencies.num_axes))


def _require_cache(query: Any, key: Any, positions: jax.Array, mask: Any, is_causal: Any) -> None:
    """Raises unless the keys may be Flax's cache: a step has one query, at the same slot in all rows, and a mask.

    With several queries, without a mask or with per-row positions, the keys are not a cache: their positions are
    unknown.
    """
    sizes = query.shape[-3], key.shape[-3]
    if sizes[0] != 1 or mask is None:
        differ = "where queries and keys differ in number, {} and {}".format(*sizes)
        raise invalid(f"key_positions must be given {differ} (Flax's cache has one query and a mask), got None")
    other = "if the keys are Flax's cache (for others, give key_positions)"
    require(
        positions.size == 1, "input_positions must be one slot for all rows {}, got shape {}", other, positions.shape
    )
    require(
        not is_causal, "is_causal must be False with one query, from which it hides all keys but the first, got True"
    )


def _add_biases(
    bias: ArrayLike | None, biases: Biases, query: Any, key: Any, queries: Any, keys: Any
) -> ArrayLike | None:
    """The sum of `bias` and of what the functions `biases` return, (..., heads, queries, keys)."""
    shape = query.shape[-2], query.shape[-3], key.shape[-3]
    queries = checks.counted("query", shape[1]) if queries is None else queries
    keys = checks.counted("key", shape[2]) if keys is None else keys
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


def parse_attention(attention: Any) -> Callable[..., jax.Array] | None:
    """Returns the function, or raises if it cannot be called or binds options that the attention_fn sets."""
    if attention is None:
        return None
    require_type(callable(attention), "attention", "posenc_jax.attention or None", attention)
    bound = sorted(_RESERVED & {*getattr(attention, "keywords", ())})
    require(not bound, "attention must not bind {}: the attention_fn gives it", ", ".join(bound))
    return attention


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
    mask = options.pop("mask", None)
    for name, x in options.items():
        expected = f"{defaults[name]} with attention (Flax's own attention takes it)"
        raise invalid(f"{name} must be {expected}, got {getattr(x, 'shape', x)}")
    result: dict[str, Any] = {"causal": True} if checks.flag("is_causal", is_causal) else {}
    if mask is not None:  # the same for all queries, so it hides keys as another segment does
        mask, keys = jnp.asarray(mask), key.shape[-3]
        fits = mask.ndim >= 3 and mask.shape[-3:] == (1, 1, keys)
        message = "mask must be one for all heads and queries with attention, (..., 1, 1, {}), got shape {}; {}"
        require(fits, message, keys, mask.shape, "bind causal=True or a window to attention")
        segments = mask.astype(bool).astype(jnp.int32).reshape(*mask.shape[:-3], keys)
        result |= {"query_segments": jnp.ones(query.shape[-3], jnp.int32), "key_segments": segments}
    return result


def _tile_bias(biases: Biases, i: Any, j: Any, *data: Any) -> jax.Array:
    """The sum of the biases of a tile of scores."""
    terms = [f(i, j, *extra) for f, extra in zip(biases, ((), data), strict=True) if f is not None]
    return terms[0] if len(terms) == 1 else _sum(*sorted(terms, key=jnp.ndim, reverse=True))
