"""Exact phases, rotations and biases inside your own kernels: elementwise functions of tiles.

The public functions of `posenc_jax` choose their code according to the platform and close over constants. Inside a
Pallas kernel, neither is possible. The functions of this module are for kernels:

- Their results have the same bits as the results of the public functions, at every int32 position, unless stated
  otherwise.
- All constants are operands. `phase_constants` makes them outside the kernel, and the kernel takes them as an input. It
  reads no table of cosines and sines.

| function | tiles | compiles in Pallas for |
| --- | --- | --- |
| `cos_sin` | positions and constants that broadcast to each other | TPU, Mosaic GPU |
| `rotate` | whole vectors, whose features move along lanes | TPU |
| `rotate_pairs` | one tile of first members of pairs, one of second members | TPU, Mosaic GPU |
| `alibi`, `kerple_log`, `kerple_power` | positions and parameters that broadcast to scores | TPU, Mosaic GPU |

All of them run in interpret mode. Mosaic GPU does not broadcast: pass tiles of the same shape and layout. The functions
have no derivatives with respect to positions or constants. Define the derivative of your kernel yourself.

>>> import jax, jax.numpy as jnp
>>> from jax.experimental import pallas as pl
>>> import posenc_jax as pe
>>> from posenc_jax import kernels
>>> def kernel(x, positions, constants, out):  # a tile of 8 vectors
...     cosine, sine = kernels.cos_sin(positions[...], constants[...])
...     out[...] = kernels.rotate(x[...], cosine, sine)
>>> f = pe.geometric(64, 500_000.0)
>>> rows = lambda width: pl.BlockSpec((8, width), lambda i: (i, 0))
>>> constants = kernels.phase_constants(f, "half")
>>> run = pl.pallas_call(
...     kernel,
...     jax.ShapeDtypeStruct((16, 64), jnp.float32),
...     grid=(2,),
...     in_specs=[rows(64), rows(1), pl.BlockSpec(constants.shape, lambda i: (0, 0))],
...     out_specs=rows(64),
...     interpret=True,
... )
>>> x, positions = jnp.ones((16, 64)), 2_000_000_000 + jnp.arange(16)
>>> want = pe.rotary(x, positions, f, head_axis=None)
>>> bool(jnp.all(run(x, positions[:, None], constants) == want))
True
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._biases import formulas
from posenc_jax._frequencies import angles
from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._frequencies.parser import dim_of, one_axis, parse
from posenc_jax._jax import checks, workarounds
from posenc_jax._jax.arrays import align, compute_dtype
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import invalid, public, require, require_type
from posenc_jax._numerics import fixed_point, sines
from posenc_jax._numerics.distances import difference
from posenc_jax._numerics.fixed_point import PhaseIncrement
from posenc_jax._rotary.rotation import is_second, rotate_members, two_products

__all__ = ["alibi", "cos_sin", "kerple_log", "kerple_power", "phase_constants", "rotate", "rotate_pairs"]

_LANES = 128  # of a TPU's register
_ROWS = 6  # four of a phase increment, and the amplitudes of the cosine and of the sine


@public
def phase_constants(frequencies: Frequencies | int | jax.Array, layout: Layout | None = None) -> jax.Array:
    r"""The constants that `cos_sin` needs, as one operand of a kernel. Call it outside the kernel.

    Examples:
      >>> import posenc_jax as pe
      >>> from posenc_jax import kernels
      >>> constants = kernels.phase_constants(pe.geometric(64))
      >>> constants.shape, kernels.phase_constants(64, "half").shape
      ((6, 32), (6, 64))

    Args:
      frequencies: `Frequencies`, a width or a float array, with one axis; see `rotary`.
      layout: `None` for one column per feature pair, as `rotate_pairs` needs. "half" or "interleaved" for one column
        per feature, as `rotate` needs.

    Returns:
      An int32 array of shape (6, num_pairs), or (6, dim) with a layout.

    Raises:
      TypeError: if frequencies are not `Frequencies`, a width or a float array.
      ValueError: if frequencies have several axes or precision "float32", if their dim is odd and layout is given, if
        layout is unknown, or if a derivative with respect to frequencies is taken.

    Notes:
      - A column holds the phase increment of a frequency, $\omega/2\pi$ in fixed point (four integers), and the bits of
        two float32 amplitudes $a$: one for the cosine and one for the sine. With a layout, the sine of the first
        feature of each pair is negated.
      - For frequencies f with several axes, pass `dataclasses.replace(f, axes=None)`, and pass `cos_sin` the coordinate
        that drives each pair.

    Reference:
      Tierney, Rader and Gold, "A Digital Frequency Synthesizer", 1971, section II: a phase accumulator that wraps.
    """
    frequencies = one_axis(parse(frequencies, even=layout is not None))
    if isinstance(frequencies, Frequencies):
        precision = frequencies.precision
        require(precision == "exact", "frequencies must have precision 'exact' in kernels, got {!r}", precision)
        increment = fixed_point.increment_from_cycles(frequencies.cycles)
        amplitude = jnp.full(frequencies.num_pairs, frequencies.attention_factor, jnp.float32)
    else:
        frequencies = _without_derivative(frequencies)
        increment = fixed_point.increment_from_angular(frequencies)
        amplitude = jnp.where(jnp.abs(frequencies) < 2.0**31, np.float32(1), np.float32(np.nan))
    amplitudes = [amplitude, amplitude]
    if layout is not None:
        checks.layout("layout", layout)
        dim = dim_of(frequencies)
        increment, amplitudes = jax.tree.map(lambda x: angles.expand(x, layout, dim), (increment, amplitudes))
        amplitudes[1] *= np.where(is_second(layout, dim), 1, -1).astype(np.float32)
    return jnp.stack([*increment[1:], *(lax.bitcast_convert_type(a, np.int32) for a in amplitudes)])


@jax.custom_jvp
def _without_derivative(frequencies: jax.Array) -> jax.Array:
    return frequencies


@_without_derivative.defjvp
def _refuse_derivative(primals: Any, tangents: Any) -> Any:
    raise invalid("frequencies must pass lax.stop_gradient: phase constants are integers without derivatives")


@public
def cos_sin(positions: jax.Array, constants: jax.Array | Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    r"""The cosines and sines of a tile of positions, $a\cos\omega p$ and $a\sin\omega p$ with amplitude $a$.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax import kernels
      >>> cosine, sine = kernels.cos_sin(jnp.array([[0], [1]]), kernels.phase_constants(2))
      >>> print(cosine.round(1).ravel(), sine.round(1).ravel())
      [1.  0.5] [0.  0.8]

    Args:
      positions: $p$, int32 tile that broadcasts to the result: (rows, 1) on a TPU. In a tile (rows, columns), each
        column may have its own coordinate.
      constants: what `phase_constants` returns, an int32 array (6, columns); or its six rows, as six int32 tiles that
        broadcast to the result.

    Returns:
      Cosine and sine, two float32 tiles (rows, columns), with the same bits as in `rotary` and `sinusoidal`. If
      $a = 1$, they are within 9e-8 of their true values at every int32 position.

    Raises:
      TypeError: if positions or constants are not int32.
      ValueError: if constants do not have six rows.

    Reference:
      Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """
    require_type(getattr(positions, "dtype", None) == np.int32, "positions", "an int32 tile", positions)
    rows = constants if isinstance(constants, Sequence) else (constants,)
    fits = all(getattr(row, "dtype", None) == np.int32 for row in rows)
    require_type(fits, "constants", "an int32 array, as phase_constants gives it, or six int32 tiles", constants)
    count = len(constants) if isinstance(constants, Sequence) else (*constants.shape, 0)[0]
    require(count == _ROWS, "constants must have {} rows, as phase_constants returns, got {}", _ROWS, count)
    *increment, cosine_amplitude, sine_amplitude = (align(constants[i], positions.ndim) for i in range(_ROWS))
    quarter = np.int32(2**30)
    # `sine_of_phase` lags by a quarter cycle.
    phase = fixed_point.phase(positions, PhaseIncrement(None, *increment), lax.full_like(positions, quarter))
    cosine, sine = sines.sine_of_phase(lax.add(phase, lax.full_like(phase, quarter))), sines.sine_of_phase(phase)
    amplitudes = [lax.bitcast_convert_type(row, np.float32) for row in (cosine_amplitude, sine_amplitude)]
    cosine, sine = map(workarounds.rounded_product, (cosine, sine), amplitudes)
    return cosine, sine


@public
def rotate(x: jax.Array, cosine: jax.Array, sine: jax.Array, layout: Layout = "half") -> jax.Array:
    r"""Rotates the feature pairs of a tile of whole vectors: RoPE in a kernel for a TPU.

    $$y = x \cos\omega p + x'\,(\mp\sin\omega p),$$

    where $x'$ is the other feature of the pair. The sign is part of the argument `sine`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax import kernels
      >>> x = jnp.array([[1.0, 0.0], [1.0, 0.0]])
      >>> cos_sin = kernels.cos_sin(jnp.array([[0], [1]]), kernels.phase_constants(2, "half"))
      >>> print(kernels.rotate(x, *cos_sin).round(1))
      [[1.  0. ]
       [0.5 0.8]]

    Args:
      x: float tile (..., dim), all of whose features are rotated.
      cosine: tile (..., dim) that broadcasts to x, from `cos_sin` with `phase_constants(frequencies, layout)`.
      sine: tile (..., dim) that broadcasts to x, from the same call.
      layout: which features form a pair; see `rotary`. It must be the layout of the constants.

    Returns:
      The rotated tile, with the shape and dtype of x, and the same bits as from `rotary`.

    Raises:
      TypeError: if x is not a float tile, or cosine or sine does not have the dtype that x is computed in.
      ValueError: if cosine or sine does not have one column per feature of x or does not broadcast to x, if the number
        of features is odd, or if layout is unknown.

    Reference:
      Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, equation 34.
    """
    checks.layout("layout", layout)
    _check_floats("x", x)
    dim, members = x.shape[-1] if x.shape else 0, x.astype(compute_dtype(x))
    require(dim and dim % 2 == 0, "x must have an even number of features, got shape {}", x.shape)
    for name, each in (("cosine", cosine), ("sine", sine)):
        _check_floats(name, each, members.dtype)
        fits = each.shape[-1:] == (dim,)
        require(fits, "{} must have {} columns, one for each feature, got shape {}", name, dim, each.shape)
        checks.broadcastable(name, each.shape, "x", x.shape)
    operands = members, _partners(members, layout), jnp.broadcast_to(cosine, x.shape), jnp.broadcast_to(sine, x.shape)
    # In interpret mode, the compiler of a CPU or a GPU could contract a product and the sum to an FMA.
    rounded, plain = (functools.partial(two_products, target=target) for target in (workarounds.GPU, workarounds.TPU))
    y = lax.platform_dependent(*operands, cpu=rounded, cuda=rounded, rocm=rounded, default=plain)
    return y.astype(x.dtype)


def _check_floats(name: str, x: Any, dtype: Any = None) -> None:
    """Raises unless x is a tile of floats, of this dtype if one is given."""
    x_dtype = x.dtype if checks.is_array(x) else np.bool_
    fits = jnp.issubdtype(x_dtype, jnp.floating) and dtype in (None, x_dtype)
    require_type(fits, name, "a float tile" if dtype is None else f"a {np.dtype(dtype)} tile", x)


def _partners(x: jax.Array, layout: Layout) -> jax.Array:
    """The other feature of each pair, by moves that a TPU makes in one operation for each register of 128 lanes."""
    dim, last = x.shape[-1], x.ndim - 1
    if layout == "half" and dim >= _LANES:
        return jnp.roll(x, dim // 2, last)

    def partners(x: jax.Array) -> jax.Array:
        lane = lax.broadcasted_iota(np.int32, x.shape, last)
        half = np.int32(dim // 2)
        source = lane ^ np.int32(1) if layout == "interleaved" else jnp.where(lane < half, lane + half, lane - half)
        return jnp.take_along_axis(x, source, last, mode="promise_in_bounds")

    parts = [partners(lax.slice_in_dim(x, i, min(i + _LANES, dim), axis=last)) for i in range(0, dim, _LANES)]
    return lax.concatenate(parts, last)


@public
def rotate_pairs(x1: jax.Array, x2: jax.Array, cosine: jax.Array, sine: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Rotates feature pairs whose members are in two tiles: RoPE in a kernel for any device.

    $$y_1 = x_1 \cos\omega p - x_2 \sin\omega p, \qquad y_2 = x_2 \cos\omega p + x_1 \sin\omega p$$

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax import kernels
      >>> x1, x2 = jnp.array([[1.0], [1.0]]), jnp.array([[0.0], [0.0]])
      >>> cos_sin = kernels.cos_sin(jnp.array([[0], [1]]), kernels.phase_constants(2))
      >>> y1, y2 = kernels.rotate_pairs(x1, x2, *cos_sin)
      >>> print(y1.round(1).ravel(), y2.round(1).ravel())
      [1.  0.5] [0.  0.8]

    Args:
      x1: the first members of the pairs, float tile (..., num_pairs).
      x2: the second members, a tile of the same shape and dtype.
      cosine: tile of the same shape, from `cos_sin` with `phase_constants(frequencies)`.
      sine: tile of the same shape, from the same call.

    Returns:
      $y_1$ and $y_2$, with the shape and dtype of x1, and the same bits as from `rotary`.

    Raises:
      TypeError: if x1 is not a float tile, x2 has another dtype, or cosine or sine does not have the dtype of the
        computation.
      ValueError: if the shapes differ.

    Reference:
      Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, equation 13.
    """
    _check_floats("x1", x1)
    for name, tile, dtype in (("x2", x2, x1.dtype), ("cosine", cosine, None), ("sine", sine, None)):
        _check_floats(name, tile, dtype or compute_dtype(x1))
        require(tile.shape == x1.shape, "{} must have the shape of x1, {}, got {}", name, x1.shape, tile.shape)
    member1, member2 = (x.astype(compute_dtype(x1)) for x in (x1, x2))
    y1, y2 = rotate_members(member1, member2, (sine, cosine), workarounds.GPU)
    return y1.astype(x1.dtype), y2.astype(x1.dtype)


