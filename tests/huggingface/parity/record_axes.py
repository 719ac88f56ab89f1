"""Writes tests/oracles/recorded/diffusers_rotations.json: vectors of image and video grids as diffusers rotates them.

    nox -s parity -- --record

does, with the peers that the dependency group "record" in pyproject.toml names.
"""

import diffusers
import numpy as np
import torch
from diffusers.models.embeddings import apply_rotary_emb, get_2d_rotary_pos_embed_lumina, get_3d_rotary_pos_embed
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoRotaryPosEmbed
from diffusers.models.transformers.transformer_lumina2 import Lumina2RotaryPosEmbed
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
from record_positions import numbers, write

RNG = np.random.default_rng(0)


def places(*sides):
    return np.stack(np.meshgrid(*map(np.arange, sides), indexing="ij"), -1).reshape(-1, len(sides))


def case(model, positions, freqs, width, real=True):
    """Vectors (patches, width), and what diffusers makes of them; `freqs` are its cosines and sines, or their phases."""
    x = RNG.integers(-4, 5, (len(positions), width)).astype(np.float32)
    rotated = apply_rotary_emb(torch.tensor(x)[None, :, None], freqs, use_real=real, sequence_dim=1)
    rows = {"positions": positions.tolist(), "x": x.tolist(), "rotated": numbers(rotated[0, :, 0])}
    return {"model": model, "width": width, **rows}


def record():
    ids = np.concatenate([np.zeros((2, 3), int), np.pad(places(3, 5), ((0, 0), (1, 0)))])
    yield case("flux", ids, FluxPosEmbed(10_000, [4, 6, 6])(torch.tensor(ids)), 16)
    video = torch.zeros(1, 1, 2, 6, 10)
    cosine, sine = WanRotaryPosEmbed(20, (1, 2, 2), 64)(video)  # widths 8, 6, 6
    yield case("wan", places(2, 3, 5), (cosine[0, :, 0], sine[0, :, 0]), 20)
    hunyuan = HunyuanVideoRotaryPosEmbed(2, 1, [4, 6, 6], 256.0)
    yield case("hunyuan_video", places(2, 3, 5), hunyuan(video), 16)
    sliced = get_3d_rotary_pos_embed(16, None, (3, 5), 2, grid_type="slice", max_size=(8, 8))
    yield case("cogvideox", places(2, 3, 5), sliced, 16)
    crop, (t, h, w) = ((0, 2), (6, 12)), (2, 3, 5)
    sides = np.arange(t), np.linspace(0, 6 * (h - 1) / h, h), np.linspace(2, 12 * (w - 1) / w, w)
    cropped = np.stack(np.meshgrid(*sides, indexing="ij"), -1).reshape(-1, 3)
    yield case("cogvideox", cropped, get_3d_rotary_pos_embed(16, crop, (h, w), t), 16)
    lumina = get_2d_rotary_pos_embed_lumina(16, 3, 5).reshape(1, 15, 8)
    yield case("lumina", places(3, 5), lumina, 16, real=False)
    ids = np.concatenate([[[i, 0, 0] for i in range(4)], np.pad(places(3, 5), ((0, 0), (1, 0)), constant_values=4)])
    of_ids = Lumina2RotaryPosEmbed(10_000, [4, 6, 6], [30, 30, 30])._get_freqs_cis(torch.tensor(ids)[None])
    yield case("lumina2", ids, of_ids, 16, real=False)


if __name__ == "__main__":
    about = "apply_rotary_emb of diffusers, of the cosines and sines that each model's own code makes for a grid."
    write("diffusers_rotations.json", about, diffusers, list(record()))
