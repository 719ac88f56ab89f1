"""Small vision towers of every type, run forward: queries and keys before and after their rotation, and rows of tables.

The attention that records returns zeros. A pass at rest, in which all cosines are 1 and all sines 0, records queries
and keys before their rotation; a second pass records them after it.
"""

import contextlib
import math

import numpy as np
import torch
import transformers
from embeddings import at_rest, config_of, model_class
from transformers import AttentionInterface, vision_utils

from huggingface.test_towers import LATENT_GRID, POINTERS, UNPLACED

# The class to build, where it is not the model or encoder of its module.
CLASSES = {
    "dinov3_vit": "DINOv3ViTModel",
    "sapiens2": "Sapiens2Model",
    "eomt_dinov3": "EomtDinov3ForUniversalSegmentation",
    "sam2_video": "Sam2VideoMemoryAttention",
    "sam3_tracker_video": "Sam3TrackerVideoMemoryAttention",
    "edgetam_video": "EdgeTamVideoMemoryAttention",
}
# Towers that take a batch of images of one size.
BATCHES = {"mlcd_vision_model", "step3p5_vision", "llama4_vision_model", "sam3_vit_model"}
BATCHES |= {"dinov3_vit", "sapiens2", "eomt_dinov3"}
# A tower whose table this release reads unlike the model's own code.
UNLIKE = "muse_glimmer_vision" if transformers.__version__ == "5.23.0" else None


def make_model(config):
    """A tower with weights from a fixed seed."""
    torch.manual_seed(0)
    config._attn_implementation = "record_towers"
    model = model_class(config, CLASSES.get(config.model_type))(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.2)
    return model.eval()


@torch.no_grad()
def call(model, config, images):
    """A pass over images, (time, height, width) in patches, of random pixels."""
    name, grid, (_, height, width) = config.model_type, torch.tensor(images), images[0]
    if name in ("sam2_video", "sam3_tracker_video", "edgetam_video"):  # queries of a frame, and memory of two
        more = {"num_spatial_memory_tokens": 2} if name == "edgetam_video" else {}
        frame = UNPLACED + math.prod(LATENT_GRID) if more else height * width
        sizes = config.memory_attention_hidden_size, config.memory_encoder_output_channels
        states = [
            torch.randn(n, 1, size)
            for n, size in zip((height * width, 2 * frame + POINTERS) * 2, sizes * 2, strict=True)
        ]
        return model(*states, num_object_pointer_tokens=POINTERS, **more)
    if name == "efficientloftr":  # two images
        scale = config.q_aggregation_stride * math.prod(config.stage_stride)
        return model(torch.rand(1, 2, 3, height * scale, width * scale))
    side = config.patch_size
    if name in BATCHES:
        return model(torch.randn(2, 3, height * side, width * side))
    if name == "pixtral":
        sizes = grid[:, 1:] * side
        return model(torch.randn(len(images), 3, *sizes.max(0).values), image_sizes=sizes)
    if name == "gemma4_vision":
        y, x = np.indices((height, width)).reshape(2, -1)
        at = torch.tensor(np.stack([x, y], -1))[None].expand(2, -1, -1)
        return model(torch.randn(2, height * width, 3 * side**2), pixel_position_ids=at)
    if name == "inkling2_vision":
        grid, side = grid // torch.tensor([1, *[config.spatial_merge_size] * 2]), config.spatial_merge_size * side
        return model(torch.randn(int(grid.prod(-1).sum()), side, side, 3), image_grid_thw=grid)
    channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", 3)
    shapes = {"paddleocr_vl_vision": (1, -1, 3, side, side), "kimi_k25_vision": (-1, 3, side, side)}
    frames = getattr(config, "patch_temporal", None) or getattr(config, "temporal_patch_size", 1)
    more = {"merge_sizes": torch.tensor([1, 2])} if name == "video_llama_3_vision" else {}
    pixels = torch.randn(int(grid.prod(-1).sum()), channels * (1 if shapes.get(name) or more else frames) * side**2)
    return model(pixels.reshape(shapes.get(name, pixels.shape)), grid_thw=grid, **more)


_calls = {}  # by the module that attends, of the pass in progress