@public
def alibi(query_positions: jax.Array, key_positions: jax.Array, slopes: jax.Array) -> jax.Array:
    r"""ALiBi's bias for a tile of scores, $-m\,|i - j|$, with the same bits as from `posenc_jax.alibi`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax import kernels
      >>> print(kernels.alibi(jnp.array([[3]]), jnp.array([[0, 1, 2, 3]]), jnp.float32(0.5)))
      [[-1.5 -1.  -0.5 -0. ]]

    Args:
      query_positions: $i$, int32 tile (queries, 1).
      key_positions: $j$, int32 tile (1, keys).
      slopes: $m$, float32: a scalar for one head, or a tile that broadcasts to the result.

    Returns:
      A float32 tile (queries, keys). Tiles with more axes broadcast in the same way.

    Raises:
      TypeError: if positions are not int32.

    Reference:
      Press et al., "Train Short, Test Long", 2022, section 3.
    """
    return formulas.linear(_distance(query_positions, key_positions), slopes)


@public
def kerple_log(query_positions: jax.Array, key_positions: jax.Array, scale: jax.Array, rate: jax.Array) -> jax.Array:
    r"""KERPLE's logarithmic bias for a tile of scores, $-r_1 \ln(1 + r_2\,|i - j|)$.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax import kernels
      >>> one, query, keys = jnp.float32(1), jnp.array([[2]]), jnp.array([[0, 1, 2]])
      >>> print(kernels.kerple_log(query, keys, one, one).round(1))
      [[-1.1 -0.7 -0. ]]

    Args:
      query_positions: $i$, int32 tile (queries, 1).
      key_positions: $j$, int32 tile (1, keys).
      scale: $r_1$, float32: a scalar for one head, or a tile that broadcasts to the result.
      rate: $r_2$, float32, positive: a scalar for one head, or a tile that broadcasts to the result.

    Returns:
      A float32 tile (queries, keys), within a relative error of 3e-7 of `posenc_jax.kerple_log`.

    Raises:
      TypeError: if positions are not int32.

    Notes:
      Mosaic GPU has a logarithm, but no log1p. With $x = r_2\,|i - j|$ and $u = 1 + x$ rounded, the kernel computes
      $\ln(1 + x) \approx \ln u + (x - (u - 1))/u$.

    Reference:
      Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", 2022, section 4.
    """
    distance = _distance(query_positions, key_positions)
    x = workarounds.rounded_product(*jnp.broadcast_arrays(rate, distance))
    u = jnp.abs(x + np.float32(1))  # XLA may simplify (x + 1) − 1 to x (JAX 0.10), but not across |x + 1|
    lost = jnp.where(u == x, np.float32(0), x - (u - np.float32(1)))  # u is x where x is large, or infinite
    return -scale * (jnp.log(u) + lost / u)


