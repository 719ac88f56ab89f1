"""What a plan should hold, beside what it holds."""

from __future__ import annotations

from typing import Any

import numpy as np

import posenc_jax as pe
from oracles.spectra import floats, geometric
from posenc_jax import hf


def plain(width: int, base: float) -> np.ndarray:
    """The geometric spectrum in float64."""
    return floats(geometric(width, base))


def close(frequencies: pe.Frequencies, angular: Any) -> None:
    """Asserts that Frequencies have these ω, mpmath numbers or floats."""
    np.testing.assert_allclose(frequencies.angular, floats(angular), rtol=3e-13)


def spectrum_of(plan: hf.RotaryPlan) -> pe.Frequencies | None:
    """The spectrum of a plan all of whose layers are the same."""
    assert len(set(plan.layers)) == 1
    return plan.layers[0].frequencies
