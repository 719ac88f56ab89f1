"""Configs as transformers has them, layers in words, and errors by their words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from posenc_jax.hf import RotaryPlan, rotary_from_config


def row(model_type: str, words: str, **config: Any) -> tuple[dict[str, Any], str]:
    """A row of a table: a config, and its plan or its error in words."""
    return {"model_type": model_type or None} | config, words


def read(config: dict[str, Any]) -> RotaryPlan:
    """The plan of a row's config; `length` and `layout` are arguments."""
    config = dict(config)
    return rotary_from_config(config, **{name: config.pop(name) for name in ("length", "layout") if name in config})


def in_runs(words: Iterable[str]) -> str:
    """The words of layers, each run of equal ones once with its length."""
    return ", ".join(f"{len(list(same))} x {word}" for word, same in itertools.groupby(words))


def refused(words: str) -> Any:
    """A context with an error that these words match: a ValueError, unless they begin with "TypeError: "."""
    error = TypeError if words.startswith("TypeError: ") else ValueError
    return pytest.raises(error, match=words.removeprefix("TypeError: "))


class WithToDict:
    """A config as transformers has them."""

    def __init__(self, values: Any):
        self.values = values

    def to_dict(self) -> Any:
        """The keys."""
        return self.values
