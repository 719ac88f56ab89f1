"""Camera RoPE in float64: matrices by `np.linalg.inv`, and features times them."""

import numpy as np


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
