"""Relative position biases by the library, from the tables of vision transformers in transformers and timm."""

import numpy as np

import posenc_jax as pe


def grid_of(window):
    """The coordinates of all places of a window, row by row: (places, axes)."""
    return np.indices(window, np.int32).reshape(len(window), -1).T


def of_offsets(flat, window):
    """A table (offsets, heads), with an axis of 2n − 1 offsets for each axis of the window."""
    return flat.reshape(*(2 * n - 1 for n in window), -1)


def bias_of(peer, window, arrays):
    """The bias between all tokens of a window, from the arrays of a layer of the peer (a library's class by name)."""
    grid = grid_of(window)
    if "Mlp" in peer:  # a perceptron of the offsets on a logarithmic scale makes the table, as in Swin v2
        sides = np.array(window) - 1
        offsets = (grid_of([2 * n + 1 for n in sides]) - sides) * (8 / sides)
        logarithms = np.sign(offsets) * np.log2(1 + np.abs(offsets)) / np.log2(8)
        hidden = np.maximum(logarithms @ arrays["w1"] + arrays["b1"], 0)
        table = (16 / (1 + np.exp(-hidden @ arrays["w2"]))).astype(np.float32)
        return pe.relative_position_bias(grid, grid, of_offsets(table, window))
    table = np.asarray(arrays["table"], np.float32)
    if "LeViT" in peer:  # the table is of distances
        queries = grid[(grid % 2 == 0).all(1)] if "subsampled" in peer else grid
        return pe.relative_position_bias(queries, grid, table.T.reshape(*window, -1), symmetric=True)
    if peer == "timm, RelPosBiasTf":  # offsets are key − query
        return pe.relative_position_bias(grid, grid, np.moveaxis(table, 0, -1)[::-1, ::-1])
    if len(table) == np.prod([2 * n - 1 for n in window]):
        return pe.relative_position_bias(grid, grid, of_offsets(table, window))
    # with a class token before the grid, at -1; the last three rows of the table are its prefix
    tokens = np.pad(grid, ((1, 0), (0, 0)), constant_values=-1)
    return pe.relative_position_bias(tokens, tokens, of_offsets(table[:-3], window), prefix=table[-3:])
