"""transformers: the rotary embeddings of its models, each with the function by which its attention applies them.

Llama for whole heads in halves and every scaling, GPT-NeoX for partial ones, GLM for interleaved ones, Qwen2-VL and
Qwen3-VL for three coordinates, Qwen2-VL's vision tower for two; the tables of Marian and of M2M100 (endpoint); MPT's
ALiBi and T5's bias, whose positions count from 0; the eager attention of gpt-oss (sinks), Gemma 2 (soft cap) and
Mistral.
"""

from types import SimpleNamespace

import torch
from transformers import GlmConfig, GPTNeoXConfig, LlamaConfig, Qwen2VLTextConfig, Qwen3VLTextConfig, T5Config
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.glm import modeling_glm as glm
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3
from transformers.models.t5.modeling_t5 import T5Attention

from conformance.adapters import only

NAME, PACKAGES = "transformers", ("transformers", "torch")
LONGEST = 2**13  # of tables that are made for every position from 0


def rope_parameters(base, scaling):
    """The settings of a configuration, and its max_position_embeddings."""
    settings = dict(scaling or {"type": "default"})
    kind = settings.pop("type")
    settings.pop("length", None)  # found from the positions
    only(kind != "ntk", "no NTK of a fixed factor")
    settings |= {"rope_type": kind, "rope_theta": float(base)}
    original = settings.pop("original_max", 2048)
    if kind in ("yarn", "longrope", "llama3"):
        settings["original_max_position_embeddings"] = original
    if kind == "proportional":
        settings["partial_rotary_factor"] = settings.pop("fraction")
    extended = kind in ("yarn", "longrope", "llama3")
    return settings, int(original * settings["factor"]) if extended else original


def vision(positions, x, base):
    settings = {"rope_type": "axial", "rope_theta": float(base)}
    config = Qwen2VLVisionConfig(embed_dim=len(x), num_heads=1, rope_parameters=settings)
    rows = torch.tensor(x).tile(len(positions), 1, 1)  # (seq, heads, head_dim)
    waves = qwen2.Qwen2VLVisionRotaryEmbedding(config)(rows, torch.tensor(positions))
    return qwen2.apply_rotary_pos_emb_vision(rows, rows, *waves)[0][:, 0]


def rotary(positions, x, rotary_width, base, layout, scaling=None, axes=None):
    width = len(x)
    if layout == "half" and axes == {"type": "axial", "count": 2}:
        return vision(positions, x, base)
    settings, longest = rope_parameters(base, scaling)
    shape = {"hidden_size": width, "num_attention_heads": 1, "max_position_embeddings": longest}
    rows = torch.tensor(x).tile(1, 1, len(positions), 1)  # (batch, heads, seq, head_dim)
    places = torch.tensor(positions)[None]
    if axes:
        only(layout == "half" and len(positions[0]) == 3 and "sections" in axes, "three coordinates, in sections")
        settings["mrope_section"] = axes["sections"]
        model, kind, config = qwen2, "Qwen2VLRotaryEmbedding", Qwen2VLTextConfig
        if axes["type"] == "interleaved":
            settings["mrope_interleaved"] = True
            model, kind, config = qwen3, "Qwen3VLTextRotaryEmbedding", Qwen3VLTextConfig
            shape["head_dim"] = width
        places = places.permute(2, 0, 1)
    elif layout == "interleaved":
        only(not scaling, "no scaling of an interleaved layout")
        settings["partial_rotary_factor"] = rotary_width / width
        model, kind, config = glm, "GlmRotaryEmbedding", GlmConfig
        shape["head_dim"] = width
    elif rotary_width < width:
        settings["partial_rotary_factor"] = rotary_width / width
        model, kind, config = neox, "GPTNeoXRotaryEmbedding", GPTNeoXConfig
    else:
        model, kind, config = llama, "LlamaRotaryEmbedding", LlamaConfig
    embedding = getattr(model, kind)(config(**shape, rope_parameters=settings))
    return model.apply_rotary_pos_emb(rows, rows, *embedding(rows, places))[0][0, 0]


def sinusoidal(positions, width, base, layout, endpoint=False, axes=None):
    only(layout == "half" and base == 10000 and not axes, "half layout, base 10,000")
    only(min(positions) >= 0 and max(positions) < LONGEST, "a table from position 0 on")
    count = max(positions) + 1
    if endpoint:
        only(width % 2 == 0, "no odd widths")
        return M2M100SinusoidalPositionalEmbedding.get_embedding(count, width)[positions]
    return MarianSinusoidalPositionalEmbedding(count, width).create_weight()[positions]


def alibi(queries, keys, heads):
    last = queries[-1]
    only(queries == [last] and max(keys) <= last < LONGEST, "of the last query, its keys counted from 0")
    return build_mpt_alibi_tensor(heads, last + 1)[:, :, keys]


def t5(queries, keys, table, bidirectional, max_distance):
    only(max(queries + keys) < LONGEST, "a bias for all keys from 0 on")
    sizes = {"d_model": 8, "d_kv": 8, "num_heads": len(table[0]), "is_decoder": not bidirectional}
    buckets = {"relative_attention_num_buckets": len(table), "relative_attention_max_distance": max_distance}
    attention = T5Attention(T5Config(**sizes, **buckets), has_relative_attention_bias=True, layer_idx=0)
    attention.relative_attention_bias.weight = torch.nn.Parameter(torch.tensor(table), requires_grad=False)
    return attention.compute_bias(max(queries) + 1, max(keys) + 1)[0][:, queries][:, :, keys]


def attention(
    query_positions,
    key_positions,
    query,
    key,
    value,
    scale,
    causal=False,
    window=(None, None),
    soft_cap=None,
    sinks=None,
):
    only(causal or tuple(window) == (None, None), "windows of decoders")
    only(window[1] in (None, 0), "a window to the left")
    only(sinks is None or soft_cap is None, "no model has both")
    q, k, v = (torch.tensor(x).transpose(0, 1)[None] for x in (query, key, value))
    mask, left = None, window[0]
    if causal:
        seen = causal_mask_function if left is None else sliding_window_causal_mask_function(left + 1)
        seen = seen(0, 0, torch.tensor(query_positions)[:, None], torch.tensor(key_positions))
        only(seen.any(1).all() or sinks is not None, "each query sees a key")
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    module = SimpleNamespace(num_key_value_groups=len(query[0]) // len(key[0]), training=False)
    if sinks is not None:
        module.sinks = torch.tensor(sinks)
        return gpt_oss.eager_attention_forward(module, q, k, v, mask, scale)[0][0]
    if soft_cap is not None:
        return gemma2.eager_attention_forward(module, q, k, v, mask, scaling=scale, softcap=soft_cap)[0][0]
    return mistral.eager_attention_forward(module, q, k, v, mask, scale)[0][0]
