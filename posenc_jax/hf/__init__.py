"""Converts a Hugging Face config.json to a plan of how each layer rotates its queries and keys, and back.

`rotary_from_config` reads the language model, `vision_rotary_from_config` the vision tower, and `positions_from_tokens`
where a multimodal model places images and videos among text. `frequencies_from_rope_parameters` needs no config.
`diffusion_rotary_from_config` reads the transformer of a diffusion pipeline.

A config is read as its class in transformers or diffusers reads it, or refused with the reason. Tested against
transformers 5.23.0 and 5.24.0 and diffusers 0.42.1, which need not be installed.
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
