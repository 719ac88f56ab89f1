"""The language model's part of a config.json, and the facts of its model_type."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Set
from typing import Any

from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._forks import advice
from posenc_jax.hf._models import MODELS, UNNAMED, Model, canonical_type
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._tracked_mapping import (
    TrackedMapping,
    agreed_value,
    check_case,
    concerns_positions,
    parse_string_mapping,
    reject_refused,
)
from posenc_jax.hf._typos import SAME, is_negated, similar_keys

ORIGINAL = "original_max_position_embeddings"
NAMES = *MODELS, *(name.removesuffix("_text") for name in MODELS), *REFUSED
VERSION = "transformers_version"
# What per_layer_config may set for a layer.
_LAYER_WIDTHS = "head_dim", "qk_nope_head_dim", "qk_rope_head_dim"
# Names the kind of positions, in many files whose code does not read it.
POSITIONS = "position_embedding_type"
ALIBI = "alibi", "use_alibi"
# Flags that many configs have and no code reads, and their values where layers have positions.
REDUNDANT_FLAGS = {
    **dict.fromkeys(("rope", "rotary", "use_rope", "use_rotary", "use_rotary_embedding", "use_rotary_pos_emb"), True),
    **dict.fromkeys(("nope", "use_nope", *ALIBI), False),
}
RAW = "rope_scaling", "rope_parameters"
_ALIASES = {"su": "longrope", "mrope": "default", "deepseek_yarn": "yarn"}
# Ignored when false; when true, refused unless the model reads them.
SWITCHES = "use_mrope", "use_dynamic_ntk", "use_logn_attn", "mla_use_nope", "use_fope"


class Config(TrackedMapping):
    """A language model's config, and the facts of its model_type."""

    def __init__(self, values: Mapping[str, Any], model: Model):
        """`values` as `parse_text_config` returns them, `model` as `model_of` does."""
        super().__init__(values)
        self.model, self.model_type = model, values.get("model_type")
        # The keys that a rewriter looked up, and those that it refuses.
        self.rewriter_keys, self.refused = (set(getattr(values, name, ())) for name in ("keys_looked_up", "refused"))
        self.keys_looked_up |= self.rewriter_keys

    def with_overrides(self, layer_values: Mapping[str, Any]) -> Config:
        """The config of a layer that has some values of its own; both configs record keys in the same sets."""
        result = Config({**self.values, **layer_values}, self.model)
        result.keys_read, result.keys_looked_up = self.keys_read, self.keys_looked_up
        return result

    @property
    def release(self) -> tuple[int, ...]:
        """The first two numbers of the release of transformers that the config is for; none if it names none."""
        return _release(self.get_string(VERSION) or "")

    def default_in_release(self, key: str, default: float | None) -> float | None:
        """The default of a missing key in the config's release; raises if releases differ and it names none."""
        changed = self.model.changed_default
        if changed is None or changed.key != key:
            return default
        version, since = self.get_string(VERSION) or "", _release(changed.since)
        release = self.release
        if release == since and "dev" in version:  # before the change or after it
            release = ()
        message = (
            "{} is missing; its default is {} since transformers {} and was {} before: write {}, or the release that "
            "the config is for as transformers_version, got {!r:.60}"
        )
        require(release, message, key, default, changed.since, changed.before, key, self.values.get(VERSION))
        return default if release >= since else changed.before

    @property
    def switches(self) -> dict[str, bool]:
        """Whether the model reads each switch."""
        read = {"use_logn_attn": self.model.query_scale == "logn", "use_mrope": bool(self.model.sections)}
        return dict.fromkeys(SWITCHES, False) | read

    def check_spelling(self) -> None:
        """Raises for a key that is near one that was looked up, and names one that the model reads."""
        model, optional = self.model, (*UNNAMED.reads, *SWITCHES, "layers_block_type")
        read = {*model.reads, *(name for name, read in self.switches.items() if read)}
        read |= {"layers_block_type"} if model.hybrid else set()
        read |= {"qk_rope_head_dim"} if model.latent else set()
        unread = set(optional) - read - self.rewriter_keys | self.refused
        unread |= {"partial_rotary_factor"} if model.partial is None else set()
        check_spelling(self.values, self.keys_looked_up, f"model_type {self.model_type!r} reads", unread)

    @property
    def latent(self) -> bool:
        """Whether attention is latent: only the last features of queries and keys have positions."""
        if "qk_rope_head_dim" not in self.model.reads:
            return self.model.latent is not None
        width = agreed_value(self.look_up("qk_rope_head_dim"), None)
        return width is not None and not (isinstance(width, int) and width == 0)  # checked where it is read


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; none if it has none."""
    match = re.match(r"\s*v?(\d+)\.(\d+)", version)
    return tuple(map(int, match.groups())) if match else ()


def check_spelling(
    values: Mapping[str, Any], names: Collection[str], reads: str, unread: Set[str] = frozenset()
) -> None:
    """Raises for a key that is near one of `names`, of which those in `unread` only must not contradict others."""
    for key, value in values.items():
        if value is None or not (similar := similar_keys(key, names)):
            continue
        read = [name for name in similar if name not in unread]
        read_instead = [SAME[name] for name in similar if SAME.get(name, key) in set(names) - unread]
        name = " or ".join(read or read_instead)
        message = f"the key {key} = {value!r:.60} is near {' or '.join(read or similar)}"
        if not name:
            raise invalid(f"{message}, which is no key that {reads}: remove it")
        where = f"which {reads}" if read else f"in whose place {reads} {name}"
        negation_hint = " with the opposite value" if is_negated(key) else ""
        raise invalid(f"{message}, {where}: write {name}{negation_hint} if that is meant, and remove it if not")


def canonical(rope_type: Any) -> Any:
    """A rope type by its name in transformers 5."""
    return _ALIASES.get(rope_type, rope_type) if isinstance(rope_type, str) else rope_type


def model_of(values: Mapping[str, Any]) -> Model:
    """The facts of a config's model_type."""
    name = TrackedMapping(values).get_string("model_type")
    if not name:
        return UNNAMED
    reject_refused(name, REFUSED)
    canonical_name = canonical_type(name)
    # A tower may have the name of the whole model.
    if canonical_name is None or canonical_name != name and values.get("patch_size"):
        check_case(name, NAMES)
        raise invalid(f"model_type {name!r} is not known, and its code may do what no key says: {advice(name)}")
    return MODELS[canonical_name]


def layer_overrides(config: Config, count: int) -> dict[int, Mapping[str, Any]]:
    """What per_layer_config sets for each layer."""
    result = {}
    for index, values in config.get_mapping("per_layer_config").values.items():
        fits = str(index).isdecimal() and int(index) < count and isinstance(values, Mapping)
        require(fits, "per_layer_config must map layers below {} to mappings, got {!r}: {!r:.60}", count, index, values)
        name = f"per_layer_config.{index}"
        for key in parse_string_mapping(name, values):
            fits = key in _LAYER_WIDTHS or not (concerns_positions(key) or similar_keys(key, _LAYER_WIDTHS))
            require(fits, "the key {}.{} is not known or not used here", name, key)
        result[int(index)] = values
    return result
