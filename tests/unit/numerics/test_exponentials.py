"""`softplus` and `expm1` (e^x − 1), compared with their formulas in float64.

- `softplus` also has the bits of the same polynomials in NumPy, which fuses no product into a sum.
- `expm1` has the same bits for a constant and for a traced array.
- Both have derivatives, at 0 too.
"""

import jax
import jax.numpy as jnp
import numpy as np

from helpers.closeness import assert_within
from oracles.biases import softplus as formula
from posenc_jax._numerics import exponentials

X = np.concatenate([np.linspace(-86, 100, 200_001), np.linspace(-3, 3, 50_001), [0, -0.0, 1e-30, -1e-30, 3e38]])
X = X.astype(np.float32)


def by_numpy(x):
    """`softplus` in float32 with the package's constants: max(x, 0) + 2 artanh(u / (u + 2)), u = e^−|x|."""

    def polynomial(x, coefficients):
        y = np.full_like(x, coefficients[-1])
        for c in coefficients[-2::-1]:
            y = np.abs(x * y) + c
        return y

    size, (high, low) = np.minimum(np.abs(x), np.float32(86)), exponentials._LN2
    whole = np.ceil(size * np.float32(1 / np.log(2)))
    u = np.ldexp(polynomial(whole * high - size + whole * low, exponentials.EXP), -whole.astype(np.int32))
    z = u / (u + np.float32(2))
    return np.maximum(x, np.float32(0)) + np.abs((z + z) * polynomial(z * z, exponentials.ARTANH))


def test_softplus_is_its_formula_with_the_bits_of_numpy():
    beyond = np.float32([-np.inf, -87, np.inf, np.nan])
    got = np.asarray(jax.jit(exponentials.softplus)(np.concatenate([X, beyond])))
    got, of_beyond = np.split(got, [X.size])
    assert_within(got, formula(X), 3e-7 * formula(X))
    np.testing.assert_array_equal(got, by_numpy(X))
    np.testing.assert_allclose(of_beyond, [0, 0, np.inf, np.nan], atol=5e-38)


def test_derivatives_of_softplus_are_those_of_the_formula():
    x = np.linspace(-20, 20, 1001).astype(np.float32)
    first, second = (jax.vmap(f) for f in (jax.grad(exponentials.softplus), jax.grad(jax.grad(exponentials.softplus))))
    got = jax.jit(lambda x: (first(x), second(x), jax.jvp(exponentials.softplus, (x,), (x,))[1]))(x)
    sigmoid = 1 / (1 + np.exp(-np.float64(x)))
    for y, want in zip(got, (sigmoid, sigmoid * (1 - sigmoid), x * sigmoid), strict=True):
        assert_within(y, want, 1e-6 * (1 + np.abs(want)))


def test_expm1_is_its_formula_with_the_same_bits_for_a_constant():
    """It is within 1.7 units in the last place, as `expm1` promises, and has a derivative at 0."""
    x = np.concatenate([np.linspace(-87, 87, 20_001), np.linspace(-1, 1, 20_001), np.geomspace(1e-30, 1, 999)])
    x = x.astype(np.float32)
    beyond = np.float32([np.nan, -1e6, 1e6, -87, 87])  # beyond ±87, the value is that at ±87
    y = np.asarray(jax.jit(exponentials.expm1)(np.concatenate([x, beyond])))
    y, (of_nan, *ends) = np.split(y, [x.size])
    want = np.expm1(np.float64(x))
    assert np.max(np.abs(y - want) / np.spacing(np.abs(want).astype(np.float32))) < 1.7
    np.testing.assert_array_equal(jax.jit(lambda: exponentials.expm1(jnp.asarray(x)))(), y)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(jax.grad(exponentials.expm1)))(x[::100]), np.exp(np.float64(x[::100])), rtol=1e-6, atol=1e-7
    )
    assert np.isnan(of_nan)
    np.testing.assert_array_equal(ends[:2], ends[2:])
