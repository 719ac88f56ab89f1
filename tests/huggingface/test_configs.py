"""What the keys of a config mean, in every spelling, and the way back."""

import json

import pytest

from helpers.plans import WithToDict, close, plain, spectrum_of
from huggingface.published import DEEPSEEK_V3, GEMMA_3, LLAMA_31, SMOLLM_3, SPREAD, llama, scaled
from oracles import spectra
from posenc_jax.hf import plan_to_config, rotary_from_config


def test_layers_without_positions():
    plan = rotary_from_config(SMOLLM_3)
    assert [layer.rotary_dim == 0 for layer in plan.layers] == [False, False, False, True, False, True]
    assert plan.layers[3].query_scale is None
    interval = {k: v for k, v in SMOLLM_3.items() if k != "no_rope_layers"}
    plan = rotary_from_config(interval)
    assert [layer.rotary_dim == 0 for layer in plan.layers] == [False, False, False, True, False, False]
    cohere = {"model_type": "cohere2", "hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 5}
    plan = rotary_from_config(cohere | {"rotary_pct": 1.0, "position_embedding_type": "rope_gptj", "rope_theta": 50000})
    assert [layer.rotary_dim == 0 for layer in plan.layers] == [False, False, False, True, False]
    assert plan.layout == "interleaved"
    plan = rotary_from_config(cohere | {"sliding_window_pattern": 2})
    assert [layer.rotary_dim == 0 for layer in plan.layers] == [False, True, False, True, False]
    exaone = {"model_type": "exaone4", "head_dim": 64, "num_hidden_layers": 4, "rope_theta": 1e6}
    assert rotary_from_config(exaone | {"sliding_window": 4096}).layers[3].rotary_dim == 0
    assert rotary_from_config(exaone | {"sliding_window": None}).layers[3].rotary_dim > 0


def test_layers_of_other_kinds():
    types = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "attention", "mamba", "conv"]}
    plan = rotary_from_config(llama(model_type="minimax", **types))
    assert [layer.rotary_dim == 0 for layer in plan.layers] == [True, False, True, True]
    with pytest.raises(
        ValueError, match=r"layer types \['conv', 'linear_attention'\] of layer_types are not known for"
    ):
        rotary_from_config(llama(**types))  # whose code does not read them
    qwen = {"model_type": "qwen3_next", "num_hidden_layers": 4, "rope_theta": 1e7, "head_dim": 256}
    plan = rotary_from_config(qwen)
    assert [layer.rotary_dim for layer in plan.layers] == [0, 0, 0, 64]
    assert [x.rotary_dim for x in rotary_from_config(qwen | {"full_attention_interval": 2}).layers] == [0, 64, 0, 64]
    bamba = {"model_type": "bamba", "head_dim": 64, "num_hidden_layers": 3, "attn_layer_indices": [1]}
    assert [layer.rotary_dim for layer in rotary_from_config(bamba).layers] == [0, 32, 0]
    assert rotary_from_config(bamba | {"attn_rotary_emb": 32}) == rotary_from_config(bamba)
    lfm = {"model_type": "lfm2", "head_dim": 64, "num_hidden_layers": 3, "full_attn_idxs": [0, 2]}
    assert [layer.rotary_dim for layer in rotary_from_config(lfm).layers] == [64, 0, 64]
    gemma = {"model_type": "recurrent_gemma", "head_dim": 64, "num_hidden_layers": 5}
    gemma |= {"block_types": ["recurrent", "recurrent", "attention"]}
    assert [layer.rotary_dim for layer in rotary_from_config(gemma).layers] == [0, 0, 32, 0, 0]
    vision = {"model_type": "mllama_text_model", "head_dim": 64, "num_hidden_layers": 3, "cross_attention_layers": [1]}
    assert [layer.rotary_dim for layer in rotary_from_config(vision).layers] == [64, 0, 64]
    granite = {"model_type": "granitemoehybrid", "head_dim": 64, "num_hidden_layers": 2, "rope_theta": 10000}
    granite["layers_block_type"] = ["mamba", "attention"]
    assert [x.rotary_dim for x in rotary_from_config(granite | {"position_embedding_type": "rope"}).layers] == [0, 64]
    for silent in ("nope", None):
        plan = rotary_from_config(granite | {"position_embedding_type": silent})
        assert [x.rotary_dim for x in plan.layers] == [0, 0]
    swa = {"model_type": "granite_swa", "head_dim": 64, "num_hidden_layers": 3, "layer_rope_theta": [1e4, 0, 2e4]}
    one, two, three = rotary_from_config(swa).layers
    close(one.frequencies, plain(64, 1e4))
    close(three.frequencies, plain(64, 2e4))
    assert two.rotary_dim == 0
    assert rotary_from_config(swa | {"layer_rope_theta": [1e4, None, 2e4]}).layers == (one, two, three)
    said = plan_to_config(rotary_from_config(swa))
    assert said["layer_types"] == ["rope_0", "no_rope", "rope_1"] == list(said["rope_parameters"])
    olmo = {"model_type": "olmo_hybrid", "head_dim": 64, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    assert rotary_from_config(olmo | {"rope_parameters": {"rope_theta": None}}).layers[0].rotary_dim == 0
    assert rotary_from_config(olmo).layers[0].rotary_dim > 0


def test_every_layer_type():
    """As transformers names them, today and before."""
    turning = (
        "attention chunked_attention deepseek_sparse_attention full_attention hybrid hybrid_sliding indexed_attention "
        "reference_sliding_attention sliding_attention"
    )
    for names, width in ((turning, 16), ("conv linear_attention mamba", 0)):
        for name in names.split():
            config = llama(model_type="minimax", layer_types=[name] * 2)
            assert rotary_from_config(config).layers[0].rotary_dim == width, name


def test_every_spelling_of_a_size():
    """GPT-J, MPT, Falcon and Moonshine have names of their own for them."""
    config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    plan = rotary_from_config(config, layout="half")
    for name, others in {
        "num_hidden_layers": "n_layer n_layers num_layers decoder_num_hidden_layers",
        "hidden_size": "n_embd d_model",
        "num_attention_heads": "n_head n_heads decoder_num_attention_heads",
    }.items():
        for other in others.split():
            renamed = {other if key == name else key: value for key, value in config.items()}
            assert rotary_from_config(renamed, layout="half") == plan, other
    for other in ("head_dim", "kv_channels", "attention_head_dim"):
        assert rotary_from_config({"num_hidden_layers": 2, other: 16}, layout="half") == plan, other


def test_settings_for_each_layer_type():
    nested = {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}, "sliding_attention": None}
    types = ["sliding_attention", "full_attention", "linear_attention"]
    keys = {"model_type": None, "layer_types": types, "num_hidden_layers": 3, "rope_parameters": nested}
    plan = rotary_from_config(llama(**keys), layout="half")
    assert [layer.rotary_dim == 0 for layer in plan.layers] == [True, False, True]
    close(plan.layers[1].frequencies, plain(16, 1e6) / 2)
    # The outer base is for the types that have none.
    part = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {}}
    plan = rotary_from_config(llama(**keys | {"rope_parameters": part}, rope_theta=2e4), layout="half")
    close(plan.layers[0].frequencies, plain(16, 2e4))
    close(plan.layers[1].frequencies, plain(16, 1e6))
    scaling = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 2048}
    part = {"full_attention": scaling, "sliding_attention": None}
    plan = rotary_from_config(llama(**keys | {"rope_parameters": part}), layout="half")
    close(plan.layers[1].frequencies, spectra.yarn(16, 1e4, 4, 2048))
    for name in ("layer_types", "layers_block_type"):  # settings for a type that no layer has
        plan = rotary_from_config(
            llama(model_type=None, **{name: ["full_attention"] * 2}, rope_parameters=part), layout="half"
        )
        close(spectrum_of(plan), spectra.yarn(16, 1e4, 4, 2048))
    only = {"full_attention": scaling}  # without layer_types, which make no difference
    assert rotary_from_config(llama(model_type=None, rope_parameters=only), layout="half") == plan
    mimo = {"partial_rotary_factor": 0.334, "rope_theta": 1e4}  # int(192 · 0.334) = 64
    keys = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "rope_parameters": {"full_attention": mimo}}
    assert rotary_from_config({"model_type": "mimo_v2_flash", **keys}).layers[0].rotary_dim == 64


