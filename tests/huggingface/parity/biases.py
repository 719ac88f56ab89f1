"""Attention modules of transformers whose biases depend on tokens, and biases of grids in transformers and timm."""

import torch
import transformers
from embeddings import config_of, eager, modeling
from timm.layers import pos_embed_rel
from timm.models import levit

from helpers.content_biases import drawn, hidden_and_cotangent

LOWEST = torch.finfo(torch.float32).min


def content_biases(case):
    """The output of a module with drawn weights, and gradients of its sum with a cotangent."""
    folder, name = case["module"].removeprefix("modeling_").split(".")
    shapes, mask = case["weights"], case["mask"] and torch.tensor(case["mask"])
    arrays = {name: torch.tensor(drawn(case["seed"], name, shape)) for name, shape in shapes.items()}
    x, cotangent = map(torch.tensor, hidden_and_cotangent(case["seed"], case["hidden"], mask))
    make, config = getattr(modeling(folder), name), None
    if folder == "wavlm":
        buckets, heads = shapes["rel_attn_embed.weight"]
        module = make(case["hidden"][-1], heads, num_buckets=buckets, **case["settings"])
    else:
        config = eager(config_of(case["config"]))
        more = {"sam": {"window_size": 0}, "vitdet": {"input_size": case["hidden"][1:3]}}
        more |= dict.fromkeys(("parakeet", "inkling"), {"layer_idx": 0})
        module = make(config, **more.get(folder, {}))
    leaves = dict(module.eval().named_parameters())
    for name, parameter in leaves.items():
        parameter.data = arrays.pop(name)
    leaves |= {name: array.requires_grad_() for name, array in (arrays | {"hidden": x}).items()}
    y = _call(folder, config, module, x, mask, arrays)
    (y * cotangent).sum().backward()
    return {"output": y, "gradients": {name: leaves[name].grad for name in case["gradients"]}}


def _call(folder, config, module, x, mask, arrays):
    """The output of a module, with the mask and the further inputs that its class takes."""
    if folder in ("sam", "vitdet"):
        return module(x)[0]
    if folder == "wavlm":
        return module(x, mask)[0]
    code, keys = modeling(folder), mask[:, None, None]
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


def relative_biases(case):
    """The bias (heads, queries, keys) of a layer of vision transformers, or its table resized to a larger window."""
    table = torch.tensor(case.get("table", ()))
    if "resized" in case:
        shape = (2 * case["new"] - 1) ** 2, table.shape[1]
        return {"resized": pos_embed_rel.resize_rel_pos_bias_table_levit(table, shape)}
    if "new" in case:
        sizes = {"image_size": 16 * case["window"], "patch_size": 16, "num_attention_heads": table.shape[1]}
        layer = modeling("beit").BeitRelativePositionBias(transformers.BeitConfig(**sizes))
        layer.relative_position_bias_table.data = table
        return {"bias": layer((case["new"],) * 2)[0]}
    peer, window = case["peer"].partition(", ")[2], tuple(case["window"])
    if peer == "RelPosMlp":
        layer = pos_embed_rel.RelPosMlp(window, len(case["w2"][0]), hidden_dim=len(case["b1"]), mode="swin")
        weights = torch.tensor(case["w1"]).T, torch.tensor(case["b1"]), torch.tensor(case["w2"]).T
        for parameter, value in zip(layer.mlp.parameters(), weights, strict=True):
            parameter.data = value
        return {"bias": layer.eval().get_bias()[0]}
    if "LeViT" in peer:
        sizes, make, more = (8, 4, len(table)), levit.Attention, {}
        if peer == "LeViT, subsampled":
            sizes, make, more = (8, *sizes), levit.AttentionDownsample, {"stride": 2}
        layer = make(*sizes, resolution=window, **more)
        layer.eval()  # gives None
        layer.attention_biases.data = table
        return {"bias": layer.get_attention_biases("cpu")}
    heads = table.shape[0 if peer == "RelPosBiasTf" else 1]
    layer = {
        "Swin": lambda: modeling("swin").SwinRelativePositionBias(heads, window),
        "RelPosBias, class token": lambda: pos_embed_rel.RelPosBias(window, heads, prefix_tokens=1),
        "RelPosBiasTf": lambda: pos_embed_rel.RelPosBiasTf(window, heads),
    }[peer]()
    layer.relative_position_bias_table.data = table
    bias = layer() if peer == "Swin" else layer.get_bias()
    return {"bias": bias.reshape(heads, *bias.shape[-2:])}
