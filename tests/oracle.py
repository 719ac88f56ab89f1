"""Independent truth: mpmath at 40 digits. Shares nothing with the library."""

import mpmath
import numpy as np

CONTEXT = mpmath.MPContext()
CONTEXT.dps = 40
# Evaluating sin at 2³¹ loses ten digits to range reduction unless the working precision carries them.
WORKING = mpmath.MPContext()
WORKING.dps = 60


def geometric(dim, base, endpoint=False):
    pairs = (dim + 1) // 2
    exponents = [WORKING.mpf(i) / max(pairs - 1, 1) if endpoint else WORKING.mpf(2 * i) / dim for i in range(pairs)]
    return [WORKING.mpf(base) ** -e for e in exponents]


def waves(positions, omegas):
    """sin and cos of ω·p, float64 arrays (positions, pairs); positions and ω taken at their exact value."""
    phases = [[WORKING.mpf(p) * w for w in omegas] for p in np.asarray(positions).tolist()]
    sine = np.array([[float(WORKING.sin(x)) for x in row] for row in phases])
    cosine = np.array([[float(WORKING.cos(x)) for x in row] for row in phases])
    return sine, cosine


def encode(positions, dim, base=10_000, layout="interleaved", endpoint=False):
    """The sinusoidal encoding, written as the notation in the paper writes it: feature by feature."""
    sine, cosine = waves(positions, geometric(dim, base, endpoint))
    pairs = (dim + 1) // 2
    out = np.zeros((len(sine), dim))
    for i in range(pairs):
        s, c = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
        out[:, s] = sine[:, i]
        if c < dim:
            out[:, c] = cosine[:, i]
    return out


def textbook(positions, dim, base=10_000.0):
    """The naive formula in float64: good to 1e-10 at positions up to a few thousand."""
    out = np.zeros((len(positions), dim))
    for j in range(dim):
        angle = np.asarray(positions, np.float64) / base ** (2 * (j // 2) / dim)
        out[:, j] = np.sin(angle) if j % 2 == 0 else np.cos(angle)
    return out
