"""The table of model types as Markdown, from the facts that the library reads configs by."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from posenc_jax.hf._models import MODELS, Model
from posenc_jax.hf._multimodal_models import MULTIMODAL, THINKERS, Multimodal
from posenc_jax.hf._multimodal_models import REFUSED as MULTIMODAL_REFUSED
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._rewrites import REWRITERS
from posenc_jax.hf._towers import REFUSED as TOWERS_REFUSED
from posenc_jax.hf._towers import TOWERS, Tower

USUAL = Model()
SCALES = {
    "llama4": "scales the queries of layers without positions",
    "beam": "scales the queries of layers without positions",
    "beta": "scales queries by `llama_4_scaling_beta`",
    "logn": "scales queries by the logarithm of the position (`use_logn_attn`)",
}


def names(types: list[str]) -> str:
    """Model types as a list of code."""
    return ", ".join(f"`{name}`" for name in sorted(types, key=str.lower))


def facts(model: Model) -> Iterator[str]:
    """What the model's code does beside what a config says, in words."""
    if model.still:
        yield "no layer has positions"
        return
    yield from _base(model)
    yield from _width(model)
    yield from _layers(model)
    if model.switched:
        yield "`rope_interleave` says the layout if it is there"
    if model.backward:
        yield "rotates backwards"
    if model.sections:
        form = "height and width alternate, time comes last" if model.alternating else ""
        yield f"M-RoPE {model.sections}, {form or ('interleaved' if model.dealt else 'contiguous')}"
    if model.temperature:
        yield SCALES[model.temperature]
    if model.indexer:
        yield f"an indexer that rotates the {model.indexer.part} features of its heads, {model.indexer.layout}"


def _base(model: Model) -> Iterator[str]:
    if model.theta is None:
        yield "a base must be given"
    elif model.thetas:
        bases = {f"{base:,.0f}" for _, base in model.thetas.values()}
        by_type = ", ".join(f"{base:,.0f} ({kind.split('_')[0]})" for kind, (_, base) in model.thetas.items())
        yield f"base {by_type if len(bases) > 1 else bases.pop()}"
        if model.scaled == USUAL.scaled:
            yield "an old `rope_scaling` is for full layers"
    elif model.theta != USUAL.theta:
        yield f"base {model.theta:,.0f}"
    if model.required:
        yield "rope settings must be given"
    if model.nested:
        yield "settings for each layer type"
    if model.layer_thetas:
        yield "`layer_rope_theta` has the base of each layer, 0 for none"
    if model.null_theta:
        yield "a null `rope_theta` means that no layer has positions"
    if model.alpha:
        yield 'reads `alpha` of rope type "dynamic"'
    if model.original_max:
        yield f"original length {model.original_max}"


def _width(model: Model) -> Iterator[str]:
    if model.head_dim:
        yield f"`head_dim` {model.head_dim}"
    if model.global_head_dim:
        yield f"`head_dim` {model.global_head_dim} in full layers"
    if model.rotary_dim:
        yield f"rotates {model.rotary_dim} features"
    elif model.partial not in (None, 1.0):
        unless = ' with rope type "default"' if model.partial_unscaled else ""
        yield f"rotates {model.partial:g} of the head{unless}"
    if model.latent:
        scores = ", `mscale_all_dim` does not scale scores" if model.plain_scores else ""
        yield f"latent attention: rotates the last features{scores}"


def _layers(model: Model) -> Iterator[str]:
    if pattern := model.pattern:
        first = -pattern.phase % pattern.period
        some = ", ".join(str(first + i * pattern.period) for i in range(3))
        last = " and the last" if pattern.last else ""
        others = "the others have no attention" if pattern.other == "linear_attention" else "the others slide"
        yield f"full attention in layers {some}, …{last}; {others}"
    if model.sliding_only:
        unless = ", unless `sliding_window` is null" if model.windowless else ""
        yield f"full layers have no positions{unless}"
    if model.interval:
        yield f"layers {model.interval - 1}, {2 * model.interval - 1}, … have no positions"
    if model.typed:
        yield "`layer_types` must be given"
    if model.lists:
        yield "reads " + ", ".join(f"`{name}`" for name in model.lists)
    if model.position:
        yield f'`position_embedding_type` must be "{model.position}" for positions'


PAIRS = {
    "blocks": "the pairs of the {0}, then those of the {1}",
    "alternating": "pairs of the {0} and of the {1} in turn",
    "dealt": "every second frequency by the {0}, the others by the {1}",
}
KINDS = {
    "conv": "layers of convolutions, which `layer_types` lists, have no positions",
    "queries": "the last `num_blocks` layers hold `num_queries` queries in front, which do not rotate",
    "fixed": "takes `image_size` alone",
    "windowed": "positions within windows of `window_size`; in layers of `global_attn_indexes` those of the whole "
    "grid, scaled to the width of a window",
    "memory": "the memory attention; takes a grid of `memory_attention_rope_feat_sizes` alone, or several frames of it",
    "tracker": "the memory attention; takes a grid of `image_size` / `patch_size` alone, or several frames of it",
}
TOWER_TABLES = {
    "linear": "bilinear",
    "linear_aligned": "bilinear with aligned corners",
    "linear_zeros": "bilinear with zeros outside",
    "linear_zeros_exchanged": "bilinear with zeros outside, width and height exchanged",
    "torch_cubic": "PyTorch's bicubic",
    "tiled": "repeated",
    "by_coordinate": "a row for the column plus one for the row",
    "fixed": "not resized",
}
NOTES = {
    "edgetam_video": "the keys of each frame are latents without a place, and then a grid of "
    "`memory_attention_rope_k_sizes`",
    "mlcd_vision_model": "the class token, first, turns by learned angles, which are no positions: "
    '`rotary(x, 1, class_pos_emb, layout="half", head_axis=…)`',
}


