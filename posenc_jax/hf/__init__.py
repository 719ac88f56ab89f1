"""Reads a Hugging Face config.json as a plan of how each layer rotates its queries and keys, and writes it back.

- `rotary_from_config` reads the language model.
- `vision_rotary_from_config` reads the vision tower.
- `positions_from_tokens` computes the positions of text, images and videos in a multimodal model.
- `diffusion_rotary_from_config` reads the transformer of a diffusion pipeline.
- `frequencies_from_rope_parameters` needs no config.

A config is read as its class in transformers or diffusers reads it, or rejected with the reason. The functions are
tested against transformers 5.23.0 and 5.24.0 and diffusers 0.42.1, which need not be installed.
"""

from posenc_jax.hf._apply import HeadScale
from posenc_jax.hf._diffusion import diffusion_rotary_from_config
from posenc_jax.hf._diffusion_plan import DiffusionPlan
from posenc_jax.hf._multimodal import positions_from_tokens
from posenc_jax.hf._patches import PatchGrid
from posenc_jax.hf._plan import QueryScale, RotaryLayer, RotaryPlan
from posenc_jax.hf._read import rotary_from_config
from posenc_jax.hf._spectrum import frequencies_from_rope_parameters
from posenc_jax.hf._vision import vision_rotary_from_config
from posenc_jax.hf._vision_plan import VisionPlan
from posenc_jax.hf._write import plan_to_config

__all__ = [
    "DiffusionPlan",
    "HeadScale",
    "PatchGrid",
    "QueryScale",
    "RotaryLayer",
    "RotaryPlan",
    "VisionPlan",
    "diffusion_rotary_from_config",
    "frequencies_from_rope_parameters",
    "plan_to_config",
    "positions_from_tokens",
    "rotary_from_config",
    "vision_rotary_from_config",
]
