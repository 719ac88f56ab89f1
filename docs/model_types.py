"""The lists of model types as Markdown, from the facts that the library reads configs by."""

import contextlib
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping

from posenc_jax import hf
from posenc_jax.hf._config import parse_text_config
from posenc_jax.hf._models import MODELS, Model, Pattern, canonical_type
from posenc_jax.hf._multimodal_models import MULTIMODAL, THINKERS, Multimodal
from posenc_jax.hf._multimodal_models import REFUSED as MULTIMODAL_REFUSED
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._rewrites import FIXED, REWRITERS
from posenc_jax.hf._towers import TOWERS, Tower
from posenc_jax.hf._vision import QUIRKS

VALUES = pathlib.Path(__file__).parents[1] / "tests" / "oracles" / "recorded"
USUAL = Model()
READS = {
    "alpha": 'reads `alpha` of rope type "dynamic"',
    "layer_rope_theta": "`layer_rope_theta` has the base of each layer, 0 for none",
    "rope_interleave": "`rope_interleave` sets the layout if it is there",
    # written by rewriters, whose docstrings say when
    **dict.fromkeys(("indexer_part", "mrope_alternating", "position_embedding_type", "rope_backward"), ""),
    **dict.fromkeys(("indexer_query_scale", "learned_log_factor", "query_scale", "rope_on_values"), ""),
}
SCALES = {
    "llama4": "scales the queries of layers without positions",
    "beam": "scales the queries of layers without positions",
    "beta": "scales queries by `llama_4_scaling_beta`",
    "logn": "scales queries by the logarithm of the position (`use_logn_attn`)",
}


def names(types: list[str]) -> str:
    """Model types as a list of code."""
    return ", ".join(f"`{name}`" for name in sorted(types, key=lambda name: (name.lower(), name)))


