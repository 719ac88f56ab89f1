"""Random rows of tokens for multimodal models of transformers, as their processors write them, and the models' positions."""

import functools
import importlib
from types import SimpleNamespace

import numpy as np
import torch

# What holds get_rope_index, and the settings of the config beside the defaults.
ONE_RUN = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel", "paddleocr_vl": "PaddleOCRVLModel"}
ONE_RUN |= {"ernie4_5_vl_moe": "Ernie4_5_VLMoeModel"}
APART = {"qwen3_vl": "Qwen3VLModel", "qwen3_vl_moe": "Qwen3VLMoeModel", "qwen3_5": "Qwen3_5Model"}
APART |= {"qwen3_5_moe": "Qwen3_5MoeModel", "qwen4_exp": "Qwen4ExpModel", "cohere_compass": "CohereCompassModel"}
APART |= {"cosmos3_omni": "Cosmos3OmniModel", "cosmos3_edge": "Cosmos3EdgeModel"}
ENCLOSED = {"glm4v": "Glm4vModel", "glm4v_moe": "Glm4vMoeModel", "glm46v": "Glm46VModel", "glmga": "Glm46VModel"}
ENCLOSED |= {"glm_ocr": "GlmOcrModel"}
OMNI = {
    "qwen2_5_omni_thinker": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen2_5_omni_talker": "Qwen2_5OmniTalkerForConditionalGeneration",
    "qwen3_omni_moe_thinker": "Qwen3OmniMoeThinkerForConditionalGeneration",
    "qwen3_omni_moe_talker": "Qwen3OmniMoeTalkerForConditionalGeneration",
}
MODELS = ONE_RUN | APART | ENCLOSED | OMNI | {"glm_image": "GlmImageModel"}
SECONDS = [0.5, 1.0, 2.0, 2 / 3, 2 / 7, 0.083]
PAD, START, END, AUDIO_END = 3, 4, 5, 6
VISION_START = 151652


def family(name):
    """The module of a model_type."""
    return {"glmga": "glm46v"}.get(name, name.removesuffix("_thinker").removesuffix("_talker"))


@functools.cache
def module(name, kind):
    return importlib.import_module(f"transformers.models.{name}.{kind}_{name}")


def config_of(name, config):
    """The config that transformers makes of a config.json."""
    from transformers import CONFIG_MAPPING

    if name == "qwen3_omni_moe_talker":
        return module("qwen3_omni_moe", "configuration").Qwen3OmniMoeTalkerConfig(**config)
    return CONFIG_MAPPING[name](**{key: value for key, value in config.items() if key != "model_type"})


def model_of(name, config):
    """A model without weights: its positions need the config alone."""
    cls = getattr(module(family(name), "modeling"), MODELS[name])
    model = cls.__new__(cls)
    torch.nn.Module.__init__(model)
    model.config = config
    if name in OMNI:
        model.spatial_merge_size = merge_of(config)
    return model


def merge_of(config):
    return config.vision_config.spatial_merge_size if hasattr(config, "vision_config") else config.spatial_merge_size


def random_config(rng, name, changed):
    """The default config, or one with other values of every key that the positions depend on."""
    config = {"model_type": name}
    if name in OMNI:
        config["vision_start_token_id"] = VISION_START  # as published; the class of the thinker has none
    if name == "qwen3_omni_moe_talker":
        config["spatial_merge_size"] = 2  # as published; its class has none
    if not changed:
        return config
    spelled = "token_index" if name.startswith("qwen2_5_omni") else "token_id"
    ids = [f"image_{spelled}"]
    if name in OMNI:
        ids += [f"video_{spelled}", f"audio_{spelled}"]
    elif name in ENCLOSED:
        ids += ["video_start_token_id", "video_end_token_id"]
    elif name == "glm_image":
        ids += ["image_start_token_id", "image_end_token_id"]
    else:
        ids += ["video_token_id"]
    config |= {key: int(token) for key, token in zip(ids, rng.permutation(np.arange(200, 210)), strict=False)}
    merge = {} if name == "glm_image" else {"spatial_merge_size": int(rng.choice([1, 2, 3]))}
    if name == "qwen2_5_vl":
        merge["tokens_per_second"] = int(rng.choice([2, 4, 25]))
    if name == "ernie4_5_vl_moe":
        merge["temporal_merge_size"] = int(rng.choice([1, 2, 3]))
    if name in OMNI:
        config["position_id_per_seconds"] = int(rng.choice([2, 13, 25]))
    return config | (merge if name.endswith("_talker") else {"vision_config": merge} if merge else {})


