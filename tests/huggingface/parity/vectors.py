"""Records values by functions of transformers, torch, timm, diffusers and PoPE-pytorch.

The values are frequencies, rotated vectors, timesteps, grids and resized tables.
"""

import importlib
import types

import numpy as np
import torch
import transformers
from embeddings import config_of, modeling, new_embedding
from torch.nn import functional
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def floats(x):
    return torch.tensor(x, dtype=torch.float32)


def hf_frequencies(case):
    """The frequencies of a config, for a sequence of its length where the rope type depends on it."""
    config, rope = config_of(case["config"]), case["config"]["rope_parameters"]
    embedding = new_embedding(config)
    inverse, factor = embedding.inv_freq, embedding.attention_scaling
    if case["length"] and "alpha" not in rope:
        inverse, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, seq_len=case["length"])
    return {"attention_factor": float(factor), "frequencies": [float(str(x)) for x in inverse.numpy()]}


# Of diffusers


def diffusing(name):
    """The module of a model of diffusers."""
    return importlib.import_module(f"diffusers.models.transformers.transformer_{name}")


def diffusers_timesteps(case):
    from diffusers.models.embeddings import get_timestep_embedding

    return {"values": get_timestep_embedding(torch.tensor(case["timesteps"]), **case["arguments"])}


def diffusers_rotations(case):
    """Vectors (patches, width), rotated by the cosines and sines, or phases, of each model's own code for a grid."""
    from diffusers.models import embeddings

    model, positions, video = case["model"], torch.tensor(case["positions"]), torch.zeros(1, 1, 2, 6, 10)
    if model == "flux":
        freqs = diffusing("flux").FluxPosEmbed(10_000, [4, 6, 6])(positions)
    elif model == "wan":
        freqs = [x[0, :, 0] for x in diffusing("wan").WanRotaryPosEmbed(20, (1, 2, 2), 64)(video)]  # widths 8, 6, 6
    elif model == "hunyuan_video":
        freqs = diffusing("hunyuan_video").HunyuanVideoRotaryPosEmbed(2, 1, [4, 6, 6], 256.0)(video)
    elif model == "lumina":
        freqs = embeddings.get_2d_rotary_pos_embed_lumina(16, 3, 5).reshape(1, 15, 8)
    else:  # CogVideoX, a slice of a larger grid or its crop
        crop = ((0, 2), (6, 12)) if positions.is_floating_point() else None
        options = {} if crop else {"grid_type": "slice", "max_size": (8, 8)}
        freqs = embeddings.get_3d_rotary_pos_embed(16, crop, (3, 5), 2, **options)
    x, real = floats(case["x"])[None, :, None], model != "lumina"
    return {"rotated": embeddings.apply_rotary_emb(x, freqs, use_real=real, sequence_dim=1)[0, :, 0]}


# Models that rotate vectors, or move patches


def turns(case):
    if case["model"] == "dinov3_vit":
        return drawn_patches(case)
    x = floats(case["x"])[None]
    turn = {"ernie_image": by_ernie, "vjepa2": by_vjepa, "hunyuan_vl": by_hunyuan}[case["model"]]
    return {"turned": turn(case, np.array(case["positions"]), x, x.shape[-1])}


def by_ernie(case, positions, x, width):
    """Queries as the attention of ERNIE-Image gets them."""
    seen, same, ernie = [], lambda x: x, diffusing("ernie_image")
    freqs = ernie.ErnieImageEmbedND3(width, case["base"], case["widths"])(floats(positions)[None])
    attention = types.SimpleNamespace(to_q=same, to_k=same, to_v=same, to_out=[same], heads=1, norm_q=None, norm_k=None)
    ernie.dispatch_attention_fn = lambda query, *_, **__: seen.append(query) or query
    ernie.ErnieImageSingleStreamAttnProcessor()(attention, x, freqs_cis=freqs)
    return seen[0][0, :, 0]


