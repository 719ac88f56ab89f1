"""The values that rewriters change, and the rewriters of keys about layers and heads.

A rewriter takes keys out of a config, checks them and puts others in: how many layers there are, of which types, which
of them rotate, how wide their heads are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import require
from posenc_jax.hf._config import RAW
from posenc_jax.hf._layers import COUNTS, count_of
from posenc_jax.hf._models import Pattern, by_model_type
from posenc_jax.hf._settings import rope_settings
from posenc_jax.hf._values import Values, agreed_value, check_agreement, equal, parse_mapping

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


class Draft(Values):
    """A config while it is rewritten."""

    values: dict[str, Any]

    def __setitem__(self, name: str, value: Any) -> None:
        self.values[name] = value

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return count_of(self)

    @property
    def settings(self) -> list[Values]:
        """The rope settings in each spelling that is there."""
        return rope_settings(self.values)

    def take(self, name: str) -> Any:
        """Takes out a key."""
        return self.values.pop(name, None)

    def take_only(self, **usual: Any) -> None:
        """Takes out keys that must be missing or have these values."""
        for name, value in usual.items():
            written, message = self.take(name), "{} must be {!r} in model_type {!r}, got {!r:.60}"
            fits = equal(written, value) and isinstance(written, bool) == isinstance(value, bool)
            require(written is None or fits, message, name, value, self.values["model_type"], written)

    def take_settings(self) -> Values:
        """Takes out the rope settings, in either spelling."""
        spellings = self.settings
        check_agreement({settings.name: settings.values for settings in spellings})
        for name in RAW:
            self.take(name)
        return spellings[0]

    def put_settings(self, **more: Any) -> None:
        """Writes what the code does into the rope settings, in the config's spelling."""
        for settings in self.settings:
            self[settings.name] = extended(settings, **more).values

    def put_from(self, mapping: str, key: str, name: str) -> None:
        """Writes as `name` the value that a key has in a mapping; the config must not contradict it."""
        spellings = self.get_mapping(mapping).look_up(key) | self.look_up(name)
        if spellings:
            self[name] = agreed_value(spellings)

    def take_layers(self, name: str) -> list[Any]:
        """Takes out a list with an item for each layer, and without more for those that predict further tokens."""
        items = self.get_list(name)
        self.take(name)
        if items is None:
            return []
        count, more = self.num_layers, self.get_number("num_nextn_predict_layers", default=None) or 0
        fits = len(items) in (count, count + more)
        require(fits, "{} must have {} items, one for each layer, got {}", name, count, len(items))
        return [*items[:count]]

    def put_types(self, source: str, types: list[str]) -> None:
        """Writes the types of layers, which come from the key `source`; the config must not contradict them."""
        if types:
            self["layer_types"] = agreed_value({source: types, "layer_types": self.take_layers("layer_types") or types})

    def put_numbered_types(self, source: str, names: Mapping[int, str]) -> None:
        """Writes the types of layers, for which the key `source` has numbers."""
        numbers = self.take_layers(source)
        fits = all(isinstance(number, int) and number in names for number in numbers)
        require(fits, "{} must hold {}, got {!r:.60}", source, [*names], numbers)
        self.put_types(source, [names[number] for number in numbers])

    def put_usual_types(self, type_of: Callable[[int], str]) -> list[str]:
        """Writes the types of layers that the class has if the config has none, and returns those that it then has."""
        types = self["layer_types"] = self.take_layers("layer_types") or [type_of(i) for i in range(self.num_layers)]
        return types


def extended(settings: Values, **more: Any) -> Values:
    """Rope settings with more of them, except None; they must not contradict each other."""
    result = dict(settings.values)
    for name, value in more.items():
        if value is not None:
            result[name] = agreed_value(settings.look_up(name) | {name: value})
    return Values(result, settings.name)


def is_nested(settings: Values) -> bool:
    """Whether rope settings have an entry for each layer type."""
    return any(isinstance(value, Mapping) for value in settings.values.values())


# The layers


def exaone4(config: Draft) -> None:
    """A sliding_window_pattern may be a string that repeats, such as LLLG."""
    letters = config.values.get("sliding_window_pattern")
    if isinstance(letters, str):
        fits = letters and set(letters) <= {"L", "G"}
        require(fits, "sliding_window_pattern must be a number or letters L and G, got {!r:.60}", letters)
        config.take("sliding_window_pattern")
        config.put_usual_types(lambda i: SLIDING if letters[i % len(letters)] == "L" else FULL)


