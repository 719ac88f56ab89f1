"""Attention with a bias, as modules of transformers and timm compute it of queries, keys and values that they are given.

Their projections are hooked: those of the inputs give the arrays of a case, and that of the output shows what it takes.
So a case says where a module adds its bias, beside its scale, its mask and its normalization, and nothing else.
"""

import functools

import numpy as np
import torch
import transformers
from timm.layers.pos_embed_rel import RelPosBiasTf
from timm.models.maxxvit import AttentionCl
from transformers.models.beit.modeling_beit import BeitLayer
from transformers.models.levit.modeling_levit import LevitAttention, LevitAttentionSubsample
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor
from transformers.models.swin.modeling_swin import SwinAttention
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention
from transformers.models.t5.modeling_t5 import T5Attention
from values import numbers

LOWEST = torch.finfo(torch.float32).min


def causal(length):
    return torch.full((length, length), LOWEST).triu(1)[None, None]


def giving(layer, **projections):
    """Makes projections give arrays, whatever they take."""
    for name, x in projections.items():
        functools.reduce(getattr, name.split("."), layer).register_forward_hook(lambda *_, x=x: x)


def taken(layer, run):
    """What a layer takes while something runs."""
    found = []
    layer.register_forward_pre_hook(lambda _, x: found.append(x[0]))
    run()
    return found[-1]


