"""What the table of models says where a config does not."""

import pytest

from helpers.plans import close, plain
from huggingface.published import LLAMA_31, llama
from posenc_jax.hf import plan_to_config, rotary_from_config
from posenc_jax.hf._models import MODELS, REFUSED


def test_the_layout_is_the_model_s_or_the_caller_s():
    interleaved = {name for name, model in MODELS.items() if model.layout == "interleaved"}
    assert interleaved == set(
        "axk1 axk2 codegen cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v32 ernie4_5 ernie4_5_moe glm glm4 glm4_moe_lite "
        "glm4v_text glm_moe_dsa glm_ocr_text gptj helium llama4_text mistral4 moonshine openai_privacy_filter youtu".split()
    )
    for said in ("rope_interleave", "rope_interleaved", "rotary_emb_interleaved"):
        assert rotary_from_config(LLAMA_31 | {said: False}) == rotary_from_config(LLAMA_31)
    assert rotary_from_config(LLAMA_31, layout="interleaved").layout == "interleaved"
    assert rotary_from_config(LLAMA_31, layout="interleaved").layers == rotary_from_config(LLAMA_31).layers
    unknown = {"model_type": "mine", "head_dim": 8, "num_hidden_layers": 1, "rope_theta": 1e4}
    for layout in ("half", "interleaved"):
        assert rotary_from_config(unknown, layout=layout).layout == layout
        assert rotary_from_config(unknown | {"rope_interleave": layout == "interleaved"}).layout == layout
    for config in (unknown, {k: v for k, v in unknown.items() if k != "model_type"}):
        with pytest.raises(ValueError, match='layout must be given, "half" or "interleaved": that of model_type'):
            rotary_from_config(config)


def test_the_base_that_no_key_says():
    """10,000 by the rule, the model's own where it is known, and an error where it cannot be."""
    base = {"head_dim": 64, "num_hidden_layers": 1}
    for name, theta in {
        "llama": 1e4,
        "mixtral": 1e6,
        "cohere": 5e5,
        "helium": 1e5,
        "smollm3": 2e6,
        "qwen2": 1e4,
    }.items():
        close(rotary_from_config(base | {"model_type": name}).layers[0].frequencies, plain(64, theta))
    close(rotary_from_config(base, layout="half").layers[0].frequencies, plain(64, 1e4))
    for keys in ({"model_type": "mine"}, {"rope_parameters": {"rope_theta": None}}):
        with pytest.raises(ValueError, match="rope_theta is missing"):
            rotary_from_config(base | keys, layout="half")


def test_the_defaults_of_classes():
    """As the configuration classes of transformers 5.23.0 have them; those that are not there have the usual one."""
    thetas = {
        1e3: "nomic_bert",
        2e4: "jina_embeddings_v3",
        1e5: "helium",
        150_000: "gpt_oss openai_privacy_filter",
        160_000: "gte",
        5e5: "bitnet cohere csm ernie4_5 ernie4_5_moe flex_olmo llama4_text mllama_text_model paddleocr_vl_text "
        "qwen3_vl_moe_text qwen3_vl_text",
        1e6: "cwm emu3_text_model lfm2 lfm2_moe minimax mixtral phimoe qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text "
        "qwen3_omni_moe_text solar_open",
        2e6: "smollm3",
        5e6: "minimax_m2",
        11_158_840: "hy_v3",
        12e6: "apertus",
        None: "ministral3 mistral4",
    }
    heads = {
        64: "gpt_oss openai_privacy_filter",
        128: "afmoe beam cwm ernie4_5 flint glm glm4 helium hy_v3 internlm3 iquestcoder jetmoe kolibri1 laguna lfm3 "
        "llama4_text mellum minimax_m2 ministral3 paddleocr_vl_text qwen3 qwen3_vl_text seed_oss solar_open zaya",
        192: "mimo_v2_flash",
        256: "diffusion_gemma_text gemma gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text "
        "qwen3_5_moe_text qwen3_5_text qwen3_next t5gemma2_decoder t5gemma2_text vaultgemma",
    }
    shares = {
        0.25: "gpt_neox qwen3_5_moe_text qwen3_5_text qwen3_next stablelm",
        0.334: "mimo_v2_flash",
        0.5: "bamba glm glm4 glm4_moe glm4v_moe_text nemotron persimmon phi recurrent_gemma",
        0.9: "moonshine",
        1.0: "codegen glm4v_text glm_image_text glm_ocr_text gpt_neox_japanese gptj laguna mellum minimax_m2 phi3 "
        "phi4_multimodal solar_open zaya",
    }
    for field, usual, facts in (("theta", 1e4, thetas), ("head_dim", None, heads), ("partial", None, shares)):
        expected = {name: value for value, names in facts.items() for name in names.split()}
        assert {name: getattr(m, field) for name, m in MODELS.items() if getattr(m, field) != usual} == expected


