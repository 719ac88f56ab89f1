"""`diffusion_rotary_from_config`: the transformer/config.json of a diffusion pipeline → a plan."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

from posenc_jax._frequencies.axes import axial, join, multi_section
from posenc_jax._frequencies.frequencies import Frequencies, geometric
from posenc_jax._frequencies.ntk import ntk
from posenc_jax._frequencies.scalings import linear_scaling
from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require
from posenc_jax.hf._diffusion_models import BASE, MODELS, REFUSED
from posenc_jax.hf._diffusion_plan import DiffusionPlan
from posenc_jax.hf._models import FACTS
from posenc_jax.hf._placements import SECOND
from posenc_jax.hf._values import Json, Values, parse_config, speaks_of_positions

NAME = "_class_name"


@public
def diffusion_rotary_from_config(
    config: Any, *, stream: str | None = None, scale: tuple[float, float, float] | None = None
) -> DiffusionPlan:
    r"""How a diffusion transformer rotates its queries and keys, and where its text, images and videos stand.

    Each pair of features rotates by one coordinate of its token, such as frame, row or column, with the rotation $R$ of
    `rotary`:

    $$\text{score} \propto (R_{t, r, c}\, q) \cdot (R_{t', r', c'}\, k)$$

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.hf import diffusion_rotary_from_config
      >>> flux = {"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [16, 56, 56]}
      >>> plan = diffusion_rotary_from_config(flux)
      >>> positions = plan.positions((4, 6), text=8)
      >>> query = jnp.ones((1, 8 + 4 * 6, 24, 128))
      >>> plan.rotate(query, positions, head_axis=-2).shape
      (1, 32, 24, 128)

    Args:
      config: the parsed transformer/config.json of a diffusers pipeline, or an object whose to_dict() returns one.
      stream: which rotation, of a model with several: of LTX-2 "video" (the default), "audio", and "video_cross" and
        "audio_cross" where one attends to the other; of Kandinsky "video" (the default) and "text", and in version 6
        "audio" and "audio_text".
      scale: by how much Kandinsky 5 divides frame, row and column: (1, 2, 2) where height and width are from 480 to
        854 pixels, else (1, 3.16, 3.16), in its pipeline.

    Returns:
      DiffusionPlan: frequencies, layout, placement, …; `positions` gives the coordinates of the tokens of a sequence
      from its sizes, and `rotate` applies them.

    Raises:
      TypeError: if config is not a mapping, or a value does not have the type of its key.
      ValueError: if the class is not known or is refused, a key speaks of positions and its class does not take it, is
        near the name of a missing one, or contradicts another, a value is outside its range, or stream or scale is
        missing or not taken.

    Notes:
      - A config is read as diffusers' class of its `_class_name` reads it. Missing keys have the values of the class.
      - Wan, Flux, Qwen-Image and most others compute angles in float64 or float32; this computes them exactly.

    Reference:
      Hugging Face diffusers 0.42.1: the models' own modules, and their pipelines.
    """
    config = DiffusionConfig(config, stream, scale)
    facts, widths = config.facts, config.facts.widths
    head_dim = config.head_dim(*facts.head) if facts.head else sum(config.sizes(str(widths)))
    sides = config.sizes(widths) if isinstance(widths, str) else widths(head_dim) if widths else ()
    require(not sides or sum(sides) == head_dim, "{} must sum to the width of a head, {}, got {}", widths, head_dim, sides)
    frequencies = axial(sides, base=config.get_number("rope_theta", default=BASE)) if sides else geometric(0)
    plan = DiffusionPlan(
        frequencies,
        head_dim,
        facts.layout,
        facts.placement,
        text_first=facts.text_first,
        references=facts.references,
    )
    quirk = QUIRKS.get(config.class_name)
    return dataclasses.replace(plan, **quirk(config, plan)) if quirk else plan


class DiffusionConfig(Values):
    """A transformer's config, with the values of its class for keys that it leaves out, and the facts of its class."""

    def __init__(self, config: Any, stream: Any, scale: Any):
        given, _ = parse_config(config)
        self.class_name = name = str(given.get_required(NAME))
        require(name not in REFUSED, "{} {!r} is not read: {}", NAME, name, REFUSED.get(name))
        require(name in MODELS, "{} {!r} is not known, and its code may do what no key says", NAME, name)
        defaults = FACTS["diffusion"][name]
        given.reject_unknown({*defaults, NAME}, name, speaks_of_positions)
        for key, default in defaults.items():
            given.default_unless_null(default, key)
        super().__init__({**defaults, **{key: x for key, x in given.values.items() if x is not None}})
        self.facts = MODELS[name]
        streams = self.facts.streams or (None,)
        self.stream = streams[0] if stream is None else checks.one_of("stream", stream, streams)
        needs_scale = name == "Kandinsky5Transformer3DModel" and self.stream == "video"
        require((scale is not None) == needs_scale, "scale must {}be given for {}", "" if needs_scale else "not ", name)
        self.scale = scale

    def sizes(self, name: str) -> tuple[int, ...]:
        """The positive integers of a list."""
        return checks.positive_ints(name, self.get_required(name))

    def count(self, name: str) -> int:
        """A positive integer."""
        return self.get_integer(name)

    def head_dim(self, all_heads: str, heads: str | None = None) -> int:
        """The width of a head, from its key, or from those of all heads and of their number."""
        width, count = self.count(all_heads), self.count(heads) if heads else 1
        require(width % count == 0, "{} must be a multiple of {}, got {}", all_heads, heads, width)
        return width // count


# What one class alone does: fields of the plan that `MODELS` does not say. The name of a function is for readers.


def cogvideox(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """Version 1.5, which has patches of frames, counts rows and columns."""
    name = "use_rotary_positional_embeddings"
    require(config.get_flag(name), "{} must be true: without it, the model adds a table and does not rotate", name)
    if config.get("patch_size_t"):
        return {"placement": "hunyuan_video"}
    sides = tuple(config.count(name) // config.count("patch_size") for name in ("sample_height", "sample_width"))
    return {"settings": (("sides", sides),)}


def cogview4(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """Rows and columns are shares of `rope_axes_dim`."""
    return {"settings": (("sides", config.sizes("rope_axes_dim")),)}


def chronoedit(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """Two frames are apart; the widths that it computes and those that it splits agree only for some heads."""
    third = plan.head_dim // 3
    require(third % 2 == 0, "attention_head_dim must have an even third, rounded down, got {}", plan.head_dim)
    return {"settings": (("skip", config.count("rope_temporal_skip_len")),)}


def cosmos(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """Each coordinate has its NTK factor, and time is in units of a second."""
    factors = checks.sequence("rope_scale", config.get_required("rope_scale"), "three numbers")
    widths = [plan.frequencies.axes.count(axis) * 2 for axis in range(3)]
    time, *sides = (ntk(width, BASE, factor) for width, factor in zip(widths, factors, strict=True))
    return {"frequencies": axial((linear_scaling(time, SECOND // 24), *sides))}


def flux3(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """Rows and columns are ½ apart."""
    return {"frequencies": _divided(plan.frequencies, (1, 2, 2, 1))}


def ideogram4(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """One spectrum, whose pairs row and column take in turns; time has all others."""
    f, (_, *sides) = geometric(plan.head_dim, config.get_number("rope_theta")), config.sizes("mrope_section")
    return {"frequencies": multi_section(f, (f.num_pairs - sum(sides), *sides), interleaved=True)}


def kandinsky(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """Text and audio have one coordinate; those of a video are divided by a scale."""
    if config.stream in ("video", None):
        scale = config.scale or config.get_required("scale_factor")
        return {"frequencies": _divided(plan.frequencies, scale)}
    widths = config.get("axes_dims_a") if config.stream.startswith("audio") else None
    head_dim = sum(checks.positive_ints("axes_dims_a", widths)) if widths else plan.head_dim
    f = geometric(head_dim)
    if config.stream == "audio":
        f = linear_scaling(f, 1 / config.get_number("audio_freqs_scaling"))
    return {"frequencies": f, "head_dim": head_dim, "placement": "sequence"}


def mochi(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """Its frequencies are learned."""
    return {"learned": "pos_frequencies"}


def qwen_image(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """Layers have a condition image."""
    return {"settings": (("layered", config.get_flag("use_layer3d_rope")),)}


def ltx(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """All heads rotate as one; 8 frames of 32 × 32 pixels make a token of a latent."""
    patches = [config.count(name) for name in ("patch_size_t", "patch_size", "patch_size")]
    steps = tuple(step * patch for step, patch in zip((8, 32, 32), patches, strict=True))
    return _of_all_heads(config, "", (20 * SECOND, 2048, 2048)) | {
        "settings": (("steps", steps), ("tops", (20 * SECOND, 2048, 2048)))
    }


def ltx2(config: DiffusionConfig, plan: DiffusionPlan) -> Json:
    """Video and audio rotate by themselves, and by time alone where one attends to the other."""
    audio, crosses = config.stream.startswith("audio"), config.stream.endswith("cross")
    seconds = [config.count(name) for name in ("pos_embed_max_pos", "audio_pos_embed_max_pos")]
    top = SECOND * (max(seconds) if crosses else seconds[audio])
    offset = config.get("causal_offset")
    settings: dict[str, Any] = {"offset": checks.integer("causal_offset", offset, 0)}
    if audio:
        scale = config.count("audio_scale_factor")
        rate = Fraction(config.count("audio_hop_length"), config.count("audio_sampling_rate"))
        settings |= {"steps": scale * config.count("audio_patch_size_t"), "top": top, "scale": scale, "seconds": rate}
        placement, tops = "ltx2_audio", (top,)
    else:
        scales = config.sizes("vae_scale_factors")
        patches = [config.count(name) for name in ("patch_size_t", "patch_size", "patch_size")]
        steps = tuple(step * patch for step, patch in zip(scales, patches, strict=True))
        tops = (top, config.count("base_height"), config.count("base_width"))
        settings |= {"scale": scales[0]} | {"steps": steps, "tops": tops}
        placement = "ltx2"
        if crosses:
            settings = {key: x for key, x in settings.items() if key != "tops"} | {"steps": steps[0], "top": top}
            placement, tops = "ltx2_time", tops[:1]
    fields = _of_all_heads(config, "audio_" if audio else "", tops, crosses)
    return fields | {"placement": placement, "settings": tuple(sorted(settings.items()))}


QUIRKS: Any = {
    "CogVideoXTransformer3DModel": cogvideox,
    "CogView4Transformer2DModel": cogview4,
    "ChronoEditTransformer3DModel": chronoedit,
    "CosmosTransformer3DModel": cosmos,
    "Flux3Transformer2DModel": flux3,
    "Ideogram4Transformer2DModel": ideogram4,
    "Kandinsky5Transformer3DModel": kandinsky,
    "Kandinsky6Transformer3DModel": kandinsky,
    "Kandinsky6SRTransformer3DModel": kandinsky,
    "LTXVideoTransformer3DModel": ltx,
    "LTX2VideoTransformer3DModel": ltx2,
    "MochiTransformer3DModel": mochi,
    "QwenImageTransformer2DModel": qwen_image,
}


def _divided(frequencies: Frequencies, factors: Any) -> Frequencies:
    """The frequencies whose coordinates are divided by factors, one per coordinate."""
    factors = [checks.positive("scale", x) for x in checks.sequence("scale", factors, "a number per coordinate")]
    count = frequencies.num_axes
    require(len(factors) == count, "scale must hold a number for each of {} coordinates, got {}", count, factors)
    parts = [[i for i, axis in enumerate(frequencies.axes) if axis == each] for each in range(count)]
    return join(*(linear_scaling(frequencies[i], x) for i, x in zip(parts, factors, strict=True)))


def _of_all_heads(config: DiffusionConfig, prefix: str, tops: tuple[int, ...], crosses: bool = False) -> Json:
    r"""The fields of a spectrum of all heads: $\frac\pi2 b^{j/(n-1)}$ times 2x/top - 1, in turn for each coordinate.

    Pairs that are left over are at rest, ahead of the others.
    """
    heads = config.count(prefix + "num_attention_heads")
    width = config.count("audio_cross_attention_dim") if crosses else heads * config.count(prefix + "attention_head_dim")
    require(width % (2 * heads) == 0, "the width of all heads must have pairs for each of {}, got {}", heads, width)
    axes = len(tops)
    pairs = width // (2 * axes)
    require(pairs, "the width of all heads must have a pair for each coordinate, got {}", width)
    rising = geometric(2 * pairs, 1 / config.get_number("rope_theta", default=BASE), endpoint=True)
    f = join(*(linear_scaling(rising, 2 * top / math.pi) for top in tops), axes=range(axes))
    f = f[sorted(range(f.num_pairs), key=lambda i: i % pairs)]
    at_rest = width // 2 - f.num_pairs
    if at_rest:
        f = join(geometric(2 * at_rest).with_angular([0.0] * at_rest), f)
    options = {"interleaved": {}, "split": {"layout": "half", "slices": heads}}
    rope_type = checks.one_of("rope_type", config.get("rope_type", default="interleaved"), tuple(options))
    return {"frequencies": f, "head_dim": width, **options[rope_type]}