def dory(config: Draft) -> None:
    """layer_types may have an "mlp" after each layer, which num_hidden_layers then counts too."""
    types = config.get_list("layer_types") or ()
    if "mlp" in types:
        config["num_hidden_layers"], config["layer_types"] = config.num_layers // 2, types[::2]


def lara_mini(config: Draft) -> None:
    """Layer i is a full one where i % 5 is 3, a sliding one where it is 1 or 4; the others have no attention."""
    config.put_usual_types(lambda i: (LINEAR, SLIDING, LINEAR, FULL, SLIDING)[i % 5])


def nemotron_h(config: Draft) -> None:
    """hybrid_override_pattern or layers_block_type has an item for each layer."""
    blocks = config.get_list("layers_block_type", "layer_types") or config.get_string("hybrid_override_pattern")
    if blocks is not None:
        for name in COUNTS:
            config.take(name)
        config["num_hidden_layers"] = len(blocks)


def nemotron_nas(config: Draft) -> None:
    """block_configs says which layers have no attention."""
    types = []
    for block in config.take_layers("block_configs"):
        attention = Values(parse_mapping("block_configs", block), "block_configs").get_mapping("attention")
        types.append(LINEAR if attention.get_flag("no_op") or attention.get_flag("replace_with_linear") else FULL)
    config.put_types("block_configs", types)


def minimax(config: Draft) -> None:
    """attn_type_list: 1 for a layer with softmax attention, 0 for one with linear attention."""
    config.put_numbered_types("attn_type_list", {0: LINEAR, 1: FULL})


def muse(config: Draft) -> None:
    """layer_rope_theta is 0 for layers without positions; by default they are every fourth, counted from the last."""
    bases = config.take_layers("layer_rope_theta") or [(1 + i) % 4 for i in range(-config.num_layers, 0)]
    config["no_rope_layers"] = [checks.number("layer_rope_theta", base) != 0 for base in bases]


def cohere2_moe(config: Draft) -> None:
    """Sliding layers rotate, and so do dense layers where prefix_dense_sliding_window_pattern is 1."""
    first = checks.integer("first_k_dense_replace", config.get("first_k_dense_replace", default=0), 0)
    prefix = config.get_integer("prefix_dense_sliding_window_pattern", default=1)
    period = config.get_integer("sliding_window_pattern", default=4)
    usual = [*Pattern(prefix).types(first), *Pattern(period).types(config.num_layers)]
    types = config.put_usual_types(lambda i: usual[i])
    require(not config.is_null("sliding_window"), "sliding_window must not be null in model_type 'cohere2_moe'")
    blocks = config.take_layers("mlp_layer_types") or ["dense"] * first + ["sparse"] * len(types)
    config["no_rope_layers"] = [x == SLIDING or prefix == 1 and blocks[i] == "dense" for i, x in enumerate(types)]


def gemma4(config: Draft) -> None:
    """The last layer has full attention, whatever layer_types says."""
    if types := config.take_layers("layer_types"):
        config["layer_types"] = [*types[:-1], FULL]


def hrm(config: Draft) -> None:
    """Without num_layers_per_stack, num_hidden_layers counts the layers of one stack, which runs several times."""
    runs = config.get_integer("H_cycles", default=2) * (config.get_integer("L_cycles", default=3) + 1)
    count = runs * config.get_integer("num_layers_per_stack", default=config.num_layers)
    if config.look_up("num_layers_per_stack"):
        config.take_only(num_hidden_layers=count)
    config["num_hidden_layers"] = count


def granitemoehybrid(config: Draft) -> None:
    """Layers have positions only if position_embedding_type is "rope"."""
    name = "position_embedding_type"
    config[name] = checks.one_of(name, config.get(name) or "nope", ("nope", "rope"))


def baichuan(config: Draft) -> None:
    """Only the smaller models have a rotary embedding."""
    hidden = config.get_integer("hidden_size")
    require(hidden == 4096, "hidden_size must be 4096, got {}: the larger models of this type have ALiBi", hidden)


