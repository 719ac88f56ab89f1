"""`vision_rotary_from_config`: the config.json of a vision tower → a plan."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from posenc_jax import _checks
from posenc_jax._axes import join
from posenc_jax._checks import InvalidValue, public, require
from posenc_jax._frequencies import Frequencies, geometric
from posenc_jax._scalings import linear_scaling
from posenc_jax.hf._keys import Keys, agreed, mapping_of_strings, speaks_of_positions
from posenc_jax.hf._patches import PatchGrid
from posenc_jax.hf._plan import RotaryLayer
from posenc_jax.hf._towers import CHOSEN, FIXED, REFUSED, TOWERS, Tower
from posenc_jax.hf._vision_layers import layers_of, number_of
from posenc_jax.hf._vision_plan import VisionPlan

# Where the tower of a composite config stands.
_PARTS = "vision_config", "thinker_config", "backbone_config"
_TEXT = "text_config", "language_config", "llm_config"
# Composites that rotate outside their tower, which does not, or has a config of its own.
_OWN = "edgetam_video", "sam2_video", "sam3_tracker_video"
_SHARE = "partial_rotary_factor"
# Keys that say in which order patches are held, or which tokens are added.
_ORDER = re.compile("window_size|fullatt|global_attn|merge_size|merge_kernel|register_tokens|pos_enc|freqs?_|rotat")


@public
def vision_rotary_from_config(config: Any) -> VisionPlan:
    r"""How the vision tower of a Hugging Face config rotates its queries and keys, and where its patches are.

    Each pair of features turns by one coordinate of its patch, row, column or frame, by the rotation $R$ of `rotary`:

    $$\text{score} \propto (R_{r, c}\, q) \cdot (R_{r', c'}\, k)$$

    For 38 model types the library knows what transformers keeps in code: which coordinate turns which pair, the
    layout, the offset or scale of coordinates, the order of the patches, the tokens beside them, and how a learned
    table is resized. Settings of rotary embeddings that are missing have the values of the class. Every key that speaks
    of rotations must be understood. The plan is for inference: DINOv3 also draws random shifts and scales of its
    coordinates in training.

    Args:
      config: a parsed config.json, or an object whose to_dict() returns one: of a tower, or of a model with a
        vision_config. SAM 2, SAM 3's tracker and EdgeTAM rotate in the memory attention of their video models; to read
        the tower of SAM 3's tracker, pass its vision_config.

    Returns:
      VisionPlan: layers, layout, grids, table. `positions` gives the coordinates of a grid of patches, `rotate` applies
      them, and `table_rows` resizes the learned table of the tower as its code does.

    Raises:
      TypeError: if config is not a mapping, or a value does not have the type of its key.
      ValueError: if a key is missing, not known, not used or contradicts another, a value is outside its range, or the
        tower is not known, does not rotate, or rotates in a way that a plan cannot express.

    Examples:
      >>> import jax.numpy as jnp
      >>> from posenc_jax.hf import vision_rotary_from_config
      >>> pixtral = {"model_type": "pixtral", "hidden_size": 1024}
      >>> pixtral |= {"num_attention_heads": 16, "num_hidden_layers": 24}
      >>> plan = vision_rotary_from_config({"model_type": "mistral3", "vision_config": pixtral})
      >>> positions = plan.positions((3, 5))
      >>> queries = jnp.ones((1, 15, 16, 64))
      >>> plan.rotate(queries, 0, positions, head_axis=-2).shape
      (1, 15, 16, 64)

    Reference:
      Hugging Face transformers 5.23.0: vision_utils.py and the towers' own modules.
    """
    return _plan(_tower_of(config))


# The config


def _tower_of(config: Any, label: str = "config", depth: int = 4) -> dict[str, Any]:
    """The tower's part of a config, at most `depth` levels deep, with its model_type."""
    require(depth, "config must hold its vision_config within four levels")
    if not isinstance(config, type) and callable(getattr(config, "to_dict", None)):
        with _checks.callback():
            config = config.to_dict()
    keys = Keys(mapping_of_strings(label, config, "a mapping or have to_dict()"))
    name = keys.string("model_type")
    _check_known(name)
    parts = {} if name in _OWN else keys.found(*_PARTS)
    if not parts:
        outer = next(iter(keys.found(*_TEXT)), "")
        require(not outer, "vision_config is missing beside {}", outer)
        # An old tower has the name of the whole model, but also a patch_size, which a language model does not.
        whole = label == "config" and name not in TOWERS and name in FIXED | CHOSEN and not keys.found("patch_size")
        require(not whole, "vision_config is missing: model_type {!r} is a whole model", name)
        return dict(keys.values)
    inner = agreed({key: _tower_of(part, key, depth - 1) for key, part in parts.items()})
    found, fixed = inner.get("model_type"), FIXED.get(name or "")
    fits = fixed is None or found in (None, name) or _tower_named(found) == _tower_named(fixed)
    require(fits, "model_type must be {!r} in the vision tower of {!r}, got {!r}", fixed, name, found)
    if found is None:
        inner["model_type"] = fixed or CHOSEN.get(name or "")
    return inner


def _tower_named(name: str) -> str:
    """The tower that a model_type means: an old config may have that of the whole model."""
    return name if name in TOWERS or name not in FIXED | CHOSEN else _tower_named((FIXED | CHOSEN)[name])


def _check_known(name: str | None) -> None:
    """Raises for a model_type that is refused by name."""
    if name in REFUSED:
        raise InvalidValue(f"model_type {name!r} is not read: {REFUSED[name]}")


