"""Configs as transformers has them, and what a plan holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from posenc_jax import hf


def widths(plan: hf.RotaryPlan) -> list[int]:
    """The rotated features of each layer."""
    return [layer.rotary_dim for layer in plan.layers]


def in_runs(words: Iterable[str]) -> str:
    """The words of layers, each run of equal ones once with its length."""
    return ", ".join(f"{len(list(same))} x {word}" for word, same in itertools.groupby(words))


class WithToDict:
    """A config as transformers has them."""

    def __init__(self, values: Any):
        self.values = values

    def to_dict(self) -> Any:
        """The keys."""
        return self.values
