"""Settings of the NNX and Linen modules, parsed.

NNX modules store the parsed settings. Linen modules keep their fields as given, except a width, which becomes
`Frequencies`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from posenc_jax._biases.content import ContentSource, parse_rows
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._frequencies.parser import parse_static
from posenc_jax._jax import checks
from posenc_jax._jax.checks import Layout, RotatedPart
from posenc_jax._jax.errors import require

Variant = Literal["log", "power"]
T = TypeVar("T")


def parse_variant(name: str, value: Any) -> Variant:
    """`value` as a variant of KERPLE."""
    return checks.one_of(name, value, ("log", "power"))


def parse_source(name: str, value: Any) -> ContentSource:
    """`value` as the tokens that a content bias reads."""
    return checks.one_of(name, value, ("query", "key"))


def parse_factor(name: str, value: Any) -> float:
    """`value` as a factor of scores."""
    return checks.number(name, value, float32=True)


def optional(check: Callable[[str, Any], T], name: str, value: Any) -> T | None:
    """None, or what the check returns for `value`."""
    return None if value is None else check(name, value)


def check_rows(module: Any) -> None:
    """Raises what `content_bias` raises for the settings and the number of rows of a module."""
    require(module.num_rows < 2**30, "num_rows must be below 2³⁰, got {}", module.num_rows)
    parse_rows(module.num_rows, module.first, module.max_distance, module.out_of_range)


def parse_sinusoidal_settings(frequencies: Any, layout: Any, scale: Any) -> tuple[Frequencies, Layout, float]:
    """Settings of `SinusoidalEncoding`."""
    return parse_static(frequencies), checks.layout("layout", layout), checks.number("scale", scale)


def parse_rotary_settings(frequencies: Any, layout: Any, part: Any) -> tuple[Frequencies, Layout, RotatedPart]:
    """Settings of `RotaryEncoding` except the head axis, which can be checked only against an array."""
    return parse_static(frequencies, even=True), checks.layout("layout", layout), checks.part("part", part)


def check_fields(module: Any, check: Callable[[str, Any], Any], names: str) -> None:
    """Raises what the check raises for these fields of a Linen module."""
    for name in names.split():
        check(name, getattr(module, name))
