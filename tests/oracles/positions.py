"""Positions as loops count them."""

import itertools

import numpy as np


def segments(ids, padding=None):
    """Of one row, token by token."""
    found = []
    for i, label in enumerate(ids):
        found.append(found[-1] + 1 if i and label == ids[i - 1] and label != padding else 0)
    return found


def lengths(documents, total):
    """Of the first `total` tokens of documents, and of padding after them."""
    found = [i for n in documents for i in range(n)][:total]
    return found + [0] * (total - len(found))


def grid(shape, order="row", leading=0, start=0, step=1):
    """Of each cell, after so many tokens at the origin; start and step are for all sides or for each."""
    start, step = ([x] * len(shape) if np.ndim(x) == 0 else x for x in (start, step))
    sides = [[a + s * i for i in range(n)] for a, s, n in zip(start, step, shape, strict=True)]
    cells = [list(cell) for cell in itertools.product(*sides)]
    if order == "column":
        cells = [[*cell[:-2], cell[-1], cell[-2]] for cell in cells]
    return np.array([[0] * len(shape)] * leading + cells)


def multimodal(parts, following="maximum"):
    """Of texts, given by their length, and grids (time, height, width[, Δ]): the rule of the papers, token by token.

    What follows a grid begins above the maximum so far, or after the longer of its sides.
    """
    found, start = [], 0
    for part in parts:
        if isinstance(part, int):
            found += [[start + i] * 3 for i in range(part)]
            start += part
            continue
        frames, height, width, *rest = part
        step = np.float32(rest[0] if rest else 1)
        cells = itertools.product(range(frames), range(height), range(width))
        found += [[start + int(step * np.float32(t)), start + y, start + x] for t, y, x in cells]
        start = max(map(max, found)) + 1 if following == "maximum" else start + max(height, width)
    return found


def shards(length, number, order):
    """Of each shard."""
    if order == "contiguous":
        return [list(range(s * length // number, (s + 1) * length // number)) for s in range(number)]
    if order == "striped":
        return [list(range(s, length, number)) for s in range(number)]
    size = length // (2 * number)
    chunks = [list(range(c * size, (c + 1) * size)) for c in range(2 * number)]
    return [chunks[s] + chunks[2 * number - 1 - s] for s in range(number)]


def shards_of_pack(documents, total, number, order):
    """Of each shard the places in a pack: its part of every document, and of the padding after them."""
    found, start = [[] for _ in range(number)], 0
    for length in [*documents, total - sum(documents)]:
        for mine, part in zip(found, shards(length, number, order), strict=True):
            mine += [start + i for i in part]
        start += length
    return found
