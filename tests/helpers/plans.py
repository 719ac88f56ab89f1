"""Configs as transformers has them, and what a plan holds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import posenc_jax as pe
from oracles.spectra import floats, geometric
from posenc_jax import hf


def plain(width: int, base: float) -> np.ndarray:
    """The geometric spectrum in float64."""
    return floats(geometric(width, base))


def close(frequencies: pe.Frequencies, angular: Any) -> None:
    """Asserts that Frequencies have these ω, mpmath numbers or floats."""
    np.testing.assert_allclose(frequencies.angular, floats(angular), rtol=3e-13)


def spectrum_of(plan: hf.RotaryPlan) -> pe.Frequencies | None:
    """The spectrum of a plan all of whose layers rotate alike."""
    assert len(set(rotations_of(plan).layers)) == 1
    return plan.layers[0].frequencies


def rotations_of(plan: hf.RotaryPlan) -> hf.RotaryPlan:
    """The plan without what its layers attend to."""
    unknown = dict.fromkeys(("kind", "window", "chunk", "score_scale"))
    return dataclasses.replace(plan, layers=tuple(dataclasses.replace(layer, **unknown) for layer in plan.layers))


def widths(plan: hf.RotaryPlan) -> list[int]:
    """The rotated features of each layer."""
    return [layer.rotary_dim for layer in plan.layers]


def bases(plan: hf.RotaryPlan) -> list[float]:
    """The base of each layer that rotates, from its second frequency."""
    rotating = [layer for layer in plan.layers if layer.rotary_dim]
    return [float(f"{x.frequencies.angular[1] ** (-x.rotary_dim / 2):.13g}") for x in rotating]


class WithToDict:
    """A config as transformers has them."""

    def __init__(self, values: Any):
        self.values = values

    def to_dict(self) -> Any:
        """The keys."""
        return self.values
