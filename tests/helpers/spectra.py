"""Widths and bases to try, and how exact a spectrum must be."""

import numpy as np

from oracles.spectra import MP

WIDTHS = [(4, 10_000.0), (8, 10.0), (64, 150_000.0), (128, 500_000.0)]


def assert_exact(got, omegas, units=2.01):
    """Within `units` of 2⁻¹²⁸ turn, and `angular` to the last place."""
    omegas = [MP.mpf(w) for w in omegas]
    assert got.num_pairs == len(omegas) and got.dim == 2 * len(omegas)
    assert max(abs(w / (2 * MP.pi) * MP.mpf(2) ** 128 - t) for w, t in zip(omegas, got.turns, strict=True)) <= units
    np.testing.assert_allclose(got.angular, [float(w) for w in omegas], rtol=1e-15)
