"""The table of diffusion models as Markdown, from the facts that the library reads configs by."""

import inspect
import re
from collections.abc import Iterator

from posenc_jax.hf import DiffusionPlan, diffusion_rotary_from_config
from posenc_jax.hf._diffusion_models import BASE, MODELS, REFUSED
from posenc_jax.hf._models import FACTS
from posenc_jax.hf._placements import PLACEMENTS

NAMES = {
    "AuraFlow": "AuraFlow",
    "BriaFibo": "Bria FIBO",
    "Bria": "Bria 3",
    "Chroma": "Chroma",
    "ChronoEdit": "ChronoEdit",
    "CogVideoX": "CogVideoX",
    "CogView4": "CogView4",
    "Cosmos": "Cosmos",
    "Flux": "Flux 1",
    "Flux2": "Flux 2",
    "Flux3": "Flux 3",
    "GlmImage": "GLM-Image",
    "HiDreamImage": "HiDream",
    "HunyuanImage": "HunyuanImage",
    "HunyuanVideo": "HunyuanVideo",
    "HunyuanVideo15": "HunyuanVideo 1.5",
    "Ideogram4": "Ideogram 4",
    "Kandinsky5": "Kandinsky 5",
    "Kandinsky6": "Kandinsky 6",
    "Krea2": "Krea 2",
    "LTX2Video": "LTX-2",
    "LTXVideo": "LTX-Video",
    "LongCatImage": "LongCat-Image",
    "Lumina2": "Lumina-Image 2.0",
    "Mochi": "Mochi",
    "MotifVideo": "Motif-Video",
    "OvisImage": "Ovis-Image",
    "QwenImage": "Qwen-Image",
    "QwenImage21": "Qwen-Image 2.1",
    "SD3": "Stable Diffusion 3",
    "SanaVideo": "SANA-Video",
    "SkyReelsV2": "SkyReels-V2",
    "Wan": "Wan 2.1 and 2.2",
    "WanAnimate": "Wan-Animate",
    "WanVACE": "Wan VACE",
    "ZImage": "Z-Image",
}
CLASS = re.compile(r"Transformer[23]DModel")
# Keys and arguments that change the base, or divide coordinates.
SCALES = {"CosmosTransformer3DModel": "rope_scale"}
# What a config must say beyond its class.
SAID = {
    "CogVideoXTransformer3DModel": {"use_rotary_positional_embeddings": True},
    "HiDreamImageTransformer2DModel": {"axes_dims_rope": [64, 32, 32], "patch_size": 2},
}


def plans(name: str) -> Iterator[tuple[str, DiffusionPlan]]:
    """The plans of a class, by stream."""
    for stream in MODELS[name].streams or ("",):
        options = {"scale": (1, 2, 2)} if name.startswith("Kandinsky5") and stream == "video" else {}
        options |= {"causal": True} if name.startswith("LTXVideo") else {}
        config = {"_class_name": name} | SAID.get(name, {})
        yield stream, diffusion_rotary_from_config(config, stream=stream or None, **options)


def rotation(name: str, plan: DiffusionPlan) -> str:
    """The features of each coordinate, the base and the layout."""
    f, rule = plan.frequencies, MODELS[name].widths
    if plan.learned:
        return f"learned: `{plan.learned}`<br>{plan.layout}"
    if not f.dim:
        return "none; adds the rows of a table"
    moving = [axis for axis, angular in zip(f.axes, f.angular, strict=True) if angular]
    widths = ", ".join(str(2 * moving.count(axis)) for axis in range(f.num_axes))
    at_rest = 2 * (f.num_pairs - len(moving))
    widths += f" and {at_rest} at rest" if at_rest else ""
    of_rule = f"<br>({rule.__name__})" if callable(rule) else ""
    heads = " of all heads" if f.dim > 256 else ""
    base = FACTS["diffusion"][name].get("rope_theta", BASE)
    scaled = f" times `{SCALES[name]}`" if name in SCALES else ""
    return f"{widths}{of_rule}{heads}<br>base {base:,.0f}{scaled}<br>{plan.layout}"


def tokens(name: str, plan: DiffusionPlan) -> str:
    """The order of a sequence; as code, what `positions` takes beside a shape."""
    takes = inspect.signature(PLACEMENTS[plan.placement]).parameters
    if plan.placement in ("sequence", "ltx2_audio"):
        return "sound or text alone"
    if plan.placement == "qwen_image_21":
        return "`text` and one of `references`, …, `text`, image"
    images = ["image" if "2D" in name else "video"]
    if plan.references:
        images += ["`references`" if plan.references > 1 else "one of `references`"]
    text = ["`text`"] if "text" in takes else []
    order = ", ".join(text + images if plan.text_first else images + text)
    if "rate" in takes:
        order += "; `rate`" if takes["rate"].default is inspect.Parameter.empty else "; `rate` of a video"
    return order


def models() -> Iterator[str]:
    """The lines of the table of models."""
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for name in MODELS:
        for stream, plan in plans(name):
            where = " ".join(inspect.getdoc(PLACEMENTS[plan.placement]).split()).removesuffix(".")
            row = rotation(name, plan), tokens(name, plan), f"`{plan.placement}`: {where[0].lower()}{where[1:]}"
            model = NAMES[CLASS.sub("", name)] + (f" ({stream})" if stream not in ("", "video") else "")
            groups.setdefault(row, []).append((model, name))
    yield "| model, `_class_name` | widths, base, pairs | tokens | positions |"
    yield "| --- | --- | --- | --- |"
    for row, found in groups.items():
        names = ", ".join(model for model, _ in found)
        classes = ", ".join(dict.fromkeys(f"`{name}`" for _, name in found))
        yield f"| {names}<br>{classes} | {' | '.join(row)} |"


def refused() -> Iterator[str]:
    """The lines of the table of what is refused."""
    yield "| `_class_name` | not read, because |"
    yield "| --- | --- |"
    for reason in dict.fromkeys(REFUSED.values()):
        yield f"| {', '.join(f'`{name}`' for name, why in REFUSED.items() if why == reason)} | {reason} |"


def texts() -> dict[str, str]:
    """The tables by the files that the page includes."""
    tables = {"diffusion_models.md": models(), "diffusion_refused.md": refused()}
    return {name: "\n".join(lines) + "\n" for name, lines in tables.items()}