def test_the_facts_of_code():
    """As the modelling code of transformers 5.23.0 has them."""
    facts = {
        "required": "apertus beam cwm diffusion_gemma_text gemma4_text gemma4_unified_text gpt_oss laguna lfm3 mellum "
        "mimo_v2_flash ministral3 mistral4 openai_privacy_filter zaya",
        "sliding_only": "afmoe cohere2 exaone4 exaone_moe flint kolibri1",
        "windowless": "exaone4 exaone_moe kolibri1",
        "typed": "bamba beam flint granitemoehybrid kolibri1 laguna lfm2 lfm2_moe lfm3 mellum mimo_v2_flash minimax "
        "olmo_hybrid recurrent_gemma zaya",
        "nested": "beam diffusion_gemma_text gemma4_text gemma4_unified_text laguna lfm3 mellum mimo_v2_flash zaya",
        "thetas": "gemma3_text gemma3n_text modernbert modernbert-decoder olmo3 t5gemma2_decoder t5gemma2_text",
        "latent": "axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa hy_v4 minicpm3 mistral4 youtu",
        "switched": "axk1 deepseek_v3 glm4_moe_lite mistral4 youtu",
        "dealt": "qwen3_5_moe_text qwen3_5_text qwen3_omni_moe_text qwen3_vl_moe_text qwen3_vl_text",
        "layer_thetas": "granite_swa granitemoe_swa",
        "interval": "llama4_text smollm3",
        "temperature": "llama4_text ministral3 mistral4",
        "null_theta": "olmo_hybrid",
    }
    for field, names in facts.items():
        assert {name for name, model in MODELS.items() if getattr(model, field)} == set(names.split()), field
    sections = {name: model.sections for name, model in MODELS.items() if model.sections}
    assert {sections.pop(f"qwen2_{x}_text") for x in ("vl", "5_vl", "5_omni")} == {(16, 24, 24)}
    assert {sections.pop(f"qwen3_{x}_text") for x in ("vl", "vl_moe", "omni_moe")} == {(24, 20, 20)}
    assert {sections.pop(f"qwen3_{x}_text") for x in ("5", "5_moe")} == {(11, 11, 10)}
    assert sections.pop("paddleocr_vl_text") == (16, 24, 24)
    assert set(sections) == {"glm4v_text", "glm_ocr_text", "glm4v_moe_text", "glm_image_text"}
    assert set(sections.values()) == {(8, 12, 12)}
    refused = "cohere2_moe deepseek_v4 ernie4_5_vl_moe hunyuan_vl mistral_large4 nanochat neomme"
    assert set(REFUSED) == set(refused.split())


