"""Settings of the NNX and Linen modules, parsed.

NNX modules store the parsed settings. Linen modules keep their fields as given, except a width, which becomes
`Frequencies`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax.numpy as jnp
import numpy as np

from posenc_jax._biases.content import parse_rows
from posenc_jax._biases.parser import check_no_coordinates
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._frequencies.parser import parse_static
from posenc_jax._jax import checks, errors
from posenc_jax._jax.checks import Layout, RotatedPart
from posenc_jax._jax.errors import require

Variant = Literal["log", "power"]
ContentSource = Literal["query", "key"]
T = TypeVar("T")


def parse_variant(name: str, value: Any) -> Variant:
    """`value` as a variant of KERPLE."""
    return checks.one_of(name, value, ("log", "power"))


def parse_source(name: str, value: Any) -> ContentSource:
    """`value` as the side of a score whose tokens are read."""
    return checks.one_of(name, value, ("query", "key"))


def parse_scale(name: str, value: Any) -> float:
    """`value` as a factor of scores."""
    return checks.number(name, value, float32=True)


def optional(check: Callable[[str, Any], T], name: str, value: Any) -> T | None:
    """`value` by the check, or None."""
    return None if value is None else check(name, value)


def check_rows(module: Any) -> None:
    """Raises what `content_bias` raises for the settings and the number of rows of a module."""
    require(module.num_rows < 2**30, "num_rows must be below 2³⁰, got {}", module.num_rows)
    parse_rows(module.num_rows, module.first, module.max_distance, module.out_of_range)


def parse_sinusoidal(frequencies: Any, layout: Any, scale: Any) -> tuple[Frequencies, Layout, float]:
    """Settings of `SinusoidalEncoding`."""
    return parse_static(frequencies), checks.layout("layout", layout), checks.number("scale", scale)


def parse_rotary(frequencies: Any, layout: Any, part: Any) -> tuple[Frequencies, Layout, RotatedPart]:
    """Settings of `RotaryEncoding` except the head axis, which can be checked only against an array."""
    return (
        parse_static(frequencies, even=True),
        checks.layout("layout", layout),
        checks.part("part", part),
    )


def check_fields(module: Any, check: Callable[[str, Any], Any], names: str) -> None:
    """Raises what the check raises for these fields of a Linen module."""
    for name in names.split():
        check(name, getattr(module, name))


def offsets_shape(window: tuple[int, ...], num_heads: int, symmetric: bool) -> tuple[int, ...]:
    """The shape of the table of `relative_position_bias`."""
    return *(n if symmetric else 2 * n - 1 for n in window), num_heads


def rows_shape(num_rows: int, num_heads: int | None, head_dim: int) -> tuple[int, ...]:
    """The shape of the table of `content_bias`."""
    return (num_rows, head_dim) if num_heads is None else (num_rows, num_heads, head_dim)


def coordinates(name: str, tokens: Any, window: tuple[int, ...], class_token: bool) -> Any:
    """Coordinates of tokens from their indices, row by row; a class token comes first, and so is at row −1."""
    tokens = checks.array(name, tokens, checks.INTEGERS)
    errors.require_type(jnp.issubdtype(tokens.dtype, jnp.signedinteger), name, "an array of signed integers", tokens)
    check_no_coordinates(name, tokens)
    index: Any = tokens - np.asarray(class_token, tokens.dtype)
    found = []
    for side in window[:0:-1]:
        side = np.asarray(side, tokens.dtype)
        found.append(index % side)
        index = index // side
    stack: Any = np.stack if isinstance(index, (np.ndarray, np.generic)) else jnp.stack  # known indices stay known
    return stack([index, *found[::-1]], axis=-1) if found else index
