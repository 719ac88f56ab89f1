r"""Positions of several coordinates: which of them turns each pair of a spectrum."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from posenc_jax import _checks
from posenc_jax._checks import public, require
from posenc_jax._frequencies import Frequencies, from_base, one_axis, parse_static


@public
def axial(frequencies: Frequencies | int, num_axes: int, base: float | None = None) -> Frequencies:
    r"""A position of several coordinates: each drives an equal share of the features with the same spectrum.

    With the spectrum $\omega_0, …, \omega_{n-1}$, coordinate $c$ drives pairs $cn$ to $cn + n - 1$:

    $$\omega'_{cn+i} = \omega_i$$

    In the interleaved layout the encoding of $(p_0, p_1, …)$ is thus the concatenation of those of $p_0$, $p_1$, ….

    Args:
      frequencies: the spectrum of each coordinate, Frequencies of one axis and an even width (of any scaling), or an
        int, the width of all coordinates together: `geometric(width // num_axes, base)` for each.
      num_axes: number of coordinates: 2 for images, 3 for video.
      base: as for `geometric`, 10,000 by default; with an int alone.

    Returns:
      Frequencies; positions have shape (..., num_axes), or (...,) when num_axes is 1.

    Raises:
      TypeError: if frequencies or num_axes is of another type.
      ValueError: if a width is not a multiple of 2·num_axes, or of over 2²⁰ features; if given Frequencies have
        several axes or an odd width, or come with a base; if base is not positive.

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
    one = _of_one_axis(frequencies, num_axes, base)
    axes = tuple(axis for axis in range(num_axes) for _ in one.turns)
    return dataclasses.replace(one, turns=one.turns * num_axes, dim=one.dim * num_axes, axes=axes)


def _of_one_axis(frequencies: Any, num_axes: int, base: Any) -> Frequencies:
    """The spectrum of each of so many coordinates, of an even width, at most 2²⁰ features in all."""
    if isinstance(frequencies, Frequencies):
        require(base is None, "base must not be given with Frequencies, which have their own, got {!r}", base)
        one = one_axis(parse_static(frequencies, even=True))
        _all_axes(one.dim * num_axes)
        return one
    dim = _checks.positive_int("frequencies (a width)", frequencies)
    message = "frequencies (a width) must be a multiple of 2·num_axes = {}, got {}"
    require(dim % (2 * num_axes) == 0, message, 2 * num_axes, dim)
    _all_axes(dim)
    return from_base(dim // num_axes, 10_000.0 if base is None else base)


def _all_axes(dim: int) -> None:
    require(dim <= 2**20, "frequencies of all axes must have a width of at most 2²⁰, got {!r:.60}", dim)


@public
def multi_section(frequencies: Frequencies | int, sections: Sequence[int], *, interleaved: bool = False) -> Frequencies:
    r"""M-RoPE: one spectrum whose pairs are shared out among the coordinates of a position.

    With sections $s_0, …, s_{n-1}$, pair $i$ turns by coordinate

    $$c_i = \min\{c : i < s_0 + … + s_c\} \text{ (contiguous)}, \qquad
      c_i = \begin{cases} i \bmod n & i < n s_{i \bmod n} \\ 0 & \text{else} \end{cases} \text{ (interleaved)}$$

    so that a token whose coordinates are all $p$ is encoded as by `frequencies` at $p$.

    Args:
      frequencies: Frequencies of one axis, or an int, a width: `geometric(width)`.
      sections: how many pairs each coordinate drives (time, height, width): positive, summing to the pairs.
      interleaved: deal the pairs out in turn, as Qwen3-VL does, instead of in blocks, as Qwen2-VL does.

    Returns:
      Frequencies; positions have shape (..., len(sections)), or (...,) for a single section.

    Raises:
      TypeError: if sections are not integers, or frequencies or interleaved of another type.
      ValueError: if the sections do not sum to the number of pairs, if dealing the pairs out runs out of places for a
        section, or if the frequencies have several axes already.

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
    items = _checks.sequence("sections", sections, "integers")
    sections = tuple(_checks.positive_int(f"sections[{i}]", n) for i, n in enumerate(items))
    pairs, n = frequencies.num_pairs, len(sections)
    require(sum(sections) == pairs, "sections must sum to the {} pairs of frequencies, got {}", pairs, sections)
    axes = tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    if _checks.flag("interleaved", interleaved):
        axes = tuple(i % n if i < n * sections[i % n] else 0 for i in range(pairs))
        dealt = tuple(axes.count(axis) for axis in range(n))
        # Places can run out before the pairs of a section do.
        message = (
            "sections must leave each its share when the pairs are dealt out in turn, got {}, of which {} found a place"
        )
        require(dealt == sections, message, sections, dealt)
    return dataclasses.replace(frequencies, axes=axes)
