"""A null is not a missing key: every key that model types read, at every place, against what transformers does."""

import pytest

from helpers.plans import rotations_of
from helpers.tiers import thorough
from oracles import configs, recorded
from posenc_jax.hf import rotary_from_config
from posenc_jax.hf._models import MODELS

NULLS = recorded.read("hf_nulls")
TYPES = sorted(set(NULLS["types"].split()) & configs.RECORDED.keys())
# Keys that a class checks, or keeps for others, and that change no plan where they are missing too.
UNREAD = (
    "hidden_size num_attention_heads num_hidden_layers max_position_embeddings model_max_length first_k_dense_replace "
    "use_sliding_window sliding_window layer_types layers_block_type kv_channels rotary_dim rope_parameters "
    "rope_scaling original_max_position_embeddings"
).split()
# Heads that share hidden_size evenly with a null and without the key, or whose width is that of latent attention.
EVEN = (
    "axk1 axk2 blt_global_transformer blt_local_decoder blt_patcher cohere2 cohere_compass_text deepseek_v3 deepseek_v32 "
    "falcon glm4_moe_lite glm_moe_dsa hy_v4 hy_v4_vl_text longcat_flash minicpm3 mistral4 sarvam_mla youtu recurrent_gemma mimo jetmoe zamba2"
).split()
# How many types refuse a null; in others a null says something else than a missing key.
REFUSED = {
    "rope_theta": 140, "head_dim": 60, "sliding_window_pattern": 8, "full_attention_interval": 4, "index_head_dim": 5,
    "global_attn_every_n_layers": 3, "rope_interleave": 5, "rope_local_base_freq": 4, "rotary_pct": 2,
    "rotary_emb_base": 2, "global_rope_theta": 2, "local_rope_theta": 2, "no_rope_layer_interval": 2, "attn_scale": 1,
    "floor_scale": 1, "attn_temperature_tuning": 1, "layer_group_size": 1, "use_mem_rope": 1, "use_long_context": 1,
    "H_cycles": 1, "L_cycles": 1, "prefix_dense_sliding_window_pattern": 1, "swa_head_dim": 1, "swa_rope_theta": 1,
    "swa_qk_nope_head_dim": 1, "swa_qk_rope_head_dim": 1, "partial_rotary_factor": 17,
}  # fmt: skip


def outcome(config):
    """The rotations of the plan, or the message of the error."""
    try:
        return rotations_of(rotary_from_config(config, length=5000))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("every", [4, thorough(1)])
@pytest.mark.parametrize(("n", "key"), [*enumerate(NULLS["nulls"])], ids=[*NULLS["nulls"]])
def test_a_null_key_of_every_model_type(n, key, every):
    """Where transformers refuses a null, or takes another value for it, no plan is that of a missing key."""
    others, refused = " ".join(NULLS["nulls"][key].values()).split(), 0
    told = others if len(others) < 9 else []  # else some of them are among every fourth type
    for name in {*TYPES[n % every :: every], *told} & {*TYPES}:
        config = {k: x for k, x in configs.RECORDED[name]["config"].items() if k != key}
        missing, null = outcome(config), outcome(config | {key: None})
        says_so = isinstance(null, str) and f"{key} must have a value or be left out" in null
        refused += says_so
        if name in others and not isinstance(missing, str):
            usual = key in UNREAD or key == "head_dim" and name in EVEN
            whole = key == "partial_rotary_factor" and configs.SHARES[name] == 1
            assert says_so or null != missing or usual or whole, (name, null)
        elif not isinstance(missing, str):
            assert says_so or null == missing, (name, null)
    assert refused >= REFUSED.get(key, 0) // every


# By the rope type, the settings for which transformers takes a null as it takes a missing key; with all others it fails.
AS_MISSING = {
    "yarn": "attention_factor beta_fast beta_slow mscale mscale_all_dim",
    "longrope": "attention_factor factor",
}
ORIGINAL = {"original_max_position_embeddings": 1024}
BOUNDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALES = {"attention_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
SETTINGS = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, **ORIGINAL, **SCALES, "truncate": True},
    "longrope": {"factor": 2.0, "short_factor": [1.0] * 64, "long_factor": [2.0] * 64, **ORIGINAL, "attention_factor": 1.0},
    "llama3": {"factor": 2.0, **BOUNDS, **ORIGINAL},
    "proportional": {"factor": 2.0},
}  # fmt: skip
SIZES = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2, "max_position_embeddings": 4096}
FULL = ["full_attention"] * 2