def by_vjepa(case, positions, x, width):
    sizes = dict(hidden_size=width, num_attention_heads=1, crop_size=48, patch_size=16, frames_per_clip=4)
    config = transformers.VJEPA2Config(**sizes)
    layer = modeling("vjepa2").VJEPA2RopeAttention(config, width, 1)
    return layer.apply_rotary_embeddings(x[None], layer.get_position_ids(x[..., :1]))[0, 0]


def by_hunyuan(case, positions, x, width):
    rope = {"rope_type": "default", "rope_theta": case["base"], "mrope_section": case["sections"]}
    sizes, hunyuan = dict(hidden_size=width, num_attention_heads=1, head_dim=width), modeling("hunyuan_vl")
    embedding = hunyuan.HunYuanVLRotaryEmbedding(transformers.HunYuanVLTextConfig(**sizes, rope_parameters=rope))
    waves = embedding(x, torch.tensor(positions.T[:, None]))
    return hunyuan.apply_rotary_pos_emb(x[None], x[None], *waves)[0][0, 0]


def drawn_patches(case):
    """The coordinates of 2 × 3 patches, as drawn; `draws` are from −1 to 1, for shift, jitter and rescaling."""
    dino, sizes = modeling("dinov3_vit"), {"shift": 2, "jitter": 2, "rescale": 1}
    limits = {name: case[name] for name in sizes if name in case}
    centres = dino.get_patches_center_coordinates(2, 3, torch.float32, torch.device("cpu"))
    torch.manual_seed(case["seed"])
    moved = dino.augment_patches_center_coordinates(centres, **limits)
    torch.manual_seed(case["seed"])
    draws = [torch.empty(n).uniform_(-1, 1) if name in limits else torch.zeros(n) for name, n in sizes.items()]
    return {"draws": torch.cat(draws), "positions": centres, "moved": moved}


@torch.no_grad()
def pope(case):
    """PoPE's queries, keys (heads, seq, width) and scores; parts of the bias are outside [−2π, 0]."""
    import PoPE_pytorch
    from PoPE_pytorch.attention import compute_attn_similarity_non_fused

    bias, q, k = (floats(case[name]) for name in ("bias", "q", "k"))
    module = PoPE_pytorch.PoPE(bias.shape[1], heads=len(bias), theta=case["theta"])
    module.bias.copy_(bias)
    angles = module(floats(case["positions"]))
    query, key = module.apply_pope_to_qk(angles, q[None], k[None])
    return {"query": query[0], "key": key[0], "scores": compute_attn_similarity_non_fused(q[None], k[None], angles)[0]}


# Grids, and learned tables of another size


def timm_grids(case):
    from timm.layers import build_sincos2d_pos_embed

    return {"values": build_sincos2d_pos_embed(case["shape"], 12, **case["arguments"]).flatten()}


def timm_resized(case):
    from timm.layers import resample_abs_pos_embed

    table = torch.tensor(case["table"]).reshape(1, -1, 2)
    return {"resized": resample_abs_pos_embed(table, case["new"], case["old"], 0, case["interpolation"]).flatten()}


def torch_resized(case):
    """A table resized by `grid_sample`, if rows outside it are zeros, or else by `interpolate`."""
    channels, new = torch.tensor(case["table"]).reshape(*case["old"], -1).permute(2, 0, 1)[None], case["new"]
    mode, aligned = "bilinear" if case["method"] == "linear" else "bicubic", case.get("align_corners", False)
    if case.get("zeros_outside"):  # at the places of `interpolate`, in the units of `grid_sample`
        y, x = (torch.linspace(-1, 1, n) if aligned else (2 * torch.arange(n) + 1) / n - 1 for n in new)
        places = torch.stack([x[None, :].expand(*new), y[:, None].expand(*new)], -1)[None]
        resized = functional.grid_sample(channels, places, mode, "zeros", aligned)
    else:
        resized = functional.interpolate(channels, new, mode=mode, align_corners=aligned, antialias=case["antialias"])
    return {"resized": resized[0].permute(1, 2, 0).flatten()}
