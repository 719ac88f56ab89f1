"""`diffusion_rotary_from_config`: the transformer/config.json of a diffusion pipeline → a plan."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from posenc_jax._frequencies.axes import axial, join, multi_section
from posenc_jax._frequencies.frequencies import Frequencies, geometric
from posenc_jax._frequencies.scalings import linear_scaling
from posenc_jax._jax import checks
from posenc_jax._jax.errors import public, require
from posenc_jax.hf._diffusion_models import BASE, MODELS, REFUSED
from posenc_jax.hf._diffusion_plan import DiffusionPlan, limited
from posenc_jax.hf._models import FACTS
from posenc_jax.hf._placements import COORDINATES, SECOND
from posenc_jax.hf._values import Values, parse_config, speaks_of_positions

NAME = "_class_name"


@public
def diffusion_rotary_from_config(
    config: Any,
    *,
    stream: str | None = None,
    scale: tuple[float, float, float] | None = None,
    causal: bool | None = None,
) -> DiffusionPlan:
    r"""Reads how a diffusion transformer rotates its queries and keys, and where its text, images and videos are.

    Each feature pair is rotated by one coordinate of its token, such as frame, row or column. With $R$ the rotation of
    `rotary`,

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
      stream: which rotation to read, for models with several. LTX-2: "video" (the default), "audio", and "video_cross"
        and "audio_cross" for attention between them. Kandinsky: "video" (the default) and "text", and in version 6
        "audio" and "audio_text".
      scale: the numbers by which Kandinsky 5 divides frame, row and column. It must be given for its video stream. Its
        pipelines use (1, 1, 1) for images. For videos they use (1, 2, 2) if height and width are from 480 to 854
        pixels, and (1, 3.16, 3.16) otherwise.
      causal: for LTX-Video, where it must be given: whether the first token of time has one frame, as in the pipelines
        of version 0.9.5 and later, `LTXConditionPipeline`, or eight, as in the pipeline of 0.9.0 and 0.9.1,
        `LTXPipeline`.

    Returns:
      A DiffusionPlan with frequencies, layout, placement and so on. `positions` returns the coordinates of the tokens
      of a sequence, given its sizes, and `rotate` applies them.

    Raises:
      TypeError: if config is not a mapping, or a value does not have the type of its key.
      ValueError: if the class is not known or not supported, or stream, scale or causal is missing or not accepted.
      ValueError: if a key about positions is not read by the class, is a likely misspelling of a missing key, or
        contradicts another, or a value is outside its range.

    Notes:
      - A config is read as diffusers' class of its `_class_name` reads it. Missing keys have the values of the class.
      - If coordinates are integers, angles are exact. diffusers computes them in float64 or float32.

    Reference:
      Hugging Face diffusers 0.42.1: the models' own modules, and their pipelines.
    """
    config = DiffusionConfig(config, stream, scale, causal)
    facts, widths = config.facts, config.facts.widths
    head_dim = config.head_dim(*facts.head) if facts.head else 0
    name, sides = widths, ()
    if isinstance(widths, str):
        sides = config.sizes(widths, COORDINATES.get(facts.placement, 3), least=0)
    elif widths:
        name, sides = f"the shares of {facts.head[0]}", widths(head_dim)
    head_dim = head_dim or sum(sides)
    require(not any(side % 2 for side in sides), "{} must be even, got {}", name, sides)
    fits = not sides or sum(sides) == head_dim
    require(fits, "{} must sum to the width of a head, {}, got {}", name, head_dim, sides)
    frequencies = axial(sides, base=config.positive("rope_theta", BASE)) if sides else geometric(0)
    fields: dict[str, Any] = {"frequencies": frequencies, "head_dim": head_dim, "settings": {}}
    fields |= {name: getattr(facts, name) for name in ("layout", "placement", "text_first", "references")}
    if quirk := QUIRKS.get(config.class_name):
        fields |= quirk(config, frequencies, head_dim)
    fields["settings"] = tuple(sorted(fields["settings"].items()))
    return DiffusionPlan(**fields)


class DiffusionConfig(Values):
    """A transformer's config, with the values of its class for keys that it leaves out, and the facts of its class."""

    def __init__(self, config: Any, stream: Any, scale: Any, causal: Any):
        given, _ = parse_config(config)
        self.class_name = name = str(given.get_required(NAME))
        require(name not in REFUSED, "{} {!r} is not read: {}", NAME, name, REFUSED.get(name))
        message = "{} {!r} is not known: it must be a transformer of diffusers, in transformer/config.json"
        require(name in MODELS, message, NAME, name)
        defaults = FACTS["diffusion"][name]
        given.reject_unknown({*defaults, NAME}, name, speaks_of_positions)
        for key, default in defaults.items():
            given.default_unless_null(default, key)
        super().__init__({**defaults, **{key: x for key, x in given.values.items() if x is not None}})
        self.facts = MODELS[name]
        streams = self.facts.streams
        require(streams or stream is None, "stream must not be given for {}", name)
        self.stream = next(iter(streams), "") if stream is None else checks.one_of("stream", stream, streams)
        needed = {"scale": name == "Kandinsky5Transformer3DModel" and self.stream == "video"}
        needed["causal"] = name == "LTXVideoTransformer3DModel"
        for option, value in (("scale", scale), ("causal", causal)):
            message = "{} must be given for {}" if needed[option] else "{} must not be given for {}"
            require((value is not None) == needed[option], message, option, name)
        self.scale, self.causal = scale, causal

    def sizes(self, name: str, count: int, least: int = 1) -> tuple[int, ...]:
        """The integers of a list, `count` of them."""
        values = enumerate(checks.sequence(name, self.get_required(name), "integers"))
        sizes = tuple(limited(name, checks.integer(f"{name}[{i}]", value, least)) for i, value in values)
        require(count == len(sizes), "{} must hold {} integers, got {}", name, count, sizes)
        return sizes

    def count(self, name: str) -> int:
        """A positive integer."""
        return limited(name, self.get_integer(name))

    def positive(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        return checks.positive(name, self.get(name, default=default))

    def head_dim(self, all_heads: str, heads: str | None = None) -> int:
        """The width of a head, from its key, or from those of all heads and of their number."""
        width, count = self.count(all_heads), self.count(heads) if heads else 1
        require(width % count == 0, "{} must be a multiple of {}, got {}", all_heads, heads, width)
        return width // count


# What one class alone does: fields of the plan that `MODELS` does not say, from the frequencies and the width of a head
# that it says.


def auraflow(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Its table has pos_embed_max_size rows, and its middle is rounded twice."""
    rows = config.count("pos_embed_max_size")
    side = math.isqrt(rows)
    require(side * side == rows, "pos_embed_max_size must be a square, got {}", rows)
    return {"settings": {"floors": True, "sides": (side, side)}}


def chronoedit(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Two frames are apart. The class makes 2 ⌊d / 6⌋ features for a row, and then takes ⌊d / 3⌋."""
    require(head_dim // 3 % 2 == 0, "attention_head_dim must have an even third, rounded down, got {}", head_dim)
    return {"settings": {"skip": config.count("rope_temporal_skip_len")}}


def cogvideox(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Version 1.5, which has patches of frames, counts rows and columns."""
    name = "use_rotary_positional_embeddings"
    require(config.get_flag(name), "{} must be true: without it, the model adds a table and does not rotate", name)
    if config.get_integer("patch_size_t", default=None):
        return {"placement": "hunyuan_video"}
    patch = config.count("patch_size")
    sides = tuple(config.count(name) // patch for name in ("sample_height", "sample_width"))
    require(all(sides), "patch_size must be at most sample_height and sample_width, got {}", patch)
    return {"settings": {"sides": sides}}


def cogview4(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Rows and columns are shares of `rope_axes_dim`."""
    return {"settings": {"sides": config.sizes("rope_axes_dim", 2)}}


def cosmos(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Each coordinate has a factor, as `ntk` takes it or below 1, and time is in units of a second."""
    factors = checks.sequence("rope_scale", config.get_required("rope_scale"), "three numbers")
    require(len(factors) == 3, "rope_scale must hold three numbers, got {}", factors)
    spectra = []
    for axis, factor in enumerate(factors):
        width = 2 * (f.axes or ()).count(axis)
        require(width > 2, "attention_head_dim must give each coordinate two pairs, got {}", head_dim)
        spectra.append(geometric(width, BASE * checks.positive(f"rope_scale[{axis}]", factor) ** (width / (width - 2))))
    return {"frequencies": axial((linear_scaling(spectra[0], SECOND // 24), *spectra[1:]))}


def flux3(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Rows and columns are ½ apart."""
    return {"frequencies": _divided("axes_dims_rope", f, (1, 2, 2, 1))}


def hidream(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """An image that is not square is padded."""
    height, width = config.sizes("max_resolution", 2)
    return {"settings": {"rows": height * width // config.count("patch_size") ** 2}}


def ideogram4(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """One spectrum, whose pairs row and column take in turns; time has all others."""
    f, (_, *sides) = geometric(head_dim, config.positive("rope_theta")), config.sizes("mrope_section", 3)
    return {"frequencies": multi_section(f, (f.num_pairs - sum(sides), *sides), interleaved=True)}


def kandinsky(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Text and audio have one coordinate; those of a video are divided by a scale. Nabla attends in tiles."""
    name, stream = "attention_type", config.stream
    checks.one_of(name, config.get(name, default="regular"), ("regular",))
    if stream == "video":
        name = "scale_factor" if config.scale is None else "scale"
        return {"frequencies": _divided(name, f, config.scale or config.get_required(name))}
    if stream.startswith("audio") and config.look_up("axes_dims_a"):
        head_dim = sum(config.sizes("axes_dims_a", 3))
    f = geometric(head_dim)
    if stream == "audio":
        f = linear_scaling(f, 1 / config.positive("audio_freqs_scaling"))
    return {"frequencies": f, "head_dim": head_dim, "placement": "sequence", "references": 0}


def mochi(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Its frequencies are learned."""
    return {"learned": "pos_frequencies"}


def ltx(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """All heads rotate as one; a token of the latents has 8 frames of 32 × 32 pixels."""
    tops = 20 * SECOND, 2048, 2048
    settings = {"causal": checks.flag("causal", config.causal), "steps": _steps(config, (8, 32, 32)), "tops": tops}
    return _of_all_heads(config, tops) | {"settings": settings}


def ltx2(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Video and audio rotate by themselves, and by time alone where one attends to the other."""
    stream = config.stream
    crosses = stream.endswith("cross")
    seconds = [config.count(name) for name in ("pos_embed_max_pos", "audio_pos_embed_max_pos")]
    top = SECOND * (max(seconds) if crosses else seconds[stream == "audio"])
    settings: dict[str, Any] = {"offset": checks.integer("causal_offset", config.get("causal_offset"), 0)}
    if stream.startswith("audio"):
        frames = config.count("audio_scale_factor")
        settings |= {"scale": frames, "steps": frames * config.count("audio_patch_size_t"), "tops": (top,)}
        settings["seconds"] = Fraction(config.count("audio_hop_length"), config.count("audio_sampling_rate"))
    else:
        frames, *_ = scales = config.sizes("vae_scale_factors", 3)
        tops = (top,) if crosses else (top, config.count("base_height"), config.count("base_width"))
        settings |= {"scale": frames, "steps": _steps(config, scales), "tops": tops}
    placement = {"video": "ltx2", "video_cross": "ltx2_time"}.get(stream, "ltx2_audio")
    fields = _of_all_heads(config, settings["tops"], "audio_" * stream.startswith("audio"), crosses)
    return fields | {"placement": placement, "settings": settings}


def qwen_image(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Layers have a condition image."""
    return {"settings": {"layered": config.get_flag("use_layer3d_rope")}}


def sd3(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """Its table has pos_embed_max_size rows and columns."""
    return {"settings": {"floors": False, "sides": (config.count("pos_embed_max_size"),) * 2}}


def z_image(config: DiffusionConfig, f: Frequencies, head_dim: int) -> dict[str, Any]:
    """An omni model has several captions and images."""
    width, message = config.get("siglip_feat_dim"), "siglip_feat_dim must be null, got {!r:.60}: {}"
    require(width is None, message, width, "this library does not place the tokens of omni models")
    return {}


QUIRKS: Any = {
    "AuraFlowTransformer2DModel": auraflow,
    "CogVideoXTransformer3DModel": cogvideox,
    "CogView4Transformer2DModel": cogview4,
    "ChronoEditTransformer3DModel": chronoedit,
    "CosmosTransformer3DModel": cosmos,
    "Flux3Transformer2DModel": flux3,
    "HiDreamImageTransformer2DModel": hidream,
    "Ideogram4Transformer2DModel": ideogram4,
    "Kandinsky5Transformer3DModel": kandinsky,
    "Kandinsky6Transformer3DModel": kandinsky,
    "LTXVideoTransformer3DModel": ltx,
    "LTX2VideoTransformer3DModel": ltx2,
    "MochiTransformer3DModel": mochi,
    "QwenImageTransformer2DModel": qwen_image,
    "SD3Transformer2DModel": sd3,
    "ZImageTransformer2DModel": z_image,
}


def _divided(name: str, frequencies: Frequencies, factors: Any) -> Frequencies:
    """The frequencies whose coordinates are divided by factors, one per coordinate."""
    factors = [checks.positive(name, x) for x in checks.sequence(name, factors, "a number per coordinate")]
    axes, count = np.array(frequencies.axes), frequencies.num_axes
    require(len(factors) == count, "{} must hold a number for each of {} coordinates, got {}", name, count, factors)
    return join(*(linear_scaling(frequencies[np.flatnonzero(axes == i)], x) for i, x in enumerate(factors)))


def _steps(config: DiffusionConfig, scales: tuple[int, ...]) -> tuple[int, ...]:
    """The frames, rows and columns of a token, from those of a latent."""
    patches = (config.count(name) for name in ("patch_size_t", "patch_size", "patch_size"))
    return tuple(scale * patch for scale, patch in zip(scales, patches, strict=True))


def _of_all_heads(
    config: DiffusionConfig, tops: tuple[int, ...], prefix: str = "", crosses: bool = False
) -> dict[str, Any]:
    r"""The fields of LTX: frequencies $\frac\pi2 b^{j/(n-1)}$ of (2x - top) / top, in turn for each coordinate.

    Pairs that are left over are at rest, ahead of the others.
    """
    heads, axes = config.count(prefix + "num_attention_heads"), len(tops)
    name = "audio_cross_attention_dim" if crosses else prefix + "attention_head_dim"
    width = config.count(name) * (1 if crosses else heads)
    pairs = width // (2 * axes)
    require(width % (2 * heads) == 0 and pairs, "{} must give each head and coordinate pairs, got {}", name, width)
    rising = geometric(2 * pairs, 1 / config.positive("rope_theta", BASE), endpoint=True)
    f = axial([linear_scaling(rising, 2 * top / math.pi) for top in tops], interleaved=True)
    at_rest = width // 2 - f.num_pairs
    if at_rest:
        f = join(geometric(2 * at_rest).with_angular([0.0] * at_rest), f)
    options: dict[str, Any] = {"interleaved": {}, "split": {"layout": "half", "slices": heads}}
    rope_type = checks.one_of("rope_type", config.get("rope_type", default="interleaved"), tuple(options))
    return {"frequencies": f, "head_dim": width, **options[rope_type]}