def esm(config: Draft) -> None:
    """position_embedding_type must be "rotary"; the code reads no scaling."""
    checks.one_of("position_embedding_type", config.get("position_embedding_type"), ["rotary"])


def olmo_hybrid(config: Draft) -> None:
    """A null rope_theta means that no layer has positions."""
    rotates = not all(settings.is_null("rope_theta") for settings in config.settings)
    config["no_rope_layers"] = [rotates] * config.num_layers


# The heads


def latent_without_positions(config: Draft) -> None:
    """Latent attention never rotates; the width of its heads is qk_nope_head_dim + qk_rope_head_dim, not head_dim."""
    name = "qk_rope_head_dim"
    config["head_dim"] = config.get_integer("qk_nope_head_dim") + checks.integer(name, config.get_required(name), 0)


def longcat(config: Draft) -> None:
    """num_layers counts pairs of attentions; head_dim is the rotated width, qk_rope_head_dim."""
    if config.look_up("num_layers"):
        count = 2 * config.get_integer("num_layers")
        config.take("num_layers")
        config.take_only(num_hidden_layers=count)
        config["num_hidden_layers"] = count
    config.take_only(head_dim=config.get("qk_rope_head_dim"))


def even_heads(config: Draft) -> None:
    """The heads share hidden_size evenly, whatever head_dim says."""
    config.take_only(head_dim=config.get_integer("hidden_size") // config.get_integer("num_attention_heads"))


def deepseek_v2(config: Draft) -> None:
    """Smaller models of DeepSeek-VL2 and DeepSeek-OCR have no latent attention and rotate as the first DeepSeek."""
    if not config.get_flag("use_mla", default=not equal(config.get("qk_rope_head_dim"), 0)):
        config["model_type"] = "deepseek"
        config.take_only(qk_rope_head_dim=0, qk_nope_head_dim=0)
        even_heads(config)


def bailing_hybrid(config: Draft) -> None:
    """partial_rotary_factor is not read; Ring-2.5 and Ling-2.6 rotate more and are refused."""
    architectures = str(config.values.get("architectures"))
    signs = config.look_up("group_norm_size", "linear_silu", "num_kv_heads_for_linear_attn")
    is_new = "MoeV3" in architectures or any("kda" in key for key in config.values)
    is_old = "MoeV2" in architectures or signs and not is_new
    message = "{} are those of Ring-2.5 or Ling-2.6, whose linear attention rotates too: they are not read"
    require(not is_old, message, config.look_up("architectures") | signs)
    config.take("partial_rotary_factor")
    config.take_only(rotary_dim=config.get_integer("qk_rope_head_dim"))


def zamba2(config: Draft) -> None:
    """use_mem_rope says whether attention, whose heads are twice as wide as usual, has positions."""
    usual = 2 * config.get_integer("hidden_size") // config.get_integer("num_attention_heads")
    config["attention_head_dim"] = config.get("attention_head_dim", default=usual)
    config.take("kv_channels")  # half of it
    if config.get_flag("use_long_context"):
        config["max_position_embeddings"] = 16384
    config["no_rope_layers"] = [config.get_flag("use_mem_rope")] * config.num_layers


LAYERS = by_model_type(
    {
        "baichuan": baichuan,
        "bailing_hybrid": bailing_hybrid,
        "cohere2_moe": cohere2_moe,
        "deepseek_ocr2_text dots3_note_audio_encoder unlimited_ocr_text": even_heads,
        "deepseek_v2": deepseek_v2,
        "dory": dory,
        "embedding_gemma2_text gemma4_text gemma4_unified_text diffusion_gemma_text": gemma4,
        "esm": esm,
        "exaone4 exaone4_5_text exaone_moe": exaone4,
        "glm5_next_text kimi_linear": latent_without_positions,
        "granitemoehybrid": granitemoehybrid,
        "hrm_text": hrm,
        "lara_mini": lara_mini,
        "longcat_flash": longcat,
        "minimax minimax_m1 minimax_m2 minimax_text_01": minimax,
        "muse_glimmer_text muse_spark_text": muse,
        "nemotron-nas nemotron_nas deci": nemotron_nas,
        "nemotron_h": nemotron_h,
        "olmo_hybrid": olmo_hybrid,
        "zamba2": zamba2,
    }
)
