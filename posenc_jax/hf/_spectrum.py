"""`frequencies_from_rope_parameters`: the spectrum of rope settings without a config."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from posenc_jax._frequencies.frequencies import Frequencies
from posenc_jax._jax import checks
from posenc_jax._jax.errors import describe, public, require, wrong_type
from posenc_jax.hf._read import rotary_from_config
from posenc_jax.hf._values import parse_mapping


@public
def frequencies_from_rope_parameters(
    head_dim: int,
    base: float,
    rope_parameters: Mapping[str, Any] | None = None,
    *,
    length: int | None = None,
    axes: bool = True,
) -> Frequencies:
    r"""The spectrum of one set of rope settings, for code that has `rope_parameters` but no config.

    $$\omega_i = \text{base}^{-2i/d},$$

    scaled according to the rope type, where $d$ is head_dim times `partial_rotary_factor`.

    Examples:
      >>> import jax.numpy as jnp
      >>> import posenc_jax as pe
      >>> from posenc_jax.hf import frequencies_from_rope_parameters
      >>> llama = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
      >>> llama |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
      >>> f = frequencies_from_rope_parameters(128, 500000.0, llama)
      >>> f
      Frequencies(dim=128, angular=1 … 3.06893e-07)
      >>> pe.rotary(jnp.ones((16, 4, 128)), jnp.arange(16), f, head_axis=-2).shape
      (16, 4, 128)

    Args:
      head_dim: the number of features of a query or key.
      base: the base, `rope_theta`. The settings may repeat it.
      rope_parameters: the settings, also in the form of the older `rope_scaling`: a mapping of JSON values. None or an
        empty mapping means the rope type "default". For types that need the length of the model ("dynamic"), the
        mapping must contain `max_position_embeddings`.
      length: the length of the longest sequence, for "dynamic" and "longrope"; see `rotary_from_config`.
      axes: whether `mrope_section` gives pairs different coordinates. Pass False for text alone, whose tokens have
        equal coordinates: positions then have shape (..., seq) instead of (..., seq, 3), and the rotation is the same.

    Returns:
      Frequencies of width head_dim, or of a smaller width if only a part is rotated. They include the amplitude.

    Raises:
      TypeError: if an argument or a setting has the wrong type.
      ValueError: if a setting is missing, unknown, unused or outside its range, its rope_theta is not the base, or
        length is needed and not given.

    Notes:
      - The settings are read as by `rotary_from_config`. Serving code that keeps these three arguments needs no branch
        per rope type. Results are cached by value, so a layer may call the function each time.
      - A spectrum contains neither the layout nor the factor of the scores that `mscale_all_dim` sets. A plan contains
        both.

    Reference:
      Hugging Face transformers 5.23.0, modeling_rope_utils.py.
    """
    head_dim, base = checks.positive_int("head_dim", head_dim), checks.positive("base", base)
    length = None if length is None else checks.positive_int("length", length)
    settings = parse_mapping("rope_parameters", {} if rope_parameters is None else rope_parameters)
    is_one_set = not any(isinstance(value, Mapping) for value in settings.values())
    require(is_one_set, "rope_parameters must be one set of settings, not one per layer type, got {!r:.60}", settings)
    text = json.dumps(dict(settings), default=_parse_array)  # hashable, and tells 1, 1.0 and true apart
    return _read(head_dim, base, text, length, checks.flag("axes", axes))


@functools.lru_cache(maxsize=256)
def _read(head_dim: int, base: float, text: str, length: int | None, axes: bool) -> Frequencies:
    """The frequencies of settings in JSON."""
    config = {"num_hidden_layers": 1, "rope_interleave": False, "head_dim": head_dim, "rope_theta": base}
    plan = rotary_from_config(config | {"rope_parameters": json.loads(text)}, length=length)
    frequencies = plan.layers[0].frequencies
    return frequencies if axes else dataclasses.replace(frequencies, axes=None)


def _parse_array(value: Any) -> Any:
    """A NumPy scalar or array as JSON has it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise wrong_type(f"rope_parameters must hold numbers, strings, booleans and lists, got {describe(value)}")
