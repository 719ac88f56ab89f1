"""What the model code of transformers 5.23.0 does that a config.json does not say.

Every entry was read from the model's `modeling_*.py` (which features make a pair, which layers rotate) and
`configuration_*.py` (the values that stand for missing keys).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Layer i is of type full_attention where (i + phase) % period == 0, else of type `other`."""

    period: int
    key: str | None = None  # the config key that sets the period
    phase: int = 1
    other: str = "sliding_attention"
    last: bool = False  # the last layer is full_attention in any case


@dataclasses.dataclass(frozen=True)
class Model:
    """The facts of a model_type."""

    layout: Literal["half", "interleaved"] | None = "half"  # None: as the config says
    theta: float | None = 10_000.0  # where no key says it
    partial: float | None = None  # where no key says it; None: the model rotates the whole head, whatever the keys say
    rotary_dim: int | None = None  # the same as a number of features (GPT-J)
    head_dim: int | None = None  # where the key is absent; None: hidden_size / num_attention_heads
    global_head_dim: int | None = None  # head_dim of full_attention layers (Gemma 4)
    required: bool = False  # the class has defaults for a config without rope settings; they are not guessed here
    nested: bool = False  # rope_parameters has an entry for each layer type
    thetas: Mapping[str, tuple[str, float]] | None = None  # type → the key of its theta in old configs, default
    scaled: tuple[str, ...] = ("full_attention",)  # the layer types to which an old rope_scaling applies
    pattern: Pattern | None = None  # layer_types where the key is absent
    typed: bool = False  # has layers of several kinds: layer_types are needed
    lists: tuple[str, ...] = ()  # the keys with lists of layers that the model reads
    sliding_only: bool = False  # full_attention layers have no positions
    windowless: bool = False  # but all layers have where sliding_window is null
    position: str | None = None  # the position_embedding_type of layers that rotate; "": may be absent; None: not read
    null_theta: bool = False  # a null rope_theta means that no layer has positions
    interval: int | None = None  # no_rope_layer_interval where the key is absent; 0: all rotate; None: not read
    layer_thetas: bool = False  # layer_rope_theta is read
    latent: bool | None = False  # None: if the config has a qk_rope_head_dim
    switched: bool = False  # rope_interleave is read, and wins over `layout`
    sections: tuple[int, ...] | None = None  # mrope_section where the key is absent; (): no sections; None: not read
    dealt: bool | None = False  # whether sections are interleaved; None: as the config says
    temperature: Literal["llama4", "beta", "written"] | None = None  # the query scale; "written": as the config says
    alpha: bool = False  # rope type "dynamic" reads alpha
    original_max: int | None = None  # a top-level original_max_position_embeddings where the key is absent (Phi-3)


def _all(names: str, **facts: Any) -> dict[str, Model]:
    return {name: Model(**facts) for name in names.split()}


_SIX, _FOUR = Pattern(6, "sliding_window_pattern"), Pattern(4, "sliding_window_pattern")
_LINEAR = Pattern(4, "full_attention_interval", other="linear_attention")
_GEMMA3 = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
_MODERNBERT = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 1e4)}
# transformers 5 forgets a legacy rope_theta for the sliding layers (4 did not); every published model has the default.
_OLMO3 = {"full_attention": ("rope_theta", 5e5), "sliding_attention": ("rope_theta", 5e5)}

