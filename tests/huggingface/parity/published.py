"""The spectra that transformers makes of configs that published checkpoints have."""

import json
import warnings

from embeddings import embedding_of, inverse_frequencies, prefix_of
from small import NEWER
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax import hf

LENGTH = 4097  # above the original length of Phi-3
# transformers 5.23.0 drops the outer base of Fuyu, the decoder_config of VibeVoice and the attn_config of DBRX.
FORGETFUL = {"dbrx", "fuyu", "vibevoice"}


def language_config(config):
    """The configuration class of the language model, by transformers; None if it has none for this file."""
    name = config.get("model_type")
    if name not in CONFIG_MAPPING or name in FORGETFUL | NEWER:
        return None
    whole = CONFIG_MAPPING[config["model_type"]].from_dict(json.loads(json.dumps(config)))
    return getattr(whole, "thinker_config", whole).get_text_config(decoder=True)


def spectra(config):
    """The amplitude and the frequencies of each layer, by its class for frequencies; None if there is none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of deprecated keys
            language = language_config(config)
            embedding = language and embedding_of(language, LENGTH)
    except Exception as error:  # transformers fails in many ways on files that it does not read
        return f"{type(error).__name__}: {error}"[:100]
    if not embedding:
        return None
    kinds, result = getattr(language, "layer_types", None) or ["full_attention"] * language.num_hidden_layers, {}
    for kind, found in inverse_frequencies(embedding, kinds).items():
        amplitude = embedding.amplitudes.get(prefix_of(embedding, kind).removesuffix("_"))
        # ERNIE has another order; there is nothing without attention or positions.
        result[kind] = found and [amplitude, *sorted((float(str(x)) for x in found[0]), reverse=True)]
    return [result[kind] for kind in kinds]


def outcome(config):
    """The plan, or why there is none."""
    try:
        return hf.rotary_from_config(config, length=LENGTH)
    except (TypeError, ValueError) as error:
        return str(error)


def recorded(values):
    """Each spectrum once, and for each layer the number of its own; types that are not installed stay as they are."""
    numbers, cases = {}, []
    for case in values["cases"]:
        layers = spectra(case["config"])
        if layers is None and isinstance(case["layers"], list):
            layers = [None if i is None else values["spectra"][i] for i in case["layers"]]
        if isinstance(layers, str) and isinstance(case["layers"], str):
            layers = case["layers"]  # how it fails is not recorded for its words
        if isinstance(layers, list):
            layers = [x and numbers.setdefault(tuple(x), len(numbers)) for x in layers]
        cases.append(case | {"layers": layers})
    return {"spectra": [list(x) for x in numbers], "cases": cases}
