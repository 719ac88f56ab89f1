"""Attention biases given by a formula in the query and key positions, for any tile of scores.

Every function takes query positions (..., queries) and key positions (..., keys), and returns a bias (..., heads,
queries, keys). Positions are data. The same call therefore computes the bias of a tile, of a decode step, of a batch
with its own positions, or of packed segments, whose positions restart (a mask keeps the segments apart).

- A tile has the same bits as the corresponding part of the full bias. Only in `sandwich` may the last bit differ,
  because the compiler chooses the order of its sum.
- Integer distances are computed exactly and then rounded to float32. If one side has float positions, the other side is
  converted to float too.
- Coordinates of a grid, (tokens, 2), have the same shape as a batch of sequences of two tokens. Concrete coordinates
  are rejected; traced ones are read as a batch. For a grid, compute one bias per coordinate and add the biases.

A custom kernel computes the bias of its own tile and takes the parameters as inputs. The following Pallas kernel runs
in interpret mode, without an accelerator. A compiled kernel calls `posenc_jax.kernels.alibi` instead:

>>> import jax, jax.numpy as jnp
>>> from jax.experimental import pallas as pl
>>> import posenc_jax as pe
>>> def scores(q, k, slopes, out):  # tiles of 8 queries and 8 keys
...     i, j = (pl.program_id(axis) * 8 + jax.lax.iota(jnp.int32, 8) for axis in range(2))
...     scores = jnp.einsum("hqd,hkd->hqk", q[...], k[...])
...     out[...] = scores + pe.alibi(i, j, slopes[...])
>>> shapes = (2, 32, 4), (2, 16, 4), (2,)
>>> q, k, slopes = (jnp.full(shape, 0.5, jnp.float32) for shape in shapes)
>>> rows = pl.BlockSpec((2, 8, 4), lambda i, j: (0, i, 0))
>>> columns = pl.BlockSpec((2, 8, 4), lambda i, j: (0, j, 0))
>>> run = pl.pallas_call(
...     scores,
...     jax.ShapeDtypeStruct((2, 32, 16), jnp.float32),
...     grid=(4, 2),
...     in_specs=[rows, columns, pl.BlockSpec((2,), lambda *at: (0,))],
...     out_specs=pl.BlockSpec((2, 8, 8), lambda i, j: (0, i, j)),
...     interpret=True,
... )
>>> bias = pe.alibi(jnp.arange(32), jnp.arange(16), slopes)
>>> bool(jnp.all(run(q, k, slopes) == 1 + bias))
True
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from posenc_jax._biases.parser import parse_per_head, parse_tile
from posenc_jax._encodings.sinusoidal import sinusoidal
from posenc_jax._frequencies.frequencies import AnyFrequencies, Frequencies
from posenc_jax._frequencies.parser import amplitude_of, check_energy, dim_of, one_axis, parse
from posenc_jax._jax import checks, sharding
from posenc_jax._jax.arrays import align, unwrap_array
from posenc_jax._jax.errors import public
from posenc_jax._jax.workarounds import compiled, product
from posenc_jax._numerics.distances import per_head, tile_distance


@public
def alibi(query_positions: ArrayLike, key_positions: ArrayLike, heads: int | jax.Array) -> jax.Array:
    r"""ALiBi (attention with linear biases), $-m_h\,|i - j|$ with one slope $m_h$ per head.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> positions = jnp.arange(4)
      >>> print(pe.alibi(positions, positions, 8)[0])
      [[-0.  -0.5 -1.  -1.5]
       [-0.5 -0.  -0.5 -1. ]
       [-1.  -0.5 -0.  -0.5]
       [-1.5 -1.  -0.5 -0. ]]

      One tile of this bias, as a blockwise attention kernel would compute it:

      >>> print(pe.alibi(positions[2:], positions[:2], 8)[0])
      [[-1.  -0.5]
       [-1.5 -1. ]]

    Args:
      query_positions: $i$, integer or float32 array of shape (..., queries).
      key_positions: $j$, integer or float32 array of shape (..., keys); leading axes broadcast.
      heads: the number of heads, for the paper's slopes; or the slopes themselves, a float array of shape (heads,),
        which may be learned.

    Returns:
      A float32 array of shape (..., heads, queries, keys), differentiable in the slopes and in float positions.

    Raises:
      TypeError: if positions are neither integers nor floats, traced integer positions have no common dtype, or heads
        is neither an integer nor a float array.
      ValueError: if positions are scalars, their leading axes do not broadcast, heads is below 1, or an array of slopes
        does not have shape (heads,).

    Notes:
      - The paper's slopes for $n$ heads are $m_h = 2^{-8h/n}$ with $h = 1 \dots n$. If $n$ is not a power of two, they
        are the slopes for the largest power of two below $n$, followed by every other slope for twice that power.
      - With a causal mask, this is the paper's bias. Without a mask, it is the symmetric form.

    Reference:
      Press et al., "Train Short, Test Long", 2022, section 3; slopes for other head counts follow the authors' code.
    """
    positions = parse_tile(query_positions, key_positions)
    heads = unwrap_array(heads)
    if isinstance(heads, (jax.Array, np.ndarray)):
        return _alibi(*positions, *parse_per_head(positions, heads=heads))
    heads = checks.integer("heads", heads, expected="an integer or a float array of slopes")
    return _alibi(*positions, _slopes(checks.size("heads", heads)))


@functools.lru_cache(maxsize=64)
def _slopes(heads: int) -> np.ndarray:
    power = 1 << (heads.bit_length() - 1)
    exponents = [8 * h / power for h in range(1, power + 1)] + [4 * h / power for h in range(1, 2 * power, 2)]
    return np.exp2(-np.array(exponents[:heads])).astype(np.float32)


@compiled("alibi")
def _alibi(queries: jax.Array, keys: jax.Array, slopes: jax.Array | np.ndarray) -> jax.Array:
    distance = tile_distance(queries, keys)
    return linear(distance, per_head(slopes, distance))


def linear(distance: jax.Array, slopes: jax.Array) -> jax.Array:
    """ALiBi's formula, also in kernels."""
    return -slopes * distance


