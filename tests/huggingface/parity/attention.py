"""Attention of transformers: functions, layers with their weights, and the masks of whole small models."""

import inspect
import re

import torch
from embeddings import config_of, eager, modeling, modeling_of, new_embedding
from transformers import AttentionInterface, MistralConfig, masking_utils

# What models call their cache of keys and values, as an output and as an argument: transformers 5.24 renamed it.
CACHE = "cache" if "cache" in inspect.signature(masking_utils.create_causal_mask).parameters else "past_key_values"


def causal_mask(config, x, **options):
    """The causal mask of transformers, within a sliding window if the config has one."""
    sliding = "sliding_window_" if getattr(config, "sliding_window", None) else ""
    make = getattr(masking_utils, f"create_{sliding}causal_mask")
    return make(eager(config), x, None, None, **options)


def hf_attention(case):
    """The eager attention of a module's code, (seq, heads, width), and its gradients for a cotangent."""
    code = modeling(re.sub("(?<=[a-z])(?=[A-Z])", "_", case["class"].removesuffix("Attention")).lower())
    leaves = ("query", "key", "value", "sinks")
    given = {name: torch.tensor(case[name]).requires_grad_() for name in leaves if name in case}
    q, k, v, *_ = (x.transpose(0, 1)[None] if x.ndim > 1 else x for x in given.values())
    module = torch.nn.Module().eval()
    module.num_key_value_groups, module.sinks = q.shape[1] // k.shape[1], given.get("sinks")
    mask = causal_mask(MistralConfig(sliding_window=case["sliding_window"]), q[:, 0])
    settings = {key: case[key] for key in ("scaling", "sliding_window", "softcap")}
    y, _ = code.eager_attention_forward(module, q, k, v, mask, **settings)
    (y[0] * torch.tensor(case["cotangent"])).sum().backward()
    return {"output": y[0]} | {f"{name}_grad": x.grad for name, x in given.items()}


@torch.no_grad()
def hf_layers(case):
    """The output (seq, hidden_size) of a layer whose values rotate, or that learns spectra."""
    config, x = config_of(case["config"]), torch.tensor(case["input"])[None]
    attention = getattr(modeling_of(config), type(config).__name__.removesuffix("Config") + "Attention")
    module, embedding = attention(eager(config), layer_idx=case["layer"]).eval(), new_embedding(config)
    weights = {name: torch.tensor(weight) for name, weight in case["weights"].items()}
    if "alpha" in weights:
        embedding.alpha.copy_(weights.pop("alpha"))
    module.load_state_dict(weights)
    positions = torch.arange(x.shape[1])[None]
    if config.model_type == "deepseek_v4":
        waves = {name: embedding(x, positions, layer_type=name) for name in ("main", "compress")}
        return {"output": module(x, waves, positions, causal_mask(config, x))[0][0]}
    mask = causal_mask(config, x, allow_is_causal_skip=False)
    return {"output": module(x, embedding(x, positions), mask, {}, positions)[0][0]}


@torch.no_grad()
def hf_masks(case):
    """The masks of each kind of layer, one for each call, as a text of 0 and 1 per query; the scale and the cap."""
    found = {}

    def record(module, query, key, value, mask, scaling, softcap=None, **_):
        kinds = getattr(module.config, "layer_types", None)
        kind = kinds[module.layer_idx].removesuffix("_attention") if kinds else "full"
        seen = torch.ones(query.shape[2], key.shape[2]) if mask is None else mask[0, 0] == 0
        rows = ["".join(map(str, row)) for row in seen.int().tolist()]
        calls = found.setdefault(kind, [])
        found.update({"scale": float(f"{scaling:.9g}"), "cap": softcap})
        if rows not in calls:
            calls.append(rows)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None

    AttentionInterface.register("record_masks", record)
    masking_utils.AttentionMaskInterface.register("record_masks", masking_utils.eager_mask)
    config = config_of(case["config"])
    config._attn_implementation = "record_masks"
    model = getattr(modeling_of(config), case["class"])(config).eval()
    if case["class"] == "PI0Model":  # the prompt, then state and actions with its keys in the cache
        width, prompt = config.dit_config.hidden_size, case["blocks"].count(0)
        types, text = torch.zeros(1, prompt, dtype=torch.long), torch.zeros(1, prompt, width)
        cache = getattr(model.vlm(inputs_embeds=text, token_type_ids=types, use_cache=True), CACHE)
        model(action_embeds=torch.zeros(1, len(case["blocks"]) - prompt, width), **{CACHE: cache})
    else:
        model(**{name: torch.tensor([row]) for name, row in case["inputs"].items()})
    return found
