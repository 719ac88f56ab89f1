"""What the code of vision towers in transformers 5.23.0 does that no config.json contains.

Every entry was read from the tower's `modeling_*.py` and `configuration_*.py`.

A field of `Tower` is a fact that at least two towers share. What one tower alone does is in `_tower_quirks.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

# How the rows of a learned table reach the patches of an image
TowerTable = Literal[
    "unknown",
    "none",
    "linear",
    "linear_aligned",
    "linear_zeros_exchanged",
    "torch_cubic",
    "tiled",
    "by_coordinate",
    "fixed",
]
_HEADS = ("num_attention_heads",)
_EITHER_HEADS = ("num_heads", *_HEADS)


@dataclasses.dataclass(frozen=True)
class Tower:
    """The facts of a tower's model_type.

    "By default" means: where the config does not have the key.
    """

    # The spectrum
    theta: float = 10_000.0  # the base by default
    axes: tuple[int, ...] = (0, 1)  # the coordinate of each spectrum: row, column, or of three: frame, row, column
    # The pairs of the axes: one block each; in turn; or halved, the frequencies of one spectrum in turn
    pairs: Literal["blocks", "alternating", "halved"] = "blocks"
    layout: Literal["half", "interleaved"] = "half"
    in_cycles: bool = False  # coordinates are in cycles, not radians

    # The positions
    centres: bool = False  # centres of patches from -1 to 1, instead of indices
    offset: int = 0  # of indices
    frames: bool = True  # the tower takes several frames in one sequence
    leading: int = 0  # tokens before the patches that do not rotate
    squares: str | None = None  # the key of the side of squares whose patches follow each other; 2 by default
    windows: Literal["window_size", "pos_emb_height"] | None = None  # the key of windows, whose patches do too

    # The learned table that is added to the patches
    table: TowerTable = "none"

    # The keys
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = _HEADS  # hidden / heads features rotate together; (): hidden features
    depth: tuple[str, ...] = ("num_hidden_layers",)
    rope_types: tuple[str, ...] = ("axial", "default")  # transformers takes "default" for "axial"
    base_keys: tuple[str, ...] = ("rope_theta",)  # outside rope_parameters
    ignores_settings: bool = False  # rope_parameters are not read
    defaults: Mapping[str, int] = dataclasses.field(default_factory=dict)  # of keys that other towers may not read
    unread: tuple[str, ...] = ()  # keys that concern positions and change no rotation


def _all(names: str, **facts: Any) -> dict[str, Tower]:
    return {name: Tower(**facts) for name in names.split()}


_DEPTH: Any = {"heads": _EITHER_HEADS, "depth": ("depth", "num_hidden_layers")}
_SQUARES: Any = {"squares": "spatial_merge_size"}
_DINO: Any = {
    "theta": 100.0,
    "in_cycles": True,
    "centres": True,
    "frames": False,
    "leading": 1,
    "rope_types": ("default",),
    "unread": ("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"),  # of training
}
_MEMORY: Any = {
    "axes": (1, 0),
    "layout": "interleaved",
    "base_keys": ("rope_theta", "memory_attention_rope_theta"),
    "hidden": ("memory_attention_hidden_size",),
    "heads": ("memory_attention_num_attention_heads",),
    "depth": ("memory_attention_num_layers",),
    "defaults": {"memory_attention_downsample_rate": 1},
    "unread": ("memory_attention_rope_dropout", "enable_temporal_pos_encoding_for_object_pointers"),
}
_MUSE: Any = {
    "axes": (1, 0),
    "offset": 1,
    "windows": "pos_emb_height",
    "unread": ("pos_emb_width", "layer_types", "merge_size"),
}

TOWERS: dict[str, Tower] = {
    # row, then column, half layout; squares of patches follow each other
    **_all("qwen2_vl_vision", **_DEPTH, **_SQUARES, hidden=("embed_dim",)),
    **_all("ernie4_5_vl_moe_vision", **_DEPTH, **_SQUARES, unread=("temporal_merge_size",)),
    **_all("glm5_next_vision glm_ocr_vision", **_DEPTH, **_SQUARES),
    **_all("glm4v_moe_vision glm4v_vision", **_DEPTH, **_SQUARES, table="torch_cubic"),
    **_all(
        "cohere_compass_vision qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision "
        "qwen3_vl_vision qwen4_exp_vision",
        **_DEPTH,
        **_SQUARES,
        table="linear_aligned",
        unread=("num_position_embeddings",),
    ),
    **_all(
        "dots3_note_vision_encoder",
        **_SQUARES,
        hidden=("embed_dim", "hidden_size"),
        heads=_EITHER_HEADS,
        unread=("adapter_merge_size",),
    ),
    **_all("lfm3_vl_vision", **_SQUARES, theta=1e6),
    # and windows of squares
    **_all(
        "exaone4_5_vision qwen2_5_omni_vision_encoder qwen2_5_vl_vision",
        **_DEPTH,
        **_SQUARES,
        windows="window_size",
        unread=("fullatt_block_indexes",),
    ),
    # row, then column, half layout; row by row
    **_all("paddleocr_vl_vision", table="linear", unread=("spatial_merge_size",)),
    **_all("video_llama_3_vision"),
    **_all("mlcd_vision_model", frames=False),
    # column first
    **_all(
        "step3p5_vision",
        axes=(1, 0),
        frames=False,
        table="linear",
        hidden=("width", "hidden_size"),
        heads=("heads", "num_attention_heads"),
        depth=("layers", "num_hidden_layers"),
    ),
    **_all(
        "kimi_k25_vision",
        axes=(1, 0),
        pairs="alternating",
        table="torch_cubic",
        unread=("pos_emb_height", "pos_emb_width", "pos_emb_time", "merge_kernel_size"),
    ),
    **_all("muse_glimmer_vision muse_spark_vision", **_MUSE, table="linear_zeros_exchanged"),
    **_all(
        "inkling2_vision",
        **_SQUARES,
        axes=(1, 0),
        layout="interleaved",
        offset=1,
        leading=1,
        table="linear",
        unread=("posemb_grid_size",),
    ),
    **_all(
        "llama4_vision_model",
        axes=(1, 0),
        layout="interleaved",
        offset=1,
        frames=False,
        table="fixed",
        rope_types=("default", "mllama4"),
    ),
    **_all(
        "sam3_vit_model",
        axes=(1, 0),
        layout="interleaved",
        frames=False,
        table="tiled",
    ),
    **_all(
        "gemma4_vision",
        theta=100.0,
        axes=(1, 0),
        frames=False,
        table="by_coordinate",
        hidden=("head_dim",),
        heads=(),
        defaults={"head_dim": 64},
        unread=("position_embedding_size",),
    ),
    # other spectra
    **_all("pixtral", pairs="halved", frames=False),
    **_all("minimax_m3_vl_vision", **_SQUARES, axes=(0, 1, 2)),
    **_all("dinov3_vit", **_DINO, defaults={"num_register_tokens": 0}, ignores_settings=True),
    **_all("sapiens2", **_DINO, defaults={"num_register_tokens": 8}, ignores_settings=True),
    **_all("eomt_dinov3", **_DINO, defaults={"num_register_tokens": 4}),
    # not of images, but of features or memories of images
    **_all("edgetam_video sam2_video sam3_tracker_video", **_MEMORY),
    **_all(
        "efficientloftr",
        pairs="alternating",
        layout="interleaved",
        offset=1,
        frames=False,
        heads=(),
        depth=("num_attention_layers",),
        rope_types=("default",),
    ),
}

# The towers of composites whose vision_config may leave out its type: those that may also be others, and the rest.
CHOSEN = {
    "chmv2": "dinov3_vit",
    "cosmos3_omni": "qwen3_vl_vision",
    "diffusion_gemma": "gemma4_vision",
    "embedding_gemma2": "gemma4_vision",
    "glm46v": "glm4v_vision",
    "glmga": "glm4v_vision",
    "hyperclovax_vision_v2": "qwen2_5_vl_vision",
    "lighton_ocr": "pixtral",
    "mistral3": "pixtral",
    "mistral_large4": "pixtral",
    "sam3_lite_text": "sam3_vision_model",
    "sam3_tracker": "sam3_vision_model",
    "sam3_vision_model": "sam3_vit_model",
}
FIXED = {
    "dots3_note": "dots3_note_vision_encoder",
    "inkling2_loop": "inkling2_vision",
    "llama4": "llama4_vision_model",
    "mlcd": "mlcd_vision_model",
    "qwen2_5_omni": "qwen2_5_omni_vision_encoder",
    "qwen2_5_omni_thinker": "qwen2_5_omni_vision_encoder",
    "qwen3_omni_moe": "qwen3_omni_moe_vision_encoder",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_vision_encoder",
    "sam3": "sam3_vision_model",
    "step3p7": "step3p5_vision",
    **{name.removesuffix("_vision"): name for name in TOWERS if name.endswith("_vision") and name != "step3p5_vision"},
}

_REASONS = {
    "it gives the two features of a pair different angles, which is no rotation": "vjepa2",
    "it matches points of images by learned projections of their coordinates": "lightglue",
    "it is two models: read its detector_config or tracker_config": "sam3_video",
    "it holds an encoder that rotates by the place in a sequence: give rotary_from_config its encoder_config": """
        deepseek_ocr2_vision""",
    "it has no rotary embedding: content_bias computes the biases of its tokens": """
        deepseek_ocr2_sam_vision_model got_ocr2_vision pp_formulanet_vision sam sam_hq sam_hq_vision_model
        sam_vision_model seggpt slanext slanext_vision unlimited_ocr_sam_vision_model vitdet""",
    "it has no rotary embedding": """
        aimv2_vision_model apertus1p5_vision_tokenizer clip_vision_model cosmos3_edge_vision dinov2 emu3_vqgan
        gemma3n_vision gemma4_unified_vision glm_image_vision granite_docling_vision hunyuan_vl_vision
        hy_v4_vl_vision idefics2_vision
        idefics3_vision idefics_vision internvl_vision janus_vision_model minicpmv4_7_vision
        mllama_vision_model molmo2_vision phi4_multimodal_vision sam2_vision_model siglip2_vision_model
        siglip_vision_model vit""",
}
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}
