"""The plan of a vision tower: how its layers rotate, where its patches are, and how its table is resized."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.typing import ArrayLike

from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require, require_type
from posenc_jax.hf import _apply
from posenc_jax.hf._apply import Role
from posenc_jax.hf._patches import RESAMPLING, TABLES, PatchGrid, TowerTable, patch_positions, table_rows
from posenc_jax.hf._plan import RotaryPlan


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class VisionPlan(RotaryPlan):
    """How a vision tower rotates its queries and keys: a `RotaryPlan` with the positions of the patches.

    Examples:
      >>> from posenc_jax.hf import vision_rotary_from_config
      >>> config = {"model_type": "dinov3_vit", "hidden_size": 384}
      >>> config |= {"num_attention_heads": 6, "num_hidden_layers": 12}
      >>> plan = vision_rotary_from_config(config)
      >>> plan.layers[0].head_dim, plan.layout, plan.grids[0].leading, plan.grids[0].centres
      (64, 'half', 1, True)

    Args:
      layers: one `RotaryLayer` per layer, whose frequencies have one axis per coordinate of a patch.
      layout: which features form a pair; see `RotaryPlan`.
      part: see `RotaryPlan`.
      softmax_scale: see `RotaryPlan`.
      length: see `RotaryPlan`.
      indexer: see `RotaryPlan`.
      rotates_values: see `RotaryPlan`.
      grids: how patches are ordered and counted, one `PatchGrid` per layer.
      slices: the number of slices of a head that are rotated separately, each by one coordinate; the layout then
        applies within a slice. 1 means the whole head. Gemma 4 rotates half of a head by the column, and half by the
        row.
      table: how the tower's learned table is fitted to another grid, as below.

    Notes:
      The values of table:

      - "none": the tower has no table. "unknown": this plan does not say.
      - "linear" and "torch_cubic": resized as by PyTorch's `interpolate` or `grid_sample` with half-pixel centres.
      - "linear_zeros_exchanged": resized with zeros outside the table and to (width, height). The patches then take its
        rows in order, row by row (Muse).
      - "linear_aligned": resized with aligned corners (Qwen3-VL).
      - "tiled": repeated, not resized (SAM 3).
      - "by_coordinate": one row for the column plus one for the row (Gemma 4).
      - "fixed": for one grid only (Llama 4).
    """

    grids: tuple[PatchGrid, ...] = ()
    slices: int = 1
    table: TowerTable = "unknown"

    @public
    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        grids = checks.sequence("grids", self.grids, "PatchGrid")
        fits = len(grids) == len(self.layers) and all(isinstance(grid, PatchGrid) for grid in grids)
        require_type(fits, "grids", "a sequence of PatchGrid, one for each layer", self.grids)
        slices = checks.positive_int("slices", self.slices)
        whole = all(layer.rotary_dim == layer.head_dim and layer.head_dim % (2 * slices) == 0 for layer in self.layers)
        require(whole or slices == 1, "slices must be 1 or divide the pairs of whole heads, got {}", slices)
        checks.one_of("table", self.table, TABLES)
        vars(self).update(grids=grids, slices=slices)  # frozen

    @property
    @public
    def resampling(self) -> dict[str, Any] | None:
        """The settings with which `resize_table` resizes the tower's table. None if the tower has no table.

        Raises a `ValueError` if the plan does not know them, or if `resize_table` alone cannot do it: see `table_rows`.
        """
        if self.table == "none":
            return None
        message = "table must be one of {} for resize_table alone, got {!r}: see table_rows"
        require(self.table in RESAMPLING, message, (*RESAMPLING,), self.table)
        return {**RESAMPLING[self.table]}

    @public
    def table_rows(self, table: ArrayLike, shape: Sequence[int]) -> jax.Array:
        """The rows of the learned table that the tower adds to the patches of one image or video.

        Examples:
          >>> import jax.numpy as jnp
          >>> from posenc_jax.hf import vision_rotary_from_config
          >>> plan = vision_rotary_from_config(
          ...     {"model_type": "qwen3_vl_vision", "hidden_size": 64, "num_heads": 2, "depth": 3})
          >>> plan.table, plan.resampling["align_corners"]
          ('linear_aligned', True)
          >>> table = jnp.array([[[0.0], [3.0]], [[10.0], [13.0]]])
          >>> plan.table_rows(table, (2, 4))[:, 0].tolist()
          [0.0, 1.0, 10.0, 11.0, 2.0, 3.0, 12.0, 13.0]

        Args:
          table: float array of shape (rows, columns, dim), without rows for class tokens. For Gemma 4, as in its
            checkpoint: (2, positions, dim), columns first.
          shape: (height, width) or (time, height, width), in patches; see `positions`.

        Returns:
          An array of shape (patches, dim) and the dtype of the table, in the order of `positions`, without rows for
          class or register tokens. Frames repeat the same rows. The sinusoid that Kimi K2.5 adds per frame is not
          included.

        Raises:
          TypeError: if table is not a float array, or shape is not a sequence of integers.
          ValueError: if the plan does not know how the tower uses a table, the tower has none, the table does not have
            these axes, or the tower does not accept the shape.

        Reference:
          Hugging Face transformers 5.23.0: vision_utils.py and the towers' own modules.
        """
        return table_rows(self.table, self.grids[0], table, shape)

    @public
    def positions(self, shape: Sequence[int], layer: int | None = None, *, merge_size: int | None = None) -> jax.Array:
        """The coordinates of the tokens of one image or video, in the order of the tower.

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

        Args:
          shape: (height, width) or (time, height, width), in patches before the tower merges them.
          layer: the index of the layer. It must be given if layers differ: layers of SAM 3 attend within windows or to
            the whole grid, and the last layers of EoMT have queries before the class token.
          merge_size: for VideoLLaMA 3, whose processor returns it with each image: 1 for an image, 2 for a video.

        Returns:
          An array of shape (tokens, axes). Its axes are (row, column), or (time, row, column) if time rotates pairs. It
          is int32, or float32 if coordinates are centres of patches (DINOv3). Class and register tokens are at 0 and
          are not rotated. For a layer that attends within windows, the array holds the tokens of one window.

        Raises:
          TypeError: if shape is not a sequence of integers, or layer or merge_size is not an integer.
          ValueError: if shape does not have two or three sides, or the tower cannot merge its sides or does not accept
            them.
          ValueError: if layer is missing where layers differ, or is out of range.
          ValueError: if merge_size is missing, or given to another tower.

        Notes:
          If several images share a sequence, concatenate their positions.

        Reference:
          Hugging Face transformers 5.23.0: vision_utils.py and the towers' own modules.
        """
        if layer is None and len({*self.grids}) == 1:
            layer = 0
        require(layer is not None, "layer must be given, because the layers of this tower differ, got None")
        index = _apply.parse_layer(layer, self.layers)
        expected = "a Python integer, because the number of tokens may depend on it"
        require_type(isinstance(index, int), "layer", expected, layer)
        grid = self.grids[index]
        if grid.merge:
            message = "merge_size must not be given, because it is {} in this tower, got {!r}"
            require(merge_size is None, message, grid.merge, merge_size)
        else:
            require(merge_size is not None, "merge_size must be given, because it comes with each image, got None")
            grid = dataclasses.replace(grid, merge=checks.positive_int("merge_size", merge_size))
        return patch_positions(grid, shape)

    @public
    def rotate(
        self,
        x: ArrayLike,
        layer: int | jax.Array,
        positions: ArrayLike | None = None,
        *,
        head_axis: int | tuple[int, ...] | None,
        role: Role | None = None,
        scaled: bool | None = None,
        parameters: Mapping[str, ArrayLike] | None = None,
    ) -> jax.Array:
        """Rotates the queries or the keys of one layer as the tower does.

        Examples:
          >>> import jax.numpy as jnp
          >>> from posenc_jax.hf import vision_rotary_from_config
          >>> plan = vision_rotary_from_config(
          ...     {"model_type": "gemma4_vision", "head_dim": 64, "num_hidden_layers": 2})
          >>> plan.rotate(jnp.ones((2, 15, 4, 64)), 0, plan.positions((3, 5)), head_axis=-2).shape
          (2, 15, 4, 64)

        Args:
          x: queries or keys, float array of shape (..., tokens, heads, head_dim). EfficientLoFTR rotates all heads as
            one: (..., tokens, hidden_size), with head_axis None.
          layer: the index of the layer; see `RotaryPlan.rotate`.
          positions: what `positions` returns, (tokens, axes), or an array that broadcasts to (..., tokens, axes).
          head_axis: the axis of the heads; see `rotary`.
          role: see `RotaryPlan.rotate`; no tower needs it.
          scaled: see `RotaryPlan.rotate`; no tower needs it.
          parameters: see `RotaryPlan.rotate`; no tower needs them.

        Returns:
          An array with the shape and dtype of x.

        Raises:
          TypeError: for the same reasons as in `RotaryPlan.rotate`.
          ValueError: if positions are None, or for the same reasons as in `RotaryPlan.rotate`.

        Reference:
          Hugging Face transformers 5.23.0: the attention of the towers' own modules.
        """
        options: Any = {"head_axis": head_axis, "role": role, "scaled": scaled, "parameters": parameters}
        rotate = functools.partial(super().rotate, layer=layer, positions=positions, **options)
        if self.slices == 1 or self.layout == "interleaved":
            return rotate(x)
        return _apply.rotate_slices(_apply.parse_width(x, {self.layers[0].head_dim}), self.slices, rotate)

    @public
    def shift_keys(self, keys: ArrayLike, layer: int | jax.Array, offset: ArrayLike, **options: Any) -> jax.Array:
        """See `RotaryPlan.shift_keys`. Raises a `ValueError` if slices of a head are rotated separately."""
        require(self.slices == 1, "slices must be 1 to move keys, got {}: rotate them at other positions", self.slices)
        return super().shift_keys(keys, layer, offset, **options)
