"""Misspelled keys: every key that a model type reads, in all ways to misspell it, and no key that a model has."""

import itertools
import random
import re

import pytest

from helpers.tiers import thorough, tiered
from huggingface.published import llama
from oracles import configs, recorded
from posenc_jax.hf import _config, rotary_from_config
from posenc_jax.hf._typos import _SIZES, KNOWN, _near, similar_keys

TYPES = {case["config"]["model_type"]: case["config"] for case in configs.RECORDED.values()}


def outcome(config):
    try:
        return rotary_from_config(config, length=5000)
    except (TypeError, ValueError) as error:
        return str(error)


@pytest.fixture
def looked_up(monkeypatch):
    """The keys that were looked up in the configs read so far."""
    made, init = [], _config.Config.__init__

    def recording(self, *arguments):
        init(self, *arguments)
        made.append(self)

    monkeypatch.setattr(_config.Config, "__init__", recording)
    keys = lambda: {name for config in made for name in config.keys_looked_up}  # noqa: E731
    keys.clear = made.clear
    return keys


def ways(key):
    """A key in all ways to misspell it: case, separators, plurals, one letter, or two if it is not short."""
    words = key.split("_")
    yield from {key.upper(), key.capitalize(), "".join(word.capitalize() for word in words)} - {key}
    if words[1:]:
        yield from (
            "".join(words),
            "-".join(words),
            ".".join(words),
            words[0] + "".join(map(str.capitalize, words[1:])),
        )
    for i, word in enumerate(words):
        other = word[:-1] if word.endswith("s") else f"{word}s"
        if len(other) > 1:
            yield "_".join([*words[:i], other, *words[i + 1 :]])
    for i, word in enumerate(words):
        for first in one_letter(word):
            yield "_".join([*words[:i], first, *words[i + 1 :]])
    if len(key.replace("_", "")) > 8:  # two letters of it, in two words
        drawn = random.Random(key)
        for i, j in itertools.combinations(range(len(words)), 2):
            for first in one_letter(words[i]):
                second = drawn.choice(list(one_letter(words[j])))
                yield "_".join([*words[:i], first, *words[i + 1 : j], second, *words[j + 1 :]])


def one_letter(word):
    """A word with one letter less, doubled or replaced, or with two of them exchanged."""
    for i in range(len(word)):
        yield word[:i] + word[i + 1 :]
        yield word[:i] + word[i] + word[i:]
        yield word[:i] + "z" + word[i + 1 :]
        if word[i + 1 : i + 2] not in ("", word[i]):
            yield word[:i] + word[i + 1] + word[i] + word[i + 2 :]


def test_every_key_in_every_way(looked_up):
    for config in TYPES.values():
        outcome(config)
    keys = looked_up() - _SIZES
    assert len(keys) > 80
    count = 0
    for key in keys:
        for word in ways(key):
            if word in KNOWN | keys or word.startswith("_") or len(re.sub("[^a-z0-9]", "", word.lower())) < 3:
                continue
            assert similar_keys(word, {key}) == [key], word
            count += 1
    assert count > 9_000


# A value that most types do not have for a key, and that some read.
VALUES = {
    "rope_theta": 123_456.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rotary_emb_base": 123_456.0,
    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 123_456.0}, "head_dim": 80, "kv_channels": 80,
    "partial_rotary_factor": 0.75, "rotary_pct": 0.75, "rotary_dim": 32, "sliding_window_pattern": 2, "use_mrope": True,
    "global_attn_every_n_layers": 2, "full_attention_interval": 2, "no_rope_layer_interval": 3, "rope_interleave": False,
    "attn_temperature_tuning": False, "attn_scale": 0.3, "floor_scale": 512, "rope_local_base_freq": 123_456.0,
    "local_rope_theta": 123_456.0, "global_rope_theta": 123_456.0, "index_head_dim": 96, "qk_rope_head_dim": 32,
    "position_embedding_type": "nope", "layer_rope_theta": [0, 1e5, 1e4], "use_mem_rope": False, "alibi": True,
    "layer_types": ["full_attention"], "layer_group_size": 3, "swa_rope_theta": 123_456.0, "use_rotary_pos_emb": False,
}  # fmt: skip


