"""The model types that the library knows, with the configs of which they are recorded."""

import record_facts
from embeddings import config_of, inverse_frequencies, new_embedding
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from oracles import recorded
from posenc_jax.hf import _models

# Without a class for frequencies, without any rotation, or another name of Evolla.
WITHOUT = set("codegen gptj roformer glm5_next_text jamba kimi_linear nemotron_h EvollaModel".split())
TYPES = {name: {"model_type": name} for name in sorted(_models.MODELS.keys() & {*CONFIG_MAPPING} - WITHOUT)}
# Where the defaults of a class make no model with rotary layers, the recorded config says more than sizes.
TYPES |= {
    x["model_type"]: x for case in recorded.cases("hf_model_types") if (x := case["config"])["model_type"] in TYPES
}
# What a configuration needs to say; what else speaks of rotations, a class makes up.
SAID = """
    model_type hidden_size d_model num_hidden_layers num_layers num_layers_per_stack n_layers decoder_num_hidden_layers
    num_attention_heads n_heads decoder_num_attention_heads qk_nope_head_dim qk_rope_head_dim max_position_embeddings
    position_embedding_type global_head_dim cross_attention_layers block_types index_head_dim
""".split()


def describe(written):
    """All that is recorded of a model type and its config: what of its spectra its class makes up."""
    config = config_of(written)
    embedding = new_embedding(config)
    if config.model_type == "nanochat":  # rotates backwards
        embedding.inv_freq = -embedding.inv_freq
    if config.model_type == "ernie4_5_vl_moe_text":  # keeps those of height, of width and of time together
        embedding.inv_freq = embedding.recomposition_frequencies(embedding.inv_freq.expand(3, -1))[::2]
    found = inverse_frequencies(embedding, getattr(config, "layer_types", None) or [""])
    spectra = {
        (len(inverse), float(str(min(inverse[inverse != 0], key=abs))), factor)
        for inverse, factor in filter(None, found.values())
    }
    values = config.to_dict()
    said = {key: values[key] for key in (*SAID, *written, "transformers_version") if values.get(key) is not None}
    said |= {key: dict(sorted(value.items())) for key, value in said.items() if isinstance(value, dict)}
    turns = getattr(config, "no_rope_layers", None)  # one where a layer has positions
    bases = getattr(config, "layer_rope_theta", None) or ()
    turns = [int(base != 0) for base in bases] if 0 in bases else turns or None
    layout = record_facts.layout_of_functions(record_facts.code_of(type(config)))
    return {"config": said, "layout": layout, "spectra": sorted(spectra), "turns": turns}
