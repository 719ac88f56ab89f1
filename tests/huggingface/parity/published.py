"""Configs that published checkpoints have, and the spectra that transformers makes of them.

`python tests/huggingface/parity/published.py FOLDER` writes tests/oracles/recorded/hf_published.json from a folder of files
{"source": {"repository": …, "path": …, "commit": …}, "config": {…}}; `nox -s parity` compares it with the installed release.
"""

import json
import sys
import warnings
from pathlib import Path

from embeddings import embedding_of, prefix_of
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc_jax import hf

LENGTH = 4097  # above the original length of Phi-3
# transformers 5.23.0 drops the outer base of Fuyu, the decoder_config of VibeVoice and the attn_config of DBRX.
FORGETFUL = {"dbrx", "fuyu", "vibevoice"}
# Parts of a config that no rotation of its language model depends on.
DROPPED = (
    "vision", "audio", "image", "video", "quantization", "auto_map", "id2label", "label2id", "task_specific", "vocab", "token",
    "perceiver", "projector", "resampler", "embd_layer", "embd_image", "compression", "processor", "adapter", "tokenizer",
    "img_", "whisper", "siglip", "diffusion", "talker", "mtp_", "_lora", "code2wav", "token2wav", "acoustic", "semantic",
    "candidate_resolutions", "grid_pinpoints", "architectures", "torch_dtype", "transformers_version", "ignored_layers",
)  # fmt: skip


def trimmed(config):
    """A config without parts that no rotation depends on; a null may matter."""
    return {
        key: trimmed(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not any(word in key for word in DROPPED)
    }


def language_config(config):
    """The configuration class of the language model, by transformers; None if it has none for this file."""
    if config.get("model_type") not in CONFIG_MAPPING or config["model_type"] in FORGETFUL:
        return None
    whole = CONFIG_MAPPING[config["model_type"]].from_dict(json.loads(json.dumps(config)))
    whole = getattr(whole, "thinker_config", whole)
    return whole.get_text_config(decoder=True)


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
    kinds = getattr(language, "layer_types", None) or ["full_attention"] * language.num_hidden_layers
    return [_spectrum(embedding, kind) for kind in kinds]


def _spectrum(embedding, kind):
    prefix = prefix_of(embedding, kind)
    inverse = getattr(embedding, f"{prefix}inv_freq", None)
    if inverse is None:  # no attention, or no positions
        return None
    frequencies = sorted((float(str(x)) for x in inverse.float().numpy()), reverse=True)  # ERNIE has another order
    return [embedding.amplitudes[prefix.removesuffix("_")], *frequencies]


def outcome(config):
    """The plan, or why there is none."""
    try:
        return hf.rotary_from_config(config, length=LENGTH)
    except (TypeError, ValueError) as error:
        return str(error)


def main(folder):
    """Writes the record: the spectra once, and for each layer the number of its own."""
    from record import ABOUT

    from oracles import recorded

    cases, numbers = [], {}
    for path in sorted(Path(folder).glob("*.json")):
        file = json.loads(path.read_text(encoding="utf-8"))
        source = {key: value for key, value in file["source"].items() if key in ("repository", "path", "commit")}
        config, layers = trimmed(file["config"]), spectra(file["config"])
        assert outcome(config) == outcome(file["config"]), path
        if isinstance(layers, list):
            layers = [x and numbers.setdefault(tuple(x), len(numbers)) for x in layers]
        cases.append({"name": path.stem, "source": source, "config": config, "layers": layers})
    about = {
        **ABOUT,
        "about": "Configs of published checkpoints, from repositories that hold them; spectra as amplitude, frequencies.",
        "command": __doc__.split("`")[1],
    }
    lines = (",\n".join(map(json.dumps, items)) for items in (numbers, cases))
    text = '{},\n "spectra": [\n{}\n],\n "cases": [\n{}\n]\n}}\n'.format(json.dumps(about, indent=1)[:-2], *lines)
    (recorded.FOLDER / "hf_published.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))
    main(sys.argv[1])