def placed(model_type, place, settings):
    """A config with these settings at a place."""
    config = SIZES | {"model_type": model_type, "layer_types": FULL, "head_dim": 128}
    return config | {"rope_parameters": {FULL[0]: settings}} if place == "nested" else config | {place: settings}


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize(
    ("model_type", "place"),
    [("llama", "rope_scaling"), ("llama", "rope_parameters"), ("phi", "rope_parameters"), ("gemma3_text", "rope_scaling")]
    + [("gemma3_text", "nested"), ("laguna", "nested"), (None, "rope_parameters")],
)  # fmt: skip
def test_a_null_setting_of_every_rope_type(model_type, place, kind):
    whole = {"rope_type": kind, "rope_theta": 1e5, "partial_rotary_factor": 1.0} | SETTINGS[kind]
    for key in whole:
        without = {k: x for k, x in whole.items() if k != key}
        config, null = (placed(model_type, place, d) for d in (without, without | {key: None}))
        config, null = ({"rope_interleave": False} | c if model_type is None else c for c in (config, null))
        if key in AS_MISSING.get(kind, "").split():
            assert outcome(null) == outcome(config)
        elif kind == "yarn" and key == "factor":
            assert isinstance(outcome(config), str) and not isinstance(outcome(null), str)  # the ratio of the lengths
        else:
            assert isinstance(outcome(null), str) and key in outcome(null), (key, outcome(null))


@pytest.mark.parametrize("kind", ["yarn", "longrope", "llama3"])
def test_a_null_length_beside_the_settings(kind):
    config = placed("llama", "rope_parameters", {"rope_type": kind, "rope_theta": 1e4} | SETTINGS[kind])
    assert not isinstance(outcome(config), str)
    assert "original_max_position_embeddings must have a value" in outcome(config | dict.fromkeys(ORIGINAL))
    for nested in (placed("laguna", "nested", config["rope_parameters"]),):
        assert outcome(nested | dict.fromkeys(ORIGINAL)) == outcome(nested)  # not read there


@pytest.mark.parametrize("model_type", ["ernie4_5", "higgs_audio_v2", "internlm3"])
def test_a_null_width_of_heads_that_is_derived(model_type):
    config = SIZES | {"model_type": model_type, "hidden_size": 2560, "rope_parameters": {"rope_theta": 1e4}}
    assert outcome(config).layers[0].head_dim == 128
    assert outcome(config | {"head_dim": None}).layers[0].head_dim == 80


