"""Flax's attention of rotated queries and keys, with a bias: what the `positional_attention` of both stacks are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from posenc_jax import _check
from posenc_jax.frequencies import Frequencies, Layout, geometric, positions_of, resolve, resolve_static
from posenc_jax.rotary import Part, rotary

WHERE = "positional_attention"


@dataclasses.dataclass(frozen=True)
class Settings:
    """All but the bias; a value without arrays, so that layers of equal ones compile once."""

    frequencies: Frequencies | None
    layout: Layout
    part: Part
    decode: bool

    def __post_init__(self):
        """Checks the settings."""
        if self.frequencies is not None:
            frequencies = resolve(WHERE, resolve_static(WHERE, self.frequencies), even=True)
            object.__setattr__(self, "frequencies", frequencies)
        _check.layout(WHERE, self.layout)
        _check.one_of(WHERE, "part", self.part, ("first", "last"))
        _check.flag(WHERE, "decode", self.decode)

    def fit(self, bias: Any) -> Any:
        """`bias`, if it can go with these settings."""
        if bias is None and self.frequencies is None:
            raise ValueError(f"{WHERE}: frequencies or bias must be given, got None for both")
        if bias is not None and not callable(bias):
            raise TypeError(f"{WHERE}: bias must be a function of positions, got {_check.describe(bias)}")
        if bias is not None and self.frequencies is not None and self.frequencies.num_axes > 1:
            axes = self.frequencies.num_axes
            raise ValueError(f"{WHERE}: bias must be None with frequencies of {axes} axes: it has positions of one")
        return bias

    def __call__(
        self,
        attend: Callable[..., jax.Array],
        bias: Callable[..., jax.Array] | None,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        given: ArrayLike | None = None,
        *args: Any,
        input_positions: ArrayLike | None = None,
        key_positions: ArrayLike | None = None,
        **kwargs: Any,
    ) -> jax.Array:
        """`attend` with the query (..., queries, heads, head_dim) and key rotated and the bias added to that given."""
        axes = "(..., seq, heads, head_dim)"
        queries = _check.floats(WHERE, "query", query, axes).shape[-3]
        keys = _check.floats(WHERE, "key", key, axes).shape[-3]
        differ = f"where queries and keys differ in number, {queries} and {keys}"
        if input_positions is None and key_positions is not None:
            raise ValueError(f"{WHERE}: input_positions must be given with key_positions, got None")
        if input_positions is None and queries != keys:
            raise ValueError(f"{WHERE}: input_positions must be given {differ}, got None")
        if input_positions is not None:
            input_positions = self._of("input_positions", input_positions, "query", query)
        if key_positions is not None:
            key_positions = self._of("key_positions", key_positions, "key", key)
        elif queries == keys:
            key_positions = input_positions
        elif not self.decode or queries > keys:
            hint = (
                "" if queries > keys else " (or decode=True, if the keys are Flax's cache, with position i in slot i)"
            )
            raise ValueError(f"{WHERE}: key_positions must be given {differ}{hint}, got None")
        if bias is not None:
            counted = (
                jnp.arange(_check.counted(WHERE, name, n), dtype=jnp.int32) if p is None else p
                for name, p, n in (("query", input_positions, queries), ("key", key_positions, keys))
            )
            given = _sum(given, bias(*counted), (*query.shape[:-3], query.shape[-2], queries, keys))
        if self.frequencies is not None:
            query = rotary(query, input_positions, self.frequencies, layout=self.layout, part=self.part)
            key = rotary(key, key_positions, self.frequencies, layout=self.layout, part=self.part)
        if bias is None:
            return attend(query, key, value, given, *args, **kwargs)
        with jax.numpy_dtype_promotion("standard"):  # the sum of 16-bit scores and a float32 bias is of float32
            return attend(query, key, value, given, *args, **kwargs)

    def _of(self, name: str, positions: ArrayLike, side: str, x: jax.Array) -> jax.Array:
        """Positions, one for each: one for all of them would place them alike, which is no order."""
        frequencies = geometric(2) if self.frequencies is None else self.frequencies
        coordinates = positions_of(WHERE, name, positions, frequencies)
        shape, length = coordinates.shape[:-1] or (1,), x.shape[-3]
        if shape[-1] != length:
            raise ValueError(
                f"{WHERE}: {name} must hold {length} along the sequence, got shape {coordinates.shape[:-1]}"
            )
        _check.broadcastable(WHERE, name, shape, f"{side} without heads", x.shape[:-2])
        return coordinates.reshape(shape if frequencies.num_axes == 1 else (*shape, frequencies.num_axes))


def _sum(given: ArrayLike | None, bias: Any, scores: tuple[int, ...]) -> jax.Array:
    """Both biases; that of positions must have all heads, queries and keys, for a single one would fit any."""
    bias = _check.floats(WHERE, "what bias returns", bias, "(..., heads, queries, keys)")
    if bias.shape[-3:] != scores[-3:]:
        raise ValueError(f"{WHERE}: bias must return shape (..., {', '.join(map(str, scores[-3:]))}), got {bias.shape}")
    _check.broadcastable(WHERE, "what bias returns,", bias.shape, "the scores", scores)
    bias = _check.align(bias, len(scores))
    if given is None:
        return bias
    given = jnp.asarray(given)
    dtype = _check.inside(bias, given)
    return bias.astype(dtype) + _check.align(given, bias.ndim).astype(dtype)
