r"""Shared by the NNX and Linen modules: parsed settings, initial values, and calls that take more than one line.

NNX modules store the parsed settings. Linen modules keep their fields as given, except a width, which becomes
`Frequencies`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer
from jax.typing import ArrayLike

from posenc_jax import _checks
from posenc_jax._bias import kerple_log, kerple_power
from posenc_jax._checks import Layout, Part, require
from posenc_jax._content_bias import content_bias, parse_rows
from posenc_jax._fourier import timestep_embedding
from posenc_jax._frequencies import Frequencies, parse_static
from posenc_jax._learned_bias import fire
from posenc_jax._pope import pope
from posenc_jax._relative_bias import relative_position_bias
from posenc_jax._sinusoidal import sinusoidal
from posenc_jax._tile_arguments import check_no_coordinates, counted

Form = Literal["log", "power"]
Side = Literal["query", "key"]
T = TypeVar("T")

# Settings


def parse_form(name: str, value: Any) -> Form:
    """`value` as a form of KERPLE."""
    return _checks.one_of(name, value, ("log", "power"))


def parse_side(name: str, value: Any) -> Side:
    """`value` as the side of a score whose tokens are read."""
    return _checks.one_of(name, value, ("query", "key"))


def parse_scale(name: str, value: Any) -> float:
    """`value` as a factor of scores."""
    return _checks.number(name, value, float32=True)


def optional(check: Callable[[str, Any], T], name: str, value: Any) -> T | None:
    """`value` by the check, or None."""
    return None if value is None else check(name, value)


def check_rows(module: Any) -> None:
    """Raises what `content_bias` raises for the settings and the number of rows of a module."""
    require(module.num_rows < 2**30, "num_rows must be below 2³⁰, got {}", module.num_rows)
    parse_rows(module.num_rows, module.first, module.max_distance, module.out_of_range)


def parse_sinusoidal(frequencies: Any, layout: Any, scale: Any) -> tuple[Frequencies, Layout, float]:
    """Settings of `SinusoidalEncoding`."""
    return parse_static(frequencies), _checks.layout("layout", layout), _checks.number("scale", scale)


def parse_rotary(frequencies: Any, layout: Any, part: Any) -> tuple[Frequencies, Layout, Part]:
    """Settings of `RotaryEncoding` except the head axis, which can be checked only against an array."""
    return (
        parse_static(frequencies, even=True),
        _checks.layout("layout", layout),
        _checks.part("part", part),
    )


def check_fields(module: Any, check: Callable[[str, Any], Any], names: str) -> None:
    """Raises what the check raises for these fields of a Linen module."""
    for name in names.split():
        check(name, getattr(module, name))


def check_timestep_settings(module: Any) -> None:
    """Raises what `timestep_embedding` raises for a module's settings, under the name `timestep_embedding`."""
    jax.eval_shape(functools.partial(embed_timesteps, module), 0)


# Initial values

default_phase_init = jax.nn.initializers.zeros
default_embedding_init = jax.nn.initializers.normal(0.02)
default_t5_init = jax.nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
fire_kernel_init = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # within ±1/√fan_in

SOFTPLUS_IS_ONE = math.log(math.expm1(1))
_LEAST = 0.01  # the least initial value of KERPLE's parameters, as in the authors' code


