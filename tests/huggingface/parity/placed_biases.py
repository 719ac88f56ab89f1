"""Attention with a bias, as modules of transformers and timm compute it of given queries, keys and values.

Their projections are hooked: those of the inputs give the arrays of a case, and that of the output shows what it takes.
So a case says where a module adds its bias, beside its scale, its mask and its normalization, and nothing else.
"""

import functools

import torch
import transformers
from biases import LOWEST
from embeddings import eager, modeling
from timm.layers.pos_embed_rel import RelPosBiasTf
from timm.models.maxxvit import AttentionCl

QKV = "q_proj", "k_proj", "v_proj"


@torch.no_grad()
def placed_biases(case):
    """The output of attention (tokens, heads, width), before its projection, for given queries, keys and values."""
    x = [torch.tensor(case[name]) for name in ("query", "key", "value")]
    count, heads, width = x[0].shape
    x = [y.repeat(case.get("length", count) // count, 1, 1) for y in x]
    run = globals()[case["row"].partition(",")[0].lower().replace(" ", "_")]  # a function below
    y = run(case, x, heads, heads * width).reshape(-1, heads, x[2].shape[2])
    return {"output": y[-len(case["output"]) :]}


def taken(layer, projections, output, run):
    """The input of the module `output` in a run, during which the layer's projections return the given arrays."""
    found = []
    for name, x in projections.items():
        getattr(layer, name).register_forward_hook(lambda *_, x=x: x)
    getattr(layer, output).register_forward_pre_hook(lambda _, x: found.append(x[0]))
    run()
    return found[-1]


def flat(x, names, batch=1):
    """Arrays (batch, tokens, heads * width) for projections, by their names."""
    return {name: y.reshape(1, len(y), -1).repeat(batch, 1, 1) for name, y in zip(names, x, strict=True)}


def causal(length):
    """A mask to be added to scores."""
    return torch.full((length, length), LOWEST).triu(1)[None, None]


def text(model, attention, x, projection, output):
    """The attention output in a whole model of one layer, with one projection for queries, keys and values."""
    tokens = torch.ones(1, len(x), dtype=torch.long)
    projections = {projection: x.reshape(1, len(x), -1)}
    return taken(attention, projections, output, lambda: model.eval()(tokens, use_cache=False))


def bloom(case, x, heads, hidden):
    config = transformers.BloomConfig(hidden_size=hidden, n_head=heads, n_layer=1, vocab_size=4)
    model = transformers.BloomModel(eager(config))
    return text(model, model.h[0].self_attention, torch.stack(x, 2), "query_key_value", "dense")


def mpt(case, x, heads, hidden):
    """MPT, with a bias by transformers' function; its models only ask that function for a greatest bias of 8."""
    own, length, code = {name: case[name] for name in ("softmax_scale", "clip_qkv")}, len(x[0]), modeling("mpt")
    layer = code.MptAttention(transformers.MptConfig(d_model=hidden, n_heads=heads, attn_config=own), 0).eval()
    bias = code.build_mpt_alibi_tensor(heads, length, case["alibi_bias_max"])

    def run():
        layer(torch.zeros(1, length, hidden), bias, attention_mask=causal(length) < 0)

    return taken(layer, {"Wqkv": torch.stack(x, 1).reshape(1, length, -1)}, "out_proj", run)


def falcon(case, x, heads, hidden):
    """Falcon with SDPA, as the eager code of transformers 5.23.0 adds the bias once more, after the scale."""
    settings = dict(alibi=True, new_decoder_architecture=False, multi_query=False, num_hidden_layers=1)
    sizes = dict(hidden_size=hidden, num_attention_heads=heads, vocab_size=4, bos_token_id=1, eos_token_id=1)
    config = transformers.FalconConfig(**settings, **sizes)
    config._attn_implementation = "sdpa"
    model = transformers.FalconModel(config)
    return text(model, model.h[0].self_attention, torch.stack(x, 2), "query_key_value", "dense")


def t5(case, x, heads, hidden):
    table, decoder, length = torch.tensor(case["table"]), "decoder" in case["row"], len(x[0])
    config = transformers.T5Config(d_model=hidden, d_kv=hidden // heads, num_heads=heads)
    config.is_decoder, config.relative_attention_num_buckets = decoder, len(table)
    config.relative_attention_max_distance = case["relative_attention_max_distance"]
    layer = modeling("t5").T5Attention(eager(config), has_relative_attention_bias=True, layer_idx=0).eval()
    layer.relative_attention_bias.weight.data = table
    mask = causal(length) if decoder else None
    return taken(layer, flat(x, "qkv"), "o", lambda: layer(torch.zeros(1, length, hidden), mask=mask))


def shifted(case, hidden):
    """Inputs for two windows, and a mask: in the second window, which is shifted, −100 between regions."""
    regions = torch.tensor([[0] * len(case["regions"]), case["regions"]])
    mask = torch.where(regions[:, :, None] == regions[:, None], 0.0, -100.0)
    return torch.zeros(*regions.shape, hidden), mask


def swin(case, x, heads, hidden):
    layer = modeling("swin").SwinAttention(eager(transformers.SwinConfig()), hidden, heads, case["window"][0]).eval()
    layer.relative_position_bias.relative_position_bias_table.data = torch.tensor(case["t"])
    return taken(layer, flat(x, QKV, 2), "o_proj", lambda: layer(*shifted(case, hidden)))[1]


def swin_v2(case, x, heads, hidden):
    """Swin V2, trained with a smaller window; one logit scale is above the limit to which it is clipped."""
    config, side = transformers.Swinv2Config(), case["window"][0]
    make = modeling("swinv2").Swinv2SelfAttention
    layer = make(config, hidden, heads, side, pretrained_window_size=case["pretrained"]).eval()
    w1, b1, w2 = map(torch.tensor, case["mlp"])
    mlp = torch.nn.Linear(2, len(b1)), torch.nn.ReLU(), torch.nn.Linear(len(b1), heads, bias=False)
    mlp[0].weight.data, mlp[0].bias.data, mlp[2].weight.data = w1.T, b1, w2.T
    layer.continuous_position_bias_mlp = torch.nn.Sequential(*mlp)
    layer.logit_scale.data = torch.tensor(case["logit_scale"])[:, None, None]
    for name, y in flat(x, ("query", "key", "value"), 2).items():
        getattr(layer, name).register_forward_hook(lambda *_, y=y: y)
    return layer(*shifted(case, hidden))[0][1]


def beit(case, x, heads, hidden):
    side = 2 * case["window"][0]
    settings = dict(num_attention_heads=heads, hidden_size=hidden, patch_size=2, image_size=side)
    layer = (
        modeling("beit").BeitLayer(eager(transformers.BeitConfig(use_relative_position_bias=True, **settings))).eval()
    )
    layer.relative_position_bias.relative_position_bias_table.data = torch.tensor(case["t"])

    def run():
        layer(torch.zeros(1, len(x[0]), hidden), resolution=(side, side))

    return taken(layer.attention, flat(x, QKV), "o_proj", run)


def levit(case, x, heads, hidden):
    """LeViT, whose values are twice as wide as its keys; with "coarse", from a grid to a coarser grid of queries."""
    (side, _), (q, k, v), width, code = case["window"], x, hidden // heads, modeling("levit")
    if "coarse" in case:
        layer = code.LevitAttentionSubsample(8, 8, width, heads, 2, 2, side, case["coarse"][0])
        projections = flat([torch.cat([k, v], -1), q], ("keys_values", "queries"))
    else:
        layer = code.LevitAttention(8, width, heads, 2, side)
        projections = flat([torch.cat(x, -1)], ["queries_keys_values"])
    layer.eval()
    layer.attention_biases.data = torch.tensor(case["t"])
    return taken(layer, projections, "activation", lambda: layer(torch.zeros(1, len(k), 8)))


def maxvit(case, x, heads, hidden):
    window = tuple(case["window"])
    bias = functools.partial(RelPosBiasTf, window_size=window)
    layer = AttentionCl(hidden, dim_head=hidden // heads, rel_pos_cls=bias).eval()
    layer.rel_pos.relative_position_bias_table.data = torch.tensor(case["t"])
    projections = {"qkv": torch.cat(x, -1).reshape(1, *window, -1)}
    return taken(layer, projections, "proj", lambda: layer(torch.zeros(1, *window, hidden)))
