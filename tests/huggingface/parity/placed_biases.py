"""Attention with a bias, as modules of transformers and timm compute it of queries, keys and values that they are given.

Their projections are hooked: those of the inputs give the arrays of a case, and that of the output shows what it takes.
So a case says where a module adds its bias, beside its scale, its mask and its normalization, and nothing else.
"""

import functools
from typing import Any

import numpy as np
import torch
from timm.layers.pos_embed_rel import RelPosBiasTf
from timm.models.maxxvit import AttentionCl
from transformers import (
    BeitConfig,
    BloomConfig,
    BloomModel,
    FalconConfig,
    FalconModel,
    MptConfig,
    MptModel,
    SwinConfig,
    Swinv2Config,
    T5Config,
)
from transformers.models.beit.modeling_beit import BeitLayer
from transformers.models.levit.modeling_levit import LevitAttention, LevitAttentionSubsample
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor
from transformers.models.swin.modeling_swin import SwinAttention
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention
from transformers.models.t5.modeling_t5 import T5Attention

HEADS, WIDTH, PERIOD = 3, 4, 4
SEEN = 4  # the last queries of a text, whose outputs are kept
REGIONS = [[0] * 9, [0, 0, 1] * 3]  # of two shifted windows of 3 × 3


def drawn(rng, *shape):
    """Numbers that print short."""
    return torch.tensor(np.round(rng.normal(size=shape) * 32) / 16, dtype=torch.float32)


def qkv(rng, queries, keys=None, value_width=WIDTH):
    """Query, key and value (tokens, heads, width)."""
    keys = queries if keys is None else keys
    return drawn(rng, queries, HEADS, WIDTH), drawn(rng, keys, HEADS, WIDTH), drawn(rng, keys, HEADS, value_width)


