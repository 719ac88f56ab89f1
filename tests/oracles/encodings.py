"""Sines and cosines of ω·p, and the sinusoidal encoding that they make."""

import numpy as np

from oracles.rotations import features
from oracles.spectra import MP, floats, geometric


def waves(points, omegas, axes=None):
    """sin and cos of ω·p, float64 (..., pairs), of positions and ω at their exact value.

    Positions are (...), or (..., coordinates), of which pair i turns by number axes[i].
    """
    points = np.asarray(points) if axes is not None else np.asarray(points)[..., None]
    axes = [0] * len(omegas) if axes is None else axes
    rows = points.reshape(-1, points.shape[-1]).tolist()
    phases = [[MP.mpf(row[axis]) * w for axis, w in zip(axes, omegas, strict=True)] for row in rows]
    shape = *points.shape[:-1], len(omegas)
    sine, cosine = (np.array([[float(f(x)) for x in row] for row in phases]).reshape(shape) for f in (MP.sin, MP.cos))
    return sine, cosine


def waves_or_nan(positions, omegas):
    """`waves` of positions (...) of any dtype, NaN where a position is not finite or does not round to an int32."""
    p = np.asarray(positions).astype(np.float64)
    fits = np.isfinite(p) & (np.round(p) >= -(2.0**31)) & (np.round(p) < 2.0**31)
    sine, cosine = (np.where(fits[..., None], w, np.nan) for w in waves(np.where(fits, p, 0), omegas))
    return sine, cosine


def encode(positions, dim, base=10_000, layout="interleaved", endpoint=False):
    """The sinusoidal encoding; an odd width drops the last cosine."""
    return features(*waves(positions, geometric(dim, base, endpoint)), layout)[..., :dim]


def offset_similarity(offsets, omegas):
    """PE(p) · PE(p + k), for each offset k."""
    return waves(offsets, omegas)[1].sum(-1)


# As other libraries compute encodings


def textbook(positions, dim, base=10_000.0, xp=np, dtype=np.float64):
    """The formula as it is usually written, for one axis of positions; `xp` is NumPy or jax.numpy.

    In float64 it is good to 1e-10 at positions up to a few thousand.
    """
    angular = (base ** (-2 * np.arange((dim + 1) // 2) / dim)).astype(dtype)
    phase = xp.asarray(positions)[:, None].astype(dtype) * angular[None]
    return xp.stack([xp.sin(phase), xp.cos(phase)], axis=-1).reshape(len(phase), -1)[:, :dim]


def float32_phases(positions, omegas):
    """ω·p with ω, p and their product rounded to float32, as float64 (..., pairs)."""
    return np.float64(np.float32(positions)[..., None] * np.float32(floats(omegas)))


def _of_coordinates(coordinates, omega):
    """Sines and cosines of one coordinate of each token, then those of the next."""
    phases = [np.outer(x, omega) for x in coordinates]
    return np.concatenate([f(phase) for phase in phases for f in (np.sin, np.cos)], axis=1)


def mae(width, height, columns):
    """`get_2d_sincos_pos_embed` of facebookresearch/mae (util/pos_embed.py, commit a9f5c70), in float64.

    The original takes one side; its meshgrid of (w, h) makes x the first coordinate and rows the first axis.
    """
    xy = np.meshgrid(np.arange(columns, dtype=float), np.arange(height, dtype=float))
    return _of_coordinates(xy, 1.0 / 10000 ** (np.arange(width // 4) / (width / 4.0)))


def big_vision(width, height, columns):
    """`posemb_sincos_2d` of google-research/big_vision (models/vit.py, commit 0b73d7b), in float64."""
    y, x = np.mgrid[:height, :columns]
    return _of_coordinates([x, y], 1.0 / 10_000.0 ** (np.arange(width // 4) / (width // 4 - 1)))


def query_scale(positions, coefficient, period, offset, form="steps"):
    """What queries are multiplied by, float64."""
    p = np.asarray(positions, np.int64) + offset
    if form == "power":
        return (1 + p / period) ** coefficient
    return 1 + coefficient * (np.log1p(p // period) if form == "steps" else np.log(np.maximum(p / period, 1)))
