"""Flax's attention on queries and keys that are rotated first: what the `rotary_attention` of both stacks are."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.typing import ArrayLike

from posenc_jax import _check
from posenc_jax.frequencies import Frequencies, Layout, positions_of, resolve, resolve_static
from posenc_jax.rotary import Part, rotary


@dataclasses.dataclass(frozen=True)
class RotaryAttention:
    """An attention_fn; a value without arrays, so that it can be a setting of a layer: equal ones compile once."""

    attend: Callable[..., jax.Array]  # Flax's dot_product_attention
    frequencies: Frequencies
    layout: Layout
    part: Part
    decode: bool

    def __post_init__(self):
        """Checks the settings."""
        where = "rotary_attention"
        frequencies = resolve(where, resolve_static(where, self.frequencies), even=True)
        object.__setattr__(self, "frequencies", frequencies)
        _check.layout(where, self.layout)
        _check.one_of(where, "part", self.part, ("first", "last"))
        _check.flag(where, "decode", self.decode)

    @property
    def __signature__(self) -> inspect.Signature:
        """With the names of what is passed on: Linen leaves out the arguments that it does not find here, masks too."""
        mine = list(inspect.signature(type(self).__call__).parameters.values())
        named = [parameter for parameter in mine if parameter.kind is parameter.KEYWORD_ONLY]
        return inspect.Signature([*inspect.signature(self.attend).parameters.values(), *named])

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *args: Any,
        input_positions: ArrayLike | None = None,
        key_positions: ArrayLike | None = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Attention of the rotated query (..., queries, heads, head_dim) to the rotated key; the rest as Flax's own."""
        where, axes = "rotary_attention", "(..., seq, heads, head_dim)"
        queries = _check.floats(where, "query", query, axes).shape[-3]
        keys = _check.floats(where, "key", key, axes).shape[-3]
        differ = f"where queries and keys differ in number, {queries} and {keys}"
        if input_positions is None and key_positions is not None:
            raise ValueError(f"{where}: input_positions must be given with key_positions, got None")
        if input_positions is None and queries != keys:
            raise ValueError(f"{where}: input_positions must be given {differ}, got None")
        if input_positions is not None:
            self._fit("input_positions", input_positions, queries)
        if key_positions is not None:
            self._fit("key_positions", key_positions, keys)
        elif queries == keys:
            key_positions = input_positions
        elif not self.decode or queries > keys:
            hint = (
                "" if queries > keys else " (or decode=True, if the keys are Flax's cache, with position i in slot i)"
            )
            raise ValueError(f"{where}: key_positions must be given {differ}{hint}, got None")
        query = rotary(query, input_positions, self.frequencies, layout=self.layout, part=self.part)
        key = rotary(key, key_positions, self.frequencies, layout=self.layout, part=self.part)
        return self.attend(query, key, value, *args, **kwargs)

    def _fit(self, name: str, positions: ArrayLike, length: int) -> None:
        """Raises unless there is a position for each: one for all of them would turn them alike, which is no order."""
        shape = positions_of("rotary_attention", name, positions, self.frequencies).shape[:-1]
        if (shape or (1,))[-1] != length:
            raise ValueError(f"rotary_attention: {name} must hold {length} along the sequence, got shape {shape}")
