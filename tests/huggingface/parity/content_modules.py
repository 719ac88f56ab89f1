"""Attention modules of transformers whose scores depend on tokens and distances, their outputs and gradients.

Each function makes a module of some settings; `measured` gives it weights that `helpers/content_biases.py` draws.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from helpers.content_biases import drawn, hidden_and_cotangent

LOWEST = torch.finfo(torch.float32).min


class Made(NamedTuple):
    """A module, and how it is called."""

    layer: str  # the function of the example
    settings: dict[str, Any]  # and its arguments
    module: torch.nn.Module
    call: Callable[..., torch.Tensor]  # of hidden states, mask and arrays from elsewhere in the model
    hidden: tuple[int, ...]
    differentiated: tuple[str, ...]
    elsewhere: dict[str, tuple[int, ...]] = {}
    masked: bool = True


def config_of(name: str, **settings: Any) -> Any:
    """Modules read how they attend from their config."""
    config = getattr(transformers, name)(**settings)
    config._attn_implementation = "eager"
    return config


def code_of(name: str) -> Any:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def additive(mask):
    """(batch, 1, 1, keys)"""
    return (1 - mask[:, None, None].float()) * LOWEST


def by_both(mask):
    """As DeBERTa's encoder makes it: (batch, 1, queries, keys)."""
    return mask[:, None, None] * mask[:, None, :, None]


def deberta_v2(
    code="deberta_v2",
    config="DebertaV2Config",
    heads=3,
    width=4,
    length=29,
    buckets=8,
    reach=20,
    shared=True,
    terms=None,
):
    terms = terms or ("c2p", "p2c")
    settings = {"hidden_size": heads * width, "num_attention_heads": heads, "relative_attention": True}
    settings |= {"position_buckets": buckets, "max_relative_positions": reach, "share_att_key": shared}
    module = code_of(code).DisentangledSelfAttention(config_of(config, **settings, pos_att_type=list(terms)))
    names = ("query_proj", "key_proj") if shared else ("pos_key_proj", "pos_query_proj")
    names = tuple(f"{name}.weight" for name in names if hasattr(module, name))
    rows = 2 * (buckets if buckets > 0 else reach)

    def call(x, mask, elsewhere):
        return module(x, by_both(mask), rel_embeddings=elsewhere["rel_embeddings"])[0]

    told = {"heads": heads, "max_distance": reach if buckets > 0 else None, "terms": terms}
    shape, table = (2, length, heads * width), {"rel_embeddings": (rows, heads * width)}
    return Made("deberta_v2", told, module, call, shape, names, table)


def deberta(heads=3, width=4, length=17, reach=6, terms=("c2p", "p2c")):
    settings = {"hidden_size": heads * width, "num_attention_heads": heads, "relative_attention": True}
    config = config_of("DebertaConfig", **settings, max_relative_positions=reach, pos_att_type=list(terms))
    code = code_of("deberta")
    module = code.DisentangledSelfAttention(config)

    def call(x, mask, elsewhere):
        offsets = code.build_relative_position(x, x)
        return module(x, by_both(mask), relative_pos=offsets, rel_embeddings=elsewhere["rel_embeddings"])[0]

    names = [f"{name}.weight" for name in ("pos_proj", "pos_q_proj") if hasattr(module, name)]
    table = {"rel_embeddings": (2 * reach, heads * width)}
    return Made(
        "deberta", {"heads": heads}, module, call, (2, length, heads * width), ("q_bias", "v_bias", *names), table
    )


def parakeet(heads=3, width=4, length=17, bias=False):
    settings = {"hidden_size": heads * width, "num_attention_heads": heads, "attention_bias": bias}
    config, code = config_of("ParakeetEncoderConfig", **settings), code_of("parakeet")
    module, waves = code.ParakeetEncoderAttention(config, 0), code.ParakeetEncoderRelPositionalEncoding(config)

    def call(x, mask, _):
        return module(x, waves(x), mask[:, None, None].bool())[0]

    names = ("bias_u", "bias_v", "relative_k_proj.weight")
    return Made("conformer", {}, module, call, (2, length, heads * width), names)


def wav2vec2(code="wav2vec2_conformer", prefix="Wav2Vec2Conformer", heads=2, width=6, length=15):
    settings = {"hidden_size": heads * width, "num_attention_heads": heads, "position_embeddings_type": "relative"}
    config = config_of(f"{prefix}Config", **settings)
    module = getattr(code_of(code), f"{prefix}SelfAttention")(config)
    waves = getattr(code_of(code), f"{prefix}RelPositionalEmbedding")(config)

    def call(x, mask, _):
        return module(x, additive(mask), relative_position_embeddings=waves(x))[0]

    names = ("pos_bias_u", "pos_bias_v", "linear_pos.weight")
    return Made("conformer", {}, module, call, (2, length, heads * width), names)


def relative_keys(heads=3, width=4, length=19, left=5, right=3):
    settings = {"hidden_size": heads * width, "num_attention_heads": heads, "position_embeddings_type": "relative_key"}
    settings |= {"left_max_position_embeddings": left, "right_max_position_embeddings": right}
    module = code_of("wav2vec2_bert").Wav2Vec2BertSelfAttention(config_of("Wav2Vec2BertConfig", **settings))
    shape, names = (2, length, heads * width), ("distance_embedding.weight",)
    return Made("relative_keys", {"left": left}, module, lambda x, mask, _: module(x, additive(mask))[0], shape, names)


