"""Which keys each query sees in whole small models of transformers, layer by layer.

The attention function of a model writes down the mask and the scale that it is given.
"""

import torch
from attention import CACHE
from embeddings import config_of, modeling_of
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask


def computed(case):
    """Of each kind of layer the mask of every call, a row of 0 and 1 for each query; the scale and the cap."""
    found = {}

    def recording(module, query, key, value, mask, scaling, softcap=None, **_):
        kinds = getattr(module.config, "layer_types", None)
        kind = kinds[module.layer_idx].removesuffix("_attention") if kinds else "full"
        seen = torch.ones(query.shape[2], key.shape[2]) if mask is None else mask[0, 0] == 0
        rows = ["".join(map(str, row)) for row in seen.int().tolist()]
        calls = found.setdefault(kind, [])
        found.update({"scale": float(f"{scaling:.9g}"), "cap": softcap})
        if rows not in calls:
            calls.append(rows)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None

    AttentionInterface.register("recording", recording)
    AttentionMaskInterface.register("recording", eager_mask)
    config = config_of(case["config"])
    config._attn_implementation = "recording"
    model = getattr(modeling_of(config), case["class"])(config).eval()
    with torch.no_grad():
        if case["class"] == "PI0Model":  # the prompt, then state and actions with its keys in the cache
            width, prompt = config.dit_config.hidden_size, case["blocks"].count(0)
            types, text = torch.zeros(1, prompt, dtype=torch.long), torch.randn(1, prompt, width)
            cache = getattr(model.vlm(inputs_embeds=text, token_type_ids=types, use_cache=True), CACHE)
            model(action_embeds=torch.randn(1, len(case["blocks"]) - prompt, width), **{CACHE: cache})
        else:
            model(**{name: torch.tensor([row]) for name, row in case["inputs"].items()})
    return found
