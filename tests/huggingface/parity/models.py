"""Small randomly initialised models of each family, and what their own rotary code does to queries and keys.

Nothing is downloaded: each model is made from its configuration class. A forward pass runs with the model's own
functions; the ones that rotate and the one that attends are wrapped, to see what goes in and what comes out.
"""

import dataclasses
import importlib
import json

import numpy as np
import torch
import transformers
from embeddings import inverse_frequencies

# Two rows that differ, with gaps, up to the last position below 4,096.
POSITIONS = np.array([[1, 1037, 4095], [3, 2049, 4094]])
WITHIN_1024 = np.array([[1, 517, 1023], [3, 770, 1022]])
# Temporal, height and width of each token, (2, 3, 3): no two coordinates of a token are equal.
GRID = np.stack([POSITIONS, POSITIONS[::-1] // 3 + 40, 4095 - POSITIONS // 2], axis=-1)

_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "max_position_embeddings": 4096,
    "initializer_range": 0.125,  # 1/√hidden_size: queries and keys of unit scale
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_FACTORS = [round(1 + 0.03 * i, 2) for i in range(24)]
_LONG_FACTORS = [round(1 + 0.11 * i * i, 2) for i in range(24)]


@dataclasses.dataclass(frozen=True)
class Case:
    """A family: the classes of its module in transformers, settings, positions, and what a reader must find."""

    name: str
    module: str
    config: str
    model: str
    settings: dict
    positions: np.ndarray = dataclasses.field(default_factory=lambda: POSITIONS)
    layout: str = "half"
    part: str = "first"
    written: str | None = None  # the layout of what comes out, where it is another
    scale_positions: np.ndarray | None = None  # of the query scale, where they are others

    def make(self):
        """The configuration and the model, initialised from a fixed seed."""
        package = importlib.import_module(f"transformers.models.{self.module}")
        config = getattr(package, self.config)(**{**_COMMON, **self.settings})
        torch.manual_seed(sum(map(ord, self.name)))
        model = getattr(package, self.model)._from_config(config, attn_implementation="eager")
        return config, model.eval()


def _llama3(base, factor, original):
    return {
        "rope_type": "llama3",
        "rope_theta": base,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


_ONE_HEAD_OF_128 = {"num_attention_heads": 1, "num_key_value_heads": 1, "hidden_size": 128}
_LONGROPE = {
    "num_attention_heads": 1,
    "original_max_position_embeddings": 1024,
    "max_position_embeddings": 8192,
    "partial_rotary_factor": 0.75,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": _FACTORS,
        "long_factor": _LONG_FACTORS,
    },
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}

CASES = [
    Case("Llama 2", "llama", "LlamaConfig", "LlamaModel", _ONE_HEAD_OF_128),
    Case(
        "Llama 3.1",
        "llama",
        "LlamaConfig",
        "LlamaModel",
        {
            **_ONE_HEAD_OF_128,
            "max_position_embeddings": 131072,
            "rope_parameters": _llama3(500_000.0, 8.0, 8192),
        },
    ),
    Case(
        "Llama, dynamic",
        "llama",
        "LlamaConfig",
        "LlamaModel",
        {
            "max_position_embeddings": 1024,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
        },
    ),
    Case(
        "Llama 4 (text)",
        "llama4",
        "Llama4TextConfig",
        "Llama4TextModel",
        {
            "num_hidden_layers": 2,
            "head_dim": 32,
            "intermediate_size_mlp": 32,
            "moe_layers": [],
            "no_rope_layer_interval": 2,
            "use_qk_norm": False,
            "floor_scale": 2,
            "attn_scale": 0.1,
            "rope_parameters": _llama3(500_000.0, 16.0, 8192),
        },
        layout="interleaved",
        scale_positions=np.broadcast_to(np.arange(3), (2, 3)),  # counted from the cache, whatever the position ids
    ),
    Case(
        "Qwen2",
        "qwen2",
        "Qwen2Config",
        "Qwen2Model",
        {"rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"}},
    ),
    Case(
        "Qwen2, YaRN",
        "qwen2",
        "Qwen2Config",
        "Qwen2Model",
        {
            "max_position_embeddings": 131072,
            "rope_parameters": {**_YARN, "rope_theta": 1_000_000.0, "original_max_position_embeddings": 32768},
        },
    ),
    Case(
        "Qwen2.5-VL",
        "qwen2_5_vl",
        "Qwen2_5_VLTextConfig",
        "Qwen2_5_VLTextModel",
        {
            **_ONE_HEAD_OF_128,
            "rope_parameters": {"type": "mrope", "mrope_section": [16, 24, 24], "rope_theta": 1_000_000.0},
        },
        GRID,
    ),
    Case(
        "Qwen3-VL",
        "qwen3_vl",
        "Qwen3VLTextConfig",
        "Qwen3VLTextModel",
        {
            **_ONE_HEAD_OF_128,
            "head_dim": 128,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
                "rope_theta": 5_000_000.0,
            },
        },
        GRID,
    ),
    Case("Phi-3, short", "phi3", "Phi3Config", "Phi3Model", _LONGROPE, WITHIN_1024),
    Case("Phi-3, long", "phi3", "Phi3Config", "Phi3Model", _LONGROPE),
    Case(
        "Gemma 3",
        "gemma3",
        "Gemma3TextConfig",
        "Gemma3TextModel",
        {
            "num_hidden_layers": 2,
            "head_dim": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    Case(
        "Gemma 4",
        "gemma4",
        "Gemma4TextConfig",
        "Gemma4TextModel",
        {
            "num_hidden_layers": 2,
            "head_dim": 32,
            "global_head_dim": 64,
            "layer_types": ["sliding_attention", "full_attention"],
            "vocab_size_per_layer_input": 32,
            "hidden_size_per_layer_input": 8,
        },
    ),
    Case(
        "Mistral",
        "mistral",
        "MistralConfig",
        "MistralModel",
        {
            "num_attention_heads": 4,
            "head_dim": 32,
            "sliding_window": 2048,
            "rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"},
        },
    ),
    Case(
        "Ministral 3",
        "ministral3",
        "Ministral3Config",
        "Ministral3Model",
        {
            "head_dim": 32,
            "max_position_embeddings": 16384,
            "rope_parameters": {
                "type": "yarn",
                "rope_theta": 1_000_000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 1024,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    Case("GPT-NeoX", "gpt_neox", "GPTNeoXConfig", "GPTNeoXModel", {}),
    Case(
        "GPT-J",
        "gptj",
        "GPTJConfig",
        "GPTJModel",
        {"n_embd": 64, "n_head": 2, "n_layer": 1, "n_positions": 4096, "n_inner": 32, "rotary_dim": 16},
        layout="interleaved",
    ),
    Case("Cohere", "cohere", "CohereConfig", "CohereModel", {}, layout="interleaved"),
    Case("GLM-4", "glm4", "Glm4Config", "Glm4Model", {"head_dim": 32}, layout="interleaved"),
    Case(
        "DeepSeek-V3",
        "deepseek_v3",
        "DeepseekV3Config",
        "DeepseekV3Model",
        {
            "num_key_value_heads": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 32,
            "v_head_dim": 16,
            "max_position_embeddings": 163840,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 40.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
        layout="interleaved",
        part="last",
        # Read in neighbours and written in halves: one permutation of the features of queries and keys alike, which
        # their products do not see.
        written="half",
    ),
    Case(
        "ModernBERT",
        "modernbert",
        "ModernBertConfig",
        "ModernBertModel",
        {"num_hidden_layers": 2, "initializer_cutoff_factor": 2.0},
    ),
    Case(
        "gpt-oss",
        "gpt_oss",
        "GptOssConfig",
        "GptOssModel",
        {
            "num_attention_heads": 1,
            "head_dim": 64,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "max_position_embeddings": 131072,
        },
    ),
    Case(
        "OLMo 3",
        "olmo3",
        "Olmo3Config",
        "Olmo3Model",
        {
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": 65536,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 500_000.0,
                    "factor": 8.0,
                    "original_max_position_embeddings": 8192,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "attention_factor": 1.2079441541679836,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
            },
        },
    ),
    Case(
        "SmolLM3",
        "smollm3",
        "SmolLM3Config",
        "SmolLM3Model",
        {"num_hidden_layers": 2, "no_rope_layer_interval": 2},
    ),
]

_PROJECTIONS = ("q_proj", "k_proj")
_ROTATIONS = ("apply_rotary_pos_emb", "apply_rotary_emb", "apply_rotary_pos_emb_interleave")


class _Recorder:
    """Wraps the functions of a module that rotate and the one that attends."""

    def __init__(self):
        self.pending, self.layers, self.projected = [], {}, {}

    def rotation(self, function):
        def wrapped(*args, **kwargs):
            result = function(*args, **kwargs)
            # (q, k, …) → (q', k'), or one tensor at a time.
            pairs = zip(args, result, strict=False) if isinstance(result, tuple) else [(args[0], result)]
            self.pending += [(before.detach().clone(), after.detach().clone()) for before, after in pairs]
            return result

        return wrapped

    def attention(self, function):
        def wrapped(module, query, key, *args, **kwargs):
            index = getattr(module, "layer_idx", 0)
            scale = kwargs.get("scaling", getattr(module, "scaling", None))
            self.layers[index] = (query.detach().clone(), key.detach().clone(), self.pending, scale)
            self.pending = []
            return function(module, query, key, *args, **kwargs)

        return wrapped

    def projection(self, index, name):
        def hook(module, args, output):
            self.projected[index, name] = output.detach().clone()

        return hook


def describe(case):
    """All that is recorded of a model."""
    config, layers = capture(case)
    return {
        "config": json.loads(config.to_json_string(use_diff=False)),
        "layout": case.layout,
        "part": case.part,
        "written": case.written or case.layout,
        "positions": case.positions.astype(np.int32),
        "scale_positions": (case.positions if case.scale_positions is None else case.scale_positions).astype(np.int32),
        "layers": layers,
    }


def capture(case):
    """Runs a model: its configuration, and for each layer queries and keys (batch, heads, seq, head_dim), before and
    after rotation and as the attention gets them, with the frequencies and factors that the model used.
    """
    config, model = case.make()
    recorder = _Recorder()
    module = importlib.import_module(type(model).__module__)
    own = {name: getattr(module, name) for name in _ROTATIONS if hasattr(module, name)}
    for name, function in own.items():
        setattr(module, name, recorder.rotation(function))
    for index, layer in enumerate(getattr(model, "layers", [])):
        for name in _PROJECTIONS:
            if projection := getattr(getattr(layer, "self_attn", None), name, None):
                projection.register_forward_hook(recorder.projection(index, name))
    holder, attend = (module, "eager_attention_forward")
    if not hasattr(module, attend):  # GPT-J attends in a method
        holder, attend = module.GPTJAttention, "_attn"
    own_attend = getattr(holder, attend)
    setattr(holder, attend, recorder.attention(own_attend))
    positions = torch.tensor(case.positions.copy())
    batch, length = case.positions.shape[:2]
    inputs = {
        "input_ids": torch.arange(3, 3 + batch * length).reshape(batch, length),
        "position_ids": positions.movedim(-1, 0) if positions.ndim == 3 else positions,
    }
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        setattr(holder, attend, own_attend)
        for name, function in own.items():
            setattr(module, name, function)
    assert not recorder.pending
    return config, [_layer(case, config, model, recorder, index) for index in sorted(recorder.layers)]


def _layer(case, config, model, recorder, index):
    query, key, rotations, scale = recorder.layers[index]
    layer_types = getattr(config, "layer_types", None)
    kind = layer_types[index] if layer_types else "full_attention"
    result = {"index": index, "kind": kind, "softmax_scale": scale, "turns": bool(rotations)}
    if rotations:
        pairs = [tuple(_heads_first(x, query.shape[2]) for x in pair) for pair in rotations]
        pairs = pairs[::-1] if case.module == "gptj" else pairs  # it rotates the key first
        result["frequencies"], result["attention_factor"] = _frequencies(model, index, kind)
        result["rope"], result["head_dim"] = _rope(config, kind, query.shape[-1])
    else:
        projected = [recorder.projected[index, name].unflatten(-1, (-1, query.shape[-1])) for name in _PROJECTIONS]
        pairs = [(_heads_first(x, query.shape[2]),) * 2 for x in projected]
    for name, final, (before, after) in zip("qk", (query, key), pairs, strict=True):
        full = [_place(final, x, after) for x in (before, after)]
        result[name], result[f"{name}_rotated"], result[f"{name}_attended"] = (x.numpy() for x in (*full, final))
    return result


def _rope(config, kind, head_dim):
    """The parameters of one kind of layer, and the head_dim that they speak of."""
    if config.model_type == "gptj":  # it has none
        return {"rope_type": "default", "rope_theta": 10_000.0}, config.rotary_dim
    rope = config.rope_parameters
    return dict(rope.get(kind, rope)), getattr(config, "qk_rope_head_dim", head_dim)


def _heads_first(x, length):
    """(batch, seq, heads, width) to (batch, heads, seq, width); `length` is of seq, more than the heads."""
    return x if x.shape[2] == length else x.transpose(1, 2)


def _place(final, part, after):
    """`part` among the features that the attention gets, where it has `after`: all, the first or the last."""
    if part.shape[-1] == final.shape[-1]:
        return part
    width = part.shape[-1]
    first, last = (torch.equal(final[..., s], after.expand_as(final[..., s])) for s in _ends(width))
    assert first != last
    result = final.clone()
    where = _ends(width)[0 if first else 1]
    result[..., where] = part.expand_as(result[..., where])
    return result


def _ends(width):
    return slice(None, width), slice(-width, None)


def _frequencies(model, index, kind):
    """The frequencies in use, float32, and the factor of their sines and cosines."""
    if isinstance(model, transformers.GPTJModel):
        # It keeps a table of sines instead; this is the expression that makes it.
        holder = getattr(model, "rotary_emb", None) or model.h[index].attn  # since transformers 5.24, and before
        width = holder.pos_embd_dim
        return (1.0 / (10000 ** (torch.arange(0, width, 2, dtype=torch.int64) / width))).numpy(), 1.0
    inverse, factor = inverse_frequencies(model.rotary_emb, [kind])[kind]
    return inverse.copy(), float(factor)
