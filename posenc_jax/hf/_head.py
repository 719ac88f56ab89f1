"""The width of a head, and how many of its features rotate."""

from __future__ import annotations

import math
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import Config
from posenc_jax.hf._rope import SHARES, default_share, rope_type_of
from posenc_jax.hf._tracked_mapping import TrackedMapping, agreed_value, check_agreement

_SHARE = SHARES[0]
_WIDTHS = "rotary_dim", "rope_dim", "attn_rotary_emb"


def widths_of(config: Config, layer_type: str) -> tuple[int, int]:
    """head_dim in layers of type `layer_type`, and how many of its features may rotate: fewer in latent attention."""
    if not config.latent:
        if "qk_rope_head_dim" in config.model.reads:
            config.mark_read("qk_rope_head_dim")  # absent or 0
        head_dim = _head_dim_of(config, layer_type)
        return head_dim, head_dim
    width, rest = config.get_integer("qk_rope_head_dim"), config.get_integer("qk_nope_head_dim")
    head_dim = checks.size("qk_nope_head_dim + qk_rope_head_dim", rest + width)
    return head_dim, _parse_even("qk_rope_head_dim", width, head_dim)


def _head_dim_of(config: Config, layer_type: str) -> int:
    model, others = config.model, ("kv_channels", "attention_head_dim")
    names = ("head_dim", *(name for name in others if name in model.reads))
    name, spellings = config.spelling(*names), config.read(*names)
    if spellings:
        result = agreed_value(spellings)
    elif model.head_dim and not (model.derives_head_dim and config.is_null(*names)):
        result = config.default_unless_null(model.head_dim, *names)
    else:
        result = _hidden_per_head(config)
    if model.global_head_dim and layer_type == "full_attention":
        widths = config.read("global_head_dim")
        name = next(iter(widths), name)
        if "per_layer_config" in config.values:  # it holds the widths that differ
            widths["head_dim"] = result
        default = model.global_head_dim
        result = agreed_value(widths) if widths else config.default_unless_null(default, "global_head_dim")
    check_agreement({name: result} | config.read(*(name for name in others if name not in names)))
    return checks.size(name, result)


def _hidden_per_head(config: Config) -> int:
    hidden = config.get_integer("hidden_size", "n_embd", "d_model")
    heads = config.get_integer("num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads")
    require(hidden % heads == 0, "head_dim is missing, and hidden_size = {} is no multiple of {} heads", hidden, heads)
    return hidden // heads


def rotary_dim_of(settings: TrackedMapping, config: Config, head_dim: int, width: int) -> int:
    """How many features of a head rotate by these rope settings; `head_dim` and `width` come from `widths_of`."""
    if config.model.partial is not None or rope_type_of(settings) != "default":  # else the code does not read a share
        settings.default_unless_null(config.model.partial or 1.0, _SHARE)
    if config.latent:
        _check_latent_share(settings, config, head_dim, width)
        return width
    if rope_type_of(settings) == "proportional":  # its share selects frequencies, not features
        return head_dim
    return _partial_width(settings, config, head_dim)


def _check_latent_share(settings: TrackedMapping, config: Config, head_dim: int, width: int) -> None:
    """Raises if a share contradicts the rotated width. It may be a share of the head or of that width."""
    for name, share in (settings.read(_SHARE) | config.read(_SHARE)).items():
        if width not in (_share_of(name, share, n) for n in (head_dim, width)):
            raise invalid(f"{name} = {share!r} contradicts qk_rope_head_dim = {width} of {head_dim} features")


def _partial_width(settings: TrackedMapping, config: Config, head_dim: int) -> int:
    """The width by the keys that the model's code reads; the others must not contradict it."""
    model, reads = config.model, () if settings.of_layer_type else config.model.reads
    shares = settings.read(_SHARE) | config.read(*(name for name in SHARES if name in reads))
    widths = _widths_by_share(shares, head_dim) | config.read(*(name for name in _WIDTHS if name in reads))
    default_name = f"the width of model_type {config.model_type!r}" if config.model_type else "head_dim"
    if model.partial is None:
        widths[default_name] = head_dim
    elif not widths and model.rotary_dim:
        widths["rotary_dim"] = config.default_unless_null(model.rotary_dim, "rotary_dim")
    if not shares and model.partial is not None and (settings.is_null(_SHARE) or config.is_null(_SHARE)):
        check_agreement({f"{_SHARE} (null)": head_dim} | widths)
    width = agreed_value(widths) if widths else int(head_dim * default_share(settings, config))
    unread = _widths_by_share(config.read(*(name for name in SHARES if name not in reads)), head_dim)
    unread |= config.read(*(name for name in _WIDTHS if name not in reads))
    name = next(iter(widths), default_name)
    check_agreement({name: width} | unread)
    return _parse_even("head_dim" if name == default_name else name, width, head_dim)


def _widths_by_share(shares: dict[str, Any], head_dim: int) -> dict[str, Any]:
    return {f"{name} (of {head_dim})": _share_of(name, share, head_dim) for name, share in shares.items()}


def _share_of(name: str, share: Any, whole: int) -> int:
    """A share of the whole as a number of features, rounded down."""
    return int(checks.number(name, whole * checks.number(name, share)))


def _parse_even(name: str, width: Any, head_dim: int) -> int:
    """A width that a head can rotate: even, and at most head_dim."""
    fits = isinstance(width, int) and width % 2 == 0 and 2 <= width <= head_dim
    require(fits, "{} must rotate an even number of features, from 2 to {}, got {!r:.60}", name, head_dim, width)
    return width


def share_for(width: int, head_dim: int) -> float:
    """The share of the head that reads back as `width`."""
    share = width / head_dim
    return share if int(head_dim * share) == width else math.nextafter(share, 1)
