"""Position tables resized, grids and timesteps, as transformers, torch, timm and diffusers compute them."""

import importlib

import numpy as np
import torch
from torch.nn import functional
from values import numbers

PATCH = 2
MODES = {"linear": "bilinear", "cubic": "bicubic", "torch_cubic": "bicubic"}


def timesteps(case):
    from diffusers.models.embeddings import get_timestep_embedding

    return {"values": numbers(get_timestep_embedding(torch.tensor(case["timesteps"]), **case["arguments"]))}


def grid(case):
    from timm.layers import build_sincos2d_pos_embed

    return {"values": numbers(build_sincos2d_pos_embed(case["shape"], 12, **case["arguments"]).reshape(-1))}


def table_of(case):
    """(rows, columns, width)"""
    return torch.tensor(case["table"]).reshape(*case["old"], -1)


def resized_by_timm(case):
    from timm.layers import resample_abs_pos_embed

    table = table_of(case).reshape(1, -1, 2)
    resized = resample_abs_pos_embed(table, case["new"], case["old"], 0, case["interpolation"])
    return {"resized": numbers(resized.reshape(-1))}


def resized_by_torch(case):
    """By a model of transformers, or by torch: `grid_sample` where rows outside are zeros, else `interpolate`."""
    if case["model"] != "torch":
        return {"resized": numbers(interpolated(case["model"], table_of(case), case["new"]).reshape(-1))}
    channels, mode, new = table_of(case).permute(2, 0, 1)[None], MODES[case["method"]], case["new"]
    aligned = case.get("align_corners", False)
    if case.get("zeros_outside"):  # at the places of `interpolate`, in the units of `grid_sample`
        y, x = (torch.linspace(-1, 1, n) if aligned else (2 * torch.arange(n) + 1) / n - 1 for n in new)
        places = torch.stack([x[None, :].expand(*new), y[:, None].expand(*new)], -1)[None]
        resized = functional.grid_sample(channels, places, mode, "zeros", aligned)
    else:
        options = {"mode": mode, "align_corners": aligned, "antialias": case["antialias"]}
        resized = functional.interpolate(channels, new, **options)
    return {"resized": numbers(resized[0].permute(1, 2, 0).reshape(-1))}


def interpolated(name, table, new):
    """What the embeddings of a model make of a square table for an image of `new` patches."""
    code = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    cls = next(value for key, value in vars(code).items() if key.endswith("Embeddings") and "Patch" not in key)
    side, width = len(table), table.shape[-1]
    config_class = next(value for key, value in vars(code).items() if key.endswith("Config") and "Pre" not in key)
    config = config_class(image_size=PATCH * side, patch_size=PATCH, hidden_size=width, num_attention_heads=1)
    embeddings = cls(config)
    leading = embeddings.position_embeddings.shape[1] - side * side
    whole = torch.cat([torch.zeros(leading, width), table.reshape(-1, width)])[None]
    embeddings.position_embeddings = torch.nn.Parameter(whole)
    tokens = torch.zeros(1, leading + int(np.prod(new)), width)
    with torch.no_grad():
        return embeddings.interpolate_pos_encoding(tokens, PATCH * new[0], PATCH * new[1])[0, leading:]
