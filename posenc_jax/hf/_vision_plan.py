"""The plan of a vision tower: how its layers rotate, and where its patches are."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from posenc_jax import _checks
from posenc_jax._checks import InvalidType, public, require, require_type
from posenc_jax.hf import _apply
from posenc_jax.hf._apply import Role
from posenc_jax.hf._patches import PatchGrid, patch_positions
from posenc_jax.hf._plan import RotaryLayer, RotaryPlan


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class VisionPlan(RotaryPlan):
    r"""How a vision tower rotates its queries and keys: a `RotaryPlan` that knows where the patches are.

    Args:
      layers: as in `RotaryPlan`; their frequencies have one axis for each coordinate.
      layout: as in `RotaryPlan`.
      grids: how the patches are counted in each layer.
      parts: the number of parts of a head that rotate by themselves, each by one coordinate, so that the layout is that
        of a part; 1 for the whole head. In Gemma 4, half a head by the column and half by the row.

    Examples:
      >>> from posenc_jax.hf import vision_rotary_from_config
      >>> plan = vision_rotary_from_config(
      ...     {"model_type": "dinov3_vit", "hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 12})
      >>> plan.layers[0].head_dim, plan.grids[0].leading, plan.grids[0].centres
      (64, 1, True)
    """

    grids: tuple[PatchGrid, ...] = ()
    parts: int = 1

    @public
    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        grids = _checks.sequence("grids", self.grids, "PatchGrid")
        fits = len(grids) == len(self.layers) and all(isinstance(grid, PatchGrid) for grid in grids)
        require_type(fits, "grids", f"a sequence of {len(self.layers)} PatchGrid, one for each layer", self.grids)
        object.__setattr__(self, "grids", grids)
        parts = _checks.positive_int("parts", self.parts)
        fits = parts == 1 or all(_parts(layer, parts) for layer in self.layers)
        require(fits, "parts must be 1, or layers must have a spectrum for each of {} parts of a head", parts)

    @public
    def positions(self, shape: Any, layer: int | None = None, *, merge_size: int | None = None) -> jax.Array:
        r"""The coordinates of the tokens of one image or video, in the order in which the tower holds them.

        Concatenate those of several images that share a sequence.

        Args:
          shape: (height, width) or (time, height, width), in patches, before patches are merged.
          layer: the layer for which they are. It must be given where layers differ: those of SAM 3 attend within windows
            or to the whole grid, and the last of EoMT hold queries before the class token.
          merge_size: for VideoLLaMA 3, whose processor gives it with each image: 1 for an image, 2 for a video.

        Returns:
          An array of shape (tokens, axes): (row, column), or (time, row, column) where time turns pairs. int32, or
          float32 where coordinates are centres of patches (DINOv3). Class and register tokens are at 0, where nothing
          rotates. For a layer that attends within windows, the tokens of one window.

        Raises:
          TypeError: if shape is not a sequence of integers, or layer or merge_size is not an integer.
          ValueError: if shape has another number of sides, sides that the tower cannot merge, or is none of those that
            it takes; if layer is not given where layers differ, or is none of them; if merge_size is given or missing.

        Examples:
          >>> import jax.numpy as jnp
          >>> from posenc_jax.hf import vision_rotary_from_config
          >>> plan = vision_rotary_from_config(
          ...     {"model_type": "qwen3_vl_vision", "hidden_size": 64, "num_heads": 2, "depth": 3})
          >>> positions = plan.positions((2, 4))
          >>> positions.tolist()
          [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]
          >>> plan.rotate(jnp.ones((8, 2, 32)), 0, positions, head_axis=-2).shape
          (8, 2, 32)
        """
        if layer is None:
            require(len(set(self.grids)) == 1, "layer must be given, because the layers of this tower differ, got None")
            index: int | jax.Array = 0
        else:
            index = _apply.parse_layer(layer, [1] * len(self.grids))
        if not isinstance(index, int):
            raise InvalidType("layer must be a Python integer, because the number of tokens depends on it")
        return patch_positions(self._merged(self.grids[index], merge_size), shape)

    def _merged(self, grid: PatchGrid, merge_size: Any) -> PatchGrid:
        """The grid with the side of squares that comes with an image, where the tower reads it there."""
        if grid.merge:
            require(merge_size is None, "merge_size must not be given: it is {} in this tower, got {}", grid.merge, merge_size)
            return grid
        require(merge_size is not None, "merge_size must be given: it comes with each image, got None")
        return dataclasses.replace(grid, merge=_checks.positive_int("merge_size", merge_size))

    @public
    def rotate(
        self,
        x: jax.typing.ArrayLike,
        layer: int | jax.Array,
        positions: jax.typing.ArrayLike | None = None,
        *,
        head_axis: int | None,
        role: Role | None = None,
        scaled: bool | None = None,
    ) -> jax.Array:
        r"""Rotates the queries or the keys of one layer as the tower does; see `RotaryPlan.rotate`.

        Args:
          x: as there. In EfficientLoFTR, the heads rotate as one: (..., seq, hidden_size), with head_axis None.
          layer: as there.
          positions: (tokens, axes) as `positions` gives them, or more in front that broadcast to x.
          head_axis: as there.
          role: as there; not needed for any tower.
          scaled: as there; not needed for any tower.

        Returns:
          An array with the shape and dtype of x.

        Raises:
          TypeError: as there.
          ValueError: as there, or if positions are None.
        """
        if self.parts == 1:
            return super().rotate(x, layer, positions, head_axis=head_axis, role=role, scaled=scaled)
        _apply.parse_layer(layer, [z.head_dim for z in self.layers])
        parts, head_dim = self.parts, self.layers[0].head_dim
        x = _apply.parse_width(x, {head_dim})
        require(positions is not None, "positions must be given for coordinates of several axes, got None")
        positions = jnp.asarray(_checks.array("positions", positions))
        fits = positions.shape[-1:] == (parts,)
        require(fits, "positions must have a last axis of size {}, got shape {}", parts, positions.shape)
        if head_axis is not None:
            head_axis = _checks.integer("head_axis", head_axis)
            head_axis -= head_axis < 0
        inner = [_parts(layer, parts) for layer in self.layers]
        axes = [f.axes[0] for f in inner[0]]  # coordinate of each part
        layers = tuple(RotaryLayer(dataclasses.replace(f[0], axes=None), head_dim // parts) for f in inner)
        plan = RotaryPlan(layers, self.layout)
        y = plan.rotate(
            x.reshape(*x.shape[:-1], parts, head_dim // parts), layer, positions[..., axes], head_axis=head_axis
        )
        return y.reshape(x.shape)


def _parts(layer: RotaryLayer, parts: int) -> list[Any]:
    """The spectrum of each part of a head; none if the layer does not have that many."""
    f = layer.frequencies
    if f.dim != layer.head_dim or f.num_pairs % parts or f.num_axes != parts:
        return []
    size = f.num_pairs // parts
    found = [f[i * size : (i + 1) * size] for i in range(parts)]
    same = all(len(set(part.axes or ())) == 1 and part.turns == found[0].turns for part in found)
    return found if same else []
