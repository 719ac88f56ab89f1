"""Configs as transformers has them, and what a plan holds."""

from __future__ import annotations

from typing import Any

from posenc_jax import hf


def widths(plan: hf.RotaryPlan) -> list[int]:
    """The rotated features of each layer."""
    return [layer.rotary_dim for layer in plan.layers]


class WithToDict:
    """A config as transformers has them."""

    def __init__(self, values: Any):
        self.values = values

    def to_dict(self) -> Any:
        """The keys."""
        return self.values
