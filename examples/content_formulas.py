"""The layers of `content_attention.py` written plainly in NumPy: float64, every score in memory.

To be read beside it, and to test copies of it.

Where an offset has a row of a table, `table[row]` holds that row for every query and key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Weights = Mapping[str, Any]


def linear(x: np.ndarray, w: Weights, name: str) -> np.ndarray:
    return np.asarray(x, np.float64) @ np.float64(w[f"{name}.weight"]).T + w.get(f"{name}.bias", 0)


def split(x: np.ndarray, width: int) -> np.ndarray:
    return x.reshape(*x.shape[:-1], -1, width)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray, scale: float, seen: Any = True) -> np.ndarray:
    """Softmax of scores (batch, heads, queries, keys), heads side by side."""
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = np.where(seen, scale * np.einsum("bihd,bjhd->bhij", q, k) + bias, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), v)
    return y.reshape(*y.shape[:2], -1)


def of_query(q: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Queries (batch, i, heads, d) times rows (i, j, heads or 1, d)."""
    return np.einsum("bihd,ijhd->bhij", q, np.broadcast_to(rows, (*rows.shape[:2], *q.shape[2:])))


def of_key(k: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.einsum("bjhd,ijhd->bhij", k, rows)


def offsets(length: int) -> np.ndarray:
    return np.arange(length)[:, None] - np.arange(length)


def disentangled(q: np.ndarray, k: np.ndarray, v: np.ndarray, c2p: Any, p2c: Any, row: np.ndarray) -> np.ndarray:
    bias, terms = 0.0, 1
    if c2p is not None:
        bias, terms = bias + of_query(q, c2p[row]), terms + 1
    if p2c is not None:
        bias, terms = bias + of_key(k, p2c[row]), terms + 1
    scale = 1 / math.sqrt(q.shape[-1] * terms)
    return attend(q, k, v, bias * scale, scale)


def deberta_v2(
    x: np.ndarray, w: Weights, *, heads: int, max_distance: int | None = None, terms: tuple[str, ...] = ("c2p", "p2c")
) -> np.ndarray:
    table, width, own = w["rel_embeddings"], w["query_proj.weight"].shape[0] // heads, "pos_key_proj.weight" in w
    q, k, v = (split(linear(x, w, f"{name}_proj"), width) for name in ("query", "key", "value"))
    c2p = split(linear(table, w, "pos_key_proj" if own else "key_proj"), width) if "c2p" in terms else None
    p2c = split(linear(table, w, "pos_query_proj" if own else "query_proj"), width) if "p2c" in terms else None
    offset, span = offsets(x.shape[1]), len(table) // 2
    if max_distance is not None:
        middle, distance = span // 2, np.maximum(abs(offset), 1)
        far = np.ceil(np.log(distance / middle) / math.log((max_distance - 1) / middle) * (middle - 1)) + middle
        offset = np.where(distance <= middle, offset, np.sign(offset) * far).astype(int)
    return disentangled(q, k, v, c2p, p2c, np.clip(offset + span, 0, 2 * span - 1))


def deberta(x: np.ndarray, w: Weights, *, heads: int) -> np.ndarray:
    table, width = w["rel_embeddings"], w["q_bias"].shape[0] // heads
    q, k, v = np.split(split(linear(x, w, "in_proj"), 3 * width), 3, axis=-1)
    q, v = q + split(w["q_bias"], width), v + split(w["v_bias"], width)
    c2p, p2c = (split(linear(table, w, name), width) for name in ("pos_proj", "pos_q_proj"))
    span = len(table) // 2
    return disentangled(q, k, v, c2p, p2c, np.clip(offsets(x.shape[1]) + span, 0, 2 * span - 1))


def conformer(x: np.ndarray, w: Weights) -> np.ndarray:
    (length, features), width = x.shape[1:], w["bias_u"].shape[1]
    q, k, v = (split(linear(x, w, f"{name}_proj"), width) for name in "qkv")
    angles = np.arange(1 - length, length)[:, None] * 10000.0 ** (-np.arange(0, features, 2) / features)
    waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1, features)
    rows = split(linear(waves, w, "relative_k_proj"), width)[offsets(length) + length - 1]
    scale = 1 / math.sqrt(width)
    return linear(attend(q + w["bias_u"], k, v, scale * of_query(q + w["bias_v"], rows), scale), w, "o_proj")


