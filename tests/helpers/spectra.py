"""Widths and bases to try, and how exact a spectrum must be."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

import posenc_jax as pe
from oracles.spectra import Real, exact_turns, floats

WIDTHS = [(4, 10_000.0), (8, 10.0), (64, 150_000.0), (128, 500_000.0)]


def assert_exact(got: pe.Frequencies, omegas: Iterable[Real], units: float = 2.01) -> None:
    """Within `units` of 2⁻¹²⁸ turn, and `angular` to the last place."""
    omegas = list(omegas)
    assert got.num_pairs == len(omegas) and got.dim == 2 * len(omegas)
    assert max(abs(a - b) for a, b in zip(exact_turns(omegas), got.turns, strict=True)) <= units
    np.testing.assert_allclose(got.angular, floats(omegas), rtol=1e-15)