@public
def kerple_log(query_positions: ArrayLike, key_positions: ArrayLike, scale: ArrayLike, rate: ArrayLike) -> jax.Array:
    r"""KERPLE's logarithmic bias, $-r_1 \ln(1 + r_2\,|i - j|)$, with one $r_1$ and one $r_2$ per head.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> positions = jnp.arange(3)
      >>> one = jnp.array([1.0])
      >>> print(pe.kerple_log(positions, positions, one, one)[0].round(1))
      [[-0.  -0.7 -1.1]
       [-0.7 -0.  -0.7]
       [-1.1 -0.7 -0. ]]

    Args:
      query_positions: $i$, integer or float32 array of shape (..., queries).
      key_positions: $j$, integer or float32 array of shape (..., keys); leading axes broadcast.
      scale: $r_1$, positive float array of shape (heads,); p in the authors' code.
      rate: $r_2$, positive float array of shape (heads,); a in the authors' code.

    Returns:
      A float32 array of shape (..., heads, queries, keys), differentiable in both parameters and in float positions.

    Raises:
      TypeError: if scale or rate is not a float array, or for the same reasons as in `alibi`.
      ValueError: if scale and rate do not both have shape (heads,), or for the same reasons as in `alibi`.

    Notes:
      As a kernel, the bias is conditionally positive definite for $r_1, r_2 > 0$. To keep learned parameters positive,
      compute them as `jax.nn.softplus` of unconstrained parameters. The authors' code instead resets a parameter to
      0.01 if an update makes it smaller.

    Reference:
      Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", 2022, section 4.
    """
    positions = parse_tile(query_positions, key_positions)
    return _kerple_log(*positions, *parse_per_head(positions, scale=scale, rate=rate))


@compiled("kerple_log")
def _kerple_log(queries: jax.Array, keys: jax.Array, scale: jax.Array, rate: jax.Array) -> jax.Array:
    distance = tile_distance(queries, keys)
    scale, rate = per_head(scale, distance), per_head(rate, distance)
    # `product` rounds before log1p adds 1: a compiler could contract the two to an FMA.
    return -scale * jnp.log1p(product(rate, distance))


@public
def kerple_power(
    query_positions: ArrayLike, key_positions: ArrayLike, scale: ArrayLike, exponent: ArrayLike
) -> jax.Array:
    r"""KERPLE's power bias, $-r_1\,|i - j|^{r_2}$, with one $r_1$ and one $r_2$ per head; ALiBi if $r_2 = 1$.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> scale, exponent = jnp.array([1.0]), jnp.array([0.5])
      >>> bias = pe.kerple_power(jnp.array([4]), jnp.arange(5), scale, exponent)
      >>> print(bias[0, 0].round(1))
      [-2.  -1.7 -1.4 -1.  -0. ]

    Args:
      query_positions: $i$, integer or float32 array of shape (..., queries).
      key_positions: $j$, integer or float32 array of shape (..., keys); leading axes broadcast.
      scale: $r_1$, positive float array of shape (heads,); a in the authors' code.
      exponent: $r_2$, float array of shape (heads,), above 0 and at most 2; p in the authors' code.

    Returns:
      A float32 array of shape (..., heads, queries, keys), differentiable in both parameters and in float positions. At
      distance 0, the derivative with respect to positions is defined as 0.

    Raises:
      TypeError: if scale or exponent is not a float array, or for the same reasons as in `alibi`.
      ValueError: if scale and exponent do not both have shape (heads,), or for the same reasons as in `alibi`.

    Notes:
      As a kernel, the bias is conditionally positive definite for $r_1 > 0$ and $0 < r_2 \le 2$. To keep learned
      parameters in that range, compute $r_1$ as `jax.nn.softplus` and $r_2$ as 2 · `jax.nn.sigmoid` of unconstrained
      parameters.

    Reference:
      Chi et al., "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", 2022, section 4.
    """
    positions = parse_tile(query_positions, key_positions)
    return _kerple_power(*positions, *parse_per_head(positions, scale=scale, exponent=exponent))