@pytest.mark.parametrize("part", [0, *map(thorough, range(1, 12))])
def test_no_misspelling_passes_unseen(part):
    """Where a key changes what is read, each misspelling of it is an error that names it."""
    drawn, reading = random.Random(part), 0
    for (name, config), key in itertools.product(TYPES.items(), VALUES):
        if drawn.random() > 0.1:
            continue
        plan, value = outcome(config), VALUES[key]
        right = outcome(config | {key: value})
        if isinstance(plan, str) or right == plan or re.search("is not (known or not used here|read by)", str(right)):
            continue  # the type does not read it
        word = drawn.choice([word for word in ways(key) if not word.startswith("_")])
        if word in KNOWN | {key} or word in TYPES[name]:
            continue
        got = outcome(config | {word: value})
        assert isinstance(got, str) and re.search(rf"\b{re.escape(word)}\b", got), (name, word, got)
        nearest = not _near(word, key, 1) and "is near" in got  # another key may be as near
        assert nearest or re.search(rf"\b{key}\b", got.replace(f"the key {word} ", "")), (name, word, got)
        reading += 1
    assert reading > 150


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("RopeScaling", "rope_scaling"), ("Rope_scaling", "rope_scaling"), ("ROPE_THETA", "rope_theta"),
        ("rop_scaling", "rope_scaling"), ("scaling", "rope_scaling"), ("base", "rope_theta"), ("freq_base", "rope_theta"),
        ("layer_type", "layer_types"), ("head_dims", "head_dim"), ("partial_rotory_factor", "partial_rotary_factor"),
    ],
)  # fmt: skip
def test_an_error_names_the_key_that_is_meant(word, key):
    match = f"^rotary_from_config: the key {word} = 0.75 is near {key}, which model_type 'phi' reads: write {key} if"
    with pytest.raises(ValueError, match=match):
        rotary_from_config(llama(model_type="phi", **{word: 0.75}))
    beside = {"model_type": "a_composite", "text_config": llama()}
    if key in ("rope_scaling", "rope_theta", "partial_rotary_factor"):
        with pytest.raises(ValueError, match=f"the key {word} = 0.75 is near {key}, which the language model may have"):
            rotary_from_config(beside | {word: 0.75})
    assert rotary_from_config(llama(**{word: None})) == rotary_from_config(llama())


def test_how_near_a_key_must_be():
    """Two letters are too many for six; a plural is none beside them, nor is an attribute that transformers 4 wrote."""
    assert similar_keys("layers_tpe", {"layer_types"}) == ["layer_types"]
    assert similar_keys("rotarz", {"rotary"}) == ["rotary"]
    assert similar_keys("notarx", {"rotary"}) == similar_keys("_rotarx", {"rotary"}) == []
    assert similar_keys("notaryx_", {"rotary_"}) == similar_keys("rotors", {"rotary"}) == []


# What people write for keys, none of them near in letters, and the keys that they mean.
FAR = {
    "rope_theta rotary_emb_base global_rope_theta local_rope_theta rope_local_base_freq":
        "base bases base_freq base_frequency freq_base freqBase freqs_base frequency_base FrequencyBase inv_freq "
        "rot_base embedding_base base_value inv_freq_base wavelength_base max_wavelength local_base_freq global_base_freq "
        "invfreqs theta rope_base RopeBase rope_freq_base rope_frequency_base rotary_base base_theta theta_base inverse_freq",
    "rope_scaling": "linear_scaling llama3 llama3_scaling context_scaling ctx_scaling length_scaling pos_scaling scaling_params "
        "scaling_parameters scaling_dict scale_config context_extension factor freq_scale frequency_scale scaling scalings scaling_factor scaling_type scaling_config rope_scale "
        "rope_factor rope_scaling_factor rope_scaling_type",
    "head_dim": "attn_head_size width_per_head head_features num_head_dim n_embd_head n_embd_per_head key_length "
        "attention_head_width heads_dim attention_head_size attn_head_dim d_head dim_head dim_per_head head_dimension head_dim_size head_size headSize "
        "hidden_size_per_head per_head_dim size_per_head",
    "partial_rotary_factor rotary_pct rotary_emb_fraction": "partial_factor",
    "sliding_window_pattern": "sliding_pattern sliding_patterns window_pattern sliding_attn_pattern sliding_attention_pattern "
        "sw_pattern sliding_window_period sliding_window_interval",
    "full_attention_interval": "full_attention_every full_attention_period full_attn_interval",
    "global_attn_every_n_layers": "global_attn_every global_every_n_layers global_attention_every_n_layers",
    "layer_types": "attention_layer_types attn_layer_types layer_attn_types layer_kinds mixer_types",
    "no_rope_layers": "no_pos_layers no_pe_layers",
    "rope_interleave": "is_neox_style is_neox neox_style gptj_style traditional",
    "attn_temperature_tuning": "attn_temp_tuning attn_temperature attention_temperature",
    "floor_scale": "floor_scaling",
    "original_max_position_embeddings":
        "original_max_position original_max_len original_ctx n_ctx_orig n_ctx_train orig_ctx_len original_context "
        "original_context_length original_length original_max_length original_max_seq_len original_seq_len",
}  # fmt: skip


