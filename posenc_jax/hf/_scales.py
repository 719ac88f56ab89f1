"""Query scales: the factors, growing with the position, by which some layers multiply their queries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from posenc_jax._jax import checks
from posenc_jax._jax.errors import require
from posenc_jax.hf._config import Config
from posenc_jax.hf._parameters import HeadScale
from posenc_jax.hf._plan import QueryScale, RotaryLayer
from posenc_jax.hf._rope import Rope
from posenc_jax.hf._values import Values, parse_mapping


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


def with_written_scales(config: Config, key: str, layers: list[RotaryLayer]) -> list[RotaryLayer]:
    """The layers, with the query scales that `written_scales` or a rewriter put into a config."""
    scales, count = config.get_list(key) if key in config.model.reads else None, len(layers)
    if scales is None:
        return layers
    require(len(scales) == count, "{} must hold a mapping or null for {} layers, got {}", key, count, len(scales))
    result = [*layers]
    for i, scale in enumerate(scales):
        if scale is not None:
            name = f"{key}[{i}]"
            fields = Values(parse_mapping(name, scale), name)
            cls = HeadScale if fields.look_up("num_heads") else QueryScale
            names = [field.name for field in dataclasses.fields(cls)]
            fields.reject_unknown(names, "a query scale")
            query_scale = cls(**{field: fields.get_required(field) for field in names})
            result[i] = dataclasses.replace(result[i], query_scale=query_scale)
    return result


def written_scales(key: str, layers: Iterable[RotaryLayer]) -> dict[str, Any]:
    """The config key that holds the query scale of each layer."""
    scales = [layer.query_scale and dataclasses.asdict(layer.query_scale) for layer in layers]
    return {key: scales} if any(scales) else {}