@public
def kerple_power(
    query_positions: jax.Array, key_positions: jax.Array, scale: jax.Array, exponent: jax.Array
) -> jax.Array:
    r"""KERPLE's power bias for a tile of scores, $-r_1\,|i - j|^{r_2}$.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax import kernels
      >>> i, j = jnp.array([[4]]), jnp.arange(5)[None]
      >>> print(kernels.kerple_power(i, j, jnp.float32(1), jnp.float32(0.5)).round(1))
      [[-2.  -1.7 -1.4 -1.  -0. ]]

    Args:
      query_positions: $i$, int32 tile (queries, 1).
      key_positions: $j$, int32 tile (1, keys).
      scale: $r_1$, float32: a scalar for one head, or a tile that broadcasts to the result.
      exponent: $r_2$, float32, above 0 and at most 2: a scalar for one head, or a tile that broadcasts to the result.

    Returns:
      A float32 tile (queries, keys), within a relative error of 1e-5 of `posenc_jax.kerple_power` at every distance.

    Raises:
      TypeError: if positions are not int32.

    Notes:
      Mosaic GPU has no power. The bias is computed as $-r_1\,2^{r_2 \log_2 |i - j|}$.

    Reference:
      Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", 2022, section 4.
    """
    distance = _distance(query_positions, key_positions)
    power = jnp.exp2(exponent * jnp.log2(distance))  # at distance 0, 2^(−∞)
    return -scale * power


def _distance(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """|i − j| in float32."""
    for name, positions in (("query_positions", queries), ("key_positions", keys)):
        require_type(getattr(positions, "dtype", None) == np.int32, name, "an int32 tile", positions)
    return difference(queries, keys)[0].astype(np.float32)
