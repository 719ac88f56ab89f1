"""The width of a head, and how many of its features rotate."""

from __future__ import annotations

import math
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import invalid, require
from posenc_jax.hf._config import HEAD_DIMS, Config
from posenc_jax.hf._rope import SHARES, default_share, rope_type_of
from posenc_jax.hf._values import Values, check_agreement

_WIDTHS = "rotary_dim", "attn_rotary_emb", "rope_dim"


def widths_of(config: Config, layer_type: str) -> tuple[int, int]:
    """head_dim in layers of type `layer_type`, and how many of its features may rotate: fewer in latent attention."""
    if not config.latent:
        head_dim = _head_dim_of(config, layer_type)
        return head_dim, head_dim
    width, rest = config.get_integer("qk_rope_head_dim"), config.get_integer("qk_nope_head_dim")
    head_dim = checks.size("qk_nope_head_dim + qk_rope_head_dim", rest + width)
    return head_dim, _parse_even("qk_rope_head_dim", width, head_dim)


def _head_dim_of(config: Config, layer_type: str) -> int:
    """The width of a head where attention is not latent."""
    model, names = config.model, HEAD_DIMS
    is_global = layer_type == "full_attention" and config.look_up("global_head_dim")
    if is_global and "per_layer_config" not in config.values:  # it holds the widths that differ
        names = ("global_head_dim",)
    result = config.get(*names, default=None if model.derives_head_dim else model.defaults.get("head_dim"))
    if result is not None:
        return checks.size(config.spelling(*names), result)
    hidden = config.get_integer("hidden_size", "n_embd", "d_model")
    heads = config.get_integer("num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads")
    require(hidden % heads == 0, "head_dim is missing, and hidden_size = {} is no multiple of {} heads", hidden, heads)
    return checks.size("hidden_size", hidden // heads)


def rotary_dim_of(settings: Values, config: Config, head_dim: int, width: int) -> int:
    """How many features of a head rotate by these rope settings; `head_dim` and `width` come from `widths_of`."""
    reads, inside = config.model.reads, settings.look_up(SHARES[0])
    if config.latent:
        wholes = (width,) if config.model.partial == 1 else (head_dim, width)  # 1: the class counts it of the width
        for name, share in (inside | config.look_up(*SHARES)).items():
            if width not in (share_of(name, share, n) for n in wholes):
                raise invalid(f"{name} = {share!r} contradicts qk_rope_head_dim = {width} of {head_dim} features")
        return width
    if rope_type_of(settings) == "proportional":  # its share selects frequencies, not features
        return head_dim
    outside = {} if settings.of_layer_type else config.look_up(*SHARES)
    widths = {f"{name} (of {head_dim})": share_of(name, x, head_dim) for name, x in (inside | outside).items()}
    widths |= (others := config.look_up(*_WIDTHS))
    is_read = inside or reads.intersection((*outside, *others))
    default_name = f"the width of model_type {config.model_type!r}" if config.model_type else "head_dim"
    if config.model.partial is None or not is_read:
        widths = {default_name: int(head_dim * default_share(settings, config))} | widths
    check_agreement(widths)
    name, result = next(iter(widths.items()))
    return _parse_even("head_dim" if name == default_name else name, result, head_dim)


def share_of(name: str, share: Any, whole: int) -> int:
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
