"""The language model's part of a config.json, and the facts of its model_type."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Set
from typing import Any

from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._forks import advice
from posenc_jax.hf._keys import (
    Keys,
    agreed,
    check_case,
    check_read,
    mapping_of_strings,
    speaks_of_positions,
)
from posenc_jax.hf._models import MODELS, UNNAMED, Model, canonical_type
from posenc_jax.hf._refused import REFUSED
from posenc_jax.hf._typos import SAME, means_opposite, meant

ORIGINAL = "original_max_position_embeddings"
NAMES = *MODELS, *(name.removesuffix("_text") for name in MODELS), *REFUSED
VERSION = "transformers_version"
# What a layer may have for itself, in per_layer_config.
_OWN_WIDTHS = "head_dim", "qk_nope_head_dim", "qk_rope_head_dim"
# What kind of positions there are, in the words of many files whose code does not read them.
POSITIONS = "position_embedding_type"
ALIBI = "alibi", "use_alibi"
# Flags that many configs have and no code reads, and what they say where layers have positions.
WORDS = {
    **dict.fromkeys(("rope", "rotary", "use_rope", "use_rotary", "use_rotary_embedding", "use_rotary_pos_emb"), True),
    **dict.fromkeys(("nope", "use_nope", *ALIBI), False),
}
RAW = "rope_scaling", "rope_parameters"
_ALIASES = {"su": "longrope", "mrope": "default", "deepseek_yarn": "yarn"}
# Ignored when false; when true, refused unless the model reads them.
SWITCHES = "use_mrope", "use_dynamic_ntk", "use_logn_attn", "mla_use_nope", "use_fope"


class Config(Keys):
    """The keys of a language model's config, and the facts of its model_type."""

    def __init__(self, values: Mapping[str, Any], model: Model):
        """`values` as `text_of` returns them, `model` as `model_of` does."""
        super().__init__(values)
        self.model, self.model_type = model, values.get("model_type")
        # The keys that a rewriter looked for, and those that it refuses.
        self.rewritten, self.refused = (set(getattr(values, name, ())) for name in ("asked", "refused"))
        self.asked |= self.rewritten

    def with_own(self, own: Mapping[str, Any]) -> Config:
        """The config of a layer with its own values; both configs record keys in the same sets."""
        result = Config({**self.values, **own}, self.model)
        result.used, result.asked = self.used, self.asked
        return result

    @property
    def release(self) -> tuple[int, ...]:
        """The first two numbers of the release of transformers that the config is for; none if it names none."""
        return _release(self.string(VERSION) or "")

    def default_of(self, key: str, default: float | None) -> float | None:
        """The default of a missing key in the config's release; raises if releases differ and it says none."""
        moved = self.model.moved
        if moved is None or moved.key != key:
            return default
        written, since = self.string(VERSION) or "", _release(moved.since)
        release = self.release
        if release == since and "dev" in written:  # before the change or after it
            release = ()
        message = (
            "{} is missing; its default is {} since transformers {} and was {} before: write {}, or the release that "
            "the config is for as transformers_version, got {!r:.60}"
        )
        said = self.values.get(VERSION)
        require(release, message, key, default, moved.since, moved.before, key, said)
        return default if release >= since else moved.before

    @property
    def switches(self) -> dict[str, bool]:
        """Whether the model reads each switch."""
        read = {"use_logn_attn": self.model.query_scale == "logn", "use_mrope": bool(self.model.sections)}
        return dict.fromkeys(SWITCHES, False) | read

    def check_spelling(self) -> None:
        """Raises for a key that is near one that was looked for, and names one that the model reads."""
        model, optional = self.model, (*UNNAMED.reads, *SWITCHES, "layers_block_type")
        read = {*model.reads, *(name for name, read in self.switches.items() if read)}
        read |= {"layers_block_type"} if model.hybrid else set()
        read |= {"qk_rope_head_dim"} if model.latent else set()
        unread = set(optional) - read - self.rewritten | self.refused
        unread |= {"partial_rotary_factor"} if model.partial is None else set()
        check_spelling(self.values, self.asked, f"model_type {self.model_type!r} reads", unread)

    @property
    def latent(self) -> bool:
        """Whether attention is latent: only the last features of queries and keys have positions."""
        if "qk_rope_head_dim" not in self.model.reads:
            return self.model.latent is not None
        width = agreed(self.found("qk_rope_head_dim"), None)
        return width is not None and not (isinstance(width, int) and width == 0)  # checked where it is read


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; none if it has none."""
    match = re.match(r"\s*v?(\d+)\.(\d+)", version)
    return tuple(map(int, match.groups())) if match else ()


def check_spelling(
    values: Mapping[str, Any], known: Collection[str], reads: str, unread: Set[str] = frozenset()
) -> None:
    """Raises for a key that is near one of those that are known, of which `unread` only must not contradict others."""
    for key, value in values.items():
        if value is None or not (near := meant(key, known)):
            continue
        read = [name for name in near if name not in unread]
        same = [SAME[name] for name in near if SAME.get(name, key) in set(known) - unread]
        said, name = f"the key {key} = {value!r:.60} is near {' or '.join(read or near)}", " or ".join(read or same)
        if not name:
            raise invalid(f"{said}, which is no key that {reads}: remove it")
        where = f"which {reads}" if read else f"in whose place {reads} {name}"
        turned = " with the opposite value" if means_opposite(key) else ""
        raise invalid(f"{said}, {where}: write {name}{turned} if that is meant, and remove it if not")


def canonical(kind: Any) -> Any:
    """A rope type by its name in transformers 5."""
    return _ALIASES.get(kind, kind) if isinstance(kind, str) else kind


def model_of(values: Mapping[str, Any]) -> Model:
    """The facts of a config's model_type."""
    name = Keys(values).string("model_type")
    if not name:
        return UNNAMED
    check_read(name, REFUSED)
    own = canonical_type(name)
    if own is None or own != name and values.get("patch_size"):  # a tower may have the name of the whole model
        check_case(name, NAMES)
        raise invalid(f"model_type {name!r} is not known, and its code may do what no key says: {advice(name)}")
    return MODELS[own]


def overrides(config: Config, count: int) -> dict[int, Mapping[str, Any]]:
    """What per_layer_config says of each layer."""
    result = {}
    for index, values in config.within("per_layer_config").values.items():
        fits = str(index).isdecimal() and int(index) < count and isinstance(values, Mapping)
        require(fits, "per_layer_config must map layers below {} to mappings, got {!r}: {!r:.60}", count, index, values)
        name = f"per_layer_config.{index}"
        for key in mapping_of_strings(name, values):
            fits = key in _OWN_WIDTHS or not (speaks_of_positions(key) or meant(key, _OWN_WIDTHS))
            require(fits, "the key {}.{} is not known or not used here", name, key)
        result[int(index)] = values
    return result
