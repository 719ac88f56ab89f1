r"""Calls that both the NNX and the Linen modules make, where they take more than one line."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._biases.content import content_bias
from posenc_jax._biases.formulas import kerple_log, kerple_power
from posenc_jax._biases.learned import fire
from posenc_jax._biases.parser import check_no_coordinates
from posenc_jax._biases.relative import relative_position_bias
from posenc_jax._encodings.fourier import timestep_embedding
from posenc_jax._encodings.sinusoidal import sinusoidal
from posenc_jax._flax.settings import Variant
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._jax import checks
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import require_type
from posenc_jax._rotary.pope import pope


def bounded_phase(phase: jax.Array) -> jax.Array:
    """A phase of PoPE clipped to [−2π, 0], with a derivative of 1 at both ends, as in PyTorch: phases begin at 0."""
    bounded = jnp.clip(phase, np.asarray(-2 * math.pi, phase.dtype), np.zeros((), phase.dtype))
    return jnp.where(bounded == phase, phase, bounded)


def counted_at_init(module: Any, x: Any, positions: Any, head_axis: Any = None) -> Any:
    """The positions for a call of a Linen module; `init` may pass one token without its position."""
    axes = getattr(getattr(module, "frequencies", None), "num_axes", 1)
    if positions is not None or axes > 1 or not module.is_initializing():
        return positions
    heads = head_axis if isinstance(head_axis, (tuple, list)) else (head_axis,)
    sizes = [n for axis, n in enumerate(np.shape(x)[:-1]) if not {axis, axis - np.ndim(x)} & {*heads}]
    return 0 if sizes[-1:] == [1] else None


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
        queries = _coordinates("query_positions", queries, window, prefix is not None)
        keys = _coordinates("key_positions", keys, window, prefix is not None)
    settings: dict[str, Any] = {"symmetric": module.symmetric, "out_of_range": module.out_of_range}
    return relative_position_bias(queries, keys, table, prefix=prefix, **settings)


def _coordinates(name: str, tokens: Any, window: tuple[int, ...], class_token: bool) -> Any:
    """Coordinates of tokens from their indices, row by row. A class token comes first and has row −1."""
    tokens = checks.array(name, tokens, checks.INTEGERS)
    require_type(jnp.issubdtype(tokens.dtype, jnp.signedinteger), name, "an array of signed integers", tokens)
    check_no_coordinates(name, tokens)
    index: Any = tokens - np.asarray(class_token, tokens.dtype)
    inner = []  # all coordinates but the first, from the last one on
    for side in window[:0:-1]:
        side = np.asarray(side, tokens.dtype)
        inner.append(index % side)
        index = index // side
    # NumPy's indices give NumPy's coordinates, which are concrete.
    stack: Any = np.stack if isinstance(index, (np.ndarray, np.generic)) else jnp.stack
    return stack([index, *inner[::-1]], axis=-1) if inner else index


def scaled_content_bias(module: Any, queries: Any, keys: Any, query: Any, key: Any, table: jax.Array) -> jax.Array:
    """`content_bias` with the settings of a module, times its scale."""
    content = {"query": query} if module.source == "query" else {"key": key}
    settings = {"first": module.first, "max_distance": module.max_distance, "out_of_range": module.out_of_range}
    return content_bias(queries, keys, table, **content, **settings) * float(module.scale)


def sinusoidal_table(length: int, frequencies: Frequencies | int, layout: Layout, dtype: Any) -> jax.Array:
    """The encodings of positions 0 to length − 1, shape (length, dim)."""
    positions = checks.counted("table", checks.positive_int("length", length))
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


def check_timestep_settings(module: Any) -> None:
    """Raises what `timestep_embedding` raises for a module's settings, under the name `timestep_embedding`."""
    jax.eval_shape(functools.partial(embed_timesteps, module), 0)


def unconstrained_kerple(
    variant: Variant, queries: ArrayLike, keys: ArrayLike, r1: jax.Array, r2: jax.Array
) -> jax.Array:
    """KERPLE from its unconstrained parameters."""
    r1, r2 = r1.astype(jnp.float32), r2.astype(jnp.float32)
    if variant == "log":
        return kerple_log(queries, keys, jax.nn.softplus(r1), jax.nn.softplus(r2))
    return kerple_power(queries, keys, jax.nn.softplus(r1), 2 * jax.nn.sigmoid(r2))


def unconstrained_fire(
    queries: ArrayLike, keys: ArrayLike, mlp: tuple[jax.Array, ...], c: jax.Array, multiplier: jax.Array, start: float
) -> jax.Array:
    """FIRE from w1 (1, hidden), the other weights, and unconstrained c and multiplier of the initial threshold."""
    w1, b1, w2, b2 = mlp
    c, multiplier = (jax.nn.softplus(x.astype(jnp.float32)) for x in (c, multiplier))
    return fire(queries, keys, (w1[0], b1, w2, b2), c=c, threshold=multiplier * start)