def seamless(heads=3, width=4, length=19, left=5, right=3):
    """The speech encoder's attention of SeamlessM4T v2: the same formula under the same names."""
    config = config_of(
        "SeamlessM4Tv2Config",
        hidden_size=heads * width,
        speech_encoder_attention_heads=heads,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=left,
        right_max_position_embeddings=right,
    )
    module = code_of("seamless_m4t_v2").SeamlessM4Tv2ConformerSelfAttention(config)
    shape, names = (2, length, heads * width), ("distance_embedding.weight",)
    return Made("relative_keys", {"left": left}, module, lambda x, mask, _: module(x, additive(mask))[0], shape, names)


def sam(heads=3, width=4, grid=(4, 5), trained=3):
    """Tables of a square grid, interpolated to another."""
    settings = {"hidden_size": heads * width, "num_attention_heads": heads, "image_size": 4 * trained, "patch_size": 4}
    module = code_of("sam").SamVisionAttention(config_of("SamVisionConfig", **settings), window_size=0)
    shape, names = (2, *grid, heads * width), ("rel_pos_h", "rel_pos_w")
    return Made("sam", {}, module, lambda x, *_: module(x)[0], shape, names, masked=False)


def vitdet(heads=2, width=4, grid=(3, 7), trained=(3, 7)):
    settings = {"hidden_size": heads * width, "num_attention_heads": heads, "use_relative_position_embeddings": True}
    module = code_of("vitdet").VitDetAttention(config_of("VitDetConfig", **settings), input_size=trained)
    shape, names = (2, *grid, heads * width), ("rel_pos_h", "rel_pos_w")
    return Made("sam", {}, module, lambda x, *_: module(x)[0], shape, names, masked=False)


def inkling(sliding=False, heads=4, kv_heads=2, width=4, length=23, rel=3, extent=7, floor=5, kernel=3):
    settings = {"hidden_size": 12, "num_hidden_layers": 1, "d_rel": rel, "conv_kernel_size": kernel}
    settings |= {"layer_types": ["hybrid_sliding" if sliding else "hybrid"], "rms_norm_eps": 1e-5}
    prefix = "swa_" if sliding else ""
    settings |= {f"{prefix}{k}": v for k, v in (("num_attention_heads", heads), ("num_key_value_heads", kv_heads))}
    settings |= {f"{prefix}head_dim": width, "sliding_window_size" if sliding else "rel_extent": extent}
    settings |= {"log_scaling_n_floor": floor, "log_scaling_alpha": 0.3}
    module = code_of("inkling").InklingAttention(config_of("InklingTextConfig", **settings), 0)

    def call(x, mask, _):
        i = torch.arange(length)
        behind = i[:, None] - i
        seen = (behind >= 0) & (behind < (extent if sliding else length)) & mask[:, None, None].bool()
        return module(x, torch.where(seen, 0.0, LOWEST), conv_mask=mask)[0]

    told = {"sliding": sliding, "floor": floor, "alpha": 0.3, "epsilon": 1e-5}
    names = ("rel_logits_proj.proj", "r_proj.weight", "k_sconv.conv1d.weight")
    return Made("inkling", told, module, call, (2, length, 12), names)


def wavlm(heads=3, width=4, length=27, buckets=12, reach=15):
    module = code_of("wavlm").WavLMAttention(heads * width, heads, num_buckets=buckets, max_distance=reach)
    names = ("rel_attn_embed.weight", "gru_rel_pos_linear.weight", "gru_rel_pos_const")
    shape = (2, length, heads * width)
    return Made("wavlm", {"max_distance": reach}, module, lambda x, mask, _: module(x, mask)[0], shape, names)


# By the names of their cases
RECORDED: dict[str, Callable[[], Made]] = {
    "DeBERTa v2, buckets": deberta_v2,
    "DeBERTa v2, clipped": lambda: deberta_v2(length=17, buckets=-1, reach=7, shared=False, terms=("c2p",)),
    "DeBERTa": deberta,
    "DeBERTa, a length within the table": lambda: deberta(heads=2, length=9, reach=12, terms=("p2c",)),
    "Parakeet": parakeet,
    "Wav2Vec2 Conformer": wav2vec2,
    "Wav2Vec2-BERT": relative_keys,
    "SAM, another grid": sam,
    "ViTDet": vitdet,
    "Inkling, full": inkling,
    "Inkling, sliding": lambda: inkling(sliding=True, extent=5),
    "WavLM": wavlm,
}


def padding(batch, length):
    """After the first sequences, and before the last."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[:-1, -4:] = mask[-1, :3] = 0
    return mask


def measured(made: Made, seed: int) -> dict[str, Any]:
    """A case, as `helpers/content_biases.py` takes it."""
    module, mask = made.module.eval(), padding(*made.hidden[:2]) if made.masked else None
    parameters = dict(module.named_parameters())
    assert parameters.keys() == module.state_dict().keys()
    shapes = {name: tuple(p.shape) for name, p in parameters.items()} | made.elsewhere
    for name, p in parameters.items():
        p.data = torch.tensor(drawn(seed, name, shapes[name]))
    elsewhere = {n: torch.tensor(drawn(seed, n, shapes[n])).requires_grad_() for n in made.elsewhere}
    x, cotangent = (torch.tensor(y) for y in hidden_and_cotangent(seed, made.hidden, mask))
    y = made.call(x.requires_grad_(), mask, elsewhere)
    (y * cotangent).sum().backward()
    differentiated = {"hidden": x} | elsewhere | {name: parameters[name] for name in made.differentiated}
    return {
        "layer": made.layer,
        "module": f"{type(module).__module__.rpartition('.')[2]}.{type(module).__name__}",
        "settings": made.settings,
        "seed": seed,
        "hidden": made.hidden,
        "mask": None if mask is None else mask.tolist(),
        "weights": shapes,
        "output": y.detach().numpy(),
        "gradients": {name: np.asarray(p.grad) for name, p in differentiated.items()},
    }
