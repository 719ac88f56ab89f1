"""Fits the polynomials of the sine, of 2^x and of softplus; prints them beside the package's, with all errors.

Remez's exchange gives the best real coefficients. The package's are others near them and as good in float32, where the
rounding of a phase, or of coefficients, is more than what they lose. From the fit on, a search over
neighbouring float32 numbers finds no better sine.
"""

from __future__ import annotations

import numpy as np

from posenc_jax._numerics import exponentials, sines
from posenc_jax._rotary import xpos

SINE, EXP2 = (sines._C1, sines._C3, sines._R), xpos._EXP2
EXP, ARTANH = exponentials.EXP, exponentials.ARTANH


def minimax(values: np.ndarray, basis: np.ndarray) -> tuple[np.ndarray, float]:
    """The c with the least max |values − basis @ c|, and that error, by Remez's exchange of rows."""
    count = basis.shape[1] + 1
    rows = (len(values) * (np.arange(count) + 0.5) / count).astype(int)
    for _ in range(100):
        system = np.column_stack([basis[rows], (-1.0) ** np.arange(count)])
        *c, level = np.linalg.solve(system, values[rows])
        error = values - basis @ c
        runs = np.split(np.arange(len(values)), np.flatnonzero(np.diff(np.signbit(error))) + 1)
        peaks = [run[np.argmax(abs(error[run]))] for run in runs]
        while len(peaks) > count:
            del peaks[0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1]
        if np.array_equal(peaks, rows):
            return np.array(c), abs(level)
        rows = peaks
    raise ArithmeticError("the exchange did not end")


def sine_fit() -> tuple[tuple[np.float32, ...], float]:
    """c₁, c₃ and r of `sines.sine_of_phase`, linear in c₁, c₃·r and c₃, and their error before rounding."""
    z = np.sin(np.linspace(0, np.pi / 2, 4001))
    u, v = z * z, 1 - z * z
    basis = 0.5 * (z * v**2)[:, None] * np.stack([np.ones_like(z), v, -u * v], axis=1)
    (c1, product, c3), error = minimax(np.sin(np.pi / 2 * z) - z - z * v / 2, basis)
    return (np.float32(c1), np.float32(c3), np.float32(product / c3)), error


def exp2_fit() -> tuple[tuple[np.float32, ...], float]:
    """The coefficients of `xpos._exp2`, 1 first, and their relative error before they are rounded."""
    x = np.sin(np.linspace(0, np.pi / 2, 4001)) ** 2
    basis = x[:, None] ** np.arange(1, 7) / np.exp2(x)[:, None]
    c, error = minimax(1 - np.exp2(-x), basis)
    return (np.float32(1), *c.astype(np.float32)), error


def exp_fit() -> tuple[tuple[np.float32, ...], float]:
    """The same of e^s for 0 ≤ s ≤ ln 2, of `exponentials`."""
    s = np.log(2) * np.sin(np.linspace(0, np.pi / 2, 4001)) ** 2
    c, error = minimax(1 - np.exp(-s), s[:, None] ** np.arange(1, 7) / np.exp(s)[:, None])
    return (np.float32(1), *c.astype(np.float32)), error


def artanh_fit() -> tuple[tuple[np.float32, ...], float]:
    """The same of artanh(z)/z by powers of z² for 0 ≤ z ≤ ⅓, of `exponentials`."""
    square = np.sin(np.linspace(1e-3, np.pi / 2, 4001)) ** 2 / 9
    values = np.arctanh(np.sqrt(square)) / np.sqrt(square)
    c, error = minimax(1 - 1 / values, square[:, None] ** np.arange(1, 5) / values[:, None])
    return (np.float32(1), *c.astype(np.float32)), error


def sine_error(constants: tuple[np.float32, ...], phases: np.ndarray) -> tuple[float, float]:
    """The largest error at phases from 0 to 2³⁰: of the polynomial alone, and as float32 computes it from the phase."""
    exact = np.sin(np.pi / 2 * (phases / 2**30))

    def sine(z, u, number):
        c1, c3, r = (number(c) for c in constants)
        v = 1 - u
        q = 4 * c1 + (16 * c3 * v) * (r - u) / 4
        return z + (z * (1 - (u - v * v * q / 4))) / 2

    z = phases / 2**30
    t = phases.astype(np.float32)
    z32 = t * np.float32(2**-30)
    u32 = (t * z32) * np.float32(2**-30)
    alone, computed = sine(z, z * z, np.float64), sine(z32, u32, np.float32)
    return np.max(abs(alone - exact)), np.max(abs(computed - exact))


def refined(constants: tuple[np.float32, ...], phases: np.ndarray) -> tuple[np.float32, ...]:
    """Constants of the sine from which no step of one of them by 2^k units in its last place, k < 15, improves."""
    best = constants
    while True:
        tried = [
            (*best[:i], np.float32(c + step * np.spacing(c)), *best[i + 1 :])
            for i, c in enumerate(best)
            for step in np.outer(2.0 ** np.arange(15), (1, -1)).ravel()
        ]
        better = min(tried, key=lambda c: sine_error(c, phases)[1])
        if sine_error(better, phases)[1] >= sine_error(best, phases)[1]:
            return best
        best = better


def polynomial_error(constants: tuple[np.float32, ...], x: np.ndarray, values: np.ndarray) -> float:
    """The largest relative error of a polynomial alone."""
    return np.max(abs(np.polynomial.polynomial.polyval(x, np.float64(constants)) / values - 1))


def exp2_error(constants: tuple[np.float32, ...]) -> float:
    """That of 2^x."""
    x = np.linspace(0, 1, 100_001)
    return polynomial_error(constants, x, np.exp2(x))


def exp_error(constants: tuple[np.float32, ...]) -> float:
    """That of e^s."""
    s = np.linspace(0, np.log(2), 100_001)
    return polynomial_error(constants, s, np.exp(s))


def artanh_error(constants: tuple[np.float32, ...]) -> float:
    """That of artanh(z)/z."""
    z = np.linspace(1e-3, 1 / 3, 100_001)
    return polynomial_error(constants, z * z, np.arctanh(z) / z)


def main() -> None:
    """Prints all fits."""
    phases = np.unique(np.random.default_rng(0).integers(0, 2**30 + 1, 1_000_000))
    fit, error = sine_fit()
    print(f"sine: a minimax error of {error:.2e}; then in float32")
    for name, constants in {"the fit": fit, "a search": refined(fit, phases), "the package": SINE}.items():
        alone, computed = sine_error(constants, phases)
        print(f"  {name}: {', '.join(map(str, constants))}; polynomial {alone:.2e}, from a phase {computed:.3e}")
    others = {
        "2^x": (exp2_fit(), EXP2, exp2_error),
        "e^s": (exp_fit(), EXP, exp_error),
        "artanh(z)/z": (artanh_fit(), ARTANH, artanh_error),
    }
    for of, ((fit, error), package, error_of) in others.items():
        print(f"{of}: a relative minimax error of {error:.2e}; then in float32")
        for name, constants in {"the fit": fit, "the package": package}.items():
            print(f"  {name}: {', '.join(map(str, constants))}; {error_of(constants):.2e}")


if __name__ == "__main__":
    main()
