"""Flax's attention with turned queries and keys and a bias of positions: the `positional_attention` of both stacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from posenc_jax import _checks
from posenc_jax._arrays import align, compute_dtype
from posenc_jax._checks import require
from posenc_jax._frequencies import Frequencies, Layout, geometric, parse_positions, parse_static
from posenc_jax._rotary import Part, rotary


@dataclasses.dataclass(frozen=True)
class PositionalScores:
    """How scores depend on positions, but for the bias: hashable, without arrays, so that equal layers compile once."""

    frequencies: Frequencies | None
    layout: Layout
    part: Part
    decode: bool

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.frequencies is not None:
            object.__setattr__(self, "frequencies", parse_static(self.frequencies, even=True))
        _checks.layout(self.layout)
        _checks.part(self.part)
        _checks.flag("decode", self.decode)

    def parse_bias(self, bias: Any) -> Any:
        """`bias`, if it can go with these settings."""
        axes = 1 if self.frequencies is None else self.frequencies.num_axes
        if bias is not None and not callable(bias):
            _checks.wrong_type("bias", "a function of positions", bias)
        given = bias is not None or self.frequencies is not None
        require(given, "frequencies or bias must be given, got None for both")
        message = "bias must be None with frequencies of {} axes: it has positions of one"
        require(bias is None or axes == 1, message, axes)
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
        """`attend` with query (..., queries, heads, head_dim) and key turned, and the bias added to the given one."""
        queries, keys = self._positions(query, key, input_positions, key_positions)
        if bias is not None:
            given = self._biased(given, bias, query, key, queries, keys)
        if self.frequencies is not None:
            query = rotary(query, queries, self.frequencies, layout=self.layout, part=self.part)
            key = rotary(key, keys, self.frequencies, layout=self.layout, part=self.part)
        if bias is None:
            return attend(query, key, value, given, *args, **kwargs)
        with jax.numpy_dtype_promotion("standard"):  # 16-bit scores plus a float32 bias are float32
            return attend(query, key, value, given, *args, **kwargs)

    def _positions(self, query: Any, key: Any, input_positions: Any, key_positions: Any) -> tuple[Any, Any]:
        """The positions of queries and of keys, each an array or None where they are counted."""
        axes = (..., "seq", "heads", "head_dim")
        queries = _checks.floats("query", query, axes).shape[-3]
        keys = _checks.floats("key", key, axes).shape[-3]
        differ = f"where queries and keys differ in number, {queries} and {keys}"
        if input_positions is None:
            require(key_positions is None, "input_positions must be given with key_positions, got None")
            require(queries == keys, "input_positions must be given {}, got None", differ)
            return None, None
        input_positions = self._parse("input_positions", input_positions, "query", query)
        if key_positions is not None:
            return input_positions, self._parse("key_positions", key_positions, "key", key)
        if queries == keys:
            return input_positions, input_positions
        hint = "" if queries > keys else " (or decode=True, if the keys are Flax's cache, with position i in slot i)"
        fits = self.decode and queries < keys
        require(fits, "key_positions must be given {}{}, got None", differ, hint)
        return input_positions, None

    def _parse(self, name: str, positions: ArrayLike, side: str, x: jax.Array) -> jax.Array:
        """Positions, one for each token: a single one for all would put them in no order."""
        frequencies = geometric(2) if self.frequencies is None else self.frequencies
        coordinates = parse_positions(name, positions, frequencies)
        shape, length = coordinates.shape[:-1] or (1,), x.shape[-3]
        message = "{} must hold {} along the sequence, got shape {}"
        require(shape[-1] == length, message, name, length, coordinates.shape[:-1])
        _checks.broadcastable(name, shape, f"{side} without heads", x.shape[:-2])
        return coordinates.reshape(shape if frequencies.num_axes == 1 else (*shape, frequencies.num_axes))

    def _biased(self, given: Any, bias: Callable[..., Any], query: Any, key: Any, queries: Any, keys: Any) -> jax.Array:
        """The bias of positions, which must have all heads, queries and keys, plus the given one."""
        lengths = query.shape[-3], key.shape[-3]
        queries, keys = (
            jnp.arange(_checks.countable(name, n), dtype=jnp.int32) if p is None else p
            for name, p, n in zip(("query", "key"), (queries, keys), lengths, strict=True)
        )
        with _checks.callback():
            values = bias(queries, keys)
        values, shape = (
            _checks.floats("what bias returns", values, (..., "heads", "queries", "keys")),
            (query.shape[-2], *lengths),
        )
        fits = values.shape[-3:] == shape
        require(fits, "bias must return shape (..., {}), got {}", ", ".join(map(str, shape)), values.shape)
        target = (*query.shape[:-3], *shape)
        _checks.broadcastable("what bias returns,", values.shape, "the scores", target)
        values = align(values, len(target))
        if given is None:
            return values
        given = jnp.asarray(given)
        dtype = compute_dtype(values, given)
        return values.astype(dtype) + align(given, values.ndim).astype(dtype)
