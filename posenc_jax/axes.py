r"""Positions of several coordinates: which of them turns each pair of a spectrum."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from posenc_jax import _check
from posenc_jax.frequencies import Frequencies, from_base, resolve_static


def _one_axis(where: str, frequencies: Frequencies | int) -> Frequencies:
    """Frequencies of which no pair has been given to a second coordinate."""
    result = resolve_static(where, frequencies)
    if result.num_axes > 1:
        raise ValueError(f"{where}: frequencies must have one axis, got {result.num_axes}")
    return result


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
    where = "axial"
    num_axes = _check.positive_int(where, "num_axes", num_axes)
    if isinstance(frequencies, Frequencies):
        if base is not None:
            raise ValueError(f"{where}: base must not be given with Frequencies, which have their own, got {base!r}")
        one = _one_axis(where, frequencies)
        if one.dim % 2:
            raise ValueError(f"{where}: frequencies must have an even dim, got {one.dim}")
        dim = one.dim * num_axes
    else:
        dim = _check.positive_int(where, "frequencies (a width)", frequencies)
        if dim % (2 * num_axes):
            multiple = f"a multiple of 2·num_axes = {2 * num_axes}"
            raise ValueError(f"{where}: frequencies (a width) must be {multiple}, got {dim}")
        one = None
    if dim > 2**20:
        raise ValueError(f"{where}: frequencies of all axes must have a width of at most 2²⁰, got {dim!r:.60}")
    if one is None:
        one = from_base(where, dim // num_axes, 10_000.0 if base is None else base)
    axes = tuple(axis for axis in range(num_axes) for _ in one.turns)
    return dataclasses.replace(one, turns=one.turns * num_axes, dim=dim, axes=axes)


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
    where = "multi_section"
    frequencies = _one_axis(where, frequencies)
    sections = _check.sequence(where, "sections", sections, "integers")
    sections = tuple(_check.positive_int(where, f"sections[{i}]", n) for i, n in enumerate(sections))
    pairs = frequencies.num_pairs
    if sum(sections) != pairs:
        raise ValueError(f"{where}: sections must sum to the {pairs} pairs of frequencies, got {sections}")
    if _check.flag(where, "interleaved", interleaved):
        n = len(sections)
        axes = tuple(i % n if i < n * sections[i % n] else 0 for i in range(pairs))
        dealt = tuple(axes.count(axis) for axis in range(n))
        if dealt != sections:  # places run out before the pairs of a section do: it would be cut short in silence
            message = "must leave each its share when the pairs are dealt out in turn"
            raise ValueError(f"{where}: sections {message}, got {sections}, of which {dealt} found a place")
    else:
        axes = tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    return dataclasses.replace(frequencies, axes=axes)
