"""The plan of a diffusion transformer: how it rotates, and where its tokens are."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._frequencies.parser import parse_static
from posenc_jax._jax import checks
from posenc_jax._jax.checks import Layout
from posenc_jax._jax.errors import public, require, require_type
from posenc_jax._positions.sequences import LIMIT
from posenc_jax._rotary.rotary import rotary
from posenc_jax.hf._apply import rotate_slices
from posenc_jax.hf._placements import COORDINATES, FLAT, PLACEMENTS, TIMED, Tokens


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class DiffusionPlan:
    """How a diffusion transformer rotates its queries and keys, and where its tokens are.

    Plans are immutable and hashable, so they are static under `jax.jit`. A plan describes the attention that joins all
    tokens, which is the same in all blocks.

    Examples:
      >>> from posenc_jax.hf import diffusion_rotary_from_config
      >>> plan = diffusion_rotary_from_config({"_class_name": "WanTransformer3DModel"})
      >>> plan.placement, plan.layout, plan.frequencies
      ('wan', 'interleaved', Frequencies(dim=128, angular=1 … 0.000155052, num_axes=3))

    Args:
      frequencies: `Frequencies` with one axis per coordinate; of width 0 if they are learned (Mochi).
      head_dim: the number of features that are rotated together: the features of a head, or of all heads if each head
        has its own frequencies (LTX).
      layout: which features form a pair, "half" or "interleaved"; see `rotary`.
      placement: how tokens are placed; a name from the table on the page of diffusion models.
      settings: the settings of the placement, as pairs of a name and a value.
      text_first: whether text comes before images in the sequence that attends, or after them.
      references: the largest number of reference images that the model accepts.
      slices: the number of slices of `head_dim` that are rotated separately; the layout then applies within a slice.
      learned: the name of the learned frequencies, an array of shape (axes, heads, pairs), or None.
    """

    frequencies: Frequencies
    head_dim: int
    layout: Layout
    placement: str
    settings: tuple[tuple[str, Any], ...] = ()
    text_first: bool = True
    references: int = 0
    slices: int = 1
    learned: str | None = None

    @public
    def __post_init__(self) -> None:
        """Checks the fields."""
        f, head_dim = parse_static(self.frequencies, even=True), checks.positive_int("head_dim", self.head_dim)
        require(f.dim <= head_dim, "frequencies of width {} must fit into a head_dim of {}", f.dim, head_dim)
        checks.layout("layout", self.layout)
        checks.one_of("placement", self.placement, tuple(PLACEMENTS))
        axes = COORDINATES.get(self.placement, 3)
        fits = f.num_axes == axes or not f.dim
        require(fits, "frequencies must have {} axes for placement {!r}, got {}", axes, self.placement, f.num_axes)
        checks.flag("text_first", self.text_first)
        checks.integer("references", self.references, 0)
        slices = checks.positive_int("slices", self.slices)
        require(head_dim % (2 * slices) == 0, "slices must divide the pairs of head_dim, got {}", slices)
        require_type(isinstance(self.learned, str | None), "learned", "a string or None", self.learned)
        takes = {each.name: each.kind for each in _parameters(self.placement)}
        fits = not self.references or "references" in takes
        require(fits, "references must be 0 for placement {!r}, got {}", self.placement, self.references)
        names = sorted(name for name, kind in takes.items() if kind is inspect.Parameter.KEYWORD_ONLY)
        settings = checks.sequence("settings", self.settings, "pairs of a name and a value")
        fits = all(isinstance(each, tuple) and len(each) == 2 for each in settings)
        fits = fits and sorted(str(name) for name, _ in settings) == names
        require(fits, "settings must be pairs of {} and a value, got {!r:.60}", names, self.settings)
        vars(self).update(frequencies=f, settings=settings)  # frozen

    @public
    def positions(
        self,
        shape: Sequence[int],
        *,
        text: int | Sequence[int] | None = None,
        references: Sequence[Sequence[int]] | None = None,
        rate: float | Fraction | None = None,
    ) -> jax.Array:
        """The coordinates of every token of one sequence, in the order in which the model's attention joins them.

        Examples:
          >>> from posenc_jax.hf import diffusion_rotary_from_config
          >>> plan = diffusion_rotary_from_config({"_class_name": "Flux2Transformer2DModel"})
          >>> plan.positions((1, 2), text=2, references=[(1, 1)]).tolist()
          [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0], [10, 0, 0, 0]]

        Args:
          shape: the sides of the image, (height, width), or of the video, (frames, height, width), in tokens, that is,
            in patches of the latents; (length,) for text or audio alone.
          text: the number of text tokens, including padding that attends. It must be given if text and image attend to
            each other. For Qwen-Image 2.1 with references, a sequence: the number of text tokens before each image.
          references: the sides of each reference image, (height, width), in tokens; none by default. For a layered
            Qwen-Image, whose frames are the images of its output, the condition image; for Kandinsky 6, a clean frame.
          rate: frames per second. It must be given for LTX, and for videos of Cosmos, where 24 counts frames, as
            version 2.5 does. Rates such as 24,000/1,001 are exact as a float or as a `Fraction`.

        Returns:
          An array of shape (tokens, axes), or (tokens,) for one axis. It is int32, or float32 if a coordinate is not an
          integer. Tokens that are not rotated are at 0 in all coordinates. Coordinates of LTX are integers in units of
          1/240,000 s and of pixels, at all common rates, so that their angles are exact.

        Raises:
          TypeError: if a size is not an integer, or rate is not a number.
          ValueError: if a size is missing that the model needs, or is given to a model that does not accept it.
          ValueError: if shape does not have the sides of the model, a side is below 1, there are too many references,
            text runs into the image, or a coordinate is beyond int32.

        Reference:
          Hugging Face diffusers 0.42.1: the models' own modules, and their pipelines.
        """
        takes = {each.name: each.default is each.empty for each in _parameters(self.placement)}
        sizes: dict[str, Any] = {"shape": _parse_shape("shape", shape, self.placement)}
        if images := _parse_references(self, references):
            sizes["references"] = images
        for name, value, parse in (("text", text, _parse_text), ("rate", rate, _parse_rate)):
            require(name in takes or value is None, "{} must not be given to this model, got {!r:.60}", name, value)
            require(value is not None or not takes.get(name), "{} must be given for this model, got None", name)
            if value is not None:
                sizes[name] = parse(self, value)
        parts = PLACEMENTS[self.placement](**sizes, **dict(self.settings))
        if not self.text_first:
            parts = [*parts[1:], parts[0]]
        return jax.device_put(_stacked(parts))

    @public
    def rotate(
        self,
        x: ArrayLike,
        positions: ArrayLike,
        *,
        head_axis: int | tuple[int, ...] | None,
        parameters: Mapping[str, ArrayLike] | None = None,
    ) -> jax.Array:
        """Rotates the queries or the keys of any layer as the model does.

        Examples:
          >>> import jax.numpy as jnp
          >>> from posenc_jax.hf import diffusion_rotary_from_config
          >>> plan = diffusion_rotary_from_config({"_class_name": "QwenImageTransformer2DModel"})
          >>> positions = plan.positions((4, 6), text=5)
          >>> plan.rotate(jnp.ones((1, 29, 24, 128)), positions, head_axis=-2).shape
          (1, 29, 24, 128)

        Args:
          x: queries or keys, float array of shape (..., tokens, heads, head_dim). LTX rotates all heads as one: (...,
            tokens, heads · head_dim), with head_axis None.
          positions: what `positions` returns, (tokens, axes), or an array that broadcasts to (..., tokens, axes).
          head_axis: the axis of the heads; see `rotary`.
          parameters: the learned frequencies by name, for Mochi: {"pos_frequencies": array of shape (axes, heads,
            pairs)}.

        Returns:
          An array with the shape and dtype of x.

        Raises:
          TypeError: if positions are None, parameters are not a mapping, or for the same reasons as in `rotary`.
          ValueError: if x does not have head_dim features, learned frequencies are missing, the model adds a table
            instead of rotating, or for the same reasons as in `rotary`.

        Reference:
          Hugging Face diffusers 0.42.1: the attention of the models' own modules.
        """
        require_type(positions is not None, "positions", "an array, as `positions` gives it", positions)
        frequencies: Any = self.frequencies
        message = "a plan must have frequencies to rotate: its model adds rows of a table, see positions and learned"
        require(self.learned or frequencies.dim, message)
        x, width = checks.floats("x", x, (..., "head_dim"), static_axes=(-1,)), self.head_dim
        merged = " of all heads, which rotate as one with head_axis=None" * self.placement.startswith("ltx")
        require(x.shape[-1] == width, "x must have {} features{}, got shape {}", width, merged, x.shape)
        if self.learned:
            require_type(isinstance(parameters, Mapping | None), "parameters", "a mapping to arrays", parameters)
            array = (parameters or {}).get(self.learned)
            require(array is not None, "parameters must hold {!r}, the learned frequencies, got None", self.learned)
            frequencies = checks.floats(self.learned, array, ("axes", "heads", "pairs")).swapaxes(0, 1)

        def rotate(x: jax.Array) -> jax.Array:
            return rotary(x, positions, frequencies, head_axis=head_axis, layout=self.layout)

        return rotate_slices(x, self.slices, rotate)


# Sizes


def _parameters(placement: str) -> Iterable[inspect.Parameter]:
    """The sizes and the settings of a placement."""
    return inspect.signature(PLACEMENTS[placement]).parameters.values()


def _parse_shape(name: str, value: Any, placement: str) -> tuple[int, ...]:
    """(length,), or (frames, height, width) of an image too."""
    sides = checks.positive_ints(name, value)
    for side in sides:
        limited(name, side)
    if placement in FLAT:
        require(len(sides) == 1, "{} must be (length,), in tokens, got {}", name, sides)
        return sides
    expected = "(height, width)" + " or (frames, height, width)" * (placement in TIMED)
    require(2 <= len(sides) <= 2 + (placement in TIMED), "{} must be {}, in tokens, got {}", name, expected, sides)
    return (1, *sides)[-3:]


def _parse_text(plan: DiffusionPlan, value: Any) -> Any:
    if plan.placement != "qwen_image_21":
        return limited("text", checks.integer("text", value, 0))
    lengths = (
        [value]
        if isinstance(value, (int, np.integer))
        else checks.sequence("text", value, "integers, one before each image")
    )
    return tuple(limited(f"text[{i}]", checks.integer(f"text[{i}]", n, 0)) for i, n in enumerate(lengths))


def limited(name: str, value: int) -> int:
    """A size, below 2²⁴."""
    require(value < 2**24, "{} must be below 2²⁴, got {!r:.60}", name, value)
    return value


def _parse_references(plan: DiffusionPlan, value: Any) -> tuple[tuple[int, ...], ...]:
    images = checks.sequence("references", () if value is None else value, "(height, width)")
    message = "references must hold at most {} images for this model, got {}"
    require(len(images) <= plan.references, message, plan.references, len(images))
    return tuple(_parse_shape(f"references[{i}]", image, "image") for i, image in enumerate(images))


def _parse_rate(plan: DiffusionPlan, value: Any) -> Fraction:
    if isinstance(value, Fraction):
        require(value > 0, "rate must be positive, got {}", value)
        return value
    value = checks.positive("rate", value)
    near = Fraction(value).limit_denominator(1001)  # 24,000 / 1,001 frames per second
    return near if float(near) == value else Fraction(value)


# Tokens


def _stacked(parts: Sequence[Tokens]) -> np.ndarray:
    """The coordinates of all tokens, (tokens, axes) or (tokens,)."""
    sizes = [[len(axis) for axis in part.coordinates] for part in parts]
    count = sum(n[0] if part.together else math.prod(n) for n, part in zip(sizes, parts, strict=True))
    require(count < LIMIT, "the sequence must have fewer than 2³¹ tokens, got {}", count)
    sides = [axis for part in parts for axis in part.coordinates]
    last = max(np.abs(axis).max(initial=0) for axis in sides)
    require(last < LIMIT, "coordinates must fit into int32, got up to {}", last)
    dtype = np.int32 if all(axis.dtype.kind == "i" for axis in sides) else np.float32
    rows = [part.coordinates if part.together else np.meshgrid(*part.coordinates, indexing="ij") for part in parts]
    result = np.concatenate([np.stack(each, -1).reshape(-1, len(each)).astype(dtype) for each in rows])
    return result if result.shape[-1] > 1 else result[:, 0]
