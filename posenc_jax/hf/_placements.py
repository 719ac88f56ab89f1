"""The positions of text, images and videos in each diffusion transformer.

A placement is a function from the sizes of a sequence to its tokens, in the order in which the model's attention joins
them. Its parameters are the sizes that the model needs, then the settings of its plan. The docstring says the positions
in words: the site's table of diffusion models shows it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from posenc_jax._jax.errors import require

# Units per second: halves of frames at 24, 25, 30, 50, 60 and 120 per second, also at 1000/1001 of these rates, and
# hundredths of a second are whole numbers of units.
SECOND = 240_000
Shape = tuple[int, int, int]  # (frames, height, width)


class Tokens(NamedTuple):
    """Tokens with all combinations of these coordinates, the last changing fastest; or where all change together."""

    coordinates: tuple[np.ndarray, ...]
    together: bool = False


def grid(*sides: int | range | np.ndarray) -> Tokens:
    """Tokens of a grid. A side is its coordinates, or one constant coordinate."""
    ranges = (np.arange(side.start, side.stop) if isinstance(side, range) else np.atleast_1d(side) for side in sides)
    return Tokens(tuple(ranges))


def repeated(count: int, *coordinates: int) -> Tokens:
    """Tokens that share their coordinates."""
    return Tokens(tuple(np.full(count, each) for each in coordinates), together=True)


def counted(start: int, count: int) -> Tokens:
    """Tokens that count in all three coordinates."""
    return Tokens((np.arange(start, start + count),) * 3, together=True)


def centred(side: int) -> range:
    """Whole numbers whose first half, with the middle one, is below 0."""
    return range(side // 2 - side, side // 2)


def exact(values: Sequence[Fraction | int]) -> np.ndarray:
    """The values as integers if they are whole, else as the nearest floats."""
    whole = all(Fraction(value).denominator == 1 for value in values)
    return np.array([int(value) if whole else float(value) for value in values])


# Images


def flux(shape: Shape, text: int, references: Sequence[Shape] = ()) -> list[Tokens]:
    """Text is at 0 in all coordinates; the first is 0 for the image, and counts reference images from 1."""
    images = [grid(time, *map(range, image[1:])) for time, image in enumerate([shape, *references])]
    return [repeated(text, 0, 0, 0), *images]


def flux2(shape: Shape, text: int, references: Sequence[Shape] = ()) -> list[Tokens]:
    """Text counts on the fourth coordinate; the first is 0 for the image and 10 + 10 i for reference image i."""
    images = [grid(10 * time, *map(range, image[1:]), 0) for time, image in enumerate([shape, *references])]
    return [grid(0, 0, 0, range(text)), *images]


def flux3(shape: Shape, text: int, references: Sequence[Shape] = ()) -> list[Tokens]:
    """Text counts on the fourth coordinate, and reference images on it from -1 down; rows and columns are ½ apart."""
    images = [grid(0, *map(range, image[1:]), -place) for place, image in enumerate([shape, *references])]
    return [grid(0, 0, 0, range(text)), *images]


def hidream(shape: Shape, text: int, *, rows: int) -> list[Tokens]:
    """Text is at 0, as is the padding behind an image that is not square, up to the tokens of the largest."""
    padding = rows - shape[1] * shape[2] if shape[1] != shape[2] else 0
    require(padding >= 0, "shape must have at most {} tokens, those of max_resolution, got {}", rows, shape[1:])
    return [*flux(shape, text), repeated(padding, 0, 0, 0)]


def ovis(shape: Shape, text: int) -> list[Tokens]:
    """Text counts on row and column together, from 0, as the image does."""
    return [Tokens((np.zeros(text, int), np.arange(text), np.arange(text)), together=True), grid(*map(range, shape))]


def longcat(shape: Shape, text: int, references: Sequence[Shape] = ()) -> list[Tokens]:
    """Text counts on row and column together, and images after it; the first coordinate counts text and images."""
    sides = [[range(text, text + side) for side in image[1:]] for image in (shape, *references)]
    return [ovis(shape, text)[0], *(grid(1 + i, *each) for i, each in enumerate(sides))]


def qwen_image(shape: Shape, text: int, references: Sequence[Shape] = (), *, layered: bool) -> list[Tokens]:
    """Images count on the first coordinate, rows and columns from their middle; text in all, after the largest half.

    In a layered model the images of the output count, the whole before its layers, and the condition image is at -1.
    """
    count, images = len(references), [shape, *references]
    require(not layered or count == 1, "references must hold the condition image alone, got {} images", count)
    starts = [0, -1] if layered else range(count + 1)
    start = max([side // 2 for image in images for side in image[1:]] + [shape[0] * layered])
    grids = [
        grid(range(first, first + image[0]), *map(centred, image[1:]))
        for first, image in zip(starts, images, strict=True)
    ]
    return [counted(start, text), *grids]


def qwen_image_21(shape: Shape, text: Sequence[int], references: Sequence[Shape] = ()) -> list[Tokens]:
    """Text counts in all coordinates; an image has the next number in the first, rows and columns from their middle.

    Text comes before each image, references first, and counts on after an image by the longer side of the image.
    """
    images, start, tokens = [*references, shape], 0, []
    require(len(text) == len(images), "text must hold a length for each of {} images, got {}", len(images), text)
    for length, image in zip(text, images, strict=True):
        tokens += [counted(start, length), grid(start + length, *map(centred, image[1:]))]
        start += length + max(image[1:])
    return tokens


def z_image(shape: Shape, text: int) -> list[Tokens]:
    """The caption counts on the first coordinate from 1, and frames after it; both are padded to multiples of 32."""
    caption, image = text + -text % 32, int(np.prod(shape))
    first = range(caption + 1, caption + 1 + shape[0])
    return [grid(range(1, caption + 1), 0, 0), grid(first, *map(range, shape[1:])), repeated(-image % 32, 0, 0, 0)]


def lumina2(shape: Shape, text: int) -> list[Tokens]:
    """The caption counts on the first coordinate, where the image comes after it."""
    return [grid(range(text), 0, 0), grid(text, *map(range, shape[1:]))]


def ideogram4(shape: Shape, text: int) -> list[Tokens]:
    """Text counts in all coordinates, and the image from 65,536 in all."""
    first = 65_536
    require(text <= first, "text must end before the image, at {:,}, got {} tokens", first, text)
    return [counted(0, text), grid(first, *(range(first, first + n) for n in shape[1:]))]


def image(shape: Shape, text: int) -> list[Tokens]:
    """Row and column; text does not rotate."""
    return [repeated(text, 0, 0), grid(*map(range, shape[1:]))]


def cogview4(shape: Shape, text: int, *, sides: tuple[int, int]) -> list[Tokens]:
    """Row and column as rounded shares of `rope_axes_dim`, 256; text does not rotate."""
    scaled = [np.arange(n) * side // n for n, side in zip(shape[1:], sides, strict=True)]
    return [repeated(text, 0, 0), grid(*scaled)]


def table(shape: Shape, *, sides: tuple[int, int], floors: bool) -> list[Tokens]:
    """The number of a row of the learned table, of a grid from its middle; see `learned`. Text has no row."""
    height, width = shape[1:]
    require(height <= sides[0] and width <= sides[1], "shape must fit into the table, {}, got {}", sides, shape[1:])
    top, left = ((n // 2 - m // 2) if floors else (n - m) // 2 for n, m in zip(sides, shape[1:], strict=True))
    rows = np.arange(top, top + height)[:, None] * sides[1] + np.arange(left, left + width)
    return [grid(rows.reshape(-1))]


# Videos


def wan(shape: Shape) -> list[Tokens]:
    """Frame, row and column."""
    return [grid(*map(range, shape))]


def chronoedit(shape: Shape, *, skip: int) -> list[Tokens]:
    """Frame, row and column; of two frames, the second is at `rope_temporal_skip_len` - 1."""
    return [grid(np.array([0, skip - 1]) if shape[0] == 2 else range(shape[0]), *map(range, shape[1:]))]


def hunyuan_video(shape: Shape, text: int) -> list[Tokens]:
    """Frame, row and column; text does not rotate."""
    return [repeated(text, 0, 0, 0), *wan(shape)]


def cogvideox(shape: Shape, text: int, *, sides: tuple[int, int]) -> list[Tokens]:
    """Frame, and row and column, scaled so that the video fits into the middle of the training size."""
    height, width = shape[1:]
    fits = [sides[0], round(sides[0] / height * width)]  # of equal height
    if height / width <= sides[0] / sides[1]:
        fits = [round(sides[1] / width * height), sides[1]]
    scaled = []
    for count, whole, part in zip(shape[1:], sides, fits, strict=True):
        start = round((whole - part) / 2)
        step = (Fraction((start + part) * (count - 1), count) - start) / max(count - 1, 1)
        scaled.append(exact([start + step * i for i in range(count)]))
    return [repeated(text, 0, 0, 0), grid(range(shape[0]), *scaled)]


def kandinsky6(shape: Shape, references: Sequence[Shape] = ()) -> list[Tokens]:
    """Frame, row and column; the clean frame that an image gives comes last, at time 0."""
    same = all(image[1:] == shape[1:] for image in references)
    require(same, "references must hold a frame of the video, {}, got {}", shape[1:], references)
    return [*wan(shape), *(grid(0, *map(range, image[1:])) for image in references)]


def mochi(shape: Shape, text: int) -> list[Tokens]:
    """Frame, and row and column from the middle, scaled to the area of 192 × 192; text does not rotate."""
    step = 192 / (shape[1] * shape[2]) ** 0.5
    return [
        repeated(text, 0, 0, 0),
        grid(range(shape[0]), *((np.arange(n) + (1 - n) / 2) * step for n in shape[1:])),
    ]


def cosmos(shape: Shape, rate: Fraction | None = None) -> list[Tokens]:
    """Time in 1/24 second, row and column. A rate of 24 counts frames, as version 2.5 does."""
    message = "rate must be given for a video, got None for {} frames: 24 counts frames, as Cosmos 2.5 does"
    require(rate is not None or shape[0] == 1, message, shape[0])
    frame = Fraction(SECOND) / (rate or 24)
    return [grid(exact([i * frame for i in range(shape[0])]), *map(range, shape[1:]))]


def ltx(shape: Shape, rate: Fraction, *, steps: Shape, tops: Shape, causal: bool) -> list[Tokens]:
    """Start of frames in seconds, of rows and columns in pixels, from half of 20 seconds or 2,048 pixels."""
    frames = [max(i * steps[0] - 7 * causal, 0) for i in range(shape[0])]
    sides = zip(shape[1:], steps[1:], tops[1:], strict=True)
    times = exact([2 * frame * SECOND / rate - tops[0] for frame in frames])
    return [grid(times, *(np.arange(n) * 2 * step - top for n, step, top in sides))]


def ltx2(shape: Shape, rate: Fraction, *, steps: Shape, tops: Shape, offset: int, scale: int) -> list[Tokens]:
    """Middle of frames in seconds, of rows and columns in pixels, from half of 20 seconds or 2,048 pixels."""
    times = _middles(shape[0], steps[0], tops[0], offset, scale, 1 / rate)
    sides = zip(shape[1:], steps[1:], tops[1:], strict=True)
    return [grid(times, *(np.arange(1, 2 * n, 2) * step - top for n, step, top in sides))]


def ltx2_time(shape: Shape, rate: Fraction, *, steps: Shape, tops: tuple[int], offset: int, scale: int) -> list[Tokens]:
    """Middle of frames in seconds, from half of 20 seconds."""
    return [grid(_middles(shape[0], steps[0], tops[0], offset, scale, 1 / rate).repeat(shape[1] * shape[2]))]


def ltx2_audio(
    shape: tuple[int], *, steps: int, tops: tuple[int], offset: int, scale: int, seconds: Fraction
) -> list[Tokens]:
    """Middle of tokens in seconds, from half of 20 seconds."""
    return [grid(_middles(shape[0], steps, tops[0], offset, scale, seconds))]


def _middles(count: int, step: int, top: int, offset: int, scale: int, seconds: Fraction) -> np.ndarray:
    """Twice the middle of tokens of `step` frames, less `top`; the first latent, of `scale` frames, has `offset`."""
    edges = [max(step * i + offset - scale, 0) for i in range(count + 1)]
    return exact([(a + b) * SECOND * seconds - top for a, b in itertools.pairwise(edges)])


def sequence(shape: tuple[int, ...]) -> list[Tokens]:
    """Counts from 0."""
    return [grid(range(shape[0]))]


_IMAGES = flux, flux2, flux3, hidream, ovis, longcat, lumina2, qwen_image_21, ideogram4, image, cogview4, table
_VIDEOS = (
    qwen_image,
    z_image,
    wan,
    chronoedit,
    hunyuan_video,
    cogvideox,
    kandinsky6,
    mochi,
    cosmos,
    ltx,
    ltx2,
    ltx2_time,
)
PLACEMENTS: dict[str, Any] = {each.__name__: each for each in (*_IMAGES, *_VIDEOS, sequence, ltx2_audio)}
TIMED = {each.__name__ for each in _VIDEOS}  # they take frames, or layers
FLAT = {sequence.__name__, ltx2_audio.__name__}
# The number of coordinates, where it is not three
COORDINATES = {each.__name__: 4 for each in (flux2, flux3)} | {each.__name__: 2 for each in (image, cogview4)}
COORDINATES |= {each.__name__: 1 for each in (sequence, table, ltx2_time, ltx2_audio)}
