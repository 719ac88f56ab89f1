"""What tests of Hugging Face configs share: rows of tables, layers in words, expected errors, a config object."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from posenc_jax.hf import RotaryPlan, rotary_from_config


def row(model_type: str, words: str, **config: Any) -> tuple[dict[str, Any], str]:
    """A row of a table: a config with this model_type (none if ""), and its expected plan or error in words."""
    return {"model_type": model_type or None} | config, words


def read(config: dict[str, Any]) -> RotaryPlan:
    """The plan of a row's config, whose keys `length` and `layout` are passed as arguments."""
    config = dict(config)
    return rotary_from_config(config, **{name: config.pop(name) for name in ("length", "layout") if name in config})


def in_runs(words: Iterable[str]) -> str:
    """The words of layers, joined; a run of equal words stands once, with its length: "2 x a, 1 x b"."""
    return ", ".join(f"{len(list(same))} x {word}" for word, same in itertools.groupby(words))


def refused(words: str) -> Any:
    """A context that expects a ValueError, or a TypeError after "TypeError: ", with a message that the words match."""
    error = TypeError if words.startswith("TypeError: ") else ValueError
    return pytest.raises(error, match=words.removeprefix("TypeError: "))


class WithToDict:
    """A config object like those of transformers, with a method `to_dict`."""

    def __init__(self, values: Any):
        self.values = values

    def to_dict(self) -> Any:
        """The keys and values, as a config.json has them."""
        return self.values
