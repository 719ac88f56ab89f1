"""The table of model types as Markdown, from the facts that the library reads configs by."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from posenc_jax.hf._models import MODELS, Model
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._rewrites import REWRITERS

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
    yield f"## Refused by name: {len(REFUSED)} model types"
    yield ""
    yield "| model types | why |"
    yield "| --- | --- |"
    for reason in dict.fromkeys(REFUSED.values()):
        yield f"| {names([name for name, why in REFUSED.items() if why == reason])} | {reason} |"