@torch.no_grad()
def computed(case):
    """What attention makes of queries, keys and values (tokens, heads, width), before its output is projected."""
    x = [torch.tensor(case[name]) for name in ("query", "key", "value")]
    length, heads = case.get("length", len(x[0])), x[0].shape[1]
    x = [y.repeat(length // len(y) if "length" in case else 1, 1, 1) for y in x]
    family = case["row"].partition(",")[0].lower().replace(" ", "_")
    y = globals()[f"_{family}"](case, x, length, {"heads": heads, "width": heads * x[0].shape[2]})
    return {"output": numbers(y.reshape(-1, heads, x[2].shape[2])[-len(case["output"]) :])}


def _text(model, attention, names, x, dim=2):
    """A whole model of one layer reads a text."""
    fused, length = torch.stack(x, dim).reshape(1, len(x[0]), -1), len(x[0])
    giving(attention, **{names[0]: fused})
    tokens = torch.ones(1, length, dtype=torch.long)
    return taken(getattr(attention, names[1]), lambda: model(tokens, use_cache=False))


def _bloom(case, x, length, sizes):
    config = transformers.BloomConfig(hidden_size=sizes["width"], n_head=sizes["heads"], n_layer=1, vocab_size=4)
    config._attn_implementation = "eager"
    model = transformers.BloomModel(config).eval()
    return _text(model, model.h[0].self_attention, ("query_key_value", "dense"), x)


def _mpt(case, x, length, sizes):
    settings = {"d_model": sizes["width"], "n_heads": sizes["heads"], "n_layers": 1, "vocab_size": 4}
    if case["alibi_bias_max"] != 8:  # with the bias of transformers' own function, for which no model of it asks
        layer, bias = MptAttention(transformers.MptConfig(**settings), 0).eval(), case["alibi_bias_max"]
        giving(layer, Wqkv=torch.stack(x, 1).reshape(1, length, -1))
        hidden, bias = torch.zeros(1, length, sizes["width"]), build_mpt_alibi_tensor(sizes["heads"], length, bias)
        return taken(layer.out_proj, lambda: layer(hidden, bias, attention_mask=causal(length) < 0))
    of_attention = {name: case[name] for name in ("softmax_scale", "clip_qkv")}
    config = transformers.MptConfig(**settings, max_seq_len=length, attn_config=of_attention)
    model = transformers.MptModel(config).eval()
    return _text(model, model.blocks[0].attn, ("Wqkv", "out_proj"), x, 1)


def _falcon(case, x, length, sizes):
    """Of SDPA: the eager code of transformers 5.23.0 adds the bias once more, after the scale."""
    settings = {"hidden_size": sizes["width"], "num_attention_heads": sizes["heads"], "num_hidden_layers": 1}
    settings |= {"vocab_size": 4, "alibi": True, "new_decoder_architecture": False, "multi_query": False}
    config = transformers.FalconConfig(**settings, bos_token_id=1, eos_token_id=1)
    config._attn_implementation = "sdpa"
    model = transformers.FalconModel(config).eval()
    return _text(model, model.h[0].self_attention, ("query_key_value", "dense"), x)


def _t5(case, x, length, sizes):
    (buckets, heads), decoder = np.shape(case["table"]), "decoder" in case["row"]
    config = transformers.T5Config(
        d_model=sizes["width"], d_kv=sizes["width"] // heads, num_heads=heads, relative_attention_num_buckets=buckets
    )
    config.relative_attention_max_distance, config.is_decoder = case["relative_attention_max_distance"], decoder
    config._attn_implementation = "eager"
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    layer.relative_attention_bias.weight.data = torch.tensor(case["table"])
    giving(layer, **{name: y.reshape(1, length, -1) for name, y in zip("qkv", x, strict=True)})
    mask = causal(length) if decoder else None
    return taken(layer.o, lambda: layer(torch.zeros(1, length, sizes["width"]), mask=mask))


def _windows(case, x, layer, names):
    """Two windows with the same arrays, of which the second is shifted: −100 is added between its regions."""
    giving(layer, **{name: y.reshape(1, len(y), -1).repeat(2, 1, 1) for name, y in zip(names, x, strict=True)})
    regions = torch.tensor([[0] * len(x[0]), case["regions"]])
    mask = torch.where(regions[:, :, None] == regions[:, None], 0.0, -100.0)
    return lambda: layer(torch.zeros(2, len(x[0]), x[0].shape[1] * x[0].shape[2]), mask)


def _swin(case, x, length, sizes):
    config = transformers.SwinConfig(_attn_implementation="eager")
    layer = SwinAttention(config, sizes["width"], sizes["heads"], case["window"][0]).eval()
    layer.relative_position_bias.relative_position_bias_table.data = torch.tensor(case["t"])
    return taken(layer.o_proj, _windows(case, x, layer, ("q_proj", "k_proj", "v_proj")))[1]


def _swin_v2(case, x, length, sizes):
    """Trained with a smaller window; a scale is beyond the greatest that counts."""
    (side, _), options = case["window"], {"pretrained_window_size": case["pretrained"]}
    layer = Swinv2SelfAttention(transformers.Swinv2Config(), sizes["width"], sizes["heads"], side, **options).eval()
    w1, b1, w2 = map(torch.tensor, case["mlp"])
    mlp = torch.nn.Linear(2, len(b1)), torch.nn.ReLU(), torch.nn.Linear(len(b1), sizes["heads"], bias=False)
    mlp[0].weight.data, mlp[0].bias.data, mlp[2].weight.data = w1.T, b1, w2.T
    layer.continuous_position_bias_mlp = torch.nn.Sequential(*mlp)
    layer.logit_scale.data = torch.tensor(case["logit_scale"])[:, None, None]
    return _windows(case, x, layer, ("query", "key", "value"))()[0][1]


def _beit(case, x, length, sizes):
    settings = {"num_attention_heads": sizes["heads"], "hidden_size": sizes["width"], "patch_size": 2}
    config = transformers.BeitConfig(image_size=2 * case["window"][0], use_relative_position_bias=True, **settings)
    config._attn_implementation = "eager"
    layer = BeitLayer(config).eval()
    layer.relative_position_bias.relative_position_bias_table.data = torch.tensor(case["t"])
    names = ("q_proj", "k_proj", "v_proj")
    giving(layer.attention, **{name: y.reshape(1, length, -1) for name, y in zip(names, x, strict=True)})
    hidden, resolution = torch.zeros(1, length, sizes["width"]), (config.image_size,) * 2
    return taken(layer.attention.o_proj, lambda: layer(hidden, resolution=resolution))


def _levit(case, x, length, sizes):
    """Its values are twice as wide as its keys; between stages, from a grid to a coarser one."""
    (side, _), (q, k, v), heads = case["window"], x, sizes["heads"]
    if "coarse" in case:
        layer = LevitAttentionSubsample(8, 8, q.shape[2], heads, 2, 2, side, case["coarse"][0])
        giving(layer, keys_values=torch.cat([k, v], -1).reshape(1, len(k), -1), queries=q.reshape(1, length, -1))
    else:
        layer = LevitAttention(8, q.shape[2], heads, 2, side)
        giving(layer, queries_keys_values=torch.cat(x, -1).reshape(1, length, -1))
    layer.eval()
    layer.attention_biases.data = torch.tensor(case["t"])
    return taken(layer.activation, lambda: layer(torch.zeros(1, len(k), 8)))


def _maxvit(case, x, length, sizes):
    window, width = tuple(case["window"]), sizes["width"]
    bias = functools.partial(RelPosBiasTf, window_size=window)
    layer = AttentionCl(width, dim_head=width // sizes["heads"], rel_pos_cls=bias).eval()
    layer.rel_pos.relative_position_bias_table.data = torch.tensor(case["t"])
    giving(layer, qkv=torch.cat(x, -1).reshape(1, *window, -1))
    return taken(layer.proj, lambda: layer(torch.zeros(1, *window, width)))
