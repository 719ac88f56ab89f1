"""The library beside what transformers computes and beside the truth, for recorded and for fresh values alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import posenc_jax as pe
from conformance.adapters.posenc_jax import scaled
from helpers.closeness import assert_within
from helpers.quick import quick
from oracles import encodings, rotations, spectra
from posenc_jax import hf

# Of |pair|: whatever the scale of queries and keys, and for pairs of length 1 the absolute error.
EXACT, FLOAT32 = 3e-7, 1e-6


def with_float32(frequencies: pe.Frequencies, angular: Any) -> pe.Frequencies:
    """In float32 precision with the float32 ω that a reference computed; axes and amplitude are kept."""
    result = frequencies.with_angular(angular).with_precision("float32")
    assert result.cycles == spectra.turns(map(float, angular))
    np.testing.assert_array_equal(result.angular.astype(np.float32), angular)
    return result


def plan_of(model: Mapping[str, Any], **changes: Any) -> hf.RotaryPlan:
    """The plan of a described model, with changes to its configuration."""
    length = int(model["positions"].max()) + 1  # what transformers takes for the length of a sequence
    return hf.rotary_from_config(model["config"] | changes, length=length)


class Layer:
    """A layer of a described model that turns: what transformers made of queries and keys, the truth, and ours."""

    def __init__(self, model: Mapping[str, Any], index: int = 0) -> None:
        self.model, self.index, layer = model, index, model["layers"][index]
        self.rope, self.theirs = layer["rope"], layer["frequencies"]
        limit, length = model["config"].get("max_position_embeddings"), int(model["positions"].max()) + 1
        self.omega, self.amplitude = spectra.from_parameters(self.rope, layer["head_dim"], limit, length)
        width, part = 2 * len(self.omega), model["part"]
        self._where = (width, model["layout"], part)
        # Queries and keys, (batch, heads, seq, head_dim): before, and as transformers turned them, in one layout.
        self.before, after = (np.concatenate([layer[f"{name}{x}"] for name in "qk"], 1) for x in ("", "_rotated"))
        self.reference = rotations.join(*rotations.split(after, width, model["written"], part), *self._where[1:])

    def ours(
        self,
        plan: hf.RotaryPlan | None = None,
        *,
        positions: np.ndarray | None = None,
        change: Callable[[Any], Any] = lambda frequencies: frequencies,
        **options: Any,
    ) -> np.ndarray:
        """Turned as the plan says; with other positions, frequencies or options for the controls."""
        return self.ours_by([change], plan, positions=positions, **options)[0]

    def ours_by(
        self,
        changes: Sequence[Callable[[Any], Any]],
        plan: hf.RotaryPlan | None = None,
        *,
        positions: np.ndarray | None = None,
        **options: Any,
    ) -> list[np.ndarray]:
        """Turned by each of some changes to the plan's frequencies, in one program."""
        plan = plan or plan_of(self.model)
        options = {"layout": plan.layout, "part": plan.part, "head_axis": -3} | options
        positions = self.model["positions"] if positions is None else positions.astype(np.int32)
        spectra = [change(plan.layers[self.index].frequencies) for change in changes]
        turn = quick(lambda x, positions: [pe.rotary(x, positions, f, **options) for f in spectra])
        return list(map(np.asarray, turn(self.before, positions)))

    def truth(self) -> np.ndarray:
        """Turned in float64, by mpmath's waves of the true frequencies."""
        positions = self.model["positions"]
        axes = spectra.axes_from_parameters(self.rope, len(self.omega)) if positions.ndim == 3 else None
        sine, cosine = (float(self.amplitude) * w[:, None] for w in encodings.waves(positions, self.omega, axes))
        return rotations.rotate(self.before, sine, cosine, *self._where[1:])

    def apart(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """max |x − y| / |pair| for each pair."""
        return distance(x, y, self.before, *self._where, amplitude=float(self.amplitude))

    def with_theirs(self, frequencies: pe.Frequencies) -> pe.Frequencies:
        """In float32 precision, with the ω of the reference."""
        return with_float32(frequencies, self.theirs)


def distance(
    x: np.ndarray, y: np.ndarray, before: np.ndarray, width: int, layout: str, part: str, amplitude: float = 1.0
) -> np.ndarray:
    """max |x − y| / |pair| for each pair of what was turned.

    A feature that does not turn must be the same bit for bit: else infinity.
    """
    a, b, _ = rotations.split(before.astype(np.float64), width, layout, part)
    size = amplitude * np.hypot(a, b)
    (*turned_x, rest_x), (*turned_y, rest_y) = (rotations.split(z, width, layout, part) for z in (x, y))
    if not np.array_equal(rest_x, rest_y):
        return np.full(width // 2, np.inf)
    a, b = (u.astype(np.float64) - v.astype(np.float64) for u, v in zip(turned_x, turned_y, strict=True))
    return np.max(np.hypot(a, b) / size, axis=(0, 1, 2))


def largest(distances: np.ndarray, bound: float, against: str) -> float:
    """The largest of the distances, all of which are within the bound."""
    assert_within(distances, np.zeros_like(distances), bound, against=against)
    return np.max(distances)


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


def check_layer(model: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Queries and keys of a layer; returns the errors of the reference and ours, to print."""
    layer = Layer(model, index)
    truth, theirs = layer.truth(), layer.reference
    own = plan_of(model).layers[index].frequencies.with_precision("float32")
    exact, with_theirs, float32 = layer.ours_by([lambda f: f, layer.with_theirs, lambda _: own])
    ours_exact = largest(layer.apart(exact, truth), EXACT, against="mpmath's rotation, 0 away in |pair|")
    same = layer.apart(with_theirs, theirs)
    same = largest(same, FLOAT32, against="the reference with the same ω, 0 away in |pair|")
    # In float32 precision ω is rounded once. The reference rounds the exponent of the base, and more. Where both have
    # come to the same ω they agree; elsewhere they lie apart by the position times the difference, and a rounding.
    off = np.abs(own.angular.astype(np.float32).astype(np.float64) - layer.theirs)
    assert np.all(off <= bound_of_float32(layer.rope["rope_theta"]) * own.angular)
    apart, phase = layer.apart(float32, theirs), model["positions"].max() * own.angular
    assert np.all(apart <= FLOAT32 + (off > 0) * (model["positions"].max() * off + np.spacing(phase, dtype=np.float32)))
    return {
        "error of transformers": np.max(layer.apart(theirs, truth)),
        "ours": ours_exact,
        "ours in float32": np.max(layer.apart(float32, truth)),
        "the two in float32 apart": np.max(apart),
        "with the same ω": same,
        "ω that differ": f"{np.count_nonzero(off)} of {off.size}",
    }


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