def _record(module, query, key, value, *args, **kwargs):
    """Attention that returns zeros."""
    _calls.setdefault(module, []).append((query.numpy(), key.numpy()))
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


AttentionInterface.register("record_towers", _record)


def passes(config, images):
    """The layer of each attention, and its query and key (batch, heads, seq, features), at rest and then rotated."""
    model, results = make_model(config), []
    for rest in (True, False):
        _calls.clear()
        torch.manual_seed(1)
        with at_rest(model) if rest else contextlib.nullcontext():
            call(model, config, images)
        results.append([[np.concatenate(x, 2) for x in zip(*parts, strict=True)] for parts in _calls.values()])
    names = {module: name for name, module in model.named_modules()}
    indices = [next(int(part) for part in names[module].split(".") if part.isdecimal()) for module in _calls]
    return indices, *results


def hf_towers(case):
    """Some queries of one layer of each kind, or keys in memory, before and after their rotation."""
    config = config_of(case["config"])
    if config.model_type == UNLIKE:
        return {}
    (indices, *both), name = passes(config, case["images"]), config.model_type
    attending, found = sorted({*indices}), []
    for layer in case.get("layers") or [{"layer": i, "memory": False} for i in attending]:
        # Where there is memory, the second attention of a layer is to it.
        i = [i for i, index in enumerate(indices) if index == layer["layer"]][layer["memory"]]
        x, y = (results[i][int(layer["memory"])] for results in both)
        if name == "mlcd_vision_model":  # its class token turns by learned angles
            x, y = x[:, :, 1:], y[:, :, 1:]
        if name == "efficientloftr":  # whose code gives each head its own part of the features
            x, y = (z.swapaxes(1, 2).reshape(z.shape[0], 1, z.shape[2], -1) for z in (x, y))
        tokens = layer.get("tokens") or np.random.default_rng(1).permutation(x.shape[2])[:8].tolist()
        found.append(layer | {"count": x.shape[2], "tokens": tokens})
        found[-1] |= {"before": x[0, 0, tokens], "after": y[0, 0, tokens]}
    return {"attending": attending, "layers": found}


def learned(model):
    """The names of a tower's parameters that are tables of positions, with more than one row."""
    names = [(name, p) for name, p in model.named_parameters() if "pos_emb" in name or "position" in name]
    return [name for name, p in names if p.ndim > 1 and p.shape[-2] > 1]


def hf_tower_tables(case):
    """The rows of a table that are added to patches: all other weights of the tower are zeros."""
    config, images = config_of(case["config"]), case["images"]
    if config.model_type == UNLIKE:
        return {}
    model, seen = make_model(config), []
    (name,) = learned(model)
    # The module that rows enter, or else the one that they leave.
    entered = {"pos_embed.weight": "blocks.0", "positional_embedding_vlm": "layernorm_pre"}.get(name)
    module = model.get_submodule(entered or name.rpartition(".position")[0])
    with torch.no_grad():
        for key, weight in [*model.named_parameters(), *model.named_buffers()]:
            if weight.is_floating_point():  # Kimi K2.5 has a buffer of sinusoids of the frame
                weight.zero_()
            if key == name:
                values = torch.tensor(case["table"]).reshape(-1, 1)
                weight.view(-1, weight.shape[-1])[: len(values)] = values  # Llama 4's class token comes last
    if entered:
        module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    else:
        module.register_forward_hook(lambda _, args, out: seen.append(out))
    call(model, config, images)
    rows = seen[0].reshape(-1, *seen[0].shape[-2:])[0, :, 0].numpy()  # the first of a batch
    if config.model_type == "llama4_vision_model":
        rows = rows[:-1]
    if config.model_type == "inkling2_vision":  # each image begins with a class token
        rows = np.delete(rows, [0, *np.cumsum([math.prod(image) + 1 for image in images])[:-1]])
    if config.model_type.startswith("muse"):  # windows come after this
        side = config.pos_emb_height * config.patch_size
        order, _ = vision_utils.get_vision_window_index(torch.tensor(images), 1, side, config.patch_size)
        rows = rows[order]
    return {"rows": rows}
