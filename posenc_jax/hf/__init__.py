"""Converts a Hugging Face config.json to a plan of how each layer rotates its queries and keys, and back.

Tested against transformers 5.23.0, which need not be installed. Every key that speaks of rotations must be understood:
ignoring one would silently give a wrong model.
"""

from posenc_jax.hf._plan import QueryScale, RotaryLayer, RotaryPlan
from posenc_jax.hf._read import rotary_from_config
from posenc_jax.hf._write import plan_to_config

__all__ = ["QueryScale", "RotaryLayer", "RotaryPlan", "plan_to_config", "rotary_from_config"]
