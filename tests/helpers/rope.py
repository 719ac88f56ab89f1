"""The library beside what transformers computes and beside the truth, for recorded and for fresh values alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import posenc_jax as pe
from conformance.adapters.posenc_jax import scaled
from helpers.quick import quick
from oracles import encodings, rotations, spectra
from posenc_jax import hf

# Of |pair|: whatever the scale of queries and keys, and for pairs of length 1 the absolute error.
EXACT, FLOAT32 = 3e-7, 1e-6


def plan_of(model: Mapping[str, Any]) -> hf.RotaryPlan:
    """The plan of a described model."""
    length = int(model["positions"].max()) + 1  # what transformers takes for the length of a sequence
    return hf.rotary_from_config(model["config"], length=length)


class Layer:
    """A layer of a described model that rotates: what transformers made of queries and keys, the truth, and ours."""

    def __init__(self, model: Mapping[str, Any], index: int = 0) -> None:
        self.model, self.index, layer = model, index, model["layers"][index]
        self.rope, self.theirs = layer["rope"], layer["frequencies"]
        limit, length = model["config"].get("max_position_embeddings"), int(model["positions"].max()) + 1
        self.omega, self.amplitude = spectra.from_parameters(self.rope, layer["head_dim"], limit, length)
        width, part = 2 * len(self.omega), model["part"]
        self._where = (width, model["layout"], part)
        # Queries and keys, (batch, heads, seq, head_dim): before, and as transformers rotated them, in one layout.
        self.before, after = (np.concatenate([layer[f"{name}{x}"] for name in "qk"], 1) for x in ("", "_rotated"))
        self.reference = rotations.join(*rotations.split(after, width, model["written"], part), *self._where[1:])

    def ours(
        self,
        *changes: Callable[[Any], Any],
        plan: hf.RotaryPlan | None = None,
        positions: np.ndarray | None = None,
        **options: Any,
    ) -> list[np.ndarray]:
        """Rotated by each change of the plan's frequencies, in one program; with other options for the controls."""
        plan = plan or plan_of(self.model)
        options = {"layout": plan.layout, "part": plan.part, "head_axis": -3} | options
        positions = np.int32(self.model["positions"] if positions is None else positions)
        changed = [change(plan.layers[self.index].frequencies) for change in changes]
        rotate = quick(lambda x, positions: [pe.rotary(x, positions, f, **options) for f in changed])
        return list(map(np.asarray, rotate(self.before, positions)))

    def truth(self) -> np.ndarray:
        """Rotated in float64, by mpmath's cosines and sines of the true frequencies."""
        positions = self.model["positions"]
        axes = spectra.axes_from_parameters(self.rope, len(self.omega)) if positions.ndim == 3 else None
        sine, cosine = (float(self.amplitude) * w[:, None] for w in encodings.waves(positions, self.omega, axes))
        return rotations.rotate(self.before, sine, cosine, *self._where[1:])

    def apart(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """max |x − y| / |pair| for each pair; infinity if a feature that does not rotate differs in a bit."""
        a, b, _ = rotations.split(self.before.astype(np.float64), *self._where)
        (*rotated_x, rest_x), (*rotated_y, rest_y) = (rotations.split(z, *self._where) for z in (x, y))
        if not np.array_equal(rest_x, rest_y):
            return np.full(len(self.omega), np.inf)
        c, d = (np.subtract(u, v, dtype=np.float64) for u, v in zip(rotated_x, rotated_y, strict=True))
        return np.max(np.hypot(c, d) / (float(self.amplitude) * np.hypot(a, b)), axis=(0, 1, 2))


def check_plan(model: Mapping[str, Any]) -> None:
    """Which layers turn, what they turn, and by which factors attention is scaled."""
    plan = plan_of(model)
    assert (plan.layout, plan.part, len(plan.layers)) == (model["layout"], model["part"], len(model["layers"]))
    for ours, theirs in zip(plan.layers, model["layers"], strict=True):
        scale = theirs["softmax_scale"] * math.sqrt(theirs["q_attended"].shape[-1]) if plan.part == "last" else 1
        assert plan.softmax_scale == pytest.approx(scale, rel=1e-15)
        assert ours.head_dim == theirs["q_attended"].shape[-1]
        assert (ours.rotary_dim > 0) == theirs["turns"]
        if theirs["turns"]:
            assert ours.rotary_dim == 2 * len(theirs["frequencies"])
            assert ours.frequencies.attention_factor == pytest.approx(theirs["attention_factor"], rel=4e-16)
        np.testing.assert_array_equal(theirs["k_attended"], theirs["k_rotated"])
        if ours.query_scale is None:
            np.testing.assert_array_equal(theirs["q_attended"], theirs["q_rotated"])
        else:
            factor = np.asarray(ours.query_scale(model["scale_positions"]))[:, None, :, None]
            assert np.max(factor) > 1.05
            np.testing.assert_allclose(factor * theirs["q_rotated"], theirs["q_attended"], rtol=3e-7)


def check_layer(model: Mapping[str, Any], index: int) -> None:
    """Queries and keys of a layer, by exact frequencies, by those of the reference, and by float32 ones."""
    layer = Layer(model, index)
    own = plan_of(model).layers[index].frequencies.with_precision("float32")
    exact, with_theirs, float32 = layer.ours(lambda f: f, lambda _: own.with_angular(layer.theirs), lambda _: own)
    assert layer.apart(exact, layer.truth()).max() <= EXACT
    assert layer.apart(with_theirs, layer.reference).max() <= FLOAT32
    # In float32 precision ω is rounded once. The reference rounds the exponent of the base, and more. Where both have
    # come to the same ω they agree; elsewhere they lie apart by the position times the difference, and a rounding.
    off = np.abs(own.angular.astype(np.float32).astype(np.float64) - layer.theirs)
    assert np.all(off <= bound_of_float32(layer.rope["rope_theta"]) * own.angular)
    apart, furthest = layer.apart(float32, layer.reference), model["positions"].max()
    assert np.all(
        apart <= FLOAT32 + (off > 0) * (furthest * off + np.spacing(furthest * own.angular, dtype=np.float32))
    )


def bound_of_float32(base: float) -> float:
    """How far the float32 ω of a reference may lie from the true one, relative.

    It raises the base to an exponent rounded to 2⁻²⁵, which moves ω by ln(base)·2⁻²⁵; the power, quotients and
    products add a unit of 2⁻²⁴ or so each.
    """
    return (math.log(base) / 2 + 5) * 2.0**-24


def functions_of(rope: Mapping[str, Any], head_dim: int, limit: int, length: int | None) -> pe.Frequencies:
    """The frequencies of a flat `rope_parameters` by the library's functions."""
    width, base, settings = spectra.call_of(rope, head_dim, limit, length)
    return scaled(width, base, None if settings["type"] == "default" else settings)


def check_spectrum(frequencies: pe.Frequencies, case: Mapping[str, Any]) -> None:
    """Frequencies of a plan or a function against the truth, and the reference's against the truth."""
    rope, limit = case["config"]["rope_parameters"], case["config"]["max_position_embeddings"]
    omega, amplitude = spectra.from_parameters(rope, case["head_dim"], limit, case["length"])
    errors = [abs(a - b) for a, b in zip(frequencies.cycles, spectra.turns(omega), strict=True)]
    assert max(errors) <= 2, "more than 2⁻¹²⁷ turn from the truth"
    assert abs(frequencies.attention_factor - amplitude) <= 4e-16 * amplitude
    assert abs(case["attention_factor"] - amplitude) <= 4e-16 * amplitude
    theirs = np.array(case["frequencies"])
    bound = bound_of_float32(rope["rope_theta"])
    assert np.all(np.abs(theirs - frequencies.angular) <= bound * frequencies.angular)
