"""Relative position biases by the library, from the tables of vision transformers in transformers and timm."""

import numpy as np

import posenc_jax as pe


def grid_of(window):
    """The coordinates of a window's places, row by row."""
    return np.indices(window, np.int32).reshape(len(window), -1).T


def of_offsets(flat, window):
    """A flat table (offsets, heads)."""
    return flat.reshape(*(2 * n - 1 for n in window), -1)


def bias_of(peer, window, arrays):
    """The bias of a layer of such a peer with these arrays, for all tokens of a window."""
    grid = grid_of(window)
    if "Mlp" in peer:
        sides = np.array(window) - 1
        offsets = (grid_of([2 * n + 1 for n in sides]) - sides) * (8 / sides)
        logarithms = np.sign(offsets) * np.log2(1 + np.abs(offsets)) / np.log2(8)
        hidden = np.maximum(logarithms @ arrays["w1"] + arrays["b1"], 0)
        table = (16 / (1 + np.exp(-hidden @ arrays["w2"]))).astype(np.float32)
        return pe.relative_position_bias(grid, grid, of_offsets(table, window))
    table = np.asarray(arrays["table"], np.float32)
    if "LeViT" in peer:
        queries = grid[(grid % 2 == 0).all(1)] if "subsampled" in peer else grid
        return pe.relative_position_bias(queries, grid, table.T.reshape(*window, -1), symmetric=True)
    if peer == "timm, RelPosBiasTf":  # its offset is that of the key from the query
        return pe.relative_position_bias(grid, grid, np.moveaxis(table, 0, -1)[::-1, ::-1])
    if len(table) == np.prod([2 * n - 1 for n in window]):
        return pe.relative_position_bias(grid, grid, of_offsets(table, window))
    tokens = np.pad(grid, ((1, 0), (0, 0)), constant_values=-1)
    return pe.relative_position_bias(tokens, tokens, of_offsets(table[:-3], window), prefix=table[-3:])
