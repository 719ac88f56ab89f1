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


def derivatives(x, p, w, slope_of, layout, inverse=False):
    """The derivatives of a loss by x, positions p and frequencies w; `slope_of(y)` is its derivative by the rotated x.

    A pair's angle θ moves the rotated pair y along i·y, so the derivative by θ is the slope along i·y. Rotating the
    slope back by θ gives the derivative by x.
    """
    x, p, w = (np.asarray(v, np.float64) for v in (x, p, w))
    sign, width = -1 if inverse else 1, 2 * w.size
    shared, rows = (1,) * (x.ndim - 2 - p.ndim) + p.shape, x.shape[:-2]
    angles = sign * np.broadcast_to(p, rows)[..., None, None] * w
    y = rotate_by(x, angles, layout)
    slopes = slope_of(y)
    by_pair, turned = (as_complex(v[..., :width], layout) for v in (slopes, y))
    d_x = rotate_by(slopes, -angles, layout)
    by_angle = sign * np.real(np.conj(by_pair) * 1j * turned).sum(-2)
    kept = tuple(axis for axis, size in enumerate(shared) if size == 1 and rows[axis] > 1)
    d_p = (by_angle * w).sum(-1).sum(kept).reshape(p.shape)
    d_w = (by_angle * np.broadcast_to(p, rows)[..., None]).sum(tuple(range(len(rows))))
    return d_x, d_p, d_w


def matrix(sine, cosine, layout):
    """M with PE(p + k) = M · PE(p), from the waves of k (..., pairs)."""
    columns = [rotate(e, -sine, cosine, layout) for e in np.eye(2 * sine.shape[-1])]
    return np.stack(columns, -1)


def llama(x, angles):
    """As Llama's code writes it: x·cos + rotate_half(x)·sin."""
    angles, n = np.concatenate([angles, angles], -1), x.shape[-1] // 2
    return x * np.cos(angles) + np.concatenate([-x[..., n:], x[..., :n]], -1) * np.sin(angles)


def gpt_j(x, angles):
    """As GPT-J's code writes it: x·cos + rotate_every_two(x)·sin."""
    angles = np.repeat(angles, 2, -1)
    return x * np.cos(angles) + np.stack([-x[..., 1::2], x[..., 0::2]], -1).reshape(x.shape) * np.sin(angles)


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