def _facts_of(values: Mapping[str, Any]) -> tuple[str, Tower]:
    """The tower's model_type and its facts."""
    name = Keys(values).string("model_type")
    if not name:
        raise InvalidValue("model_type is missing: no key says how a vision tower rotates")
    own = _tower_named(name)
    if own not in TOWERS:
        raise InvalidValue(
            f"model_type {name!r} is not known as a vision tower, and no key says which coordinate turns which pair: "
            "if it rotates as a known type does, write that type in its place"
        )
    return own, TOWERS[own]


# The plan


def _plan(values: Mapping[str, Any]) -> VisionPlan:
    name, facts = _facts_of(values)
    config = Keys(values)
    config.use("model_type", *facts.unread)
    count, head_dim = config.integer(*facts.depth), _head_dim(config, facts)
    require(count <= 2**16, "{} must be at most 65,536, got {!r:.60}", config.spelled(*facts.depth), count)
    layer = RotaryLayer(_spectrum(facts, _base(config, facts, name), head_dim), head_dim)
    layers, grids = layers_of(config, facts, layer, _grid(config, facts), count)
    for key, value in values.items():
        speaks = speaks_of_positions(key) or _ORDER.search(key)
        if value is not None and key not in config.used and speaks:
            raise InvalidValue(f"the key {key} = {value!r:.60} is not known or not used here")
    slices = 2 if facts.apart else 1
    return VisionPlan(tuple(layers), facts.layout, grids=tuple(grids), slices=slices, table=facts.table)


def _head_dim(config: Keys, facts: Tower) -> int:
    """The features that rotate together."""
    own = config.take("head_dim")
    if facts.head_dim:
        return _checks.size("head_dim", agreed(own, facts.head_dim))
    hidden, heads = config.integer(*facts.hidden), config.integer(*facts.heads)
    shares = heads
    if facts.hidden == ("memory_attention_hidden_size",):
        shares *= number_of(config, "memory_attention_downsample_rate", 1)
    require(hidden % shares == 0, "{} = {} must be a multiple of {}", config.spelled(*facts.hidden), hidden, shares)
    if facts.joined:
        return _checks.size(config.spelled(*facts.hidden), hidden)
    agreed({config.spelled(*facts.hidden) + " / heads": hidden // shares} | own)
    return _checks.size("head_dim", hidden // shares)


def _base(config: Keys, facts: Tower, name: str) -> float:
    """The base; the other rope settings must be those that the tower has."""
    outside, bases = config.take(*facts.words), {}
    require(not config.is_null(*facts.words), "{} is missing", " or ".join(facts.words))
    if facts.flat:
        outside = outside or {f"the base of model_type {name!r}": facts.theta}
    for spelled, value in config.take("rope_scaling", "rope_parameters").items():
        d = Keys(mapping_of_strings(spelled, value), spelled)
        require(not d.is_null("rope_theta"), "{}rope_theta is missing", d.label)
        found = outside | d.take("rope_theta")
        bases[next(iter(found), spelled)] = agreed(found, facts.theta)
        for key, kind in d.take("rope_type", "type").items():
            _checks.one_of(key, kind, facts.rope_types)
        if facts.joined:
            _check_share(config, facts, d)
        d.finish()
    if facts.joined:
        _check_share(config, facts, config)
    bases = bases or outside
    return _checks.positive(next(iter(bases), "rope_theta"), agreed(bases, facts.theta))


def _check_share(config: Keys, facts: Tower, d: Keys) -> None:
    """Raises unless row and column have half of the pairs of all heads each."""
    half, absent = config.integer(*facts.heads) / 2, {f"{_SHARE}, where absent,": 4.0}
    for key, share in (d.take(_SHARE) or absent).items():
        require(_checks.number(key, share) == half, "{} must be {}, half of the heads, got {}", key, half, share)


def _spectrum(facts: Tower, base: float, head_dim: int) -> Frequencies:
    """The frequencies of a head."""
    axes = len(facts.axes)
    require(facts.timed or head_dim % 4 == 0, "head_dim must be a multiple of 4, got {}", head_dim)
    one = geometric(2 * (head_dim // (2 * axes)), base)
    result = join(*[one] * axes, axes=facts.axes)
    if facts.pairs == "dealt":
        whole = geometric(head_dim, base)
        result = join(whole[::2], whole[1::2], axes=facts.axes)
    elif facts.pairs == "alternating":
        result = result[[i + part * one.num_pairs for i in range(one.num_pairs) for part in range(axes)]]
    return linear_scaling(result, 1 / (2 * math.pi)) if facts.turns else result


def _grid(config: Keys, facts: Tower) -> PatchGrid:
    """How patches are counted, in all layers unless `_layers` changes it."""
    leading = facts.leading
    if facts.registers is not None:
        leading += number_of(config, "num_register_tokens", facts.registers, 0)
    merge = 1
    if facts.merged:
        merge = number_of(config, facts.merged, 2)
    window = 0
    if facts.windows == "pos_emb_height":
        window = number_of(config, facts.windows, 32)
    elif facts.windows:
        side = number_of(config, facts.windows, 112)
        patch = number_of(config, "patch_size", 14)
        window = side // merge // patch
        require(window, "window_size must hold a square of {} patches of {}, got {}", merge, patch, side)
    return PatchGrid(
        merge=0 if facts.by_image else merge,
        window=window,
        leading=leading,
        trailing=facts.trailing,
        offset=facts.offset,
        centres=facts.centres,
        timed=facts.timed,
        frames=facts.frames,
    )
