"""Widths and bases to try, how exact a spectrum must be, and a call of every scaling beside its formula."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import posenc_jax as pe
from conformance.adapters.posenc_jax import scaling_call
from oracles import spectra
from oracles.spectra import Real, exact_turns, floats

# width, base
WIDTHS = [(4, 10_000.0), (8, 10.0), (64, 150_000.0), (128, 500_000.0)]


def assert_exact(got: pe.Frequencies, omegas: Iterable[Real], units: float) -> None:
    """Asserts that `cycles` are within `units` of 2⁻¹²⁸ cycle of the ω, and `angular` within 1e-15 of them."""
    omegas = list(omegas)
    assert got.num_pairs == len(omegas) and got.dim == 2 * len(omegas)
    assert max(abs(a - b) for a, b in zip(exact_turns(omegas), got.cycles, strict=True)) <= units
    np.testing.assert_allclose(got.angular, floats(omegas), rtol=1e-15)


class Scaling(NamedTuple):
    """A call of a scaling with all arguments by name, and the ω and the amplitude that it should give."""

    function: Callable[..., pe.Frequencies]
    arguments: dict[str, Any]
    formula: Callable[[], tuple[list[Real], Real]]


def scaling(width: int, base: Real, settings: dict[str, Any], length: int = 10_000) -> Scaling:
    """The scaling that settings["type"] names, with the other settings; a setting of None means `length`."""
    settings = {name: length if value is None else value for name, value in settings.items()}
    function, arguments = scaling_call(width, base, **settings)
    call = inspect.signature(function).bind(**arguments)
    call.apply_defaults()
    return Scaling(function, call.arguments, partial(spectra.SCALINGS[settings.pop("type")], width, base, **settings))


SCALINGS = {label: scaling(*tried) for label, tried in spectra.SCALED.items()}