MODELS: dict[str, Model] = {
    **_all(
        "arcee aria_text chameleon diffllama doge dots1 eurobert falcon falcon_h1 granite granite4_vision_text "
        "granite_docling_text granitemoe granitemoeshared hyperclovax jais2 "
        "llama ministral mistral olmo olmo2 olmoe qwen2 qwen2_moe qwen3_moe starcoder2"
    ),
    **_all("hunyuan_v1_dense hunyuan_v1_moe", alpha=True),
    **_all("apertus", theta=12e6, required=True),
    **_all("bitnet csm flex_olmo", theta=5e5),
    **_all("mllama_text_model", theta=5e5, lists=("cross_attention_layers",)),
    **_all("emu3_text_model mixtral phimoe", theta=1e6),
    **_all("gte", theta=160_000.0),
    **_all("jina_embeddings_v3", theta=20_000.0),
    **_all("nomic_bert", theta=1_000.0),
    **_all("internlm3 iquestcoder jetmoe qwen3 seed_oss", head_dim=128),
    **_all("hy_v3", theta=11_158_840.0, head_dim=128),
    **_all("gemma gemma2 vaultgemma", head_dim=256),
    **_all("gpt_oss", theta=150_000.0, head_dim=64, required=True),
    **_all("cwm", theta=1e6, head_dim=128, required=True),
    **_all("ministral3", theta=None, head_dim=128, required=True, temperature="beta"),
    # part of the head
    **_all("gpt_neox stablelm", partial=0.25),
    **_all("persimmon phi glm4_moe nemotron", partial=0.5),
    **_all("gpt_neox_japanese", partial=1.0),
    **_all("phi3 phi4_multimodal", partial=1.0, original_max=4096),
    **_all("minimax_m2", theta=5e6, partial=1.0, head_dim=128),
    **_all("solar_open", theta=1e6, partial=1.0, head_dim=128),
    # pairs of neighbours
    **_all("cohere ernie4_5_moe", layout="interleaved", theta=5e5),
    **_all("ernie4_5", layout="interleaved", theta=5e5, head_dim=128),
    **_all("helium", layout="interleaved", theta=1e5, head_dim=128),
    **_all("glm glm4", layout="interleaved", partial=0.5, head_dim=128),
    **_all("moonshine", layout="interleaved", partial=0.9),
    **_all("gptj codegen", layout="interleaved", partial=1.0, rotary_dim=64),
    **_all("openai_privacy_filter", layout="interleaved", theta=150_000.0, head_dim=64, required=True),
    # layers without positions, and without attention
    **_all("cohere2", layout="interleaved", pattern=_FOUR, sliding_only=True),
    **_all("afmoe", head_dim=128, pattern=Pattern(4, "global_attn_every_n_layers"), sliding_only=True),
    **_all("exaone4 exaone_moe", pattern=_FOUR, sliding_only=True, windowless=True),
    **_all("kolibri1", head_dim=128, typed=True, sliding_only=True, windowless=True),
    **_all("flint", head_dim=128, typed=True, sliding_only=True),
    **_all("smollm3", theta=2e6, interval=4),
    **_all("llama4_text", layout="interleaved", theta=5e5, head_dim=128, interval=4, temperature="llama4"),
    **_all("granite_swa granitemoe_swa", layer_thetas=True),
    **_all("granitemoehybrid", typed=True, position="rope"),
    **_all("minimax", theta=1e6, typed=True),
    **_all("olmo_hybrid", typed=True, null_theta=True),
    **_all("bamba", partial=0.5, typed=True, lists=("attn_layer_indices",)),
    **_all("recurrent_gemma", partial=0.5, typed=True, lists=("block_types",)),
    **_all("lfm2 lfm2_moe", theta=1e6, typed=True, lists=("full_attn_idxs",)),
    **_all("qwen3_next", partial=0.25, head_dim=256, pattern=_LINEAR),
    # a spectrum for each layer type
    **_all("gemma3_text t5gemma2_text t5gemma2_decoder", head_dim=256, thetas=_GEMMA3, pattern=_SIX),
    **_all("gemma3n_text", head_dim=256, thetas=_GEMMA3, pattern=Pattern(5)),
    **_all(
        "modernbert modernbert-decoder",
        thetas=_MODERNBERT,
        scaled=("full_attention", "sliding_attention"),
        pattern=Pattern(3, "global_attn_every_n_layers", phase=0),
    ),
    **_all("olmo3", thetas=_OLMO3, pattern=Pattern(4)),
    **_all(
        "gemma4_text gemma4_unified_text diffusion_gemma_text",
        head_dim=256,
        global_head_dim=512,
        nested=True,
        required=True,
        pattern=Pattern(6, last=True),
    ),
    **_all("laguna mellum zaya", partial=1.0, head_dim=128, nested=True, required=True, typed=True),
    **_all("mimo_v2_flash", partial=0.334, head_dim=192, nested=True, required=True, typed=True),
    **_all("beam", head_dim=128, nested=True, required=True, typed=True),
    **_all("lfm3", head_dim=128, nested=True, required=True, typed=True, lists=("full_attn_idxs",)),
    # latent attention
    **_all("axk1 deepseek_v3 glm4_moe_lite youtu", layout="interleaved", latent=True, switched=True),
    **_all("axk2 deepseek_v2 deepseek_v32 glm_moe_dsa", layout="interleaved", latent=True),
    **_all(
        "mistral4",
        layout="interleaved",
        theta=None,
        required=True,
        latent=True,
        switched=True,
        temperature="beta",
    ),
    **_all("minicpm3 hy_v4", latent=True),
    # positions of several coordinates
    **_all("qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text", theta=1e6, sections=(16, 24, 24)),
    **_all("paddleocr_vl_text", theta=5e5, head_dim=128, sections=(16, 24, 24)),
    **_all("glm4v_text glm_ocr_text", layout="interleaved", partial=1.0, sections=(8, 12, 12)),
    **_all("glm4v_moe_text", partial=0.5, sections=(8, 12, 12)),
    **_all("glm_image_text", partial=1.0, sections=(8, 12, 12)),
    **_all("qwen3_vl_text", theta=5e5, head_dim=128, sections=(24, 20, 20), dealt=True),
    **_all("qwen3_vl_moe_text", theta=5e5, sections=(24, 20, 20), dealt=True),
    **_all("qwen3_omni_moe_text", theta=1e6, sections=(24, 20, 20), dealt=True),
    **_all(
        "qwen3_5_text qwen3_5_moe_text",
        partial=0.25,
        head_dim=256,
        pattern=_LINEAR,
        sections=(11, 11, 10),
        dealt=True,
    ),
}

# An unknown model_type: its config must say everything.
UNKNOWN = Model(
    layout=None,
    theta=None,
    partial=1.0,
    lists=("attn_layer_indices", "full_attn_idxs", "block_types", "cross_attention_layers"),
    position="",
    interval=0,
    layer_thetas=True,
    latent=None,
    switched=True,
    sections=(),
    dealt=None,
    temperature="written",
    alpha=True,
)
UNNAMED = dataclasses.replace(UNKNOWN, theta=10_000.0)  # a config without a model_type

# Rotations that a plan cannot express, by model_type.
REFUSED = {
    "cohere2_moe": "its dense layers rotate though their type does not",
    "deepseek_v4": "compressed keys have a spectrum of their own",
    "ernie4_5_vl_moe": "its pairs alternate between height and width, and time comes last",
    "hunyuan_vl": "the two features of a pair may turn by different coordinates",
    "mistral_large4": "it learns a scale for each frequency",
    "nanochat": "it rotates backwards: read it as 'llama' and call rotary with inverse=True",
    "neomme": "its pairs alternate between row and column",
}
