"""Vectors that code of diffusers, of models of transformers and of PoPE-pytorch rotates or changes by their positions."""

import types

import numpy as np
import torch
import transformers
from values import numbers


def floats(x):
    return torch.tensor(x, dtype=torch.float32)


def of_diffusers(case):
    """By the cosines and sines, or the phases, that each model's own code makes for a grid; vectors (patches, width)."""
    from diffusers.models import embeddings
    from diffusers.models.transformers.transformer_flux import FluxPosEmbed
    from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoRotaryPosEmbed
    from diffusers.models.transformers.transformer_lumina2 import Lumina2RotaryPosEmbed
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    model, positions, video = case["model"], torch.tensor(case["positions"]), torch.zeros(1, 1, 2, 6, 10)
    if model == "flux":
        freqs = FluxPosEmbed(10_000, [4, 6, 6])(positions)
    elif model == "wan":
        freqs = [x[0, :, 0] for x in WanRotaryPosEmbed(20, (1, 2, 2), 64)(video)]  # widths 8, 6, 6
    elif model == "hunyuan_video":
        freqs = HunyuanVideoRotaryPosEmbed(2, 1, [4, 6, 6], 256.0)(video)
    elif model == "lumina":
        freqs = embeddings.get_2d_rotary_pos_embed_lumina(16, 3, 5).reshape(1, 15, 8)
    elif model == "lumina2":
        freqs = Lumina2RotaryPosEmbed(10_000, [4, 6, 6], [30, 30, 30])._get_freqs_cis(positions[None])
    else:  # CogVideoX, a slice of a larger grid or its crop
        crop = ((0, 2), (6, 12)) if positions.is_floating_point() else None
        options = {} if crop else {"grid_type": "slice", "max_size": (8, 8)}
        freqs = embeddings.get_3d_rotary_pos_embed(16, crop, (3, 5), 2, **options)
    x, real = floats(case["x"])[None, :, None], not model.startswith("lumina")
    return {"rotated": numbers(embeddings.apply_rotary_emb(x, freqs, use_real=real, sequence_dim=1)[0, :, 0])}


def of_model(case):
    if case["model"] == "dinov3_vit":
        return drawn_patches(case)
    positions, x = np.array(case["positions"]), floats(case["x"])[None]
    turn = {"ernie_image": by_ernie, "vjepa2": by_vjepa, "hunyuan_vl": by_hunyuan}[case["model"]]
    return {"turned": numbers(turn(case, positions, x))}


def by_ernie(case, positions, x):
    """The queries that its attention gets."""
    from diffusers.models.transformers import transformer_ernie_image as ernie

    seen, same = [], lambda x: x
    freqs = ernie.ErnieImageEmbedND3(x.shape[-1], case["base"], case["widths"])(floats(positions)[None])
    attention = types.SimpleNamespace(to_q=same, to_k=same, to_v=same, to_out=[same], heads=1, norm_q=None, norm_k=None)
    ernie.dispatch_attention_fn = lambda query, *_, **__: seen.append(query) or query
    ernie.ErnieImageSingleStreamAttnProcessor()(attention, x, freqs_cis=freqs)
    return seen[0][0, :, 0]


def by_vjepa(case, positions, x):
    from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2RopeAttention

    sizes = {"crop_size": 48, "patch_size": 16, "frames_per_clip": 4}
    config = transformers.VJEPA2Config(hidden_size=x.shape[-1], num_attention_heads=1, **sizes)
    layer = VJEPA2RopeAttention(config, x.shape[-1], 1)
    return layer.apply_rotary_embeddings(x[None], layer.get_position_ids(x[..., :1]))[0, 0]


def by_hunyuan(case, positions, x):
    from transformers.models.hunyuan_vl import modeling_hunyuan_vl as hunyuan

    rope = {"rope_type": "default", "rope_theta": case["base"], "mrope_section": case["sections"]}
    sizes = {"hidden_size": x.shape[-1], "num_attention_heads": 1, "head_dim": x.shape[-1]}
    embedding = hunyuan.HunYuanVLRotaryEmbedding(transformers.HunYuanVLTextConfig(**sizes, rope_parameters=rope))
    waves = embedding(x, torch.tensor(positions.T[:, None]))
    return hunyuan.apply_rotary_pos_emb(x[None], x[None], *waves)[0][0, 0]


def drawn_patches(case):
    """The coordinates of 2 × 3 patches, as drawn; `draws` are from −1 to 1, for the shift, the jitter and the rescaling."""
    from transformers.models.dinov3_vit import modeling_dinov3_vit as dino

    limits = {name: case[name] for name in ("shift", "jitter", "rescale") if name in case}
    centres = dino.get_patches_center_coordinates(2, 3, torch.float32, torch.device("cpu"))
    torch.manual_seed(case["seed"])
    moved = dino.augment_patches_center_coordinates(centres, **limits)
    torch.manual_seed(case["seed"])
    sizes = {"shift": 2, "jitter": 2, "rescale": 1}
    draws = [torch.empty(n).uniform_(-1, 1) if name in limits else torch.zeros(n) for name, n in sizes.items()]
    return {"draws": numbers(torch.cat(draws)), "positions": numbers(centres), "moved": numbers(moved)}


def of_pope(case):
    """Queries and keys (heads, seq, width) and a bias of which some leaves [−2π, 0]."""
    import PoPE_pytorch
    from PoPE_pytorch.attention import compute_attn_similarity_non_fused

    bias, q, k = (floats(case[name]) for name in ("bias", "q", "k"))
    module = PoPE_pytorch.PoPE(bias.shape[1], heads=len(bias), theta=case["theta"])
    with torch.no_grad():
        module.bias.copy_(bias)
        angles = module(floats(case["positions"]))
        query, key = module.apply_pope_to_qk(angles, q[None], k[None])
        scores = compute_attn_similarity_non_fused(q[None], k[None], angles)
    return {"query": numbers(query[0]), "key": numbers(key[0]), "scores": numbers(scores[0])}