def tower_pairs(tower: Tower) -> str:
    """Which coordinates turn which pairs."""
    if tower.timed:
        return "the pairs of the frame, of the row, of the column"
    names = [("row", "column")[axis] for axis in tower.axes]
    if tower.apart:
        return f"a half of the head by the {names[0]}, the other by the {names[1]}, each by itself"
    return PAIRS[tower.pairs].format(*names) + (", of all heads as one" if tower.joined else "")


def tower_facts(tower: Tower) -> Iterator[str]:
    """Where the patches of a tower are, and what else its code does."""
    if tower.theta != Tower.theta:
        yield f"base {tower.theta:,.0f}"
    if tower.centres:
        yield "coordinates are centres from -1 to 1, in turns"
    if tower.offset:
        yield f"coordinates count from {tower.offset}"
    if tower.leading or tower.trailing:
        more = " and `num_register_tokens` registers" if tower.registers is not None else ""
        yield f"a class token{more} {'after' if tower.trailing else 'before'} the patches, at 0"
    if tower.merged:
        yield f"squares of `{tower.merged}` follow each other"
    if tower.by_image:
        yield "squares of `merge_size`, which comes with each image, follow each other"
    if tower.windows:
        yield f"windows of `{tower.windows}` follow each other"
    if tower.kind != "plain":
        yield KINDS[tower.kind]
    if tower.table != "none":
        yield f"learned table: {TOWER_TABLES[tower.table]}"


def towers() -> Iterator[str]:
    """The lines of the tables of vision towers."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, tower in TOWERS.items():
        notes = "; ".join([*tower_facts(tower), *([NOTES[name]] if name in NOTES else [])]) or "row by row"
        groups.setdefault((tower_pairs(tower), tower.layout, notes), []).append(name)
    yield f"## Vision towers: {len(TOWERS)} model types"
    yield ""
    yield "| model types | pairs | layout | where no key says otherwise |"
    yield "| --- | --- | --- | --- |"
    for (pairs, layout, notes), types in sorted(groups.items(), key=lambda item: sorted(item[1])):
        yield f"| {names(types)} | {pairs} | {layout} | {notes[0].upper()}{notes[1:]} |"
    yield ""
    yield "| not read as a vision tower | why |"
    yield "| --- | --- |"
    for reason in dict.fromkeys(TOWERS_REFUSED.values()):
        yield f"| {names([name for name, why in TOWERS_REFUSED.items() if why == reason])} | {reason} |"


def frames(model: Multimodal) -> str:
    """What a model does with the frames of a video, in words."""
    if model.video is None and model.enclosed is None:
        return "no videos"
    if model.apart:
        return "one run each" + (", with the placeholder of images" if model.enclosed else "")
    run = "one run, audio of the video among it" if model.audio else "one run"
    if model.frames:
        run += ", `temporal_merge_size` of them in a token"
    if model.rate:
        run += f"; `{model.rate[1]}` and `video_seconds` say their times"
    return run if model.whole else f"{run}, not rounded"


def multimodal() -> Iterator[str]:
    """The lines of the table of multimodal models."""
    of_wholes = {thinker: whole for whole, thinker in THINKERS.items()}
    groups: dict[tuple[str, str], list[str]] = {}
    for name, model in MULTIMODAL.items():
        after = "its start + its longer side" if model.following == "side" else "above all its positions"
        groups.setdefault((frames(model), after), []).extend({name, of_wholes.get(name, name)})
    yield f"## Images and videos among text: {len(MULTIMODAL) + len(THINKERS)} model types"
    yield ""
    yield "| model types | placeholders of the frames of a video | the part after a grid starts at |"
    yield "| --- | --- | --- |"
    for (run, after), types in groups.items():
        yield f"| {names(types)} | {run} | {after} |"
    yield ""
    yield "| not read | why |"
    yield "| --- | --- |"
    for reason in dict.fromkeys(MULTIMODAL_REFUSED.values()):
        yield f"| {names([name for name, why in MULTIMODAL_REFUSED.items() if why == reason])} | {reason} |"


def lines() -> Iterator[str]:
    """The lines of the page's tables."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, model in MODELS.items():
        hashable = dataclasses.replace(model, thetas=model.thetas and tuple(model.thetas.items()))
        groups.setdefault((hashable, REWRITERS.get(name)), []).append(name)
    yield f"## Read: {len(MODELS)} model types"
    yield ""
    yield "| model types | pairs | where no key says otherwise |"
    yield "| --- | --- | --- |"
    for types in sorted(groups.values(), key=lambda types: sorted(map(str.lower, types))):
        model, spelled = MODELS[types[0]], REWRITERS.get(types[0])
        text = "; ".join(facts(model)) or f"base {model.theta:,.0f}"
        text += f". {spelled.__doc__}" if spelled else ""
        yield f"| {names(types)} | {model.layout} | {text[0].upper()}{text[1:]} |"
    yield ""
    yield from towers()
    yield ""
    yield from multimodal()
    yield ""
    yield f"## Refused by name: {len(REFUSED)} model types"
    yield ""
    yield "| model types | why |"
    yield "| --- | --- |"
    for reason in dict.fromkeys(REFUSED.values()):
        yield f"| {names([name for name, why in REFUSED.items() if why == reason])} | {reason} |"