def test_the_layer_types_that_no_key_says():
    base = {"head_dim": 64, "num_hidden_layers": 13, "rope_theta": 7e5}
    full = {"gemma3_text": 6, "gemma3n_text": 5, "t5gemma2_text": 6, "t5gemma2_decoder": 6}
    for name, period in full.items():
        layers = rotary_from_config(base | {"model_type": name}).layers
        assert [layer.frequencies == layers[period - 1].frequencies for layer in layers] == [
            (i + 1) % period == 0 for i in range(13)
        ], name
    scaling = {"rope_type": "linear", "factor": 2.0}
    layers = rotary_from_config(base | {"model_type": "olmo3", "rope_scaling": scaling}).layers
    for i, layer in enumerate(layers):
        close(layer.frequencies, plain(64, 7e5) / (2 if i % 4 == 3 else 1))
    base = {"head_dim": 64, "num_hidden_layers": 9}
    for name in ("cohere2", "afmoe", "exaone4", "exaone_moe"):
        layers = rotary_from_config(base | {"model_type": name, "sliding_window": 64}).layers
        assert [layer.frequencies is None for layer in layers] == [False, False, False, True] * 2 + [False], name
    key = {"model_type": "afmoe", "global_attn_every_n_layers": 3}
    assert rotary_from_config(base | key).layers[2].frequencies is None


def test_the_share_that_no_key_says():
    base = {"head_dim": 128, "num_hidden_layers": 1}
    shares = {
        "gpt_neox": 0.25,
        "stablelm": 0.25,
        "phi": 0.5,
        "persimmon": 0.5,
        "nemotron": 0.5,
        "glm": 0.5,
        "glm4": 0.5,
    }
    shares |= {"glm4_moe": 0.5, "gptj": 0.5, "codegen": 0.5, "phi3": 1.0, "llama": 1.0, "minimax_m2": 1.0}
    for name, share in shares.items():
        assert rotary_from_config(base | {"model_type": name}).layers[0].rotary_dim == 128 * share, name
    whole = base | {"model_type": "gptj", "rotary_dim": None}  # null is not absence
    assert rotary_from_config(whole).layers[0].rotary_dim == 128
    gptj = {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 1, "rotary_dim": 32, "rotary": True}
    assert (rotary_from_config(gptj).layers[0].head_dim, rotary_from_config(gptj).layers[0].rotary_dim) == (256, 32)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_rotations_that_a_plan_cannot_say(name):
    for model_type in (name, f"{name}_text"):
        with pytest.raises(ValueError, match=f"model_type '{model_type}' rotates in a way that a plan cannot say"):
            rotary_from_config(llama(model_type=model_type), layout="half")


def test_every_model_type_reads():
    """With settings that none has for a default, so that no entry of the table is without use."""
    for name, model in MODELS.items():
        config = {
            "model_type": name,
            "head_dim": 128,
            "num_hidden_layers": 2,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
        }
        config = {k: v for k, v in config.items() if not k.startswith("qk") or model.latent}
        settings = {"rope_type": "default", "rope_theta": 123.0}
        if model.temperature == "beta":
            settings |= {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 4096}
        if model.sections or model.partial:
            share = 0.5 if model.sections is None else sum(model.sections) / 64
            settings |= {"partial_rotary_factor": share}
        if model.typed or model.nested or model.thetas or model.sliding_only or model.pattern:
            config["layer_types"] = ["sliding_attention", "full_attention"]
        if model.position:
            config["position_embedding_type"] = model.position
        if model.nested or model.thetas:
            settings = {"sliding_attention": settings, "full_attention": settings}
        plan = rotary_from_config(config | {"rope_parameters": settings}, length=9)
        (first, _) = plan.layers
        assert first.frequencies is not None and first.frequencies.angular[1] < 1, name
        assert first.frequencies.angular[1] == pytest.approx(123 ** (-2 / first.rotary_dim)), name
        assert rotary_from_config(plan_to_config(plan)) == plan, name


def test_a_share_of_a_head_is_rounded_down():
    moonshine = {"model_type": "moonshine", "head_dim": 52, "num_hidden_layers": 1}
    for given in (moonshine, moonshine | {"partial_rotary_factor": 0.9}):  # 46.8
        assert rotary_from_config(given).layers[0].rotary_dim == 46


def test_a_null_window_leaves_the_pattern():
    cohere = {"model_type": "cohere2", "head_dim": 16, "num_hidden_layers": 4, "sliding_window": None}
    assert [layer.frequencies is None for layer in rotary_from_config(cohere).layers] == [False, False, False, True]
