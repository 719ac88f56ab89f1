"""Position tables that models of transformers interpolate to other grids, by their own functions."""

import importlib

import numpy as np
import torch

# What interpolates, in which attribute its table is, the method that gives the same, and whether it is antialiased.
MODELS = {
    "vit": ("ViTEmbeddings", "ViTConfig", "torch_cubic", False),
    "dinov2": ("Dinov2Embeddings", "Dinov2Config", "torch_cubic", False),
    "dinov2_with_registers": ("Dinov2WithRegistersEmbeddings", "Dinov2WithRegistersConfig", "cubic", True),
    "deit": ("DeiTEmbeddings", "DeiTConfig", "torch_cubic", False),
    "vit_msn": ("ViTMSNEmbeddings", "ViTMSNConfig", "torch_cubic", False),
    "ijepa": ("IJepaEmbeddings", "IJepaConfig", "torch_cubic", False),
}
PATCH = 2


def interpolated(name, rng, old, new, dim, scale=0.02):
    """The table of `old` × `old` patches, of this deviation, and what the model makes of it for an image of `new`."""
    cls, config, method, antialias = MODELS[name]
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    config = getattr(importlib.import_module(f"transformers.models.{name}.configuration_{name}"), config)
    config = config(image_size=PATCH * old, patch_size=PATCH, hidden_size=dim, num_attention_heads=1)
    embeddings = getattr(module, cls)(config)
    leading = embeddings.position_embeddings.shape[1] - old * old
    table = (scale * rng.normal(size=(1, leading + old * old, dim))).astype(np.float32)
    embeddings.position_embeddings = torch.nn.Parameter(torch.tensor(table))
    tokens = torch.zeros(1, leading + new[0] * new[1], dim)
    with torch.no_grad():
        found = embeddings.interpolate_pos_encoding(tokens, PATCH * new[0], PATCH * new[1])[0].numpy()
    assert np.array_equal(found[:leading], table[0, :leading])
    grids = table[0, leading:].reshape(old, old, dim), found[leading:].reshape(*new, dim)
    return {"model": name, "method": method, "antialias": antialias, "table": grids[0], "resized": grids[1]}


NAMES = {"linear": "bilinear", "cubic": "bicubic", "torch_cubic": "bicubic"}
MODES = [
    {"method": "linear", "antialias": True},
    {"method": "linear", "antialias": False},
    {"method": "cubic", "antialias": True},
    {"method": "torch_cubic", "antialias": False},
]
PLACED = [
    {"method": "linear", "antialias": False, "align_corners": True},
    {"method": "torch_cubic", "antialias": False, "align_corners": True},
    {"method": "linear", "antialias": False, "zeros_outside": True},
    {"method": "torch_cubic", "antialias": False, "zeros_outside": True},
    {"method": "torch_cubic", "antialias": False, "align_corners": True, "zeros_outside": True},
]


def by_torch(rng, old, new, dim, settings, scale=1.0):
    """A table, and what torch makes of it: by `grid_sample` where rows outside are zeros, else by `interpolate`."""
    table = (scale * rng.normal(size=(*old, dim))).astype(np.float32)
    channels, mode = torch.tensor(table).permute(2, 0, 1)[None], NAMES[settings["method"]]
    aligned = settings.get("align_corners", False)
    if settings.get("zeros_outside"):
        found = sampled(channels, new, mode, aligned, "zeros")
    else:
        antialias = settings["antialias"]
        found = torch.nn.functional.interpolate(channels, new, mode=mode, align_corners=aligned, antialias=antialias)
    return {"model": "torch", **settings, "table": table, "resized": found[0].permute(1, 2, 0).numpy()}


def sampled(channels, new, mode, align_corners, padding):
    """`grid_sample` at the places of `interpolate`, in its units: from -1 to 1 between corners."""
    y, x = (torch.linspace(-1, 1, n) if align_corners else (2 * torch.arange(n) + 1) / n - 1 for n in new)
    grid = torch.stack([x[None, :].expand(new), y[:, None].expand(new)], -1)[None]
    return torch.nn.functional.grid_sample(channels, grid, mode, padding, align_corners)