MIMO = {"model_type": "mimo_v2", "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0], "rope_theta": 5e6}


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"model_type": "gemma3_text", "head_dim": 256, "rope_theta": None}, "rope_theta .* left out for 1000000.0, got"),
        ({"model_type": "qwen3", "hidden_size": 2560, "head_dim": None}, "head_dim .* left out for 128, got null"),
        ({"model_type": "gpt_neox", "rotary_pct": None}, "rotary_pct .* left out for 0.25, got null"),
        ({"model_type": "olmo3", "rope_theta": None}, "rope_theta .* left out for 500000.0, got null"),
        ({"model_type": "llama4_text", "attn_scale": None}, "attn_scale .* left out for 0.1, got null"),
        ({"model_type": "qwen2_vl", "rope_scaling": {"mrope_section": None}}, r"section .* \(16, 24, 24\), got null"),
        ({"model_type": "molmo2_text", "rope_theta": None, "rope_scaling_layers": [0]}, "rope_theta .* for 10000.0, got"),
        ({"model_type": "zamba2", "layer_types": ["hybrid"] * 6, "attention_head_dim": None}, "dim .* left out for 256, got"),
        ({"model_type": "zamba2", "layer_types": ["hybrid"] * 6, "use_mem_rope": None}, "use_mem_rope .* for False, got"),
        ({"model_type": "phi3", "partial_rotary_factor": None}, "partial_rotary_factor .* left out for 1.0, got null"),
        ({"model_type": "deepseek", "alibi": None}, "alibi .* left out for False, got null"),
        ({"model_type": "glm4", "head_dim": 128, "partial_rotary_factor": None}, "partial_rotary_factor .* for 0.5, got null"),
        ({"model_type": "chatglm", "rotary_percent": None}, "partial_rotary_factor .* left out for 0.5, got null"),
        ({"model_type": "stablelm_epoch", "rope_pct": None}, "partial_rotary_factor .* left out for 0.25, got null"),
        ({"model_type": "gptj", "rotary_dim": None}, "rotary_dim must have a value or be left out for 64, got null"),
        ({"model_type": "phi-msft", "rotary_dim": None}, "rotary_dim must have a value or be left out for 32, got null"),
        (MIMO | {"swa_rope_theta": None}, "swa_rope_theta is missing beside hybrid_layer_pattern"),
        ({"model_type": "minimax_m2", "rotary_dim": 64, "partial_rotary_factor": None, "num_hidden_layers": 2}, "partial_rotary_factor .null. = 128 contradicts rotary_dim = 64"),
        (MIMO | {"swa_head_dim": None}, "swa_head_dim must have a value or be left out for 192, got null"),
        (MIMO | {"partial_rotary_factor": None}, "partial_rotary_factor must have a value or be left out, got null"),
    ],
)  # fmt: skip
def test_an_error_says_what_to_write(keys, match):
    result = outcome(SIZES | {"num_hidden_layers": 6} | keys)
    assert isinstance(result, str)
    with pytest.raises(ValueError, match=match):
        raise ValueError(result)


SHARES = "partial_rotary_factor", "rotary_pct", "rotary_dim"


@pytest.mark.parametrize("key", SHARES)
@pytest.mark.parametrize("name", TYPES)
def test_a_null_share_is_the_whole_head_or_an_error(name, key):
    """It is an error where the class fails, and where it rotates the whole head, but less without the key."""
    config = {k: x for k, x in configs.RECORDED[name]["config"].items() if k not in SHARES}
    model, plan, null = MODELS[name], outcome(config), outcome(config | {key: None})
    if isinstance(plan, str) or not any(layer.rotary_dim for layer in plan.layers):
        return
    inside = SHARES[0] in str(config)  # in the settings
    less = {
        "partial_rotary_factor": (model.partial or 1) < 1 and not inside,
        "rotary_pct": True,
        "rotary_dim": model.rotary_dim,
    }[key]
    fails = key in NULLS["nulls"] and name in NULLS["nulls"][key].get("refused", "").split() and key in model.reads
    if key in model.reads and (less or fails):
        assert isinstance(null, str) and f"{key} must have a value or be left out for" in null
        given = config | {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, SHARES[0]: model.partial},
            key: None,
        }
        assert key == "rotary_dim" or not isinstance(outcome(given), str)  # the settings have one
    else:
        assert null == plan


# The types whose layers look whether there are settings for them; in the others they fail without.
WITH_NULL_SETTINGS = {"beam", "cohere_compass_text"}
NESTED = [name for name in TYPES if MODELS[name].nested and "rope_parameters" in configs.RECORDED[name]["config"]]


@pytest.mark.parametrize("name", NESTED)
def test_null_settings_of_a_layer_type(name):
    config = configs.RECORDED[name]["config"]
    settings = config["rope_parameters"]
    for kind in settings:
        null = config | {"rope_parameters": settings | {kind: None}}
        if name in WITH_NULL_SETTINGS:
            turned = [layer.rotary_dim > 0 for layer in rotary_from_config(null).layers]
            assert turned == [bool(settings[each]) and each != kind for each in config["layer_types"]]
        else:
            with pytest.raises((TypeError, ValueError), match=f"rope_parameters.{kind} must be a mapping, got None"):
                rotary_from_config(null)
