"""The learned tables of small vision towers, and what transformers makes of them: the rows that reach the patches.

All weights of a tower are zeros but those of its table, so that its first layer sees the rows alone.
"""

import math

import numpy as np
import torch
import towers
from transformers import vision_utils

# What holds the table, whether the rows are what enters or what leaves a module, and the name of that module.
_PACKED = ("pos_embed.weight", "in", "blocks.0")
_MUSE = ("patch_embedder.position_embedding_table.weight", "out", "patch_embedder")
_OF_GLM = ("embeddings.position_embedding.weight", "out", "embeddings")
TABLES = {
    **dict.fromkeys(
        "cohere_compass_vision qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision "
        "qwen3_vl_vision qwen4_exp_vision".split(),
        _PACKED,
    ),
    **dict.fromkeys(["glm4v_moe_vision", "glm4v_vision", "inkling2_vision", "step3p5_vision"], _OF_GLM),
    **dict.fromkeys(["muse_glimmer_vision", "muse_spark_vision"], _MUSE),
    "paddleocr_vl_vision": ("vision_model.embeddings.position_embedding.weight", "out", "vision_model.embeddings"),
    "kimi_k25_vision": ("patch_embed.pos_emb.position_embeddings", "out", "patch_embed"),
    "gemma4_vision": ("patch_embedder.position_embedding_table", "out", "patch_embedder"),
    "sam3_vit_model": ("embeddings.position_embeddings", "out", "embeddings"),
    "llama4_vision_model": ("positional_embedding_vlm", "in", "layernorm_pre"),
}


def learned(model):
    """The names of the parameters of a tower that speak of positions and have a row for each of several."""
    names = [(name, p) for name, p in model.named_parameters() if "pos_emb" in name or "position" in name]
    return [name for name, p in names if p.ndim > 1 and p.shape[-2] > 1]


def case(model_type):
    """The table of a small tower as `table_rows` takes it, the images, and the rows of their patches."""
    name, side, place = TABLES[model_type]
    config, images = towers.make_config(model_type), towers.CASES[model_type].images
    model, seen = towers.make_model(config), []
    with torch.no_grad():
        for key, weight in [*model.named_parameters(), *model.named_buffers()]:
            if key == name:
                table = weight.normal_().numpy()
            elif weight.is_floating_point():  # Kimi K2.5 has a buffer of sinusoids of the frame
                weight.zero_()
    module = model.get_submodule(place)
    if side == "in":
        module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    else:
        module.register_forward_hook(lambda _, args, out: seen.append(out))
    with torch.no_grad():
        getattr(towers, f"_call_{towers.CASES[model_type].call}")(model, config, images)
    rows = seen[0].reshape(-1, *seen[0].shape[-2:])[0].numpy()  # the first of a batch
    if model_type == "llama4_vision_model":  # the class token comes last
        table, rows = table[:-1], rows[:-1]
    if model_type == "inkling2_vision":  # each image begins with a class token
        ends = np.cumsum([t * h * w + 1 for t, h, w in images])
        rows = np.delete(rows, [0, *ends[:-1]], 0)
    if model_type.startswith("muse"):  # windows come after this
        side = config.pos_emb_height * config.patch_size
        rows = rows[vision_utils.get_vision_window_index(torch.tensor(images), 1, side, config.patch_size)[0]]
    if model_type != "gemma4_vision":
        side = math.isqrt(table.size // table.shape[-1])
        table = table.reshape(side, side, -1)
    return {"images": images, "table": table[..., :1], "rows": rows[:, :1]}


def rows_by(plan, case):
    """The rows of the patches of all images, as a plan has them."""
    shapes = [image[1:] if image[0] == 1 else image for image in case["images"]]
    return np.concatenate([plan.table_rows(np.float32(case["table"]), shape) for shape in shapes])
