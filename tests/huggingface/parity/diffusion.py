"""Small image and video transformers of diffusers, run forward: cosine and sine of each pair of features of each token.

A projection to queries and keys returns one vector for all tokens, a norm of them its input, and the attention records:
what reaches it is that vector, rotated. What diffusers computes in float32, from frequencies on, is computed in float64
too; that is recorded, and how far float32 is from it.
"""

import contextlib
import importlib
import math
import re
import warnings
from types import SimpleNamespace

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

PROJECTION = re.compile(r"(.*\.)?(to_[qk](_t)?|add_[qk]_proj|to_query|to_key)")
NORM = re.compile(r"(.*\.)?(norm_(added_)?[qk]|[qk]_rms_norm(_t)?|(query|key)_norm)")
WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128, torch.bfloat16: torch.float64}


DRAWS = {"kaiming_uniform_", "normal_", "trunc_normal_", "uniform_", "xavier_uniform_"}


class Reached(Exception):
    """The attention that a case asks for."""


class Recording(TorchFunctionMode):
    """Records queries and keys (heads, tokens, features) that attend; computes in `dtype`.

    Of bfloat16, to which Kandinsky 5 rounds queries and keys of every dtype, it makes `dtype` too.
    """

    def __init__(self, dtype, linear=False):
        super().__init__()
        self.dtype, self.linear, self.calls = dtype, linear, []
        self.swap = WIDE if dtype == torch.float64 else {torch.bfloat16: dtype}

    def attend(self, query, key):
        self.calls.append((query, key))
        if len(self.calls) == self.wanted:
            raise Reached

    def project(self, module, args, output):
        """What a projection returns: the vector for each head."""
        size = output.shape[-1]
        return self.vector.repeat(-(-size // len(self.vector)))[:size].expand(output.shape).clone()

    def swapped(self, x):
        return self.swap.get(x, x) if isinstance(x, torch.dtype) else x

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is functional.scaled_dot_product_attention:
            query, key, value = (kwargs[name] if name in (kwargs or {}) else args[i] for i, name in enumerate(QKV))
            self.attend(query[0], key[0])
            return query.new_zeros(*query.shape[:-1], value.shape[-1])
        if self.linear and function is torch.matmul:  # (batch, heads, features, tokens)
            self.attend(args[1][0].mT, args[1][0].mT)
        if function.__name__ in DRAWS:  # weights do not matter
            return (*args, *(kwargs or {}).values())[0].zero_()
        if function is torch.Tensor.float:
            return args[0].to(self.dtype)
        args = tuple(self.swapped(x) for x in args)
        return function(*args, **{name: self.swapped(x) for name, x in (kwargs or {}).items()})


QKV = "query", "key", "value"


# Of pipelines: what each class gets as input


def pipeline(module, name):
    return getattr(importlib.import_module(f"diffusers.pipelines.{module}"), name)


def blocks(module):
    return importlib.import_module(f"diffusers.modular_pipelines.{module}.before_denoise")


def latents(config, sizes, patch, channels=None):
    """Zeros (1, channels, …) that patches of this size divide into `shape` tokens."""
    shape = [n * p for n, p in zip(sizes["shape"], patch, strict=True)]
    return torch.zeros(1, channels or config["in_channels"], *shape)


def counted(sizes):
    """The tokens of the image, and of the references."""
    return math.prod(sizes["shape"]), sum(map(math.prod, sizes.get("references", [])))


def flux(config, sizes, name="flux.pipeline_flux_kontext", pipe="FluxKontextPipeline"):
    """Packed latents, with their ids and those of a reference as FLUX.1 Kontext makes them."""
    (height, width), text = sizes["shape"], sizes["text"]
    pipe = pipeline(name, pipe)
    txt_ids, ids = torch.zeros(text, 3), pipe._prepare_latent_image_ids(1, height, width, "cpu", torch.float32)
    ids = [ids.reshape(-1, 3)]
    for index, (high, wide) in enumerate(sizes.get("references", []), 1):
        if pipe.__name__ == "FluxKontextPipeline":
            own = SimpleNamespace(vae_scale_factor=8, latent_channels=4, _pack_latents=pipe._pack_latents)
            own._prepare_latent_image_ids = pipe._prepare_latent_image_ids
            image = torch.zeros(1, 4, 2 * high, 2 * wide)
            args = image, 1, 4, 16 * height, 16 * width, torch.float32, "cpu"
            ids.append(pipe.prepare_latents(own, *args)[3])
        else:
            ids.append(fibo_reference(pipe, high, wide, index))
    ids = torch.cat(ids)
    return {
        "hidden_states": torch.zeros(1, len(ids), config["in_channels"]),
        "encoder_hidden_states": torch.zeros(1, text, 8),
        "timestep": torch.ones(1),
        "img_ids": ids,
        "txt_ids": txt_ids,
    }


def fibo_reference(pipe, height, width, index):
    """The ids of a reference, encoded to (height, width) latents."""
    encoded = SimpleNamespace(latent_dist=SimpleNamespace(mean=torch.zeros(1, 4, 1, height, width)))
    vae = SimpleNamespace(parameters=lambda: iter([torch.zeros(1)]), encode=lambda x: encoded)
    vae.config = SimpleNamespace(latents_mean=[0] * 4, latents_std=[1] * 4)
    processor = SimpleNamespace(preprocess=lambda *_, **__: torch.zeros(1, 3, 1, 1))
    image = SimpleNamespace(size=(16 * width, 16 * height), convert=lambda _: None)
    own = SimpleNamespace(vae=vae, image_processor=processor, _prepare_latent_image_ids=pipe._prepare_latent_image_ids)
    own._pack_latents_no_patch = pipe._pack_latents_no_patch
    arguments = dict(image=image, num_channels_latents=4, dtype=torch.float32, device="cpu", reference_index=index)
    return pipe.prepare_reference_latents(own, **arguments)[1]


def flux_pooled(config, sizes):
    return flux(config, sizes) | {"pooled_projections": torch.zeros(1, 8)}


def chroma(config, sizes):
    return flux(config, sizes, "chroma.pipeline_chroma", "ChromaPipeline")


def bria(config, sizes):
    return flux(config, sizes, "bria.pipeline_bria", "BriaPipeline")


def fibo(config, sizes):
    x = flux(config, sizes, "bria_fibo.pipeline_bria_fibo_edit", "BriaFiboEditPipeline")
    return x | {"text_encoder_layers": [torch.zeros(1, sizes["text"], 8)]}


def ovis(config, sizes):
    x = flux(config, sizes, "ovis_image.pipeline_ovis_image", "OvisImagePipeline")
    own = SimpleNamespace(text_encoder=SimpleNamespace(dtype=torch.float32))
    prepare = pipeline("ovis_image.pipeline_ovis_image", "OvisImagePipeline")._prepare_prompt_embeds
    return x | {"txt_ids": prepare(own, None, x["encoder_hidden_states"], 1, 256, "cpu")[1]}


def longcat(config, sizes):
    """The image begins where the text ends."""
    prepare, text = pipeline("longcat_image.pipeline_longcat_image_edit", "prepare_pos_ids"), sizes["text"]
    ids = [
        prepare(index, "image", (text, text), height=height, width=width)
        for index, (height, width) in enumerate([sizes["shape"], *sizes.get("references", [])], 1)
    ]
    return flux(config, sizes) | {
        "hidden_states": torch.zeros(1, sum(counted(sizes)), config["in_channels"]),
        "txt_ids": prepare(0, "text", (0, 0), num_token=text),
        "img_ids": torch.cat(ids),
    }


def flux2(config, sizes):
    pipe, (image, references) = pipeline("flux2.pipeline_flux2", "Flux2Pipeline"), counted(sizes)
    ids = pipe._prepare_latent_ids(torch.zeros(1, 1, *sizes["shape"]))
    if references:
        images = [torch.zeros(1, 1, *size) for size in sizes["references"]]
        ids = torch.cat([ids, pipe._prepare_image_ids(images)], 1)
    return {
        "hidden_states": torch.zeros(1, image + references, config["in_channels"]),
        "encoder_hidden_states": torch.zeros(1, sizes["text"], 8),
        "timestep": torch.ones(1),
        "guidance": torch.ones(1),
        "img_ids": ids,
        "txt_ids": pipe._prepare_text_ids(torch.zeros(1, sizes["text"], 1)),
    }


def flux3(config, sizes):
    module, (image, references) = blocks("flux3"), counted(sizes)
    scale = module.Flux3PrepareLatentsStep().image_rope_scale
    each = enumerate(sizes.get("references", []), 1)
    ids = [module._prepare_image_ids(*size, scale, l_coord=-index) for index, size in each]
    more = {"image_cond_hidden_states": torch.zeros(1, references, 8), "image_cond_ids": torch.cat(ids)} if ids else {}
    return more | {
        "hidden_states": torch.zeros(1, image, config["in_channels"]),
        "encoder_hidden_states": torch.zeros(1, sizes["text"], 8),
        "timestep": torch.ones(1),
        "img_ids": module._prepare_image_ids(*sizes["shape"], scale),
        "txt_ids": module.Flux3TextRoPEInputsStep._prepare_text_ids(torch.zeros(1, sizes["text"], 1)),
    }


def krea(config, sizes):
    prepare = pipeline("krea2.pipeline_krea2", "Krea2Pipeline").prepare_position_ids
    return {
        "hidden_states": torch.zeros(1, counted(sizes)[0], config["in_channels"]),
        "encoder_hidden_states": torch.zeros(1, sizes["text"], 1, 8),
        "timestep": torch.ones(1),
        "position_ids": prepare(sizes["text"], *sizes["shape"], "cpu"),
    }


def hidream(config, sizes):
    """A third of the text is of T5, the rest of Llama."""
    text = torch.zeros(1, sizes["text"] // 3, 8)
    return {
        "hidden_states": latents(config, sizes, [2, 2]),
        "timesteps": torch.ones(1),
        "encoder_hidden_states_t5": text,
        "encoder_hidden_states_llama3": text[None],
        "pooled_embeds": torch.zeros(1, 8),
    }


def ernie(config, sizes):
    return {
        "hidden_states": latents(config, sizes, [1, 1]),
        "timestep": torch.ones(1),
        "text_bth": torch.zeros(1, sizes["text"], 8),
        "text_lens": torch.tensor([sizes["text"]]),
    }


def qwen(config, sizes):
    shapes, layered = [sizes["shape"], *sizes.get("references", [])], config["use_layer3d_rope"]
    frames, sides = shapes[0][:-2], shapes[0][-2:]
    # Layers of a layered image are images of one size.
    shapes = [(1, *sides)] * (frames[0] if layered else 1) + [(1, *size) for size in shapes[1:]]
    more = {"additional_t_cond": torch.zeros(1, dtype=torch.long)} if config["use_additional_t_cond"] else {}
    return more | {
        "hidden_states": torch.zeros(1, sum(map(math.prod, shapes)), config["in_channels"]),
        "encoder_hidden_states": torch.zeros(1, sizes["text"], 8),
        "timestep": torch.ones(1),
        "img_shapes": [shapes],
    }


def qwen21(config, sizes):
    """References come before the image, text before each; four tokens of an image are one of the text model."""
    shapes = [*sizes.get("references", []), sizes["shape"]]
    slots = [math.prod(size) // 4 for size in shapes]
    mask = [[False] * text + [True] * n for text, n in zip(sizes["text"], slots, strict=True)]
    return {
        "hidden_states": torch.zeros(1, 4 * sum(slots), config["in_channels"]),
        "encoder_hidden_states": torch.zeros(1, sum(sizes["text"]) + sum(slots[:-1]), 8),
        "timestep": torch.ones(1),
        "img_shapes": [[(1, *size) for size in shapes]],
        "img_mask": torch.tensor([sum(mask, [])]),
    }


def z_image(config, sizes):
    frames, *sides = sizes["shape"] if len(sizes["shape"]) == 3 else (1, *sizes["shape"])
    x = torch.zeros(config["in_channels"], frames, *(2 * n for n in sides))
    return {"x": [x], "t": torch.ones(1), "cap_feats": [torch.zeros(sizes["text"], 8)]}


def lumina(config, sizes):
    return {
        "hidden_states": latents(config, sizes, [config["patch_size"]] * 2),
        "timestep": torch.ones(1),
        "encoder_hidden_states": torch.zeros(1, sizes["text"], 8),
        "encoder_attention_mask": torch.ones(1, sizes["text"], dtype=torch.bool),
    }


def wan(config, sizes):
    x = {"hidden_states": latents(config, sizes, config["patch_size"])}
    return x | {"timestep": torch.ones(1), "encoder_hidden_states": torch.zeros(1, 3, 8)}


def cosmos(config, sizes):
    x = wan(config, sizes)
    side = x["hidden_states"].shape[-2:]
    return x | {"fps": sizes.get("rate"), "padding_mask": torch.zeros(1, 1, *side)}


def hunyuan(config, sizes):
    patch, text = config["patch_size"], sizes["text"]
    patch = patch if isinstance(patch, (list, tuple)) else [config["patch_size_t"], patch, patch]
    return {
        "hidden_states": latents(config, sizes, patch),
        "timestep": torch.ones(1),
        "encoder_hidden_states": torch.zeros(1, text, 8),
        "encoder_attention_mask": torch.ones(1, text),
    }


def hunyuan_video(config, sizes):
    return hunyuan(config, sizes) | {"pooled_projections": torch.zeros(1, 8), "guidance": torch.ones(1)}


def hunyuan15(config, sizes):
    """Of the text, one token is of the second text model and one of the image."""
    x = hunyuan(config, sizes | {"text": sizes["text"] - 2})
    return x | {
        "encoder_hidden_states_2": torch.zeros(1, 1, 8),
        "encoder_attention_mask_2": torch.ones(1, 1),
        "image_embeds": torch.ones(1, 1, 8),
    }


def ltx(config, sizes):
    """As LTXPipeline.__call__ does, and as LTXConditionPipeline."""
    frames, height, width = sizes["shape"]
    pipe = pipeline("ltx.pipeline_ltx_condition", "LTXConditionPipeline")
    coordinates = pipe._scale_video_ids(pipe._prepare_video_ids(1, *sizes["shape"])).float()
    coordinates[:, 0] *= 1.0 / sizes["rate"]
    return {
        "hidden_states": torch.zeros(1, frames * height * width, config["in_channels"]),
        "encoder_hidden_states": torch.zeros(1, 3, 8),
        "timestep": torch.ones(1),
        "encoder_attention_mask": torch.ones(1, 3),
        "num_frames": frames,
        "height": height,
        "width": width,
        "rope_interpolation_scale": (8 / sizes["rate"], 32, 32),
        "video_coords": coordinates if sizes["causal"] else None,
    }


def ltx2(config, sizes, stream):
    """The other stream has one token."""
    video = sizes["shape"] if stream.startswith("video") else [1, 1, 1]
    audio = 1 if stream.startswith("video") else sizes["shape"][0]
    patch = [config["patch_size_t"], config["patch_size"], config["patch_size"]]
    return {
        "hidden_states": torch.zeros(1, math.prod(video), config["in_channels"]),
        "audio_hidden_states": torch.zeros(1, audio, config["audio_in_channels"]),
        "encoder_hidden_states": torch.zeros(1, 3, 8),
        "audio_encoder_hidden_states": torch.zeros(1, 3, 8),
        "timestep": torch.ones(1),
        "sigma": torch.ones(1),
        **{name: n * p for name, n, p in zip(("num_frames", "height", "width"), video, patch, strict=True)},
        "audio_num_frames": audio * config["audio_patch_size_t"],
        **({"fps": sizes["rate"]} if "rate" in sizes else {}),
    }


def cogvideox(config, sizes, model):
    frames, *sides = sizes["shape"]
    pipe = pipeline("cogvideo.pipeline_cogvideox", "CogVideoXPipeline")
    frames *= config["patch_size_t"] or 1
    sides = [n * config["patch_size"] for n in sides]
    own = SimpleNamespace(vae_scale_factor_spatial=8, transformer=model)
    rotary = pipe._prepare_rotary_positional_embeddings(own, *(8 * n for n in sides), frames, "cpu")
    return {
        "hidden_states": torch.zeros(1, frames, config["in_channels"], *sides),
        "encoder_hidden_states": torch.zeros(1, sizes["text"], 8),
        "timestep": torch.ones(1),
        "image_rotary_emb": rotary,
    }


def cogview(config, sizes):
    pairs = {name: torch.ones(1, 2) for name in ("original_size", "target_size", "crop_coords")}
    x = lumina(config, sizes) | pairs
    return {name: value for name, value in x.items() if name != "encoder_attention_mask"}


def glm(config, sizes):
    x, image = cogview(config, sizes), counted(sizes)[0]
    del x["original_size"]
    return x | {"prior_token_id": torch.zeros(1, image, dtype=torch.long), "prior_token_drop": torch.tensor([False])}


def mochi(config, sizes):
    x = wan(config | {"patch_size": [1, config["patch_size"], config["patch_size"]]}, sizes)
    text, mask = torch.zeros(1, sizes["text"], 8), torch.ones(1, sizes["text"], dtype=torch.bool)
    return x | {"encoder_hidden_states": text, "encoder_attention_mask": mask}


def kandinsky(config, sizes, stream):
    """The other stream has one token."""
    shape, text = (sizes["shape"], 1) if stream == "video" else ([1, 1, 1], sizes["shape"][0])
    visual = [n * p for n, p in zip(shape, config["patch_size"], strict=True)]
    channels = config["in_visual_dim"] * (2 if config["visual_cond"] else 1) + bool(config["visual_cond"])
    return {
        "hidden_states": torch.zeros(1, *visual, channels),
        "encoder_hidden_states": torch.zeros(1, text, 8),
        "timestep": torch.ones(1),
        "pooled_projections": torch.zeros(1, 8),
        "visual_rope_pos": [torch.arange(n) for n in shape],
    }


def kandinsky5(config, sizes, stream):
    x = kandinsky(config, sizes, stream)
    text = torch.arange(x["encoder_hidden_states"].shape[1])
    return x | {"text_rope_pos": text, "scale_factor": sizes.get("scale", (1.0, 1.0, 1.0))}


def kandinsky6(config, sizes, stream):
    """A reference is the clean frame that Kandinsky6TI2VAPipeline appends."""
    x = kandinsky(config, sizes, stream if stream == "video" else "text")
    x |= {"audio_hidden_states": torch.zeros(1, sizes["shape"][0], config["in_audio_dim"])}
    if "references" in sizes:
        frames, *sides = map(torch.arange, sizes["shape"])
        x["hidden_states"] = torch.cat([x["hidden_states"], x["hidden_states"][:, :1]], dim=1)
        x["visual_rope_pos"] = torch.cat([frames, torch.zeros(1, dtype=torch.long)]), *sides
    return x


def ideogram(config, sizes):
    pipe, (height, width), text = pipeline("ideogram4.pipeline_ideogram4", "Ideogram4Pipeline"), *sizes.values()
    positions, segments, indicator = pipe._prepare_ids([text], height, width, text, "cpu")
    return {
        "hidden_states": torch.zeros(1, text + height * width, config["in_channels"]),
        "timestep": torch.ones(1),
        "encoder_hidden_states": torch.zeros(1, text + height * width, 8),
        "position_ids": positions,
        "segment_ids": segments,
        "indicator": indicator,
    }


# Settings of each class that do not change positions, for a small model; its inputs; and the attention that records, by
# its index and its part, where that is not the query of the first.

JOINT = dict(num_layers=1, num_single_layers=0, num_attention_heads=2, in_channels=4, joint_attention_dim=8)
POOLED = dict(pooled_projection_dim=8)
VIDEO = dict(num_layers=1, num_attention_heads=2, in_channels=4, out_channels=4, text_dim=8, freq_dim=8, ffn_dim=8)
HUNYUAN = dict(num_layers=1, num_single_layers=0, num_refiner_layers=1, num_attention_heads=2, in_channels=4)
HUNYUAN |= dict(out_channels=4, text_embed_dim=8, mlp_ratio=1.0)
COGVIEW = dict(num_layers=1, num_attention_heads=2, in_channels=4, out_channels=4, text_embed_dim=8, condition_dim=8)
COGVIEW |= dict(time_embed_dim=8)
KANDINSKY = dict(in_visual_dim=4, out_visual_dim=4, in_text_dim=8, in_text_dim2=8, time_dim=8, ff_dim=8)
KANDINSKY |= dict(num_text_blocks=1, num_visual_blocks=1)
LTX = dict(num_layers=1, in_channels=4, out_channels=4, caption_channels=8)
LTX2 = LTX | dict(cross_attention_dim=8, audio_in_channels=4, audio_out_channels=4, audio_cross_attention_dim=8)

MODELS = {
    "FluxTransformer2DModel": (JOINT | POOLED, flux_pooled),
    "ChromaTransformer2DModel": (JOINT | dict(approximator_hidden_dim=8, approximator_layers=1), chroma),
    "BriaTransformer2DModel": (JOINT, bria),
    "BriaFiboTransformer2DModel": (JOINT | dict(text_encoder_dim=8), fibo),
    "Flux2Transformer2DModel": (JOINT | dict(mlp_ratio=1.0), flux2),
    "Flux3Transformer2DModel": (JOINT | dict(num_layers=0, num_single_layers=1, cond_in_channels=8), flux3),
    "Krea2Transformer2DModel": (
        dict(num_layers=1, num_attention_heads=2, num_key_value_heads=1, in_channels=4, intermediate_size=8)
        | dict(timestep_embed_dim=8, text_hidden_dim=8, num_text_layers=1, text_num_attention_heads=1)
        | dict(text_num_key_value_heads=1, text_intermediate_size=8),
        krea,
        4,
        "query",
    ),
    "OvisImageTransformer2DModel": (JOINT | dict(out_channels=4), ovis),
    "LongCatImageTransformer2DModel": (JOINT | POOLED, longcat),
    "HiDreamImageTransformer2DModel": (
        dict(num_layers=1, num_single_layers=0, num_attention_heads=2, in_channels=4, text_emb_dim=8, llama_layers=[0])
        | dict(caption_channels=[8, 8]),
        hidream,
    ),
    "ErnieImageTransformer2DModel": (dict(num_layers=1, ffn_hidden_size=8, in_channels=4, text_in_dim=8), ernie),
    "QwenImageTransformer2DModel": (
        dict(num_layers=1, num_attention_heads=2, in_channels=4) | dict(joint_attention_dim=8),
        qwen,
    ),
    "QwenImage21Transformer2DModel": (
        dict(num_layers=1, num_attention_heads=2, in_channels=4, context_in_dim=8, mlp_ratio=1),
        qwen21,
        -1,
        "key",
    ),
    "ZImageTransformer2DModel": (
        dict(n_layers=1, n_refiner_layers=1, in_channels=4, cap_feat_dim=8),
        z_image,
        2,
        "query",
    ),
    "Lumina2Transformer2DModel": (
        dict(num_layers=1, num_refiner_layers=1, in_channels=4, cap_feat_dim=8, multiple_of=8),
        lumina,
        2,
        "query",
    ),
    "WanTransformer3DModel": (VIDEO, wan),
    "SkyReelsV2Transformer3DModel": (VIDEO, wan),
    "SanaVideoTransformer3DModel": (
        dict(num_layers=1, num_attention_heads=2, in_channels=4, out_channels=4, num_cross_attention_heads=1)
        | dict(caption_channels=8),
        wan,
        1,
        "query",
    ),
    "ChronoEditTransformer3DModel": (VIDEO, wan),
    "HunyuanVideoTransformer3DModel": (HUNYUAN | POOLED, hunyuan_video, 1, "query"),
    "HunyuanVideo15Transformer3DModel": (
        {k: v for k, v in HUNYUAN.items() if k != "num_single_layers"} | dict(text_embed_2_dim=8, image_embed_dim=8),
        hunyuan15,
        1,
        "query",
    ),
    "HunyuanImageTransformer2DModel": (HUNYUAN, hunyuan, 1, "query"),
    "MotifVideoTransformer3DModel": (
        {k: v for k, v in HUNYUAN.items() if k != "num_refiner_layers"},
        hunyuan,
    ),
    "LTXVideoTransformer3DModel": (LTX, ltx),
    "LTX2VideoTransformer3DModel": (LTX2, ltx2),
    "CogVideoXTransformer3DModel": (
        dict(num_layers=1, num_attention_heads=2, in_channels=4, out_channels=4, text_embed_dim=8, time_embed_dim=8),
        cogvideox,
    ),
    "CogView4Transformer2DModel": (COGVIEW, cogview),
    "GlmImageTransformer2DModel": (COGVIEW | dict(prior_vq_quantizer_codebook_size=8), glm),
    "MochiTransformer3DModel": (
        dict(num_layers=2, in_channels=4, pooled_projection_dim=8, text_embed_dim=8, time_embed_dim=8),
        mochi,
        1,
        "query",
    ),
    "CosmosTransformer3DModel": (
        dict(num_layers=1, num_attention_heads=2, in_channels=4, out_channels=4, text_embed_dim=8, adaln_lora_dim=8)
        | dict(mlp_ratio=1.0, extra_pos_embed_type=None, encoder_hidden_states_channels=8, concat_padding_mask=False),
        cosmos,
    ),
    "Kandinsky5Transformer3DModel": (KANDINSKY, kandinsky5),
    "Kandinsky6Transformer3DModel": (KANDINSKY | dict(in_audio_dim=4, out_audio_dim=4), kandinsky6),
    "Ideogram4Transformer2DModel": (
        dict(num_layers=1, num_attention_heads=2, in_channels=4, intermediate_size=8, adaln_dim=8, llm_features_dim=8),
        ideogram,
    ),
    "SD3Transformer2DModel": (
        dict(num_layers=1, num_attention_heads=2, joint_attention_dim=8, caption_projection_dim=8) | POOLED,
        None,
    ),
    "AuraFlowTransformer2DModel": (
        dict(num_mmdit_layers=1, num_single_dit_layers=0, num_attention_heads=2, joint_attention_dim=8)
        | dict(caption_projection_dim=8),
        None,
    ),
}


def model_class(name):
    import diffusers
    from diffusers.models import transformers

    return getattr(diffusers, name, None) or getattr(transformers, name)


# By stream: the index of the attention, and its query or key.
STREAMS = {
    "LTX2VideoTransformer3DModel": {
        "video": (0, "query"),
        "audio": (1, "query"),
        "video_cross": (4, "query"),
        "audio_cross": (4, "key"),
    },
    "Kandinsky5Transformer3DModel": {"text": (0, "query"), "video": (1, "query")},
    "Kandinsky6Transformer3DModel": {
        "text": (0, "query"),
        "audio_text": (1, "query"),
        "video": (2, "query"),
        "audio": (4, "query"),
    },
}


def run(model, case, recording, vector):
    """The query or key (heads, tokens, features) of a case where projections return `vector`."""
    name, stream = case["config"]["_class_name"], case.get("stream")
    _, inputs, *picked = MODELS[name]
    index, part = STREAMS[name][stream] if stream else picked or (0, "query")
    more = [stream] if stream else [model] if inputs is cogvideox else []
    recording.calls, recording.vector, recording.wanted = [], vector, index + 1
    recording.inputs = inputs(dict(model.config), case["sizes"], *more)
    with contextlib.suppress(Reached):
        model(**recording.inputs)
    query, key = recording.calls[index]
    if part == "query" and query.shape[1] == key.shape[1]:
        # Keys rotate as queries do; HiDream multiplies those of padding by 0.
        attends = (key != 0).any(-1, keepdim=True)
        torch.testing.assert_close(key, query[: len(key)] * attends, rtol=0, atol=0)
    return query if part == "query" else key


@torch.no_grad()
def rotation(case, dtype):
    """The layout, cosines and sines (heads, tokens, pairs) and the inputs of a case."""
    config = dict(case["config"])
    name = config.pop("_class_name")
    torch.set_default_dtype(dtype)
    try:
        with Recording(dtype, linear=name.startswith("SanaVideo")) as recording:
            model = model_class(name)(**{**MODELS[name][0], **config}).eval()
            if "pos_frequencies" in case:
                model.pos_frequencies.copy_(torch.tensor(case["pos_frequencies"]))
            for path, module in model.named_modules():
                if PROJECTION.fullmatch(path) and isinstance(module, torch.nn.Linear):
                    module.register_forward_hook(recording.project)
                elif NORM.fullmatch(path):
                    module.register_forward_hook(lambda module, args, output: args[0])
            return *measured(lambda vector: run(model, case, recording, vector)), recording.inputs
    finally:
        torch.set_default_dtype(torch.float32)


def measured(rotate):
    """The layout, cosines and sines of a rotation, from vectors of ones and zeros; a drawn vector confirms them."""
    width = rotate(torch.ones(1)).shape[-1]
    drawn, features = 0.5 + torch.rand(width), torch.arange(width)
    rotated = rotate(drawn)
    for layout, pair in {"interleaved": features.reshape(-1, 2).T, "half": features.reshape(2, -1)}.items():
        unit = torch.zeros(width).index_fill(0, pair[0], 1)
        cos, sin = rotate(unit)[..., pair].unbind(-2)
        x, y = drawn[pair]
        if torch.allclose(rotated[..., pair], torch.stack([x * cos - y * sin, x * sin + y * cos], -2), atol=1e-5):
            return layout, cos, sin
    # ERNIE-Image combines halves by the waves of neighbours, which is no rotation.
    (c1, s2), (s1, c2) = (rotate(x)[..., pair].unbind(-2) for x in (unit, 1 - unit))
    cos, sin = torch.cat([c1, c2], -1), torch.cat([-s1, s2], -1)
    torch.testing.assert_close(rotated, drawn * cos + torch.cat([-y, x]) * sin, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.stack([cos, sin])[..., ::2], torch.stack([cos, sin])[..., 1::2], rtol=0, atol=0)
    return None, cos[..., ::2], sin[..., ::2]


def table_rows(case):
    """The index of the row of a table that is added to each patch."""
    config = dict(case["config"])
    name = config.pop("_class_name")
    embed = model_class(name)(**{**MODELS[name][0], **config}).pos_embed
    table = embed.pos_embed.data
    table[...] = torch.arange(table.shape[1])[:, None]
    for weight in embed.proj.parameters():
        weight.data.zero_()
    side, channels = embed.patch_size, embed.proj.weight.shape[1]
    image = torch.zeros(1, channels, *(n * side for n in case["sizes"]["shape"]))
    if embed.proj.weight.ndim == 2:  # AuraFlow projects flattened patches
        image = image[:, : channels // side**2]
    return {"rows": embed(image)[0, :, 0].long()}


def joint_ids(inputs):
    """The ids of all tokens, where a model gets them and they are integers."""
    names = [name for name in ("txt_ids", "img_ids", "image_cond_ids", "position_ids") if name in inputs]
    ids = [inputs[name].reshape(-1, inputs[name].shape[-1]) for name in names]
    ids = torch.cat(ids) if ids else torch.zeros(0)
    return {"ids": ids.long()} if len(ids) and torch.equal(ids, ids.round()) else {}


def hf_diffusion(case):
    """The layout, and cosines and sines (tokens, pairs) in float64; how far those in float32 are from them.

    Of the largest sizes, the error alone.
    """
    if MODELS[case["config"]["_class_name"]][1] is None:
        return table_rows(case)
    with warnings.catch_warnings(action="ignore"):  # Chroma's deprecated import, Mochi's autocast
        (_, *found, _), (layout, *true, inputs) = (rotation(case, dtype) for dtype in (torch.float32, torch.float64))
    error = max((x - y).abs().max().item() for x, y in zip(found, true, strict=True))
    result = {"layout": layout, "error": float(f"{error:.1e}")}
    if case.get("largest"):
        return result
    if all(torch.equal(x, x[:1].expand_as(x)) for x in true):  # all heads rotate alike
        true = [x[:1] for x in true]
    cos, sin = (x.transpose(0, 1).flatten(1) for x in true)
    return result | joint_ids(inputs) | {"cos": cos, "sin": sin}


if __name__ == "__main__":  # the recorded errors at the largest sizes, as a table
    from record import read

    print("| class | tokens | error of float32 |\n| --- | --- | --- |")
    for case in read("hf_diffusion")["largest"]:
        name, sizes = case["config"]["_class_name"], case["sizes"].items()
        stream, tokens = case.get("stream", ""), ", ".join(f"{key} {value}" for key, value in sizes)
        print(f"| {name} {stream} | {tokens} | {case['error']:.0e} |")