WITHOUT_SCALING = {"esm"}
COMMON = [keys for keys in FAR if re.match("rope_theta|rope_scaling|head_dim|original", keys)]


@pytest.mark.parametrize("keys", FAR)
def test_other_names_mean_a_key(keys):
    for word in FAR[keys].split():
        assert {*similar_keys(word, keys.split())} & {*keys.split()}, word


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("attn_temp_tuning", "attn_temperature_tuning"), ("attention_scaling", "attn_scale"), ("floor_scaling", "floor_scale"),
        ("theta_rope", "rope_theta"), ("scaling_rope", "rope_scaling"), ("dim_heads", "head_dim"), ("typesOfLayer", None),
        ("partial_rot_factor", "partial_rotary_factor"), ("rotary_partial_factor", "partial_rotary_factor"),
        ("orig_max_pos_emb", "original_max_position_embeddings"), ("rotary_embedding_bases", "rotary_emb_base"),
        ("max_position_embeddings_original", "original_max_position_embeddings"), ("rotary_percentage", "rotary_pct"),
        ("full_attn_interval", "full_attention_interval"), ("layer_theta_rope", None),
    ],
)  # fmt: skip
def test_words_in_another_order_or_form(word, key):
    """Shortened, in full, or exchanged, as long as none is more or less."""
    known = {"layer_types", "rope_theta", "rope_scaling", key or "head_dim"}
    assert similar_keys(word, known) == ([key] if key else [])


@pytest.mark.parametrize(
    ("word", "turned"),
    [
        ("is_neox_style", True),
        ("isNeox", True),
        ("neox_styles", True),
        ("gptj_style", False),
        ("rope_interleaves", False),
    ],
)
def test_a_name_that_means_the_opposite(word, turned):
    config = {
        "model_type": "deepseek_v3", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 4,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "rope_theta": 1e4, word: True,
    }  # fmt: skip
    way = "write rope_interleave" + " with the opposite value" * turned + " if that is meant"
    with pytest.raises(ValueError, match=f"the key {word} = True is near rope_interleave, which .*: {way}"):
        rotary_from_config(config)


@pytest.mark.parametrize("part", [0, *map(thorough, range(1, 4))])
@pytest.mark.parametrize("keys", tiered(FAR, [key for key in FAR if key == "head_dim"]))
def test_other_names(keys, part, looked_up):
    """Of a quarter of the model types, where they read one of the keys."""
    count, yarn = 0, {"rope_type": "yarn", "rope_theta": 1e5, "factor": 2.0, "original_max_position_embeddings": 1024}
    for name in sorted(TYPES)[part::4]:
        config = TYPES[name] | ({"rope_parameters": yarn} if "original" in keys else {})
        if isinstance(outcome(config), str):
            continue
        found = looked_up() & {*keys.split()}
        for word in FAR[keys].split():
            got = str(outcome(config | {word: 3}))
            if name in WITHOUT_SCALING and keys == "rope_scaling":
                assert got.endswith("near rope_scaling, which is no key that model_type 'esm' reads: remove it")
                continue
            if name in ("lfm2", "lfm2_moe") and word == "theta":  # published files repeat the base in it
                assert "rope_theta of model_type" in got and got.endswith("contradicts theta = 3")
                continue
            named = re.search(
                rf"the key {word} = 3 is near ([\w ]+?), (which|in whose place) model_type '{name}' reads", got
            )
            removed = got.endswith(f", which is no key that model_type '{name}' reads: remove it")
            assert bool(named) == bool(found) or removed and keys not in COMMON, (name, got)
            if named:
                assert {*named[1].split(" or ")} <= found
                assert named[2] == "which" or "reads rope_parameters: write" in got
            count += bool(named)
        looked_up.clear()
    assert count > 150 or keys not in COMMON


@pytest.mark.parametrize("part", [0, *map(thorough, range(1, 20))])
def test_advice_is_no_other_error(part, looked_up):
    """The key that an error advises is read by the type; where none is, the advice is to remove the other one."""
    removed, written = 0, 0
    for name in sorted(TYPES)[part::20]:
        config = TYPES[name]
        outcome(config)
        for key in looked_up() - _SIZES:
            word = key[:-1] + ("x" if key[-1] == "z" else "z")
            got = str(outcome(config | {word: 3}))
            if advice := re.search(rf"the key {word} = 3 is near .*: write ([\w ]+?) if that is meant", got):
                for right in advice[1].split(" or "):
                    then = str(outcome({k: x for k, x in config.items() if k != right} | {right: 3}))
                    unread = re.search(rf"(?<![.\w]){right} = 3 is not (known or not used here|used by|read by)", then)
                    assert not unread, (name, word, then)
                written += 1
            elif "is near" in got:
                assert got.endswith(f"which is no key that model_type {name!r} reads: remove it"), got
                removed += 1
        looked_up.clear()
    assert written > 150
    assert removed > 100


