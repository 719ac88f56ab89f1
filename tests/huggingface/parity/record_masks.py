"""Writes tests/oracles/recorded/hf_masks.json: which keys each query sees in models of transformers, layer by layer.

    nox -s parity -- --record

does. Each model is small and runs whole; its attention function writes down the mask and the scale that it is given.
"""

import importlib
import json
from pathlib import Path

import torch
import transformers
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

PATH = Path(__file__).parents[2] / "oracles" / "recorded" / "hf_masks.json"
WIDTH, WINDOW, SCALAR, CAP = 16, 6, 12, 3.0
SMALL = {"vocab_size": 32, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0}
VISION = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 8, "patch_size": 4}
KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
GEMMA = SMALL | KINDS | {"query_pre_attn_scalar": SCALAR}
# Numbers of images, -1 outside them; the first image is longer than the window. And a prompt with an answer.
IMAGES = [-1, -1, *[0] * 9, -1, -1, *[1] * 4, -1, -1, -1]
PREFIX = [0] * 5 + [-1] * 9
PROMPT, STATE, ACTIONS = 6, 1, 5  # of pi0


def build(folder, name, cls, **settings):
    """A model whose attention writes down what it is given."""
    config = getattr(transformers, f"{name}Config")(**settings)
    config._attn_implementation = "recording"
    code = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    return getattr(code, cls)(config).eval()


def encoder(folder, name, cls, **settings):
    build(folder, name, cls, **settings)(input_ids=torch.ones(1, 20, dtype=torch.long))


def multimodal(folder, name, text, types, **settings):
    """A model with a vision tower, which does not run: only the types of the tokens reach the mask."""
    settings |= {"text_config": text, "vision_config": VISION, "image_token_id": 31}
    types = {key: torch.tensor([value]) for key, value in types.items()}
    ids = torch.ones_like(next(iter(types.values())))
    build(folder, name, f"{name}Model", **settings)(input_ids=ids, **types)


def paligemma(**text):
    types = {"token_type_ids": [int(block < 0) for block in PREFIX]}
    multimodal("paligemma", "PaliGemma", text, types, projection_dim=WIDTH)


def pi0():
    text = {"model_type": "gemma"} | SMALL
    vlm = {"model_type": "paligemma", "text_config": text, "projection_dim": WIDTH, "image_token_id": 31}
    vlm |= {"vision_config": VISION | {"model_type": "siglip_vision_model"}}
    model, prompt = build("pi0", "PI0", "PI0Model", vlm_config=vlm, dit_config=text), torch.randn(1, PROMPT, WIDTH)
    types = torch.zeros(1, PROMPT, dtype=torch.long)
    cache = model.vlm(inputs_embeds=prompt, token_type_ids=types, use_cache=True).past_key_values
    model(action_embeds=torch.randn(1, STATE + ACTIONS, WIDTH), past_key_values=cache)


IS_IMAGE = [int(block >= 0) for block in IMAGES]
VISUAL = {"use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0, "global_head_dim": 8}
# What runs, and what its file says of mask and scale; -1 is outside blocks.
CASES = {
    "Gemma 3": (
        lambda: multimodal("gemma3", "Gemma3", GEMMA, {"token_type_ids": IS_IMAGE}, mm_tokens_per_image=4),
        {"sliding_window": WINDOW, "query_pre_attn_scalar": SCALAR, "blocks": IMAGES},
    ),
    "Gemma 4": (
        lambda: multimodal("gemma4", "Gemma4", SMALL | KINDS | VISUAL, {"mm_token_type_ids": IS_IMAGE}),
        {"sliding_window": WINDOW, "blocks": IMAGES},
    ),
    "PaliGemma": (lambda: paligemma(model_type="gemma", **SMALL), {"blocks": PREFIX}),
    "PaliGemma 2": (
        lambda: paligemma(model_type="gemma2", attn_logit_softcapping=CAP, **GEMMA),
        {"sliding_window": WINDOW, "query_pre_attn_scalar": SCALAR, "attn_logit_softcapping": CAP, "blocks": PREFIX},
    ),
    "π0": (pi0, {"blocks": [0] * PROMPT + [1] * STATE + [2] * ACTIONS}),
    "EmbeddingGemma": (
        lambda: encoder("gemma3", "Gemma3Text", "Gemma3TextModel", use_bidirectional_attention=True, **GEMMA),
        {"sliding_window": WINDOW, "query_pre_attn_scalar": SCALAR},
    ),
    "EmbeddingGemma 2": (
        lambda: encoder("embedding_gemma2", "EmbeddingGemma2Text", "EmbeddingGemma2TextModel", **SMALL | KINDS),
        {"sliding_window": WINDOW},
    ),
    "T5Gemma 2": (
        lambda: encoder("t5gemma2", "T5Gemma2Text", "T5Gemma2TextEncoder", dropout_rate=0.0, **GEMMA),
        {"sliding_window": WINDOW, "query_pre_attn_scalar": SCALAR},
    ),
    "ModernBERT": (
        lambda: encoder(
            *("modernbert", "ModernBert", "ModernBertModel"),
            **SMALL | {"layer_types": KINDS["layer_types"], "local_attention": WINDOW},
            **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1),
        ),
        {"local_attention": WINDOW},
    ),
}


def case(name):
    """What a model says: of each kind of layer the mask of every call, a row of 0 and 1 for each query; scale and cap."""
    run, settings = CASES[name]
    found = {"model": name} | settings

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
    with torch.no_grad():
        run()
    return found


def record():
    """A line for each model."""
    head = {
        "about": "Masks of whole small models of transformers, by kind of layer: for each call a row for each query, 1 for "
        "each key that it sees; the scale, and what the config says. Blocks: images or a prefix, -1 outside.",
        "command": "nox -s parity -- --record",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    lines = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    lines.append(
        ' "cases": [\n  ' + ",\n  ".join(json.dumps(case(name), ensure_ascii=False) for name in CASES) + "\n ]"
    )
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