def recorded() -> set[str]:
    """The model types of which a value that transformers computed is recorded."""
    cases = [
        case
        for name in ("hf_model_types", "hf_frequencies", "hf_published")
        for case in json.loads((VALUES / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    ]
    types = set()
    for case in cases:
        # A published config has a string or null for layers if transformers does not read it.
        if isinstance(case.get("layers", []), list):
            with contextlib.suppress(ValueError):  # without its language model's part
                types.add(str(parse_text_config(case["config"])[0]["model_type"]))
    return {name for name in map(canonical_type, types) if name}


def in_transformers() -> tuple[set[str], str]:
    """The model types of the release of transformers that the facts are of, and its number."""
    kept = json.loads((pathlib.Path(hf.__file__).parent / "facts.json").read_text(encoding="utf-8"))
    return {*kept["types"], *kept["parts"], *kept["without_rope"]}, kept["transformers"]


def census() -> Iterator[str]:
    """The lines that say what is recorded."""
    types = recorded()
    yield f"## Recorded: {len(types)} of {len(MODELS)} model types {{ #recorded }}"
    yield ""
    yield "The tests without torch compare with values that transformers computed. It lacks these types, or a class for"
    yield f"their frequencies, and computed none: {names([*MODELS.keys() - types])}."


def base(model: Model) -> str:
    """The base that a missing key means; several are among the facts."""
    if model.never_rotates:
        return "–"
    if model.bases:
        bases = {f"{base:,.0f}" for _, base in model.bases.values()}
        return bases.pop() if len(bases) == 1 else "by layer"
    return "required" if model.theta is None else f"{model.theta:,.0f}"


def filtered(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a list that docs/assets/site.js filters, in full where no script runs."""
    yield from ('<div class="pe-types" markdown="1">', "", *lines, "", "</div>")


def facts(model: Model) -> Iterator[str]:
    """What the model's code does that no config contains, in words."""
    if model.never_rotates:
        yield "no layer has positions"
        return
    yield from _base(model)
    yield from _width(model)
    yield from _layers(model)
    yield from (text for name, text in READS.items() if text and name in model.reads)
    if model.sections:
        order = "alternating" if "mrope_alternating" in model.reads else "contiguous"
        yield f"M-RoPE {model.sections}, {'interleaved' if model.interleaved_sections else order}"
    if model.query_scale:
        yield SCALES[model.query_scale]
    if model.indexer:
        last = " its last features" if "indexer_part" in model.defaults else ""
        yield f"an indexer rotates{last} in the {model.indexer} layout"


def _base(model: Model) -> Iterator[str]:
    if model.bases:
        bases = {f"{base:,.0f}" for _, base in model.bases.values()}
        by_type = ", ".join(f"{base:,.0f} ({name.split('_')[0]})" for name, (_, base) in model.bases.items())
        if len(bases) > 1:
            yield f"base {by_type}"
        if model.scaled_types == USUAL.scaled_types:
            yield "an old `rope_scaling` is for full layers"
    for key, (since, before) in model.changed_defaults.items():
        key = "the base" if key == "rope_theta" else f"`{key}`"
        yield f"before transformers {since} {key} was {before:,.0f}; a config without it must name its release"
    if model.ignores:
        yield f"{' and '.join(f'`{key}`' for key in model.ignores)} only in `rope_parameters`"
    if model.nested:
        yield "settings for each layer type"
    yield from _settings(model)


def _settings(model: Model) -> Iterator[str]:
    """The scaling of the class's own rope settings."""
    by_type = model.settings if model.nested else {"all layers": model.settings}
    for layer_type, settings in by_type.items():
        rope_type = (settings or {}).get("rope_type", "default")
        if rope_type != "default":
            factor = f", factor {settings['factor']:g}" if "factor" in settings else ""
            yield f'rope type "{rope_type}"{factor}' + (f" in `{layer_type}`" if model.nested else "")


def _width(model: Model) -> Iterator[str]:
    if "head_dim" in model.defaults:
        yield f"`head_dim` {model.defaults['head_dim']}"
    if "global_head_dim" in model.defaults:
        yield f"`head_dim` {model.defaults['global_head_dim']} in full layers"
    if "rotary_dim" in model.defaults:
        yield f"rotates {model.defaults['rotary_dim']} features"
    elif model.partial not in (None, 1.0):
        unless = ' with rope type "default"' if model.whole_if_scaled else ""
        yield f"rotates {model.partial:g} of the head{unless}"
    if model.latent:
        scores = ", `mscale_all_dim` does not scale scores" if model.latent == "unscaled" else ""
        yield f"latent attention: rotates the last features{scores}"


def _layers(model: Model) -> Iterator[str]:
    if isinstance(pattern := model.pattern, Pattern):
        first = -pattern.phase % pattern.period
        some = ", ".join(str(first + i * pattern.period) for i in range(3))
        last = " and the last" if pattern.last else ""
        others = "the others have no attention" if pattern.other == "linear_attention" else "the others slide"
        yield f"full attention in layers {some}, …{last}; {others}"
    if model.sliding_only:
        unless = ", unless `sliding_window` is null" if model.all_without_window else ""
        yield f"full layers have no positions{unless}"
    if every := model.defaults.get("no_rope_layer_interval"):
        yield f"layers {every - 1}, {2 * every - 1}, … have no positions"
    if model.pattern is None:
        yield "`layer_types` must be given"


PAIRS = {
    "blocks": "the pairs of the {0}, then those of the {1}",
    "alternating": "pairs of the {0} and of the {1} in turn",
    "halved": "every second frequency by the {0}, the others by the {1}",
}
TOWER_TABLES = {
    "linear": "bilinear",
    "linear_aligned": "bilinear with aligned corners",
    "linear_zeros_exchanged": "bilinear with zeros outside, width and height exchanged",
    "torch_cubic": "PyTorch's bicubic",
    "tiled": "repeated",
    "by_coordinate": "a row for the column plus one for the row",
    "fixed": "not resized",
}
NOTES = {
    "edgetam_video": "the memory attention; keys of a frame are latents at no position, then those of the second grid",
    "sam2_video": "the memory attention",
    "mlcd_vision_model": "the class token, first, rotates by learned angles, which are no positions: "
    '`rotary(x, 1, class_pos_emb, layout="half", head_axis=…)`',
}


def tower_pairs(tower: Tower) -> str:
    """Which coordinates rotate which pairs."""
    if len(tower.axes) == 3:
        return "the pairs of the frame, of the row, of the column"
    return PAIRS[tower.pairs].format(*(("row", "column")[axis] for axis in tower.axes))


def tower_facts(tower: Tower) -> Iterator[str]:
    """Where the patches of a tower are, and what else its code does."""
    grid = tower.grid
    if tower.rope["rope_theta"] != 10_000:
        yield f"base {tower.rope['rope_theta']:,.0f}"
    if grid.centres:
        yield "coordinates are centres from -1 to 1, in cycles"
    if grid.offset:
        yield f"coordinates count from {grid.offset}"
    if grid.leading:
        more = " and `num_register_tokens` registers" if "num_register_tokens" in tower.defaults else ""
        yield f"a class token{more} before the patches, at 0"
    if grid.trailing:
        yield "a class token after the patches, at 0"
    if not grid.merge:
        yield "squares of `merge_size`, which comes with each image, follow each other"
    if tower.shapes:
        frames = ", or several such frames" if grid.frames else ""
        yield f"takes grids of {' or '.join(f'`{name}`' for name in tower.shapes)} alone{frames}"
    if tower.squares:
        yield "squares of `spatial_merge_size` follow each other"
    if tower.windows:
        yield f"windows of `{tower.windows}` follow each other"
    if tower.table != "none":
        yield f"learned table: {TOWER_TABLES[tower.table]}"


def towers() -> Iterator[str]:
    """The lines of vision towers."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, tower in TOWERS.items():
        notes = "; ".join([*tower_facts(tower), *([NOTES[name]] if name in NOTES else [])])
        quirk = str(QUIRKS[name].__doc__) if name in QUIRKS else ""
        notes = ". ".join(filter(None, (notes, quirk))) or "row by row"
        groups.setdefault((tower_pairs(tower), tower.layout, notes), []).append(name)
    yield f"## Vision towers: {len(TOWERS)} model types"
    yield ""
    yield from filtered(
        f"- {names(types)}: {pairs}, {layout}. {notes[0].upper()}{notes[1:]}"
        for (pairs, layout, notes), types in sorted(groups.items(), key=lambda item: sorted(item[1]))
    )


def frames(model: Multimodal) -> str:
    """What a model does with the frames of a video, in words."""
    if model.separate_frames:
        return "one run each" + (", with the placeholder of images" if model.frames_as_images else "")
    if "video" not in model.tokens:
        return "no videos"
    run = "one run, audio of the video among it" if model.omni else "one run"
    if "temporal_merge_size" in model.merge_keys:
        run += ", `temporal_merge_size` of them in a token"
    if model.rate:
        run += f"; `{model.rate[1]}` and `video_seconds` set their times"
    return run if model.whole_times else f"{run}, not rounded"


def multimodal() -> Iterator[str]:
    """The lines of multimodal models."""
    of_wholes = {thinker: whole for whole, thinker in THINKERS.items()}
    groups: dict[tuple[str, str], list[str]] = {}
    for name, model in MULTIMODAL.items():
        after = "above all its positions" if model.omni else "its start + its longer side"
        groups.setdefault((frames(model), after), []).extend({name, of_wholes.get(name, name)})
    yield f"## Images and videos among text: {len(MULTIMODAL) + len(THINKERS)} model types"
    yield ""
    yield "How the frames of a video stand among the tokens, and where the part after a grid starts:"
    yield ""
    yield from filtered(
        f"- {names(types)}: {run}; the next part starts at {after}" for (run, after), types in groups.items()
    )
    yield ""
    yield "Not read:"
    yield ""
    yield from filtered(refused(MULTIMODAL_REFUSED))


def refused(reasons: Mapping[str, str]) -> Iterator[str]:
    """The lines of types that are not read, by their reasons."""
    for reason in dict.fromkeys(reasons.values()):
        yield f"- {reason}: {names([name for name, why in reasons.items() if why == reason])}"


def table() -> Iterator[str]:
    """The table of model types, one per line."""
    in_release, _ = in_transformers()
    yield "| model type | base | pairs | where no key says otherwise | transformers |"
    yield "| --- | --: | --- | --- | --- |"
    for name in sorted(MODELS, key=str.lower):
        model = MODELS[name]
        text = "; ".join(facts(model))
        text += (". " if text else "") + " ".join(str(REWRITERS[name].__doc__).split()) if name in REWRITERS else ""
        text += "".join(f"; {key} must be {value!r}" for key, value in FIXED.get(name, {}).items())
        text = text.removeprefix("; ")
        text = text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]  # keys stay as they are
        more = f"<details><summary>{text}</summary></details>" if text else ""
        layout = "as the config sets it" if model.layout is None else model.layout
        long = "{ .pe-long }" if len(name) > 24 else ""  # a line of its own on a phone
        yield f"| `{name}`{long} | {base(model)} | {layout} | {more} | {'✓' if name in in_release else '–'} |"


def lines() -> Iterator[str]:
    """The lines of the page's lists."""
    yield f"## Read: {len(MODELS)} model types"
    yield ""
    yield from filtered(table())
    for section in (census, towers, multimodal):
        yield ""
        yield from section()
    yield ""
    yield f"## Refused by name: {len(REFUSED)} model types"
    yield ""
    yield from filtered(refused(REFUSED))