def fire_bias_init(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
    """Uniform within ±1. With bias 0, a hidden unit with a negative weight is dead at every distance."""
    return jax.random.uniform(key, shape, jnp.float32, -1, 1).astype(dtype)


def default_kerple_inits(form: Form) -> tuple[Initializer, Initializer]:
    """Initialisers of the authors' code: r₁ begins below 2 (log) or 1 (power), r₂ below 1 (log) or 2 (power)."""
    return (_softplus_uniform(2.0), _softplus_uniform(1.0)) if form == "log" else (_softplus_uniform(1.0), _exponents)


def _softplus_uniform(high: float) -> Initializer:
    """Initialiser of numbers whose softplus is uniform below `high`."""

    def init(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
        value = jax.random.uniform(key, shape, jnp.float32, _LEAST, high)
        return (value + jnp.log(-jnp.expm1(-value))).astype(dtype)

    return init


def _exponents(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
    """Initialiser of numbers x with 2 · sigmoid(x) uniform between 0 and 2."""
    value = jax.random.uniform(key, shape, jnp.float32, _LEAST, 2 - _LEAST)
    return jnp.log(value / (2 - value)).astype(dtype)


def inverse_softplus(value: float) -> float:
    """The number whose softplus is `value`."""
    return value + math.log(-math.expm1(-value))


def offsets_shape(window: tuple[int, ...], num_heads: int, symmetric: bool) -> tuple[int, ...]:
    """The shape of the table of `relative_position_bias`."""
    return *(n if symmetric else 2 * n - 1 for n in window), num_heads


def rows_shape(num_rows: int, num_heads: int | None, head_dim: int) -> tuple[int, ...]:
    """The shape of the table of `content_bias`."""
    return (num_rows, head_dim) if num_heads is None else (num_rows, num_heads, head_dim)


def coordinates(name: str, tokens: Any, window: tuple[int, ...], class_token: bool) -> Any:
    """Coordinates of tokens from their indices, row by row; a class token comes first, and so is at row −1."""
    tokens = _checks.array(name, tokens, _checks.INTEGERS)
    _checks.require_type(jnp.issubdtype(tokens.dtype, jnp.signedinteger), name, "an array of signed integers", tokens)
    check_no_coordinates(name, tokens)
    index: Any = tokens - np.asarray(class_token, tokens.dtype)
    found = []
    for side in window[:0:-1]:
        side = np.asarray(side, tokens.dtype)
        found.append(index % side)
        index = index // side
    stack: Any = np.stack if isinstance(index, (np.ndarray, np.generic)) else jnp.stack  # known indices stay known
    return stack([index, *found[::-1]], axis=-1) if found else index


# Calls


def bounded_phase(phase: jax.Array) -> jax.Array:
    """A phase of PoPE clipped to [−2π, 0], with a derivative of 1 at both ends, as in PyTorch: it begins at one."""
    bounded = jnp.clip(phase, np.asarray(-2 * math.pi, phase.dtype), np.zeros((), phase.dtype))
    return jnp.where(bounded == phase, phase, bounded)


def counted_at_init(module: Any, x: Any, positions: Any, head_axis: Any = None) -> Any:
    """The positions for a call of a Linen module, of which `init` may give one token without its position."""
    axes = getattr(getattr(module, "frequencies", None), "num_axes", 1)
    if positions is not None or axes > 1 or not module.is_initializing():
        return positions
    heads = head_axis if isinstance(head_axis, (tuple, list)) else (head_axis,)
    rows = [n for axis, n in enumerate(np.shape(x)[:-1]) if not {axis, axis - np.ndim(x)} & {*heads}]
    return 0 if rows[-1:] == [1] else None


def polar(
    module: Any, query: Any, key: Any, positions: Any, key_positions: Any, phase: Any
) -> tuple[jax.Array, jax.Array]:
    """`pope` of a query and a key, each at its positions, with the settings of a module."""
    settings: dict[str, Any] = {"head_axis": module.head_axis, "layout": module.layout}
    query = pope(query, positions, module.frequencies, **settings)
    return query, pope(key, key_positions, module.frequencies, phase=bounded_phase(phase), **settings)


def relative_bias(module: Any, queries: Any, keys: Any, table: jax.Array, prefix: jax.Array | None) -> jax.Array:
    """`relative_position_bias` with the settings of a module."""
    if module.flat:
        window = tuple(module.window)
        queries = coordinates("query_positions", queries, window, prefix is not None)
        keys = coordinates("key_positions", keys, window, prefix is not None)
    settings: dict[str, Any] = {"symmetric": module.symmetric, "out_of_range": module.out_of_range}
    return relative_position_bias(queries, keys, table, prefix=prefix, **settings)


def scaled_content_bias(module: Any, queries: Any, keys: Any, query: Any, key: Any, table: jax.Array) -> jax.Array:
    """`content_bias` with the settings of a module, times its scale."""
    content = {"query": query} if module.of == "query" else {"key": key}
    settings = {"first": module.first, "max_distance": module.max_distance, "out_of_range": module.out_of_range}
    return content_bias(queries, keys, table, **content, **settings) * float(module.scale)


def sinusoidal_table(length: int, frequencies: Frequencies | int, layout: Layout, dtype: Any) -> jax.Array:
    """The encodings of positions 0 to length − 1, shape (length, dim)."""
    positions = counted("table", _checks.positive_int("length", length))
    return sinusoidal(positions, frequencies, layout=layout, dtype=dtype)


def embed_timesteps(module: Any, timesteps: ArrayLike) -> jax.Array:
    """`timestep_embedding` with the settings of a module."""
    return timestep_embedding(
        timesteps,
        module.dim,
        flip_sin_to_cos=module.flip_sin_to_cos,
        downscale_freq_shift=module.downscale_freq_shift,
        scale=module.scale,
        max_period=module.max_period,
        dtype=module.dtype,
    )


def unconstrained_kerple(form: Form, queries: ArrayLike, keys: ArrayLike, r1: jax.Array, r2: jax.Array) -> jax.Array:
    """KERPLE from its unconstrained parameters."""
    r1, r2 = r1.astype(jnp.float32), r2.astype(jnp.float32)
    if form == "log":
        return kerple_log(queries, keys, jax.nn.softplus(r1), jax.nn.softplus(r2))
    return kerple_power(queries, keys, jax.nn.softplus(r1), 2 * jax.nn.sigmoid(r2))


def unconstrained_fire(
    queries: ArrayLike, keys: ArrayLike, mlp: tuple[jax.Array, ...], c: jax.Array, multiplier: jax.Array, start: float
) -> jax.Array:
    """FIRE from w1 (1, hidden), the other weights, and unconstrained c and multiplier of the initial threshold."""
    w1, b1, w2, b2 = mlp
    c, multiplier = (jax.nn.softplus(x.astype(jnp.float32)) for x in (c, multiplier))
    return fire(queries, keys, (w1[0], b1, w2, b2), c=c, threshold=multiplier * start)
