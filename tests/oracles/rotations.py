"""Rotations of pairs of features, by given sines and cosines, in float64."""

import numpy as np

from oracles.spectra import floats, geometric


def pairs(x, layout):
    """The two features of each pair, each (..., pairs)."""
    n = x.shape[-1] // 2
    return (x[..., :n], x[..., n:]) if layout == "half" else (x[..., 0::2], x[..., 1::2])


def as_complex(x, layout):
    """The pairs as complex numbers a + ib, (..., pairs)."""
    a, b = pairs(np.asarray(x, np.float64), layout)
    return a + 1j * b


def features(a, b, layout):
    """The inverse of `pairs`."""
    both = np.concatenate([a, b], -1) if layout == "half" else np.stack([a, b], -1)
    return both.reshape(*a.shape[:-1], 2 * a.shape[-1])


def split(x, width, layout, part="first"):
    """The two features of each pair, and the features that do not turn: all but the first or last `width`."""
    start = 0 if part == "first" else x.shape[-1] - width
    turning = slice(start, start + width)
    return *pairs(x[..., turning], layout), np.delete(x, np.s_[turning], axis=-1)


def rotate(x, sine, cosine, layout, part="first"):
    """x (..., features) in float64, its first or last pairs rotated: as many as there are sines (..., pairs)."""
    a, b, rest = split(np.asarray(x, np.float64), 2 * np.shape(sine)[-1], layout, part)
    turning = features(a * cosine - b * sine, b * cosine + a * sine, layout)
    rest = np.broadcast_to(rest, (*turning.shape[:-1], rest.shape[-1]))
    return np.concatenate([turning, rest] if part == "first" else [rest, turning], axis=-1)


def rotate_by(x, angles, layout, part="first"):
    """`rotate` by angles in radians."""
    return rotate(x, np.sin(angles), np.cos(angles), layout, part)


def rope(x, positions, width=None, base=10_000, layout="half", part="first"):
    """RoPE of x (..., seq, heads, head_dim) at positions (..., seq), of all features or `width` of them."""
    omega = floats(geometric(np.shape(x)[-1] if width is None else width, base))
    return rotate_by(x, np.asarray(positions)[..., None, None] * omega, layout, part)


def matrix(sine, cosine, layout):
    """M with PE(p + k) = M · PE(p), from the waves of k (..., pairs)."""
    columns = [rotate(e, -sine, cosine, layout) for e in np.eye(2 * sine.shape[-1])]
    return np.stack(columns, -1)


def xpos(x, sine, cosine, distance, layout, scale_base=512.0, gamma=0.4):
    """A query of xPos at a distance (...) from the origin; a key is one at the negative distance."""
    n = np.shape(sine)[-1]
    zeta = (np.arange(n) / n + gamma) / (1 + gamma)
    scale = zeta ** (np.asarray(distance, np.float64)[..., None] / scale_base)
    return rotate(x, scale * sine, scale * cosine, layout)


def pope(x, sine, cosine, layout):
    """PoPE of x (..., features) by sines and cosines (..., features), twice as wide."""
    magnitude = np.log1p(np.exp(-np.abs(x := np.asarray(x, np.float64)))) + np.maximum(x, 0)
    return features(magnitude * cosine, magnitude * sine, layout)
