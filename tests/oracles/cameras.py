"""Camera RoPE in float64: matrices by `np.linalg.inv`, and attention by them, as the paper writes it."""

import numpy as np

from oracles import rotations


def lifted(k):
    """A matrix (..., 3, 3) over a row (0, 0, 0, 1)."""
    result = np.zeros((*k.shape[:-2], 4, 4))
    result[..., :3, :3], result[..., 3, 3] = k, 1
    return result


def projection(extrinsics, intrinsics=None, image_size=None):
    """P (..., 4, 4): from the world to the camera, and with intrinsics to an image of size 1 around the origin."""
    extrinsics = np.asarray(extrinsics, np.float64)
    if intrinsics is None:
        return extrinsics
    height, width = image_size
    centred = np.array([[1 / width, 0, -0.5], [0, 1 / height, -0.5], [0, 0, 1]])
    return lifted(centred @ np.asarray(intrinsics, np.float64)) @ extrinsics


def matrix(role, p):
    """What multiplies queries, keys, values and outputs."""
    return {"query": p.swapaxes(-1, -2), "output": p}[role] if role in ("query", "output") else np.linalg.inv(p)


def transformed(x, m, width=None):
    """M (..., seq, 4, 4) times the groups of four of the first features of x (..., seq, heads, head_dim)."""
    y = np.array(x, np.float64)
    width = y.shape[-1] if width is None else width
    for start in range(0, width, 4):
        group = slice(start, start + 4)
        y[..., group] = np.einsum("...ij,...hj->...hi", m, y[..., group])
    return y


def attention(q, k, v, p, patches, *, untouched=(), forward=("output",)):
    """PRoPE's attention of (seq, heads, head_dim) by P (seq, 4, 4) and patches (seq, 2) of rows and columns.

    Half of the features are of cameras, a quarter turns by the column and a quarter by the row, as halves, with base
    100. Queries, keys and values turn backward, as in the authors' code. Wrong variants leave roles untouched, or turn
    others forward.
    """
    n = q.shape[-1] // 4
    angles = patches[:, ::-1, None, None] * 100.0 ** (-np.arange(0, n, 2) / n)  # columns, then rows

    def of(x, role):
        if role in untouched:
            return x
        parts = [x[..., : 2 * n], x[..., 2 * n : 3 * n], x[..., 3 * n :]]
        turns = angles if role in forward else -angles
        turned = [rotations.rotate_by(part, turns[:, i], "half") for i, part in enumerate(parts[1:])]
        return np.concatenate([transformed(parts[0], matrix(role, p)), *turned], axis=-1)

    scores = np.einsum("qhd,khd->hqk", of(q, "query"), of(k, "key")) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), of(v, "value"))
    return of(out, "output")


def poses(rng, *shape):
    """Extrinsics (*shape, 4, 4) of any direction, translations of deviation 1."""
    turns, r = np.linalg.qr(rng.normal(size=(*shape, 3, 3)))
    turns *= np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    turns[..., 0] *= np.linalg.det(turns)[..., None]
    result = lifted(turns)
    result[..., :3, 3] = rng.normal(size=(*shape, 3))
    return result


def lenses(rng, *shape, image_size):
    """Intrinsics (*shape, 3, 3) in pixels, whose pixels are neither square nor upright."""
    height, width = image_size
    k = np.zeros((*shape, 3, 3))
    k[..., 0, 0], k[..., 1, 1] = width * rng.uniform(0.7, 1.5, shape), height * rng.uniform(0.7, 1.5, shape)
    k[..., 0, 2], k[..., 1, 2] = width * rng.uniform(0.3, 0.6, shape), height * rng.uniform(0.4, 0.7, shape)
    k[..., 0, 1], k[..., 2, 2] = 0.05 * width * rng.normal(size=shape), 1
    return k