def audio(rng, name, config):
    """The length of audio before its tower, and its tokens."""
    lengths = module(family(name), "processing")._get_feat_extract_output_lengths
    length = int(rng.integers(12, 150))
    return length, int(lengths(length, *([config.audio_config.n_window] if name.startswith("qwen3") else [])))


def frames_and_audio(name, config, grid, seconds, tokens):
    """The placeholders of a video and its audio, in the order of the processor."""
    processing = module(family(name), "processing")
    cls = processing.Qwen3OmniMoeProcessor if name.startswith("qwen3") else processing.Qwen2_5OmniProcessor
    processor = SimpleNamespace(video_token="v", audio_token="a", audio_bos_token="", audio_eos_token="")
    processor.video_processor = SimpleNamespace(merge_size=merge_of(config))
    processor.get_chunked_index = functools.partial(cls.get_chunked_index, processor)
    found = cls.replace_video_with_audio_token(
        processor, {"video_grid_thw": [np.array(grid)], "video_second_per_grid": [seconds]}, 0,
        {"num_audio_tokens": [tokens]}, 0,
        position_id_per_seconds=config.position_id_per_seconds, seconds_per_chunk=getattr(config, "seconds_per_chunk", 2),
    )  # fmt: skip
    return [config.video_token_id if c == "v" else config.audio_token_id for c in found]


