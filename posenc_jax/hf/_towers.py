"""A vision tower's config: the facts of its model_type, and the default values of its class for missing keys.

`facts.json` has what a release of transformers says itself: sizes, bases, rope settings, keys and their names. By hand
stays here what no class says, read from the tower's `modeling_*.py`, and keys of files that its class does not take.

A field of `Tower` is a fact that at least two towers share. What one tower alone does is in `_vision.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import RAW
from posenc_jax.hf._models import FACTS, PARTS, by_model_type, canonical_type
from posenc_jax.hf._patches import PatchGrid, TowerTable, parse_count
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._values import (
    Json,
    Values,
    agreed_value,
    check_agreement,
    parse_config,
    reject_refused,
    speaks_of_positions,
)


class Tower(NamedTuple):
    """The facts of a tower's model_type."""

    names: Mapping[str, str]  # keys → their other names
    defaults: Json  # the class's values of keys
    rope: Json  # and of rope settings; its base alone if it reads no settings
    keys: tuple[str, ...]  # that its class has or takes, of those that may concern positions
    squares: bool  # patches of squares of spatial_merge_size follow each other; by default if the class has the key

    # The spectrum
    axes: tuple[int, ...] = (0, 1)  # the coordinate of each spectrum: row, column, or of three: frame, row, column
    # The pairs of the axes: one block each; in turn; or halved, the frequencies of one spectrum in turn
    pairs: Literal["blocks", "alternating", "halved"] = "blocks"
    layout: Literal["half", "interleaved"] = "half"

    # The positions
    grid: PatchGrid = PatchGrid()  # without what keys say
    windows: Literal["window_size", "pos_emb_height"] | None = None  # the key of windows, whose patches do too
    shapes: tuple[str, ...] = ()  # the keys of the grids that the tower takes, without others; image_size is in pixels

    # The learned table that is added to the patches
    table: TowerTable = "none"

    # The keys
    hidden: str = "hidden_size"
    heads: str | None = "num_attention_heads"  # hidden / heads features rotate together; None: hidden features
    depth: str = "num_hidden_layers"


def _tower(name: str, *, also: str = "", **by_hand: Any) -> Tower:
    """The facts of a class, and those by hand; published files have the keys `also` too."""
    facts = {"names": {}, "keys": ()} | FACTS["towers"][name] | by_hand
    facts.setdefault("squares", "spatial_merge_size" in facts["defaults"])
    keys = *facts["defaults"], *facts["names"].values(), *facts["keys"], "model_type", "head_dim", "rope_theta"
    keys += *also.split(), *(RAW if "rope_type" in facts["rope"] else ())
    return Tower(**facts | {"keys": keys})


_COLUMN_FIRST: Any = {"axes": (1, 0)}
_INTERLEAVED: Any = _COLUMN_FIRST | {"layout": "interleaved"}
_MEMORY: Any = _INTERLEAVED | {
    "hidden": "memory_attention_hidden_size",
    "heads": "memory_attention_num_attention_heads",
    "depth": "memory_attention_num_layers",
    "names": {"rope_theta": "memory_attention_rope_theta"},
}
_STILL = PatchGrid(frames=False)

_GROUPS: dict[str, Any] = {
    # row, then column, half layout; squares of patches follow each other
    "ernie4_5_vl_moe_vision glm5_next_vision glm_ocr_vision lfm3_vl_vision": {},
    "qwen2_vl_vision": {"hidden": "embed_dim"},
    "dots3_note_vision_encoder": {"names": {"hidden_size": "embed_dim", "num_attention_heads": "num_heads"}},
    "glm4v_moe_vision glm4v_vision": {"table": "torch_cubic"},
    (
        "cohere_compass_vision qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision "
        "qwen3_vl_vision qwen4_exp_vision"
    ): {"table": "linear_aligned"},
    # and windows of squares
    "exaone4_5_vision qwen2_5_omni_vision_encoder qwen2_5_vl_vision": {"windows": "window_size"},
    # row, then column, half layout; row by row
    "paddleocr_vl_vision": {"squares": False, "table": "linear"},
    "video_llama_3_vision": {"grid": PatchGrid(merge=0)},
    "mlcd_vision_model": {"grid": _STILL},
    # column first
    "step3p5_vision": _COLUMN_FIRST
    | {
        "grid": _STILL,
        "table": "linear",
        "names": {"hidden_size": "width", "num_attention_heads": "heads", "num_hidden_layers": "layers"},
    },
    "kimi_k25_vision": _COLUMN_FIRST
    | {
        "pairs": "alternating",
        "table": "torch_cubic",
        "names": {
            "hidden_size": "vt_hidden_size",
            "num_attention_heads": "vt_num_attention_heads",
            "num_hidden_layers": "vt_num_hidden_layers",
        },
        "also": "mm_hidden_size",
    },
    "muse_glimmer_vision muse_spark_vision": _COLUMN_FIRST
    | {"grid": PatchGrid(offset=1), "windows": "pos_emb_height", "table": "linear_zeros_exchanged"},
    "inkling2_vision": _INTERLEAVED | {"grid": PatchGrid(offset=1, leading=1), "table": "linear"},
    "llama4_vision_model": _INTERLEAVED
    | {"grid": PatchGrid(offset=1, frames=False, trailing=1), "shapes": ("image_size",), "table": "fixed"},
    "sam3_vit_model": _INTERLEAVED | {"grid": _STILL, "table": "tiled"},
    "gemma4_vision": _COLUMN_FIRST | {"grid": _STILL, "table": "by_coordinate", "hidden": "head_dim", "heads": None},
    # other spectra
    "pixtral": {"pairs": "halved", "grid": _STILL},
    "minimax_m3_vl_vision": {
        "axes": (0, 1, 2),
        "grid": PatchGrid(timed=True),
        "also": "position_embedding_type rope_mode",
    },
    "dinov3_vit eomt_dinov3 sapiens2": {"grid": PatchGrid(centres=True, frames=False, leading=1)},
    # not of images, but of features or memories of images
    "edgetam_video": _MEMORY | {"shapes": ("memory_attention_rope_feat_sizes", "memory_attention_rope_k_sizes")},
    "sam2_video": _MEMORY | {"shapes": ("memory_attention_rope_feat_sizes",)},
    "sam3_tracker_video": _MEMORY,
    "efficientloftr": {
        "pairs": "alternating",
        "layout": "interleaved",
        "grid": PatchGrid(offset=1, frames=False),
        "heads": None,
        "depth": "num_attention_layers",
        "also": "partial_rotary_factor",
    },
}
TOWERS = {name: _tower(name, **by_hand) for name, by_hand in by_model_type(_GROUPS).items()}
# The keys under which a composite config holds its tower
_TOWER_KEYS = "vision_config", "thinker_config", "backbone_config", "vlm_config"


