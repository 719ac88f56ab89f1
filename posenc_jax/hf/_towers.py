"""What the code of vision towers does that no config.json contains.

`facts.json` has what a release of transformers says itself: sizes, bases, rope settings, keys and their names. By hand
stays here what no class says, read from the tower's `modeling_*.py`, and keys of files that its class does not take.

A field of `Tower` is a fact that at least two towers share. What one tower alone does is in `_tower_quirks.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from posenc_jax.hf._config import RAW
from posenc_jax.hf._models import FACTS, PARTS
from posenc_jax.hf._patches import TowerTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tower:
    """The facts of a tower's model_type."""

    # The spectrum
    axes: tuple[int, ...] = (0, 1)  # the coordinate of each spectrum: row, column, or of three: frame, row, column
    # The pairs of the axes: one block each; in turn; or halved, the frequencies of one spectrum in turn
    pairs: Literal["blocks", "alternating", "halved"] = "blocks"
    layout: Literal["half", "interleaved"] = "half"

    # The positions
    centres: bool = False  # centres of patches, from -1 to 1 and in cycles, instead of indices
    offset: int = 0  # of indices
    frames: bool = True  # the tower takes several frames in one sequence
    leading: int = 0  # tokens before the patches that do not rotate, beside num_register_tokens
    squares: bool = False  # patches of squares of spatial_merge_size follow each other
    windows: Literal["window_size", "pos_emb_height"] | None = None  # the key of windows, whose patches do too

    # The learned table that is added to the patches
    table: TowerTable = "none"

    # The keys
    hidden: str = "hidden_size"
    heads: str | None = "num_attention_heads"  # hidden / heads features rotate together; None: hidden features
    depth: str = "num_hidden_layers"
    names: Mapping[str, str]  # keys → their other names
    defaults: Mapping[str, Any]  # the class's values of keys
    rope: Mapping[str, Any]  # and of rope settings; its base alone if it reads no settings
    keys: tuple[str, ...]  # that its class has or takes, of those that may concern positions


_USUAL = {"rope_theta": 10_000.0, "rope_type": "default"}


def _all(types: str, *, also: str = "", **facts: Any) -> dict[str, Tower]:
    """Several types: the facts of their classes, and these; published files have the keys `also` too."""
    result = {}
    for name in types.split():
        release = FACTS["towers"][name]
        defaults, rope = release["defaults"], release.get("rope", _USUAL)
        names = release.get("names", {}) | facts.get("names", {})
        keys = *defaults, *names, *names.values(), *release.get("keys", ()), *also.split(), *(RAW if rope else ())
        of_release = {
            "rope": rope or {"rope_theta": defaults["rope_theta"]},
            "names": names | {other: key for key, other in names.items()},
            "defaults": defaults,
            "keys": tuple(dict.fromkeys(keys)),
        }
        result[name] = Tower(**facts | of_release)
    return result


_DINO: Any = {"centres": True, "frames": False, "leading": 1}
_COLUMN_FIRST: Any = {"axes": (1, 0)}
_INTERLEAVED: Any = _COLUMN_FIRST | {"layout": "interleaved"}
_MEMORY: Any = _INTERLEAVED | {
    "hidden": "memory_attention_hidden_size",
    "heads": "memory_attention_num_attention_heads",
    "depth": "memory_attention_num_layers",
    "names": {"rope_theta": "memory_attention_rope_theta"},
}

TOWERS: dict[str, Tower] = {
    # row, then column, half layout; squares of patches follow each other
    **_all("ernie4_5_vl_moe_vision glm5_next_vision glm_ocr_vision lfm3_vl_vision", squares=True),
    **_all("qwen2_vl_vision", squares=True, hidden="embed_dim"),
    **_all(
        "dots3_note_vision_encoder",
        squares=True,
        names={"hidden_size": "embed_dim", "num_attention_heads": "num_heads"},
    ),
    **_all("glm4v_moe_vision glm4v_vision", squares=True, table="torch_cubic"),
    **_all(
        "cohere_compass_vision qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision "
        "qwen3_vl_vision qwen4_exp_vision",
        squares=True,
        table="linear_aligned",
    ),
    # and windows of squares
    **_all("exaone4_5_vision qwen2_5_omni_vision_encoder qwen2_5_vl_vision", squares=True, windows="window_size"),
    # row, then column, half layout; row by row
    **_all("paddleocr_vl_vision", table="linear"),
    **_all("video_llama_3_vision"),
    **_all("mlcd_vision_model", frames=False),
    # column first
    **_all(
        "step3p5_vision",
        **_COLUMN_FIRST,
        frames=False,
        table="linear",
        names={"hidden_size": "width", "num_attention_heads": "heads", "num_hidden_layers": "layers"},
    ),
    **_all(
        "kimi_k25_vision",
        **_COLUMN_FIRST,
        pairs="alternating",
        table="torch_cubic",
        names={key: f"vt_{key}" for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")},
        also="mm_hidden_size",
    ),
    **_all(
        "muse_glimmer_vision muse_spark_vision",
        **_COLUMN_FIRST,
        offset=1,
        windows="pos_emb_height",
        table="linear_zeros_exchanged",
    ),
    **_all("inkling2_vision", **_INTERLEAVED, squares=True, offset=1, leading=1, table="linear"),
    **_all("llama4_vision_model", **_INTERLEAVED, offset=1, frames=False, table="fixed"),
    **_all("sam3_vit_model", **_INTERLEAVED, frames=False, table="tiled"),
    **_all("gemma4_vision", **_COLUMN_FIRST, frames=False, table="by_coordinate", hidden="head_dim", heads=None),
    # other spectra
    **_all("pixtral", pairs="halved", frames=False),
    **_all("minimax_m3_vl_vision", axes=(0, 1, 2), squares=True, also="position_embedding_type rope_mode"),
    **_all("dinov3_vit eomt_dinov3 sapiens2", **_DINO),
    # not of images, but of features or memories of images
    **_all("edgetam_video sam2_video sam3_tracker_video", **_MEMORY),
    **_all(
        "efficientloftr",
        pairs="alternating",
        layout="interleaved",
        offset=1,
        frames=False,
        heads=None,
        depth="num_attention_layers",
        also="partial_rotary_factor",
    ),
}
# The keys under which a composite config holds its tower.
TOWER_KEYS = "vision_config", "thinker_config", "backbone_config", "vlm_config"
_OLD_NAMES = {"mlcd": "mlcd_vision_model"}


def tower_type(name: str | None) -> str | None:
    """The type of the tower of a model_type; None if it has none, or may have any."""
    name = _OLD_NAMES.get(name or "", name)
    if name in TOWERS:
        return name
    parts = PARTS.get(name or "", {})
    return next(filter(None, (tower_type(parts[key]["type"]) for key in TOWER_KEYS if key in parts)), None)