def repeated(x, length):
    return torch.cat([x] * (length // len(x)))


def giving(layer, x):
    """Makes a projection give x, whatever it takes."""
    layer.register_forward_hook(lambda *_: x)


def taken(layer, run):
    """What a layer takes while something runs, of the first sequence or of all windows."""
    found = []
    layer.register_forward_pre_hook(lambda _, x: found.append(x[0]))
    with torch.no_grad():
        run()
    return found[-1]


def by_heads(y, heads=HEADS):
    return y.reshape(*y.shape[:-1], heads, -1)


def causal(length):
    return torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]


def of_text(model, layer, output, x, length, **told):
    """A whole model of one layer reads a text whose queries, keys and values repeat; its last queries are kept."""
    q, k, v = (repeated(y, length) for y in x)
    fused = torch.stack([q, k, v], 1 if told.pop("apart", False) else 2).reshape(1, length, -1)
    giving(layer, fused)
    y = taken(output, lambda: model(torch.ones(1, length, dtype=torch.long), use_cache=False))
    told |= {"query": x[0], "key": x[1], "value": x[2], "length": length}
    return told | {"output": by_heads(y.reshape(length, -1))[-SEEN:]}


def bloom(rng):
    config = BloomConfig(hidden_size=HEADS * WIDTH, n_head=HEADS, n_layer=1, vocab_size=4, _attn_implementation="eager")
    model = BloomModel(config).eval()
    attention = model.h[0].self_attention
    return of_text(model, attention.query_key_value, attention.dense, qkv(rng, PERIOD), 24, n_head=HEADS)


def mpt(rng):
    settings = {"d_model": HEADS * WIDTH, "n_heads": HEADS, "n_layers": 1, "vocab_size": 4, "max_seq_len": 24}
    of_attention = {"softmax_scale": 0.3, "clip_qkv": 2.0}
    model = MptModel(MptConfig(**settings, attn_config=of_attention)).eval()
    x, attention = qkv(rng, PERIOD), model.blocks[0].attn
    told = {"n_heads": HEADS, "alibi_bias_max": 8} | of_attention
    return of_text(model, attention.Wqkv, attention.out_proj, x, 24, apart=True, **told)


def mpt_of_16(rng):
    """The module with the bias that transformers' own function builds, and no model of transformers asks it for."""
    settings = {"d_model": HEADS * WIDTH, "n_heads": HEADS}
    layer, (q, k, v) = MptAttention(MptConfig(**settings), 0).eval(), qkv(rng, 6)
    giving(layer.Wqkv, torch.stack([q, k, v]).transpose(0, 1).reshape(1, 6, -1))
    bias = build_mpt_alibi_tensor(HEADS, 6, alibi_bias_max=16)
    hidden = torch.zeros(1, 6, HEADS * WIDTH)
    y = taken(layer.out_proj, lambda: layer(hidden, bias, attention_mask=causal(6) < 0))
    told = {"n_heads": HEADS, "alibi_bias_max": 16, "softmax_scale": None, "clip_qkv": None}
    return {"query": q, "key": k, "value": v, "output": by_heads(y[0])} | told


def falcon(rng, length):
    """Of SDPA: the eager code of transformers 5.23.0 adds the bias once more, after the scale."""
    settings = {"hidden_size": HEADS * WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 1, "vocab_size": 4}
    settings |= {"alibi": True, "new_decoder_architecture": False, "multi_query": False}
    settings |= {"bos_token_id": 1, "eos_token_id": 1}
    model = FalconModel(FalconConfig(**settings, _attn_implementation="sdpa")).eval()
    attention = model.h[0].self_attention
    told = {"num_attention_heads": HEADS, "head_dim": WIDTH}
    return of_text(model, attention.query_key_value, attention.dense, qkv(rng, PERIOD), length, **told)


def t5(rng, decoder=False):
    config = T5Config(d_model=HEADS * WIDTH, d_kv=WIDTH, num_heads=HEADS, relative_attention_num_buckets=8)
    config.relative_attention_max_distance, config.is_decoder = 12, decoder
    config._attn_implementation = "eager"
    layer, x = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval(), qkv(rng, PERIOD)
    layer.relative_attention_bias.weight.data = table = drawn(rng, 8, HEADS)
    for name, y in zip("qkv", x, strict=True):
        giving(getattr(layer, name), repeated(y, 24).reshape(1, 24, -1))
    mask = causal(24) if decoder else None
    y = taken(layer.o, lambda: layer(torch.zeros(1, 24, HEADS * WIDTH), mask=mask))
    told = {"table": table, "relative_attention_max_distance": 12, "length": 24}
    return {"query": x[0], "key": x[1], "value": x[2], "output": by_heads(y[0])[-SEEN:]} | told


def projected(layer, names, x, windows):
    for name, y in zip(names, x, strict=True):
        giving(getattr(layer, name), y.reshape(1, len(y), -1).repeat(windows, 1, 1))


def masked(regions):
    """What Swin adds to the scores of shifted windows: −100 between regions."""
    regions = torch.tensor(regions)
    return torch.where(regions[:, :, None] == regions[:, None], 0.0, -100.0)


def swin(rng):
    config = SwinConfig(_attn_implementation="eager")
    layer, x = SwinAttention(config, HEADS * WIDTH, HEADS, 3).eval(), qkv(rng, 9)
    layer.relative_position_bias.relative_position_bias_table.data = t = drawn(rng, 25, HEADS)
    projected(layer, ("q_proj", "k_proj", "v_proj"), x, 2)
    y = taken(layer.o_proj, lambda: layer(torch.zeros(2, 9, HEADS * WIDTH), masked(REGIONS)))
    told = {"t": t, "window": [3, 3], "regions": REGIONS[1]}
    return {"query": x[0], "key": x[1], "value": x[2], "output": by_heads(y[1])} | told


def swin_v2(rng):
    """A window of 3 × 3, trained with one of 2 × 2; a scale beyond the greatest that counts."""
    layer = Swinv2SelfAttention(Swinv2Config(), HEADS * WIDTH, HEADS, 3, pretrained_window_size=[2, 2]).eval()
    layer.continuous_position_bias_mlp = mlp = torch.nn.Sequential(
        torch.nn.Linear(2, 6), torch.nn.ReLU(), torch.nn.Linear(6, HEADS, bias=False)
    )
    w1, b1, w2 = drawn(rng, 2, 6), drawn(rng, 6), drawn(rng, 6, HEADS) / 4
    mlp[0].weight.data, mlp[0].bias.data, mlp[2].weight.data = w1.T, b1, w2.T
    layer.logit_scale.data = scale = torch.tensor([1.0, 2.5, 5.0]).reshape(HEADS, 1, 1)
    x = qkv(rng, 9)
    projected(layer, ("query", "key", "value"), x, 2)
    with torch.no_grad():
        y = layer(torch.zeros(2, 9, HEADS * WIDTH), masked(REGIONS))[0]
    told = {"mlp": [w1, b1, w2], "window": [3, 3], "pretrained": [2, 2], "regions": REGIONS[1]}
    return {"query": x[0], "key": x[1], "value": x[2], "output": by_heads(y[1]), "logit_scale": scale[:, 0, 0]} | told


def beit(rng):
    config = BeitConfig(image_size=4, patch_size=2, num_attention_heads=HEADS, hidden_size=HEADS * WIDTH)
    config.use_relative_position_bias, config._attn_implementation = True, "eager"
    layer, x = BeitLayer(config).eval(), qkv(rng, 5)
    layer.relative_position_bias.relative_position_bias_table.data = t = drawn(rng, 12, HEADS)
    projected(layer.attention, ("q_proj", "k_proj", "v_proj"), x, 1)
    hidden = torch.zeros(1, 5, HEADS * WIDTH)
    y = taken(layer.attention.o_proj, lambda: layer(hidden, resolution=(4, 4)))
    return {"query": x[0], "key": x[1], "value": x[2], "output": by_heads(y[0]), "t": t, "window": [2, 2]}


def levit(rng):
    """Its values are twice as wide as its keys."""
    layer, (q, k, v) = LevitAttention(8, WIDTH, HEADS, 2, 3), qkv(rng, 9, value_width=2 * WIDTH)
    layer.eval()
    layer.attention_biases.data = t = drawn(rng, HEADS, 9)
    giving(layer.queries_keys_values, torch.cat([q, k, v], -1).reshape(1, 9, -1))
    y = taken(layer.activation, lambda: layer(torch.zeros(1, 9, 8)))
    return {"query": q, "key": k, "value": v, "output": by_heads(y[0]), "t": t, "window": [3, 3]}


def levit_between(rng):
    """From 4 × 4 patches to 2 × 2."""
    layer = LevitAttentionSubsample(8, 8, WIDTH, HEADS, 2, 2, 4, 2)
    layer.eval()
    q, k, v = qkv(rng, 4, 16, 2 * WIDTH)
    layer.attention_biases.data = t = drawn(rng, HEADS, 16)
    giving(layer.keys_values, torch.cat([k, v], -1).reshape(1, 16, -1))
    giving(layer.queries, q.reshape(1, 4, -1))
    y = taken(layer.activation, lambda: layer(torch.zeros(1, 16, 8)))
    return {"query": q, "key": k, "value": v, "output": by_heads(y[0]), "t": t, "window": [4, 4], "coarse": [2, 2]}


def maxvit(rng):
    bias = functools.partial(RelPosBiasTf, window_size=(2, 3))
    layer, (q, k, v) = AttentionCl(HEADS * WIDTH, dim_head=WIDTH, rel_pos_cls=bias).eval(), qkv(rng, 6)
    layer.rel_pos.relative_position_bias_table.data = t = drawn(rng, HEADS, 3, 5)
    giving(layer.qkv, torch.cat([q, k, v], -1).reshape(1, 2, 3, -1))
    y = taken(layer.proj, lambda: layer(torch.zeros(1, 2, 3, HEADS * WIDTH)))
    return {"query": q, "key": k, "value": v, "output": by_heads(y.reshape(6, -1)), "t": t, "window": [2, 3]}


# By the name of its row on the page
CASES: dict[str, list[Any]] = {
    "T5, decoder": [functools.partial(t5, decoder=True)],
    "T5, encoder": [t5],
    "BLOOM": [bloom],
    "MPT": [mpt, mpt_of_16],
    "Falcon": [functools.partial(falcon, length=40), functools.partial(falcon, length=600)],
    "Swin": [swin],
    "BEiT": [beit],
    "MaxViT": [maxvit],
    "LeViT": [levit],
    "LeViT, between stages": [levit_between],
    "Swin V2": [swin_v2],
}


def cases(seed):
    """(row, what it took and gave), as arrays and numbers."""
    for row, made in CASES.items():
        for n, make in enumerate(made):
            found = make(np.random.default_rng([seed, n]))
            yield row, {name: arrays(x) for name, x in found.items()}


def arrays(x):
    if isinstance(x, list) and isinstance(x[0], torch.Tensor):
        return [arrays(y) for y in x]
    return x.detach().numpy() if isinstance(x, torch.Tensor) else x
