"""Writes the positions, timesteps, grids and resized tables of tests/oracles/recorded as transformers, diffusers and timm have them.

    nox -s parity -- --record

does, with the peers that the dependency group "record" in pyproject.toml names.
"""

import json
from pathlib import Path

import conversations
import diffusers
import multimodal
import numpy as np
import tables
import timm
import torch
import transformers
from diffusers.models.embeddings import get_timestep_embedding
from timm.layers import build_sincos2d_pos_embed, resample_abs_pos_embed

COMMAND = "nox -s parity -- --record"
TEXT, IMAGE, VIDEO = range(3)

# A number of text tokens, or a grid after merging; with the seconds of each of its steps if there are four.
QWEN = [
    ("qwen2_vl", 1, [3, (1, 2, 3), 2]),
    ("qwen2_vl", 1, [(1, 4, 2), 5, (1, 2, 2), 1]),
    ("qwen2_vl", 1, [2, (3, 3, 4), 4, (1, 3, 2)]),
    ("qwen2_vl", 1, [2, (7, 2, 3), 3]),
    ("qwen2_5_vl", 2, [2, (3, 4, 6, 0.5), 3, (1, 2, 3), 1]),
    ("qwen2_5_vl", 2, [1, (4, 6, 5, 2 / 3), 2]),
    ("qwen2_5_vl", 2, [1, (5, 2, 3, 1.0), 2, (3, 2, 2, 0.083), 2]),
    ("qwen2_5_vl", 25, [4, (3, 2, 2, 2.0), 2]),
    ("qwen3_vl", 1, [3, (1, 3, 2), 2, (1, 2, 3), 2, (1, 2, 3), 1]),
]
TIMES, UNIT = [0.0, 0.5, 1.0, 17.25, 250.0, 999.0], [0.0, 0.001, 0.25, 1.0]
TIMESTEPS = [
    (TIMES, {"embedding_dim": 8}),
    (TIMES, {"embedding_dim": 8, "flip_sin_to_cos": True, "downscale_freq_shift": 0}),
    (TIMES, {"embedding_dim": 7, "flip_sin_to_cos": True}),
    (TIMES, {"embedding_dim": 9, "downscale_freq_shift": 0.5, "scale": 1.5, "max_period": 500}),
    (UNIT, {"embedding_dim": 6, "downscale_freq_shift": 0, "scale": 1000, "max_period": 10000}),
    ([981.0], {"embedding_dim": 320, "flip_sin_to_cos": True, "downscale_freq_shift": 0}),
]
GRIDS = [
    ([3, 5], {}),
    ([3, 5], {"interleave_sin_cos": True}),
    ([4, 2], {"interleave_sin_cos": True, "temperature": 100.0}),
    ([3, 5], {"reverse_coord": True, "interleave_sin_cos": True}),
]
RESIZED = [
    ([5, 7], [8, 6], "bicubic"),
    ([4, 4], [7, 9], "bicubic"),
    ([6, 9], [3, 4], "bicubic"),
    ([3, 8], [9, 5], "bicubic"),
    ([5, 7], [8, 6], "bilinear"),
    ([6, 9], [3, 4], "bilinear"),
]
# Models of transformers, and the modes of torch, from a square table to a grid.
INTERPOLATED = [("vit", 7, (9, 5)), ("vit", 6, (4, 13)), ("dinov2", 7, (5, 9)), ("dinov2", 5, (11, 3))]
INTERPOLATED += [("dinov2_with_registers", 7, (9, 5)), ("dinov2_with_registers", 6, (4, 13))]
BY_TORCH = [((4, 7), (9, 5)), ((8, 5), (3, 12)), ((1, 3), (2, 7)), ((6, 6), (6, 2))]


def numbers(x):
    """Nine digits say which float32 it is."""
    x = np.asarray(x)
    return [float(f"{v:.9g}") for v in x] if x.ndim == 1 else [numbers(row) for row in x]


def qwen(name, tokens_per_second, parts):
    kinds, grids, seconds = [], {IMAGE: [], VIDEO: []}, []
    for part in parts:
        if isinstance(part, int):
            kinds += [TEXT] * part
            continue
        time, height, width = part[:3]
        kind = VIDEO if time > 1 else IMAGE
        grids[kind].append([time, 2 * height, 2 * width])
        seconds += part[3:]
        kinds += [kind] * (time * height * width)
    kinds = torch.tensor([kinds])
    images, videos = (torch.tensor(g) if g else None for g in grids.values())
    more = {"second_per_grid_ts": torch.tensor(seconds)} if seconds else {}
    model = conversations.model_of(name, 2, tokens_per_second)
    positions, delta = model.get_rope_index(torch.zeros_like(kinds), kinds, images, videos, **more)
    parts = [list(p[:3]) + [tokens_per_second * s for s in p[3:]] if isinstance(p, tuple) else p for p in parts]
    return {"model": name, "parts": parts, "positions": positions[:, 0].T.tolist(), "delta": int(delta)}