def relative_keys(x: np.ndarray, w: Weights, *, left: int) -> np.ndarray:
    table = w["distance_embedding.weight"]
    q, k, v = (split(linear(x, w, f"linear_{name}"), table.shape[1]) for name in "qkv")
    rows = table[np.clip(-offsets(x.shape[1]) + left, 0, len(table) - 1)][:, :, None]
    scale = 1 / math.sqrt(table.shape[1])
    return linear(attend(q, k, v, scale * of_query(q, rows), scale), w, "linear_out")


def sam(x: np.ndarray, w: Weights) -> np.ndarray:
    """On the grid of its tables."""
    (batch, rows, columns, _), width = x.shape, w["rel_pos_h"].shape[1]
    tokens = linear(x.reshape(batch, rows * columns, -1), w, "qkv")
    q, k, v = np.moveaxis(tokens.reshape(*tokens.shape[:2], 3, -1, width), 2, 0)
    row, column = np.divmod(np.arange(rows * columns), columns)
    of_rows = w["rel_pos_h"][row[:, None] - row + rows - 1][:, :, None]
    of_columns = w["rel_pos_w"][column[:, None] - column + columns - 1][:, :, None]
    y = attend(q, k, v, of_query(q, of_rows) + of_query(q, of_columns), 1 / math.sqrt(width))
    return linear(y, w, "proj").reshape(x.shape)