@pytest.mark.parametrize(
    ("config", "length", "angular", "amplitude"),
    [
        (scaled("default"), None, plain(16, 1e4), 1),
        (scaled("linear", factor=2.5), None, plain(16, 1e4) / 2.5, 1),
        (scaled("dynamic", factor=4.0), 8192, plain(16, 1e4), 1),
        (scaled("dynamic", factor=4.0), 100, plain(16, 1e4), 1),
        (scaled("dynamic", factor=4.0), 20000, spectra.dynamic_ntk(16, 1e4, 4, 8192, 20000), 1),
        (scaled("dynamic", alpha=50.0) | {"model_type": "hunyuan_v1_dense"}, None, spectra.ntk(16, 1e4, 50), 1),
        (scaled("yarn", factor=4.0, original_max_position_embeddings=8192), None, spectra.yarn(16, 1e4, 4, 8192), float(spectra.temperature(4))),
        (scaled("yarn", factor=None, original_max_position_embeddings=2048), None, spectra.yarn(16, 1e4, 4, 2048), float(spectra.temperature(4))),
        (scaled("yarn", factor=4.0, original_max_position_embeddings=512, beta_fast=8, beta_slow=0.5, attention_factor=1.25),
         None, spectra.yarn(16, 1e4, 4, 512, 8, 0.5), 1.25),
        (scaled("yarn", factor=4.0, mscale=0.5, mscale_all_dim=0.0, original_max_position_embeddings=8192), None, spectra.yarn(16, 1e4, 4, 8192), float(spectra.temperature(4))),
        (scaled("yarn", factor=4.0, mscale=0.5, original_max_position_embeddings=8192), None, spectra.yarn(16, 1e4, 4, 8192), float(spectra.temperature(4))),
        (scaled("yarn", factor=4.0, original_max_position_embeddings=512, truncate=False), None, spectra.yarn(16, 1e4, 4, 512, truncate=False),
         float(spectra.temperature(4))),
        (scaled("yarn", factor=1.0, original_max_position_embeddings=8192), None, plain(16, 1e4), 1),
        (scaled("longrope", short_factor=[1.0] * 8, long_factor=SPREAD, original_max_position_embeddings=8192), 9000, plain(16, 1e4) / SPREAD, 1),
        (scaled("longrope", short_factor=SPREAD, long_factor=[1.0] * 8, factor=16.0, original_max_position_embeddings=8192), 9, plain(16, 1e4) / SPREAD,
         float(spectra.longrope_amplitude(16, 8192))),
        (scaled("longrope", short_factor=SPREAD, long_factor=SPREAD, factor=16.0, attention_factor=1.5, original_max_position_embeddings=8192), 9, plain(16, 1e4) / SPREAD, 1.5),
        (scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=1024),
         None, spectra.llama3(16, 1e4, 8, 1, 4, 1024), 1),
        (scaled("proportional", partial_rotary_factor=0.3, factor=2.0), None, [0.5, 0.5 * 1e4 ** (-2 / 16), 0, 0, 0, 0, 0, 0], 1),
        (scaled("proportional"), None, plain(16, 1e4), 1),
    ],
)  # fmt: skip
def test_every_rope_type(config, length, angular, amplitude):
    settings = config["rope_parameters"]
    kind, theta = settings["rope_type"], settings["rope_theta"]
    plan = rotary_from_config(config, length=length)
    close(spectrum_of(plan), angular)
    assert spectrum_of(plan).attention_factor == pytest.approx(amplitude, rel=1e-15)
    assert plan.length == length
    if length is None:  # where no length is needed, one may be given
        assert rotary_from_config(config, length=5) == plan
    rest = {k: v for k, v in settings.items() if k not in ("rope_type", "rope_theta")}
    for old in ({"type": kind, **rest}, {"rope_type": kind, **rest}, {"type": kind, "rope_type": kind, **rest}):
        legacy = {**config, "rope_parameters": None, "rope_theta": theta, "rope_scaling": old}
        assert rotary_from_config(legacy, length=length) == plan
        both = legacy | {"rope_parameters": settings}
        assert rotary_from_config(both, length=length) == plan
    said = plan_to_config(plan)
    assert rotary_from_config(json.loads(json.dumps(said)), length=plan.length) == plan
    assert "model_type" not in said and said["rope_parameters"]["rope_type"] == kind