@pytest.mark.parametrize(
    ("model_type", "word", "key", "reads"),
    [
        ("gpt_neox", "rotarypct", "rotary_pct", "rotary_pct"),
        ("phi", "rotarypct", "rotary_pct", "partial_rotary_factor"),
        ("llama", "rotarypct", "rotary_pct", None),
        ("minimax_m3", "rotary_dims", "rotary_dim", "rotary_dim"),
        ("llama", "kv_channel", "kv_channels", "head_dim"),
        ("llama", "layers_block_types", "layers_block_type", "layer_types"),
        ("llama", "rotary_emb_bases", "rotary_emb_base", "rope_theta"),
        ("llama", "block_type", "block_types", None),
        ("llama", "use_mropes", "use_mrope", None),
        ("llama", "partial_rotory_factor", "partial_rotary_factor", None),
    ],
)
def test_a_key_that_other_types_read(model_type, word, key, reads):
    if reads is None:
        match = f"the key {word} = 0.5 is near {key}, which is no key that model_type '{model_type}' reads: remove it$"
    else:
        where = (
            f"which model_type '{model_type}' reads"
            if reads == key
            else f"in whose place model_type '{model_type}' reads {reads}"
        )
        match = f"the key {word} = 0.5 is near {key}, {where}: write {reads} if that is meant, and remove it if not$"
    with pytest.raises(ValueError, match=match):
        rotary_from_config(llama(model_type=model_type, **{word: 0.5}))


# Keys that somebody may have for something else, each near one that types read.
ELSE = (
    "head_num head_dim_q head_dim_k head_dim_v head_k_dim head_v_dim kv_head_dim feat_dim mean_dim use_mqa use_mha use_mlp "
    "use_norm use_code use_noise use_lora note name node mode"
).split()


def test_names_of_something_else_pass():
    for config in TYPES.values():
        plan, more = outcome(config), {word: 3 for word in ELSE if word not in config}
        assert outcome(config | more) == plan


def test_what_is_near_a_size_changes_no_spectrum():
    for word in ("hidden_sizes", "num_attention_headz", "num_layer"):
        assert rotary_from_config(llama(**{word: 7})) == rotary_from_config(llama()), word


def test_keys_of_some_types():
    gemma = {"model_type": "gemma3_text", "head_dim": 256, "num_hidden_layers": 6, "sliding_windows_pattern": 3}
    llama4 = {"model_type": "llama4_text", "num_hidden_layers": 4, "head_dim": 128, "attn_temperature_tunning": False}
    for config, key in ((gemma, "sliding_window_pattern"), (llama4, "attn_temperature_tuning")):
        assert f"is near {key}, which model_type" in outcome(config)


def test_a_misspelled_key_of_settings_or_of_a_missing_one():
    assert "the key rope_scaling.roep_theta = 2.0 is not known or not used here: is rope_theta meant?" in (
        outcome(llama(rope_scaling={"type": "linear", "factor": 2.0, "roep_theta": 2.0}))
    )
    missing = outcome(llama(rope_scaling={"type": "linear", "facter": 2.0}))
    assert missing.endswith("rope_scaling.factor is missing; is the key facter meant for it?")
    gemma4 = {"model_type": "gemma4_text", "num_hidden_layers": 6, "rope_paramters": {"full_attention": {}}}
    assert outcome(gemma4).endswith("has its own default; is the key rope_paramters meant for it?")
    own = outcome(llama(per_layer_config={"0": {"head_dims": 64}}))
    assert "the key per_layer_config.0.head_dims is not known or not used here" in own


def test_keys_that_models_have_are_no_misspellings():
    """What no class of this type knows may still be in its files: v_head_dim is near head_dim."""
    for word in KNOWN - {"layer_type", "sliding_windows", "partial_rotary_factors", "attention_window"}:
        got = outcome(llama(**{word: 8}))
        assert "is near" not in str(got) or word in ("block_types", "patch_sizes", "position_embeddings_type"), word


def test_no_key_of_a_published_file_is_a_misspelling():
    for case in recorded.cases("hf_published"):
        assert "is near" not in str(outcome(case["config"])).partition("(a near name")[0], case["name"]
