"""Positions with several coordinates: which coordinate drives each feature pair."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from posenc_jax._frequencies.frequencies import Frequencies, from_base
from posenc_jax._frequencies.parser import one_axis, parse_static
from posenc_jax._jax import checks
from posenc_jax._jax.calls import cached_by_value
from posenc_jax._jax.errors import invalid, public, require


@public
@cached_by_value
def axial(
    frequencies: Frequencies | int | Sequence[Frequencies | int],
    num_axes: int | None = None,
    base: float | None = None,
    *,
    interleaved: bool = False,
) -> Frequencies:
    r"""Axial frequencies: each coordinate of a position has its own features.

    Coordinate $c$ has the spectrum $\omega^{(c)}_0, …, \omega^{(c)}_{n_c-1}$. The pairs of the result are

    $$\omega' = (\omega^{(0)}_0, …, \omega^{(0)}_{n_0-1}, \omega^{(1)}_0, …) \text{ (contiguous)}, \qquad
      \omega' = (\omega^{(0)}_0, \omega^{(1)}_0, …, \omega^{(0)}_1, \omega^{(1)}_1, …) \text{ (interleaved)}$$

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.axial(8, 2)
      >>> f.axes
      (0, 0, 1, 1)
      >>> f.angular.round(6).tolist()
      [1.0, 0.01, 1.0, 0.01]
      >>> pe.axial((2, 6)).axes
      (0, 1, 1, 1)
      >>> pe.axial(pe.linear_scaling(4, 2), 2).angular.round(6).tolist()
      [0.5, 0.005, 0.5, 0.005]
      >>> pe.axial(8, 2, interleaved=True).axes
      (0, 1, 0, 1)

    Args:
      frequencies: without num_axes, a sequence of one spectrum per coordinate, such as (16, 56, 56) for time, row and
        column in Flux and HunyuanVideo. Each spectrum is an int width w, for `geometric(w, base)`, or Frequencies with
        one axis and an even width. With num_axes, one spectrum that all coordinates share: such Frequencies, or the
        total width as an int, for `geometric(width // num_axes, base)`.
      num_axes: the number of coordinates, such as 2 for images and 3 for video. Leave it out if frequencies is a
        sequence.
      base: the base of `geometric`, 10,000 by default; only allowed for int widths.
      interleaved: whether pairs alternate between the coordinates (LTX-Video, Lumina-Next) instead of forming
        contiguous blocks. All coordinates must then have the same number of pairs.

    Returns:
      Frequencies for positions of shape (..., num_axes), or (...,) if num_axes is 1. A last coordinate of width 0
      has no pair and is dropped.

    Raises:
      TypeError: if frequencies, num_axes or interleaved has the wrong type.
      ValueError: if num_axes is missing, or given with a sequence.
      ValueError: if an int width is not a multiple of 2·num_axes, a width in a sequence is odd, or the total width
        exceeds 2²⁰ features.
      ValueError: if given Frequencies have several axes or an odd width, differ in attention_factor or precision, or
        base is given too; or if base is not positive.
      ValueError: if interleaved is True and the coordinates have different numbers of pairs.

    Notes:
      With contiguous blocks and the interleaved layout, the encoding of $(p_0, p_1, …)$ is the concatenation of the
      encodings of $p_0$, $p_1$, ….

    Reference:
      Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, appendix D.4, whose 2-D encoding is learned; this is
      its sinusoidal counterpart.
    """
    spectra = _parse_axes(frequencies, num_axes, base)
    blocks = _joined(spectra, range(len(spectra)))
    if not checks.flag("interleaved", interleaved):
        return blocks
    pairs = [spectrum.num_pairs for spectrum in spectra]
    require(len({*pairs}) == 1, "frequencies must have as many pairs for each coordinate if interleaved, got {}", pairs)
    return blocks[[first + i for i in range(pairs[0]) for first in range(0, blocks.num_pairs, pairs[0])]]


def _parse_axes(frequencies: Any, num_axes: Any, base: Any) -> list[Frequencies]:
    """The spectrum of each coordinate, of even width."""
    if isinstance(frequencies, (Sequence, np.ndarray)) and not isinstance(frequencies, (str, bytes)):
        spectra = checks.sequence("frequencies", frequencies, "Frequencies or widths, one for each coordinate")
        require(spectra, "frequencies must hold a spectrum for each coordinate, got none")
        message = "num_axes must not be given with a sequence of {} spectra, one for each coordinate, got {!r}"
        require(num_axes is None, message, len(spectra), num_axes)
        return [_parse_axis(f"frequencies[{i}]", spectrum, base) for i, spectrum in enumerate(spectra)]
    require(num_axes is not None, "num_axes must be given, unless frequencies is a sequence, got None")
    num_axes, spectrum = checks.size("num_axes", num_axes), frequencies
    if not isinstance(frequencies, Frequencies):
        width = checks.integer("frequencies (a width)", frequencies, 0)
        message = "frequencies (a width) must be a multiple of 2·num_axes = {}, got {}"
        require(width % (2 * num_axes) == 0, message, 2 * num_axes, width)
        spectrum = width // num_axes
    return [_parse_axis("frequencies", spectrum, base)] * num_axes


def _parse_axis(name: str, spectrum: Any, base: Any) -> Frequencies:
    """The spectrum of one coordinate, of even width, from Frequencies or a width."""
    if isinstance(spectrum, Frequencies):
        require(base is None, "base must not be given with Frequencies, which have their own, got {!r}", base)
        return one_axis(parse_static(spectrum, even=True))
    width = checks.size(f"{name} (a width)", spectrum, 0)
    require(width % 2 == 0, "{} (a width) must be even, got {}", name, width)
    return from_base(width, 10_000.0 if base is None else base)


@public
@cached_by_value
def join(*frequencies: Frequencies | int, axes: Sequence[int] | None = None) -> Frequencies:
    """Concatenates spectra: the pairs of the first, then the pairs of the second, and so on.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.join(4, 8, axes=(0, 1)) == pe.axial((4, 8))
      True
      >>> f = pe.geometric(8)
      >>> # the row drives every second frequency, and the column drives the others
      >>> pixtral = pe.join(f[::2], f[1::2], axes=(0, 1))
      >>> pixtral.axes, pixtral.angular.round(3).tolist()
      ((0, 0, 1, 1), [1.0, 0.01, 0.1, 0.001])

    Args:
      *frequencies: the spectra in order. Each is Frequencies of even width, or an int width for `geometric(width)`.
      axes: one integer per spectrum, the coordinate of a position that drives it. A spectrum with several axes uses
        that coordinate and the following ones. `None` keeps the coordinates that each spectrum has.

    Returns:
      Frequencies whose width is the sum of the widths, for positions of shape (..., num_axes), or (...,) for one axis.

    Raises:
      TypeError: if frequencies are neither Frequencies nor widths, or axes are not integers.
      ValueError: if no spectrum is given, if a spectrum has an odd width, if spectra that have features differ in
        attention_factor or precision, if axes does not hold one coordinate of at least 0 per spectrum, or if the total
        width exceeds 2²⁰ features.

    Notes:
      With indexing, such as `f[::2]`, `join` can express any assignment of pairs to coordinates. `axial` and
      `multi_section` cover the common assignments.

    Reference:
      Kong et al., "HunyuanVideo: A Systematic Framework for Large Video Generative Models", 2024, whose RoPE has
      channels for time, height and width side by side.
    """
    spectra = [parse_static(spectrum, even=True) for spectrum in frequencies]
    require(spectra, "frequencies must hold at least one spectrum, got none")
    first = (0,) * len(spectra)
    if axes is not None:
        first = tuple(
            checks.integer(f"axes[{i}]", c, 0) for i, c in enumerate(checks.sequence("axes", axes, "integers"))
        )
        message = "axes must hold one coordinate for each of {} spectra, got {}"
        require(len(first) == len(spectra), message, len(spectra), first)
    return _joined(spectra, first)


def _joined(spectra: Sequence[Frequencies], first: Sequence[int]) -> Frequencies:
    """The pairs of all spectra; coordinate c of a spectrum becomes coordinate first + c."""
    dim = sum(spectrum.dim for spectrum in spectra)
    require(dim <= 2**20, "frequencies of all axes must have a width of at most 2²⁰, got {!r:.60}", dim)
    like = next((spectrum for spectrum in spectra if spectrum.dim), spectra[0])
    for spectrum in spectra:
        same = spectrum.attention_factor == like.attention_factor and spectrum.precision == like.precision
        message = "frequencies must have one attention_factor and one precision, got {} and {}"
        require(same or not spectrum.dim, message, like, spectrum)
    cycles = tuple(each for spectrum in spectra for each in spectrum.cycles)
    axes = tuple(start + c for spectrum, start in zip(spectra, first, strict=True) for c in spectrum.axes or ())
    return dataclasses.replace(like, cycles=cycles, dim=dim, axes=axes)


@public
@cached_by_value
def multi_section(frequencies: Frequencies | int, sections: Sequence[int], *, interleaved: bool = False) -> Frequencies:
    r"""M-RoPE: divides the pairs of one spectrum among the coordinates of a position.

    For sections $s_0, …, s_{n-1}$, pair $i$ is driven by coordinate

    $$c_i = \min\{c : i < s_0 + … + s_c\} \text{ (contiguous)}, \qquad
      c_i = \begin{cases} i \bmod n & i < n s_{i \bmod n} \\ 0 & \text{otherwise} \end{cases} \text{ (interleaved)}$$

    Examples:
      >>> import posenc_jax as pe
      >>> pe.multi_section(12, (2, 3, 1)).axes
      (0, 0, 1, 1, 1, 2)
      >>> pe.multi_section(12, (3, 2, 1), interleaved=True).axes
      (0, 1, 2, 0, 1, 0)

    Args:
      frequencies: Frequencies with one axis, or an int width for `geometric(width)`.
      sections: the number of pairs that each coordinate (time, height, width) drives: positive integers whose sum is
        the number of pairs. A section of 0 is rejected, because every coordinate must drive a pair.
      interleaved: whether pairs alternate between the coordinates (Qwen3-VL) instead of forming contiguous blocks
        (Qwen2-VL).

    Returns:
      Frequencies for positions of shape (..., len(sections)), or (...,) for a single section.

    Raises:
      TypeError: if sections are not integers, or frequencies or interleaved has the wrong type.
      ValueError: if the sections do not sum to the number of pairs, if interleaving would give a coordinate fewer pairs
        than its section, or if the frequencies already have several axes.

    Notes:
      A token whose coordinates all equal $p$ is encoded exactly as `frequencies` encodes position $p$.

    Reference:
      Wang et al., "Qwen2-VL", 2024, section 2.1; Qwen3-VL, 2025, for the interleaved form.
    """
    frequencies = one_axis(parse_static(frequencies))
    sections = checks.positive_ints("sections", sections)
    pairs, n = frequencies.num_pairs, len(sections)
    require(sum(sections) == pairs, "sections must sum to the {} pairs of frequencies, got {}", pairs, sections)
    axes = tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    if checks.flag("interleaved", interleaved):
        axes = tuple(i % n if i < n * sections[i % n] else 0 for i in range(pairs))
        dealt = tuple(axes.count(axis) for axis in range(n))
        # A coordinate can run out of pairs before its section is complete.
        if dealt != sections:
            message = "sections must be the numbers of pairs that coordinates get when pairs alternate"
            raise invalid(f"{message}, got {sections}, but they get {dealt}")
    return dataclasses.replace(frequencies, axes=axes)
