r"""Softplus and e^x − 1 with the same bits in every program.

Those of XLA differ between programs in the last place: LLVM contracts a product and a sum to an FMA in some programs
but not in others (JAX 0.12 on a CPU). Here, a product in a sum is exact, or a compiler cannot contract it.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._jax.workarounds import positive_product, rounded_product

# ln 2 in two parts of 16 bits, whose products with an integer up to 128 are exact.
_LN2 = np.float32(45426 * 2.0**-16), np.float32(6136 * 2.0**-32)
# e^s = Σ cᵢ sⁱ for 0 ≤ s ≤ ln 2, and artanh z = z Σ cᵢ z²ⁱ for 0 ≤ z ≤ ⅓, to relative errors of 2e-8 and 6e-9
# (`benchmarks/fits.py`). All coefficients are positive.
EXP = tuple(np.float32(c) for c in (1, 0.9999998, 0.50000584, 0.16661014, 0.041914992, 0.0077922726, 0.00194877))
ARTANH = tuple(np.float32(c) for c in (1, 0.3333321, 0.20010763, 0.14000903, 0.14005993))


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """ln(1 + e^x), to a relative error of 3e-7, and within 5e-38 below −86; `jax.nn.softplus` for float64."""
    if x.dtype == np.float64:
        return jax.nn.softplus(x)
    # With u = e^−|x| and z = u / (2 + u), it is max(x, 0) + ln(1 + u), and ln(1 + u) = 2 artanh z.
    size = lax.min(lax.abs(x), lax.full_like(x, 86))
    whole = lax.ceil(lax.mul(size, np.float32(1 / np.log(2))))
    rest = lax.add(lax.sub(lax.mul(whole, _LN2[0]), size), lax.mul(whole, _LN2[1]))
    power = lax.shift_left(lax.sub(np.int32(127), lax.convert_element_type(whole, np.int32)), np.int32(23))
    u = lax.mul(_polynomial(rest, EXP), lax.bitcast_convert_type(power, np.float32))  # by 2^−whole
    z = lax.div(u, lax.add(u, np.float32(2)))
    return lax.add(lax.max(x, np.float32(0)), positive_product(lax.add(z, z), _polynomial(lax.mul(z, z), ARTANH)))


def _polynomial(x: jax.Array, coefficients: tuple[np.float32, ...]) -> jax.Array:
    y = lax.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        y = lax.add(positive_product(x, y), c)
    return y


def _jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (x,), (dx,) = primals, tangents
    return softplus(x), jax.nn.sigmoid(x) * dx


softplus.defjvp(_jvp)


@jax.custom_jvp
def expm1(x: jax.Array) -> jax.Array:
    """e^x − 1, float32, within 1.7 units in the last place; beyond 87, as at 87.

    It has the same bits in every program, whereas `jnp.expm1` of a constant has other bits than that of a traced array:
    a unit in the last place of a frequency is a tenth of a radian at a million positions, between cached keys and later
    queries. With x = n ln 2 + r, it is 2ⁿ(e^r − 1) + 2ⁿ − 1, and e^r − 1 is the series up to r⁷/5040.
    """
    x = jnp.clip(x, -87, 87)
    n = jnp.round(x * np.float32(1 / np.log(2)))
    high = np.float32(0.693145751953125)  # of ln 2, in 15 bits: products with n are exact
    r = x - n * high - rounded_product(n, jnp.full_like(n, np.log(2) - float(high)))
    series = jnp.full_like(r, 1 / math.factorial(7))
    for k in range(6, 1, -1):
        series = rounded_product(series, r) + np.float32(1 / math.factorial(k))
    small = r + rounded_product(rounded_product(series, r), r)
    power = lax.bitcast_convert_type((n.astype(np.int32) + 127) << 23, np.float32)
    return power * small + (power - 1)


expm1.defjvps(lambda dx, result, x: (result + 1) * dx)
