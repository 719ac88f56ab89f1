"""Writes tests/oracles/recorded/turns.json: vectors that models turn without rotating their pairs, and drawn coordinates.

    nox -s parity -- --record

does, with the peers that the dependency group "record" in pyproject.toml names.
"""

import types

import diffusers
import numpy as np
import torch
import transformers
from diffusers.models.transformers import transformer_ernie_image as ernie
from record_positions import numbers, write
from transformers.models.dinov3_vit import modeling_dinov3_vit as dino
from transformers.models.hunyuan_vl import modeling_hunyuan_vl as hunyuan
from transformers.models.vjepa2 import modeling_vjepa2 as vjepa

RNG = np.random.default_rng(0)


def places(*sides):
    return np.stack(np.meshgrid(*map(np.arange, sides), indexing="ij"), -1).reshape(-1, len(sides))


def short(*shape):
    """Numbers that take little room in a file."""
    return RNG.integers(-8, 9, shape) / 4


def case(model, positions, x, turned, **settings):
    return {"model": model, **settings, "positions": positions.tolist(), "x": x.tolist(), "turned": numbers(turned)}


def of_ernie():
    """The queries that its attention gets."""
    positions, seen = places(2, 2, 3) + np.array([5, 0, 0]), {}
    widths, base = (4, 6, 6), 256
    freqs = ernie.ErnieImageEmbedND3(16, base, widths)(torch.tensor(positions[None], dtype=torch.float32))
    x = short(len(positions), 16)
    same = lambda x: x  # noqa: E731
    attention = types.SimpleNamespace(to_q=same, to_k=same, to_v=same, to_out=[same], heads=1, norm_q=None, norm_k=None)
    ernie.dispatch_attention_fn = lambda query, *_, **__: seen.setdefault("query", query)
    hidden = torch.tensor(x[None], dtype=torch.float32)
    ernie.ErnieImageSingleStreamAttnProcessor()(attention, hidden, freqs_cis=freqs)
    yield case("ernie_image", positions, x, seen["query"][0, :, 0], widths=widths, base=base)


def of_vjepa():
    config = transformers.VJEPA2Config(
        hidden_size=20, num_attention_heads=1, crop_size=48, patch_size=16, frames_per_clip=4
    )
    layer = vjepa.VJEPA2RopeAttention(config, 20, 1)
    positions, x = places(2, 3, 3), short(18, 20)  # widths 6, 6, 6, and two features that nothing turns
    tokens = torch.zeros(1, len(positions), 1)
    turned = layer.apply_rotary_embeddings(
        torch.tensor(x[None, None], dtype=torch.float32), layer.get_position_ids(tokens)
    )
    yield case("vjepa2", positions, x, turned[0, 0], widths=[6, 6, 6])


def of_hunyuan():
    sections, base = [2, 1, 3, 2], 1e4  # of a head of 16 features
    rope = {"rope_type": "default", "rope_theta": base, "mrope_section": sections}
    config = transformers.HunYuanVLTextConfig(hidden_size=16, num_attention_heads=1, head_dim=16, rope_parameters=rope)
    positions, x = RNG.integers(0, 30, (7, 4)), torch.tensor(short(7, 16), dtype=torch.float32)
    waves = hunyuan.HunYuanVLRotaryEmbedding(config)(x[None], torch.tensor(positions.T[:, None]))
    turned, _ = hunyuan.apply_rotary_pos_emb(x[None, None], x[None, None], *waves)
    yield case("hunyuan_vl", positions, x.double().numpy(), turned[0, 0], sections=sections, base=base)


def of_dino():
    """The coordinates of 2 × 3 patches, as drawn; `draws` are from −1 to 1, for the shift, the jitter and the rescaling."""
    centres = dino.get_patches_center_coordinates(2, 3, torch.float32, torch.device("cpu"))
    for seed, limits in enumerate([{"shift": 0.25, "jitter": 1.5, "rescale": 2.0}, {"rescale": 2.0}]):
        torch.manual_seed(seed)
        moved = dino.augment_patches_center_coordinates(centres, **limits)
        torch.manual_seed(seed)
        sizes = {"shift": (1, 2), "jitter": (1, 2), "rescale": (1,)}
        draws = [
            torch.empty(size).uniform_(-1, 1).flatten() if name in limits else torch.zeros(size).flatten()
            for name, size in sizes.items()
        ]
        rows = {"draws": numbers(torch.cat(draws)), "positions": numbers(centres), "moved": numbers(moved)}
        yield {"model": "dinov3_vit", **limits, **rows}


if __name__ == "__main__":
    about = (
        "Vectors (tokens, features) as the code of a model turns them, and the coordinates of patches as it draws them in "
        f"training; ernie_image by diffusers {diffusers.__version__}."
    )
    write("turns.json", about, transformers, [*of_ernie(), *of_vjepa(), *of_hunyuan(), *of_dino()])