@compiled("kerple_power")
def _kerple_power(queries: jax.Array, keys: jax.Array, scale: jax.Array, exponent: jax.Array) -> jax.Array:
    distance = tile_distance(queries, keys)
    scale, exponent = per_head(scale, distance), per_head(exponent, distance)
    # At distance 0 the power has no finite derivative in either argument.
    apart = distance != 0
    power = jnp.power(jnp.where(apart, distance, np.float32(1)), exponent)
    return -scale * jnp.where(apart, power, np.float32(0))


@public
def sandwich(
    query_positions: ArrayLike,
    key_positions: ArrayLike,
    heads: int,
    frequencies: Frequencies | int | jax.Array,
) -> jax.Array:
    r"""Sandwich: the dot product of sinusoidal encodings, which decays with distance, times a rate per head.

    $$\frac{n}{8h} \left(PE(i) \cdot PE(j) - \|PE\|^2\right)
      = \frac{n}{8h} \left(\sum_k \cos \omega_k (i - j) - \frac d2\right), \qquad h = 1 \dots n$$

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> print(pe.sandwich(jnp.array([100]), jnp.array([99, 90, 0]), 8, 128)[:2, 0].round(1))
      [[ -1.9 -21.2 -33.5]
       [ -1.  -10.6 -16.7]]

    Args:
      query_positions: $i$, integer or float32 array of shape (..., queries).
      key_positions: $j$, integer or float32 array of shape (..., keys); leading axes broadcast.
      heads: $n$, the number of heads.
      frequencies: the frequencies of the encodings; see `sinusoidal`. A width $d$ (128 in the paper), `Frequencies`
        with one axis, or a float array of $\omega$.

    Returns:
      A float32 array of shape (..., heads, queries, keys), differentiable in $\omega$ and in float positions. It is 0
      at distance 0, up to the rounding of a sum.

    Raises:
      TypeError: if heads is not an integer, or for the same reasons as in `alibi` or `sinusoidal`.
      ValueError: if heads is below 1, the width is odd, the frequencies have several axes, or for the same reasons as
        in `alibi`.

    Notes:
      - Each sine and cosine is within 9e-8 of its true value at every int32 position.
      - For a width, the frequencies start at ω = 1, as in sinusoidal encodings and in the paper's listing (appendix E).
        The rates also follow the listing, which does not subtract $\|PE\|^2 = d/2$. NVIDIA NeMo's code subtracts it,
        and its frequencies start one step later. The difference is constant per head, so attention weights are equal.

    Reference:
      Chi et al., "Dissecting Transformer Length Extrapolation via The Lens of Receptive Field Analysis", 2023, section
      5.
    """
    positions = parse_tile(query_positions, key_positions)
    heads, frequencies = checks.size("heads", heads), one_axis(parse(frequencies, even=True, unsharded=True))
    check_energy(frequencies, max(heads / 8, 1) * dim_of(frequencies))
    return _sandwich(*positions, frequencies, heads=heads)


@compiled("sandwich", static_argnames=("heads",))
def _sandwich(queries: jax.Array, keys: jax.Array, frequencies: AnyFrequencies, *, heads: int) -> jax.Array:
    ndim = 1 + max(queries.ndim, keys.ndim)
    queries, keys = (align(sinusoidal(p, frequencies, layout="half"), ndim) for p in (queries, keys))
    keys, matmul = jnp.swapaxes(keys, -1, -2), functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    # Multiplies exact sines and cosines; computing a cosine for every distance would take many times as long.
    similarity = sharding.sharded_as([queries, keys], matmul, queries, keys)[..., None, :, :]
    norm = np.float32(dim_of(frequencies) / 2 * amplitude_of(frequencies) ** 2)
    rate = (heads / (8 * np.arange(1, heads + 1))).astype(np.float32)
    return per_head(rate, similarity) * (similarity - norm)