def test_the_share_of_proportional_may_stand_outside():
    config = scaled("proportional", factor=2.0) | {"partial_rotary_factor": 0.3}
    assert rotary_from_config(config) == rotary_from_config(
        scaled("proportional", factor=2.0, partial_rotary_factor=0.3)
    )


def test_sections_of_a_model_that_is_not_known():
    settings = {"rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    config = {"head_dim": 16, "num_hidden_layers": 1, "rope_parameters": settings}
    assert rotary_from_config(config, layout="half").layers[0].frequencies.axes == (0, 0, 0, 0, 1, 1, 2, 2)
    for name in ("mrope_interleaved", "interleaved"):
        dealt = config | {"rope_parameters": settings | {name: True}}
        assert rotary_from_config(dealt, layout="half").layers[0].frequencies.axes == (0, 1, 2, 0, 1, 2, 0, 0)


def test_a_share_of_the_head_survives_the_way_back():
    for head_dim in (44, 46, 52, 86, 96, 128, 192):  # int(44 · (30 / 44)) is 29
        for width in range(2, head_dim, 2):
            config = {"num_hidden_layers": 1, "head_dim": head_dim, "rotary_dim": width}
            plan = rotary_from_config(config, layout="half")
            assert plan.layers[0].rotary_dim == width
            assert rotary_from_config(plan_to_config(plan)) == plan
    quarter = {"num_hidden_layers": 1, "head_dim": 128, "rotary_dim": 32}
    said = plan_to_config(rotary_from_config(quarter, layout="half"))
    assert said["rope_parameters"]["partial_rotary_factor"] == 0.25


def test_an_object_with_to_dict():
    outer = {"model_type": "llava", "text_config": WithToDict(LLAMA_31)}
    for config in (WithToDict(LLAMA_31), WithToDict(outer)):
        assert rotary_from_config(config) == rotary_from_config(LLAMA_31)
    for wrong in (WithToDict, dict, type("Odd", (), {"to_dict": LLAMA_31})()):
        with pytest.raises(TypeError, match=r"^rotary_from_config: config must be a mapping or have to_dict\(\), got "):
            rotary_from_config(wrong)


def test_settings_beside_the_text_config():
    text = LLAMA_31 | {"model_type": None}
    outer = {"model_type": "llama", "text_config": text, "thinker_config": None}
    assert rotary_from_config(outer) == rotary_from_config(LLAMA_31)
    twice = {key: LLAMA_31[key] for key in ("rope_theta", "rope_scaling", "hidden_size")}
    assert rotary_from_config(outer | twice) == rotary_from_config(LLAMA_31)
    with pytest.raises(ValueError, match="the key rotary_pct = 1.0 is not known or not used here"):
        rotary_from_config(outer | {"rotary_pct": 1.0})
    assert rotary_from_config({"thinker_config": outer}) == rotary_from_config(LLAMA_31)
    assert rotary_from_config({"language_config": LLAMA_31}) == rotary_from_config(LLAMA_31)
    assert rotary_from_config({"text_config": {"text_config": outer}}) == rotary_from_config(LLAMA_31)
    with pytest.raises(ValueError, match="config must hold its text_config within four levels"):
        rotary_from_config({"text_config": {"text_config": {"text_config": outer}}})


def test_nothing_given_is_changed():
    before = json.dumps(GEMMA_3)
    rotary_from_config(GEMMA_3)
    assert json.dumps(GEMMA_3) == before


def test_the_name_of_the_positions():
    base = {"head_dim": 64, "num_hidden_layers": 1}
    for name, width in (("rope", 64), ("rotary", 64), ("nope", 0)):
        plan = rotary_from_config(base | {"position_embedding_type": name}, layout="half")
        assert plan.layers[0].rotary_dim == width, name


def test_latent_attention_of_which_some_layers_rotate():
    types = {"model_type": "bailing_hybrid", "layer_types": ["full_attention", "linear_attention"]}
    plan = rotary_from_config(DEEPSEEK_V3 | types)
    assert plan.part == "last" and [layer.rotary_dim for layer in plan.layers] == [64, 0]
    assert rotary_from_config(plan_to_config(plan)) == plan


def test_a_width_of_0_is_no_latent_attention():
    config = {"num_hidden_layers": 1, "head_dim": 16}
    plan = rotary_from_config(config, layout="half")
    assert rotary_from_config(config | {"qk_rope_head_dim": 0}, layout="half") == plan


def test_the_length_is_the_plan_s_where_one_layer_needs_it():
    nested = {"full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e4}}  # fmt: skip
    types = ["full_attention", "sliding_attention"]
    config = llama(
        model_type="laguna", head_dim=16, layer_types=types, rope_parameters=nested, max_position_embeddings=512
    )
    plan = rotary_from_config(config, length=2000)
    close(plan.layers[0].frequencies, spectra.dynamic_ntk(16, 1e4, 2, 512, 2000))
    assert plan.length == 2000 and rotary_from_config(plan_to_config(plan), length=2000) == plan


def test_so_many_layers():
    assert len(rotary_from_config(llama(num_hidden_layers=2**16)).layers) == 2**16


def test_latent_attention_of_which_no_layer_rotates():
    plan = rotary_from_config(DEEPSEEK_V3 | {"model_type": "bailing_hybrid", "layer_types": ["linear_attention"] * 2})
    assert {(layer.rotary_dim, layer.head_dim) for layer in plan.layers} == {(0, 192)}
    assert plan.part == "first" and rotary_from_config(plan_to_config(plan)) == plan
