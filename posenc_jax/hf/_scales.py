"""Query scales: the factors, growing with the position, by which some layers multiply their queries."""

from __future__ import annotations

import dataclasses
import math

from posenc_jax._jax import checks
from posenc_jax.hf._config import Config
from posenc_jax.hf._parameters import HeadScale
from posenc_jax.hf._plan import QueryScale
from posenc_jax.hf._rope import Rope


def scale_with_positions(rope: Rope) -> QueryScale | None:
    """The query scale of layers that rotate."""
    config = rope.config
    if config.model.query_scale == "beta":
        return QueryScale(rope.settings.get_number("llama_4_scaling_beta"), rope.original())
    if config.model.query_scale == "logn" and config.get_flag("use_logn_attn", default=True):
        length = checks.integer("seq_length", config.get_required("seq_length"), 2)
        return QueryScale(1 / math.log(length), length, 1, "log")
    return None


def scale_without_positions(config: Config) -> QueryScale | None:
    """The query scale of layers without positions."""
    if config.model.query_scale == "beam":
        return QueryScale(0.1, 2048, 1, "power")
    if config.model.query_scale != "llama4" or not config.get_flag("attn_temperature_tuning", default=True):
        return None
    period = checks.integer("floor_scale", config.get("floor_scale", default=8192), 2)  # above the offset
    return QueryScale(config.get_number("attn_scale", default=0.1), period, 1)


def written_scale(config: Config, key: str) -> QueryScale | HeadScale | None:
    """The query scale whose fields `plan_to_config` or a rewriter put under a key."""
    fields = config.get_mapping(key)
    if key not in config.model.reads or not fields.values:
        return None
    cls = HeadScale if fields.look_up("num_heads") else QueryScale
    names = [field.name for field in dataclasses.fields(cls)]
    fields.reject_unknown(names, "a query scale")
    return cls(**{field: fields.get_required(field) for field in names})
