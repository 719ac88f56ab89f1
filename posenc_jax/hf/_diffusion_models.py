"""What the code of each diffusion transformer does that no config.json contains, by its `_class_name`.

`facts.json` has the keys of each class that concern positions, and its values for those that a config leaves out. By
hand stays what no class says as a value, read from diffusers' `transformer_*.py` and from its pipelines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from posenc_jax._jax.checks import Layout

BASE = 10_000.0  # of every class whose config has no rope_theta
MANY = 2**16  # reference images, where the model sets no limit


class DiffusionModel(NamedTuple):
    """The facts of a class."""

    placement: str  # how tokens are placed, a function of `_placements.py`
    # The widths of the coordinates: their key, or how they follow from the width of a head; None: see `_diffusion.py`
    widths: str | Callable[[int], tuple[int, ...]] | None = "axes_dims_rope"
    # The key of the width of a head, or those of the width of all heads and of their number
    head: tuple[str, ...] = ("attention_head_dim",)
    layout: Layout = "interleaved"
    text_first: bool = True  # in the sequence that attends
    references: int = 0  # the most reference images that it takes
    streams: tuple[str, ...] = ()  # what rotates in its own way, the default first


def thirds(head_dim: int) -> tuple[int, ...]:
    """A third of the pairs for row and for column, rounded down, the others for the frame."""
    side = 2 * (head_dim // 6)
    return head_dim - 2 * side, side, side


def quarters(head_dim: int) -> tuple[int, ...]:
    """A quarter for the frame, three eighths for row and for column."""
    return head_dim // 4, head_dim // 8 * 3, head_dim // 8 * 3


def halves(head_dim: int) -> tuple[int, ...]:
    """A half for row and for column."""
    return head_dim // 2, head_dim // 2


_VIDEO = DiffusionModel("wan", thirds)
_HUNYUAN = DiffusionModel("hunyuan_video", "rope_axes_dim", text_first=False)
_KANDINSKY = DiffusionModel("wan", "axes_dims", ())

_GROUPS: dict[str, DiffusionModel] = {
    # images
    "FluxTransformer2DModel": DiffusionModel("flux", references=1),
    "BriaTransformer2DModel ChromaTransformer2DModel Krea2Transformer2DModel": DiffusionModel("flux"),
    "BriaFiboTransformer2DModel": DiffusionModel("flux", references=MANY),
    "HiDreamImageTransformer2DModel": DiffusionModel("hidream", text_first=False),
    "Flux2Transformer2DModel": DiffusionModel("flux2", references=MANY),
    "Flux3Transformer2DModel": DiffusionModel("flux3", references=MANY),
    "OvisImageTransformer2DModel": DiffusionModel("ovis"),
    "LongCatImageTransformer2DModel": DiffusionModel("longcat", references=1),
    "QwenImageTransformer2DModel": DiffusionModel("qwen_image", references=MANY),
    "QwenImage21Transformer2DModel": DiffusionModel("qwen_image_21", references=MANY),
    "ZImageTransformer2DModel": DiffusionModel("z_image", "axes_dims", ("dim", "n_heads"), text_first=False),
    "Lumina2Transformer2DModel": DiffusionModel("lumina2", "axes_dim_rope", ("hidden_size", "num_attention_heads")),
    "Ideogram4Transformer2DModel": DiffusionModel("ideogram4", None, layout="half"),
    "HunyuanImageTransformer2DModel": DiffusionModel("image", "rope_axes_dim", text_first=False),
    "CogView4Transformer2DModel": DiffusionModel("cogview4", halves, layout="half"),
    "GlmImageTransformer2DModel": DiffusionModel("image", halves, layout="half"),
    # rows of tables
    "SD3Transformer2DModel AuraFlowTransformer2DModel": DiffusionModel("table", None),
    # videos
    (
        "WanTransformer3DModel WanVACETransformer3DModel WanAnimateTransformer3DModel SkyReelsV2Transformer3DModel "
        "SanaVideoTransformer3DModel"
    ): _VIDEO,
    "ChronoEditTransformer3DModel": _VIDEO._replace(placement="chronoedit"),
    "HunyuanVideoTransformer3DModel HunyuanVideo15Transformer3DModel MotifVideoTransformer3DModel": _HUNYUAN,
    "CogVideoXTransformer3DModel": DiffusionModel("cogvideox", quarters),
    "MochiTransformer3DModel": DiffusionModel("mochi", None, text_first=False),
    "CosmosTransformer3DModel": DiffusionModel("cosmos", thirds, layout="half"),
    "Kandinsky5Transformer3DModel": _KANDINSKY._replace(streams=("video", "text")),
    "Kandinsky6Transformer3DModel": _KANDINSKY._replace(
        placement="kandinsky6", references=1, streams=("video", "text", "audio", "audio_text")
    ),
    "LTXVideoTransformer3DModel": DiffusionModel("ltx", None),
    "LTX2VideoTransformer3DModel": DiffusionModel(
        "ltx2", None, streams=("video", "audio", "video_cross", "audio_cross")
    ),
}
MODELS = {name: model for names, model in _GROUPS.items() for name in names.split()}

_REASONS = {
    "it attends to histories of frames, whose positions its pipeline counts": """
        AnyFlowFARTransformer3DModel AnyFlowTransformer3DModel HeliosTransformer3DModel
        HunyuanVideoFramepackTransformer3DModel WanAnimate2Transformer3DModel""",
    "its images are among the tokens of a language model, and its pipeline counts all of them": """
        Cosmos3OmniTransformer MiniMaxH3Transformer3DModel OmniGenTransformer2DModel""",
    "this library does not know where its pipeline places tokens": """
        AllegroTransformer3DModel ConsisIDTransformer3DModel EasyAnimateTransformer3DModel HunyuanDiT2DModel
        JoyImageEditPlusTransformer3DModel JoyImageEditTransformer3DModel LuminaNextDiT2DModel""",
    "its tokens attend in tiles, and so in another order": "Kandinsky6SRTransformer3DModel",
    "its cameras rotate features too: see prope": "SanaWMLTX2RefinerTransformer3DModel SanaWMTransformer3DModel",
    "its text becomes tokens whose number depends on the text's length": "BriaFibo2Transformer2DModel",
    "its queries are those of the image alone, and its keys those of text too": """
        NucleusMoEImageTransformer2DModel PRXTransformer2DModel""",
    "it gives the two features of a pair different angles, which is no rotation": "ErnieImageTransformer2DModel",
    "its positions are 0, 1, 2, …: use rotary": """
        AceStepTransformer1DModel LongCatAudioDiTTransformer MiniMaxMusic3RVQDepthDecoder
        MiniMaxMusic3Transformer1DModel StableAudio3DiTModel StableAudioDiTModel""",
    "it does not rotate: sinusoidal, learned and grid_positions make the tables that such models add": """
        CogView3PlusTransformer2DModel DiTTransformer2DModel DreamLiteTransformer2DModel LatteTransformer3DModel
        PixArtTransformer2DModel PriorTransformer RFD4ProteinaTransformer SanaTransformer2DModel T5FilmDecoder
        Transformer2DModel TransformerTemporalModel""",
}
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}