class TowerConfig(Values):
    """A tower's config, the facts of its model_type, and its rope settings.

    It has the keys that the class takes, under the names that the class has for them, and its values for missing ones.
    """

    def __init__(self, config: Any):
        """`config` may be that of a whole model; raises for a key of positions that the tower's class does not take."""
        values = _parse_tower_config(config, {})
        self.facts = facts = TOWERS[values["model_type"]]
        self.given = given = Values(values)
        reads = f"model_type {values['model_type']!r}"
        check_agreement(given.look_up(*RAW))
        self.settings = given.get_mapping(given.spelling(*RAW))
        self.settings.reject_unknown({*facts.rope, "type"}, reads)
        given.reject_unknown(facts.keys, reads, speaks_of_positions)
        for name, rope_type in self.settings.look_up("rope_type", "type").items():
            # transformers takes "default" for "axial"
            checks.one_of(name, rope_type, tuple(sorted({facts.rope["rope_type"], "default"})))
        taken = {key: value for key, value in values.items() if key in facts.keys}
        for key, other in facts.names.items():
            if other in values:
                taken[key] = agreed_value(given.look_up(key, other), None)
        super().__init__({"num_register_tokens": 0, "memory_attention_downsample_rate": 1, **facts.defaults, **taken})

    def rope_setting(self, name: str) -> float:
        """The number of a rope setting, which the config may have too, or that of the class."""
        default = self.get(name, default=self.facts.rope[name])
        check_agreement(self.look_up(name) | self.settings.look_up(name))
        return checks.positive(name, self.settings.get(name, default=default))

    def count(self, name: str, least: int = 1) -> int:
        """The value of a key that counts something."""
        return parse_count(name, self.values[name], least)


def _parse_tower_config(config: Any, part: Json, label: str = "config", depth: int = 4) -> dict[str, Any]:
    """The config of the tower in a config, at most `depth` levels deep; errors call the config `label`.

    `part` has the facts of a config that is a part of a composite.
    """
    require(depth, "config must hold its vision_config within four levels")
    config, name = parse_config(config, label)
    name = part["type"] if part.get("always") else name or part.get("type", "")
    name = {"mlcd": "mlcd_vision_model"}.get(name, name)  # as old files have it
    if name in TOWERS:
        return {**config.values, "model_type": name}
    composite = PARTS.get(name, {})
    if not composite:
        reject_refused(name, REFUSED)
    key = next((key for key in _TOWER_KEYS if key in composite), None)
    parts = config.look_up(*_TOWER_KEYS) if key or not composite else {}
    # An old tower may have the name of the whole model, but a whole model has no patch_size.
    if key and not parts and (label == "vision_config" or config.look_up("patch_size")):
        parts = {key: {**config.values, "model_type": None}}
    if parts:
        return agreed_value(
            {key: _parse_tower_config(value, composite.get(key, {}), key, depth - 1) for key, value in parts.items()}
        )
    require(name, "{}.model_type is missing: no key says how a vision tower rotates", label)
    require(not key, "model_type {!r} is a whole model, and {} is missing", name, key)
    has = ", ".join(composite)
    require(not composite, "model_type {!r} is a whole model without a vision tower: it has {}", name, has)
    require(not canonical_type(name), "model_type {!r} is no vision tower: rotary_from_config reads it", name)
    raise invalid(
        f"model_type {name!r} is not known as a vision tower, and no key says which coordinate rotates which pair: "
        "a known type may be written in its place only if the code of both rotates the same pairs by the same "
        "coordinates"
    )