def inkling(x: np.ndarray, w: Weights, *, floor: int, alpha: float) -> np.ndarray:
    """A full layer."""
    width, bank, length = w["q_norm.weight"].shape[0], w["rel_logits_proj.proj"], x.shape[1]
    norm = lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)  # noqa: E731

    def convolved(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        steps = kernel.shape[-1]
        padded = np.pad(x, ((0, 0), (steps - 1, 0), (0, 0)))
        return x + sum(kernel[:, 0, n] * padded[:, n : n + length] for n in range(steps))

    k, v = (convolved(linear(x, w, f"{name}_proj"), w[f"{name}_sconv.conv1d.weight"]) for name in "kv")
    q, k = norm(split(linear(x, w, "q_proj"), width)), norm(split(k, width))
    q, k, v = q * w["q_norm.weight"], k * w["k_norm.weight"], split(v, width)
    offset, r = offsets(length), split(linear(x, w, "r_proj"), len(bank))
    rows = np.where((offset < bank.shape[1])[..., None], bank.T[np.clip(offset, 0, bank.shape[1] - 1)], 0)[:, :, None]
    tau = 1 + alpha * np.log(np.maximum((np.arange(length) + 1) / floor, 1))[:, None, None]
    return linear(attend(q * tau, k, v, of_query(r * tau, rows), 1 / width, offset >= 0), w, "o_proj")


def wavlm(x: np.ndarray, w: Weights, *, max_distance: int) -> np.ndarray:
    table = w["rel_attn_embed.weight"]
    (buckets, heads), offset = table.shape, offsets(x.shape[1])
    q, k, v = (split(linear(x, w, f"{name}_proj"), x.shape[-1] // heads) for name in "qkv")
    parts = linear(x.reshape(q.shape), w, "gru_rel_pos_linear").reshape(*q.shape[:3], 2, 4).sum(-1)
    a, b = np.moveaxis(1 / (1 + np.exp(-parts)), -1, 0)
    gate = a * (b * w["gru_rel_pos_const"][0, :, 0, 0] - 1) + 2
    half, exact, distance = buckets // 2, buckets // 4, np.maximum(abs(offset), 1)
    far = exact + np.floor(np.log(distance / exact) / math.log(max_distance / exact) * (half - exact))
    bucket = np.where(abs(offset) < exact, abs(offset), np.minimum(far, half - 1)).astype(int) + half * (offset < 0)
    bias = np.moveaxis(gate, 2, 1)[..., None] * np.moveaxis(table[bucket], 2, 0)
    return linear(attend(q, k, v, bias, 1 / math.sqrt(q.shape[-1])), w, "out_proj")


def forgetting(x: np.ndarray, w: Weights, *, heads: int) -> np.ndarray:
    q, k, v = (split(linear(x, w, f"{name}_proj"), x.shape[-1] // heads) for name in "qkv")
    gates = 1 / (1 + np.exp(-linear(x, w, "f_proj")))  # (batch, length, heads)
    c = np.cumsum(np.log(gates), axis=1).transpose(0, 2, 1)
    seen = offsets(x.shape[1]) >= 0
    return linear(attend(q, k, v, c[..., None] - c[:, :, None], 1 / math.sqrt(q.shape[-1]), seen), w, "o_proj")


def example(name: str, random: np.random.Generator) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, Any]]:
    """Hidden states, weights and settings of a layer of 4 heads of 8 features."""
    heads, width, features = 4, 8, 32
    square, table = (features, features), (16, features)
    shapes, settings = {
        "deberta_v2": (
            {f"{n}_proj": square for n in ("query", "key", "value")} | {"rel_embeddings": table},
            {"heads": heads, "max_distance": 60},
        ),
        "deberta": (
            {"in_proj": (3 * features, features), "pos_proj": square, "pos_q_proj": square}
            | {"q_bias": (features,), "v_bias": (features,), "rel_embeddings": table},
            {"heads": heads},
        ),
        "conformer": (
            {f"{n}_proj": square for n in ("q", "k", "v", "o", "relative_k")}
            | {"bias_u": (heads, width), "bias_v": (heads, width)},
            {},
        ),
        "relative_keys": (
            {f"linear_{n}": square for n in ("q", "k", "v", "out")} | {"distance_embedding": (73, width)},
            {"left": 64},
        ),
        "sam": ({"qkv": (96, features), "proj": square, "rel_pos_h": (19, width), "rel_pos_w": (29, width)}, {}),
        "inkling": (
            {"q_proj": square, "k_proj": (16, features), "v_proj": (16, features), "o_proj": square, "r_proj": (24, 32)}
            | {"k_sconv.conv1d": (16, 1, 3), "v_sconv.conv1d": (16, 1, 3), "q_norm": (8,), "k_norm": (8,)}
            | {"rel_logits_proj.proj": (6, 50)},
            {"floor": 20, "alpha": 0.1},
        ),
        "wavlm": (
            {f"{n}_proj": square for n in ("q", "k", "v", "out")}
            | {"gru_rel_pos_linear": (8, width), "gru_rel_pos_const": (1, heads, 1, 1), "rel_attn_embed": (40, heads)},
            {"max_distance": 90},
        ),
        "forgetting": (
            {f"{n}_proj": square for n in "qkvo"} | {"f_proj": (heads, features)},
            {"heads": heads},
        ),
    }[name]
    arrays = {"rel_embeddings", "q_bias", "v_bias", "bias_u", "bias_v", "rel_pos_h", "rel_pos_w", "gru_rel_pos_const"}
    arrays |= {"rel_logits_proj.proj"}  # these names do not end in .weight
    weights = {
        n if n in arrays else f"{n}.weight": (random.normal(size=s) * s[-1] ** -0.5).astype(np.float32)
        for n, s in shapes.items()
    }
    x = random.normal(size=(2, 10, 15, features) if name == "sam" else (2, 150, features))
    return x.astype(np.float32), weights, settings
