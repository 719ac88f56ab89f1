r"""Positions with several coordinates: which coordinate drives each pair of a spectrum."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from posenc_jax import _checks
from posenc_jax._checks import InvalidValue, public, require
from posenc_jax._frequencies import Frequencies, from_base, one_axis, parse_static


@public
def axial(frequencies: Frequencies | int, num_axes: int, base: float | None = None) -> Frequencies:
    r"""Axial frequencies: each coordinate of a position drives an equal share of the features with the same spectrum.

    For the spectrum $\omega_0, …, \omega_{n-1}$, coordinate $c$ drives pairs $cn$ to $cn + n - 1$:

    $$\omega'_{cn+i} = \omega_i$$

    In the interleaved layout, the encoding of $(p_0, p_1, …)$ thus concatenates the encodings of $p_0$, $p_1$, ….

    Args:
      frequencies: the spectrum of each coordinate, as Frequencies with one axis, an even width and any scaling; or an
        int, the total width, for `geometric(width // num_axes, base)` in each coordinate.
      num_axes: the number of coordinates: 2 for images, 3 for video.
      base: as for `geometric`, 10,000 by default; only allowed if frequencies is an int.

    Returns:
      Frequencies; positions have shape (..., num_axes), or (...,) when num_axes is 1.

    Raises:
      TypeError: if frequencies or num_axes has the wrong type.
      ValueError: if an int width is not a multiple of 2·num_axes; if the total width exceeds 2²⁰ features; if given
        Frequencies have several axes or an odd width, or base is given too; if base is not positive.

    Examples:
      >>> import posenc_jax as pe
      >>> f = pe.axial(8, 2)
      >>> f.axes
      (0, 0, 1, 1)
      >>> f.angular.round(6).tolist()
      [1.0, 0.01, 1.0, 0.01]
      >>> pe.axial(pe.linear_scaling(4, 2), 2).angular.round(6).tolist()
      [0.5, 0.005, 0.5, 0.005]

    Reference:
      Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, appendix D.4, whose 2-D encoding is learned;
      this is its sinusoidal counterpart.
    """
    num_axes = _checks.positive_int("num_axes", num_axes)
    one = _parse_axis(frequencies, num_axes, base)
    axes = tuple(axis for axis in range(num_axes) for _ in one.turns)
    return dataclasses.replace(one, turns=one.turns * num_axes, dim=one.dim * num_axes, axes=axes)


def _parse_axis(frequencies: Any, num_axes: int, base: Any) -> Frequencies:
    """The spectrum of one coordinate, of even width. Raises if all coordinates together exceed 2²⁰ features."""
    if isinstance(frequencies, Frequencies):
        require(base is None, "base must not be given with Frequencies, which have their own, got {!r}", base)
        one = one_axis(parse_static(frequencies, even=True))
        _check_total_width(one.dim * num_axes)
        return one
    dim = _checks.positive_int("frequencies (a width)", frequencies)
    if dim % (2 * num_axes):
        raise InvalidValue(f"frequencies (a width) must be a multiple of 2·num_axes = {2 * num_axes}, got {dim}")
    _check_total_width(dim)
    return from_base(dim // num_axes, 10_000.0 if base is None else base)


def _check_total_width(dim: int) -> None:
    require(dim <= 2**20, "frequencies of all axes must have a width of at most 2²⁰, got {!r:.60}", dim)


@public
def multi_section(frequencies: Frequencies | int, sections: Sequence[int], *, interleaved: bool = False) -> Frequencies:
    r"""M-RoPE: divides the pairs of one spectrum among the coordinates of a position.

    With sections $s_0, …, s_{n-1}$, pair $i$ is driven by coordinate

    $$c_i = \min\{c : i < s_0 + … + s_c\} \text{ (contiguous)}, \qquad
      c_i = \begin{cases} i \bmod n & i < n s_{i \bmod n} \\ 0 & \text{otherwise} \end{cases} \text{ (interleaved)}$$

    A token whose coordinates are all $p$ is thus encoded exactly as `frequencies` encodes position $p$.

    Args:
      frequencies: Frequencies with one axis, or an int width for `geometric(width)`.
      sections: how many pairs each coordinate (time, height, width) drives; positive integers that sum to the number
        of pairs.
      interleaved: whether to deal the pairs out in turn (Qwen3-VL) rather than in contiguous blocks (Qwen2-VL).

    Returns:
      Frequencies; positions have shape (..., len(sections)), or (...,) for a single section.

    Raises:
      TypeError: if sections are not integers, or frequencies or interleaved has the wrong type.
      ValueError: if the sections do not sum to the number of pairs, if a section does not get all its pairs when they
        are dealt out in turn, or if the frequencies already have several axes.

    Examples:
      >>> import posenc_jax as pe
      >>> pe.multi_section(12, (2, 3, 1)).axes
      (0, 0, 1, 1, 1, 2)
      >>> pe.multi_section(12, (3, 2, 1), interleaved=True).axes
      (0, 1, 2, 0, 1, 0)

    Reference:
      Wang et al., "Qwen2-VL", 2024, section 2.1; Qwen3-VL, 2025, for the interleaved form.
    """
    frequencies = one_axis(parse_static(frequencies))
    sections = _checks.positive_ints("sections", sections)
    pairs, n = frequencies.num_pairs, len(sections)
    require(sum(sections) == pairs, "sections must sum to the {} pairs of frequencies, got {}", pairs, sections)
    axes = tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    if _checks.flag("interleaved", interleaved):
        axes = tuple(i % n if i < n * sections[i % n] else 0 for i in range(pairs))
        dealt = tuple(axes.count(axis) for axis in range(n))
        # A coordinate can run out of places before its section is complete.
        if dealt != sections:
            message = "sections must leave each its share when the pairs are dealt out in turn"
            raise InvalidValue(f"{message}, got {sections}, of which {dealt} found a place")
    return dataclasses.replace(frequencies, axes=axes)