def timesteps(times, arguments):
    values = get_timestep_embedding(torch.tensor(times), **arguments)
    return {"arguments": arguments, "timesteps": times, "values": numbers(values)}


def grid(shape, arguments):
    values = build_sincos2d_pos_embed(shape, 12, **arguments)
    return {"shape": shape, "arguments": arguments, "values": numbers(values.reshape(-1))}


def resized(rng, old, new, interpolation):
    table = rng.normal(size=(1, old[0] * old[1], 2)).astype(np.float32)
    found = resample_abs_pos_embed(torch.tensor(table), new, old, 0, interpolation)
    table, found = (numbers(np.asarray(x).reshape(-1)) for x in (table, found))
    return {"old": old, "new": new, "interpolation": interpolation, "table": table, "resized": found}


def flat(case):
    """Of a table and what became of it, the sides and the numbers row by row."""
    old, new = (list(case[key].shape[:-1]) for key in ("table", "resized"))
    table, found = (numbers(case[key].reshape(-1)) for key in ("table", "resized"))
    return case | {"old": old, "new": new, "table": table, "resized": found}


def write(name, about, peer, cases):
    """A line for each case."""
    versions = {peer.__name__: peer.__version__, "torch": torch.__version__}
    head = {"about": about, "command": COMMAND, "versions": versions}
    lines = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    lines.append(' "cases": [\n  ' + ",\n  ".join(map(json.dumps, cases)) + "\n ]")
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (Path(__file__).parents[2] / "oracles" / "recorded" / name).write_text(text, encoding="utf-8")


def record():
    about = (
        "get_rope_index of transformers' Qwen vision models, of configurations with spatial_merge_size 2: for each "
        "sequence, text lengths and grids (time, rows, columns after merging, tokens_per_second times seconds per grid), "
        "its positions and its delta."
    )
    write("qwen_positions.json", about, transformers, [qwen(*case) for case in QWEN])
    about = (
        "get_rope_index of transformers for batches of token ids, with the mm_token_type_ids of the processors, which "
        "stand here for the models of GLM, whose images and videos have one placeholder; 5 is that of images, 6 of videos."
    )
    rng = np.random.default_rng(0)
    cases = [conversations.conversation(rng, name) for name in conversations.MODELS for _ in range(5)]
    write("rope_index.json", about, transformers, cases)
    about = (
        "get_rope_index of every model_type of transformers that gives images and videos positions of several coordinates, "
        "for batches of token ids as the processors write them; 0 for padding."
    )
    write("hf_multimodal.json", about, transformers, list(multimodal.recorded()))
    about = (
        "interpolate_pos_encoding of transformers' models for tables of deviation 0.02, without class tokens, and "
        "torch.nn.functional.interpolate with align_corners=False unless a case says otherwise, or grid_sample with "
        'padding_mode="zeros" at the same places where zeros_outside is true; width 2, row by row.'
    )
    cases = [tables.interpolated(name, rng, old, new, 2) for name, old, new in INTERPOLATED]
    cases += [tables.by_torch(rng, old, new, 2, mode) for mode in tables.MODES for old, new in BY_TORCH]
    cases += [tables.by_torch(rng, old, new, 2, mode) for mode in tables.PLACED for old, new in BY_TORCH[::2]]
    write("torch_resized.json", about, transformers, [flat(case) for case in cases])
    about = "get_timestep_embedding of diffusers, float32."
    write("diffusers_timesteps.json", about, diffusers, [timesteps(*case) for case in TIMESTEPS])
    about = "build_sincos2d_pos_embed of timm, dim 12, row by row."
    write("timm_grids.json", about, timm, [grid(*case) for case in GRIDS])
    about = "resample_abs_pos_embed of timm with its default of antialias=True; width 2, row by row."
    rng = np.random.default_rng(0)
    write("timm_resized.json", about, timm, [resized(rng, *case) for case in RESIZED])


if __name__ == "__main__":
    record()