def row(rng, name, config, case, lengths, with_audio):
    """The tokens of a row; appends the grids of its images and videos, and the lengths of its audio."""
    tokens, text = [], lambda most: rng.integers(30, 99, rng.integers(1, most)).tolist()
    kinds = ["text", "image"] + ["video"] * (name != "glm_image") + ["audio"] * (with_audio is not None)
    merge, frames = 1 if name == "glm_image" else merge_of(config), 1
    for kind in rng.choice(kinds, rng.integers(1, 6)):
        if kind == "text":
            tokens += text(7)
            continue
        if kind == "audio":
            length, n = audio(rng, name, config)
            lengths.append(length)
            tokens += [config.audio_start_token_id, *[config.audio_token_id] * n, AUDIO_END]
            continue
        time = int(rng.integers(1, 6)) if kind == "video" else 1
        height, width = (int(n) for n in rng.integers(1, 4, 2))
        if name == "ernie4_5_vl_moe" and kind == "video":
            frames = config.vision_config.temporal_merge_size
        grid = [time * frames if kind == "video" else 1, merge * height, merge * width]
        case[f"{kind}_grids"].append(grid)
        if kind == "video" and "video_seconds" in case:
            case["video_seconds"].append(float(rng.choice(SECONDS)))
        if name in OMNI and kind == "video" and with_audio:
            length, n = audio(rng, name, config)
            lengths.append(length)
            inner = frames_and_audio(name, config, grid, case["video_seconds"][-1], n)
            tokens += [VISION_START, config.audio_start_token_id, *inner, AUDIO_END, END]
            continue
        enclosed = name in ENCLOSED and kind == "video"
        runs = time if kind == "video" and (name in APART or enclosed) else 1
        placeholder = config.image_token_id if kind == "image" or enclosed else config.video_token_id
        run = [placeholder] * (time * height * width // runs)
        start, end = (VISION_START, END) if name in OMNI else (START, END)
        if name == "glm_image":
            start, end = config.image_start_token_id, config.image_end_token_id
        inner = [token for _ in range(runs) for token in [*text(4)[: runs - 1], start, *run, end]]
        tokens += [config.video_start_token_id, *inner, config.video_end_token_id] if enclosed else inner
    return tokens


def has_audio(name):
    """Whether the model takes audio; transformers 5.23.0 fails for the talker of Qwen3-Omni: it has no audio_config."""
    return name in OMNI and name != "qwen3_omni_moe_talker"


def conversation(rng, name, changed, with_audio):
    """A batch for a config, and the model's positions; padded on the left, on the right, or not at all."""
    written = random_config(rng, name, changed)
    config = config_of(name, written)
    case = {"config": written, "image_grids": [], "video_grids": []}
    if name == "qwen2_5_vl" or name in OMNI:
        case["video_seconds"] = []
    with_audio = with_audio if has_audio(name) else None
    rows, lengths, counts = [], [], [0]
    for _ in range(rng.integers(1, 4)):
        rows.append(row(rng, name, config, case, lengths, with_audio))
        counts.append(len(case["image_grids"]))
    length = max(map(len, rows)) + int(rng.integers(0, 3))
    tokens, mask = np.full((len(rows), length), PAD), np.zeros((len(rows), length), int)
    for i, (found, left) in enumerate(zip(rows, rng.integers(0, 2, len(rows)), strict=True)):
        where = slice(length - len(found), None) if left else slice(len(found))
        tokens[i, where], mask[i, where] = found, 1
    case |= {"tokens": tokens.tolist(), "mask": mask.tolist()}
    return case | {"positions": theirs(name, config, case, lengths, with_audio, np.diff(counts)).tolist()}


def kinds_of(name, config, tokens):
    """The mm_token_type_ids of the model's processor."""
    from transformers import Glm4vProcessor, ProcessorMixin

    cls = Glm4vProcessor if name in ENCLOSED else ProcessorMixin
    ids = {key: getattr(config, key, -1) for key in ("image_token_id", "video_token_id")}
    of = SimpleNamespace(
        image_token_ids=[ids["image_token_id"]], video_token_ids=[ids["video_token_id"]], audio_token_ids=[],
        image_token_id=ids["image_token_id"], video_start_id=getattr(config, "video_start_token_id", -1),
        video_end_id=getattr(config, "video_end_token_id", -1),
    )  # fmt: skip
    return cls.create_mm_token_type_ids(of, tokens.tolist())


def theirs(name, config, case, lengths, with_audio, images_per_row):
    """The positions of the model's get_rope_index, 0 for padding; as text where there is no grid, as in its forward."""
    tokens, mask = torch.tensor(case["tokens"]), torch.tensor(case["mask"])
    grids = {
        f"{k}_grid_thw": torch.tensor(case[f"{k}_grids"]) if case[f"{k}_grids"] else None for k in ("image", "video")
    }
    more = {}
    if name in OMNI:
        more = {"use_audio_in_video": bool(with_audio), "audio_seqlens": torch.tensor(lengths) if lengths else None}
        more["second_per_grids"] = torch.tensor(case["video_seconds"]) if case["video_seconds"] else None
    elif name == "glm_image":
        more = {"images_per_sample": torch.tensor(images_per_row)}
    else:
        more = {"mm_token_type_ids": torch.tensor(kinds_of(name, config, np.array(case["tokens"])))}
    if name == "qwen2_5_vl" and case["video_seconds"]:
        more["second_per_grid_ts"] = torch.tensor(case["video_seconds"])
    positions, _ = model_of(name, config).get_rope_index(tokens, **grids, attention_mask=mask, **more)
    return (positions * mask).permute(1, 2, 0).numpy()


def recorded():
    """Batches of each model that have an image and a video of several frames, with and without audio inside."""
    rng = np.random.default_rng(0)
    for name in MODELS:
        for changed in (False, True):
            for with_audio in (False, True) if has_audio(name) else (False,):
                found = False
                while not found:
                    case = conversation(rng, name, changed, with_audio)
                    long = name == "glm_image" or any(time > 2 for time, _, _ in case["video_grids"])
                    found = long and case["image_grids"] and len(case["tokens"][0]) < 90
                yield case
