"""Attention modules of transformers whose biases depend on tokens, and biases of grids in transformers and timm."""

import importlib

import torch
import transformers
from embeddings import config_of
from timm.layers import pos_embed_rel
from timm.models import levit
from transformers.models.beit.modeling_beit import BeitRelativePositionBias
from transformers.models.levit.modeling_levit import LevitAttention, LevitAttentionSubsample
from transformers.models.swin.modeling_swin import SwinRelativePositionBias
from values import numbers

from helpers.content_biases import drawn, hidden_and_cotangent

LOWEST = torch.finfo(torch.float32).min


def of_content(case):
    """The output of a module with drawn weights, and gradients of its sum with a cotangent."""
    folder, name = case["module"].removeprefix("modeling_").split(".")
    code, config = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}"), None
    shapes = case["weights"]
    if folder == "wavlm":
        buckets, heads = shapes["rel_attn_embed.weight"]
        module = code.WavLMAttention(case["hidden"][-1], heads, num_buckets=buckets, **case["settings"])
    else:
        config = config_of(case["config"])
        config._attn_implementation = "eager"
        more = {"sam": {"window_size": 0}, "vitdet": {"input_size": case["hidden"][1:3]}}
        more |= dict.fromkeys(("parakeet", "inkling"), {"layer_idx": 0})
        module = getattr(code, name)(config, **more.get(folder, {}))
    arrays = {name: torch.tensor(drawn(case["seed"], name, shape)) for name, shape in shapes.items()}
    parameters = dict(module.eval().named_parameters())
    for name, parameter in parameters.items():
        parameter.data = arrays.pop(name)
    mask = case["mask"] and torch.tensor(case["mask"])
    x, cotangent = map(torch.tensor, hidden_and_cotangent(case["seed"], case["hidden"], mask))
    leaves = parameters | {name: array.requires_grad_() for name, array in (arrays | {"hidden": x}).items()}
    y = _called(folder, code, config, module, x, mask, arrays)
    (y * cotangent).sum().backward()
    return {"output": numbers(y), "gradients": {name: numbers(leaves[name].grad) for name in case["gradients"]}}


def _called(folder, code, config, module, x, mask, arrays):
    if folder in ("sam", "vitdet", "wavlm"):
        return module(x, *([mask] if folder == "wavlm" else []))[0]
    keys = mask[:, None, None]
    if folder.startswith("deberta"):
        offsets = {"relative_pos": code.build_relative_position(x, x)} if folder == "deberta" else {}
        return module(x, keys * mask[:, None, :, None], **offsets, **arrays)[0]
    if folder == "parakeet":
        return module(x, code.ParakeetEncoderRelPositionalEncoding(config)(x), keys.bool())[0]
    if folder == "inkling":
        i = torch.arange(x.shape[1])
        behind = i[:, None] - i
        extent = config.sliding_window_size if "hybrid_sliding" in config.layer_types else x.shape[1]
        seen = (behind >= 0) & (behind < extent) & keys.bool()
        return module(x, torch.where(seen, 0.0, LOWEST), conv_mask=mask)[0]
    waves = {}
    if folder == "wav2vec2_conformer":
        waves["relative_position_embeddings"] = code.Wav2Vec2ConformerRelPositionalEmbedding(config)(x)
    return module(x, (1 - keys.float()) * LOWEST, **waves)[0]


def of_grid(case):
    """The bias (heads, queries, keys) of a layer of vision transformers, or its table resized to a larger window."""
    table = torch.tensor(case["table"]) if "table" in case else None
    if "resized" in case:
        resize = pos_embed_rel.resize_rel_pos_bias_table_levit
        return {"resized": numbers(resize(table, ((2 * case["new"] - 1) ** 2, table.shape[1])))}
    if "new" in case:
        return {"bias": numbers(beit(table, case["window"])((case["new"],) * 2)[0])}
    peer, (rows, columns) = case["peer"], case["window"]
    if "Mlp" in peer:
        layer = pos_embed_rel.RelPosMlp((rows, columns), len(case["w2"][0]), hidden_dim=len(case["b1"]), mode="swin")
        weights = torch.tensor(case["w1"]).T, torch.tensor(case["b1"]), torch.tensor(case["w2"]).T
        for parameter, value in zip(layer.mlp.parameters(), weights, strict=True):
            parameter.data = value
        return {"bias": numbers(layer.eval().get_bias()[0])}
    heads, window = table.shape[0 if "LeViT" in peer or "Tf" in peer else 1], (rows, columns)
    layer = {
        "transformers, Swin": lambda: SwinRelativePositionBias(heads, window),
        "transformers, BEiT": lambda: beit(table, rows),
        "transformers, LeViT": lambda: LevitAttention(8, 4, heads, 2, rows),
        "transformers, LeViT, subsampled": lambda: LevitAttentionSubsample(8, 8, 4, heads, 2, 2, rows, -(-rows // 2)),
        "timm, RelPosBias": lambda: pos_embed_rel.RelPosBias(window, heads),
        "timm, RelPosBias, class token": lambda: pos_embed_rel.RelPosBias(window, heads, prefix_tokens=1),
        "timm, RelPosBiasTf": lambda: pos_embed_rel.RelPosBiasTf(window, heads),
        "timm, LeViT": lambda: levit.Attention(8, 4, heads, resolution=window),
        "timm, LeViT, subsampled": lambda: levit.AttentionDownsample(8, 8, 4, heads, stride=2, resolution=window),
    }[peer]()
    layer.eval()
    if "LeViT" in peer:
        layer.attention_biases.data = table
        return {"bias": numbers(layer.get_attention_biases("cpu"))}
    layer.relative_position_bias_table.data = table
    bias = layer.get_bias() if "timm" in peer else layer(*[window] if "BEiT" in peer else [])
    return {"bias": numbers(bias.reshape(heads, *bias.shape[-2:]))}


def beit(table, side):
    sizes = {"image_size": 16 * side, "patch_size": 16, "num_attention_heads": table.shape[1]}
    layer = BeitRelativePositionBias(transformers.BeitConfig(**sizes))
    layer.relative_position_bias_table.data = table
    return layer
