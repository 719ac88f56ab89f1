"""What a plan should hold, beside what it holds."""

import numpy as np

from oracles.spectra import floats, geometric


def plain(width, base):
    """The geometric spectrum in float64."""
    return floats(geometric(width, base))


def close(frequencies, angular):
    """Asserts that Frequencies have these ω, mpmath numbers or floats."""
    np.testing.assert_allclose(frequencies.angular, floats(angular), rtol=3e-13)


def spectrum_of(plan):
    """The spectrum of a plan all of whose layers are the same."""
    assert len(set(plan.layers)) == 1
    return plan.layers[0].frequencies
