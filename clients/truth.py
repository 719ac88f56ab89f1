"""RoPE of float64 angles, from the formulas of tests/oracles: what ours is compared with where theirs is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from oracles import spectra


def cos_sin(positions: Any, head_dim: int, rope: dict[str, Any], max_length: int = 1) -> Any:
    """Cosines and sines (..., pairs) of positions (..., coordinates), for a flat `rope_parameters` of transformers."""
    omegas, amplitude = spectra.from_parameters(rope, head_dim, max_length, max_length)
    omegas, amplitude = spectra.floats(omegas), float(amplitude)
    axes = spectra.axes_from_parameters(rope, len(omegas))

    def host(positions: Any) -> Any:
        angle = np.asarray(positions, np.float64)[..., axes] * omegas
        return tuple(np.float32(amplitude * wave(angle)) for wave in (np.cos, np.sin))

    shape = jax.ShapeDtypeStruct((*positions.shape[:-1], len(omegas)), jnp.float32)
    return jax.pure_callback(host, (shape, shape), positions, vmap_method="broadcast_all")


def rotate(x: Any, waves: Any, layout: str = "half") -> Any:
    """Heads x (..., seq, heads, features) by cosines and sines (..., seq, pairs); more features stay as they are."""
    c, s = (jnp.expand_dims(wave, -2) for wave in waves)
    x, rest = jnp.split(x, [2 * c.shape[-1]], axis=-1)
    a, b = jnp.split(x, 2, axis=-1) if layout == "half" else (x[..., ::2], x[..., 1::2])
    pairs = a * c - b * s, b * c + a * s
    x = jnp.concatenate(pairs, -1) if layout == "half" else jnp.stack(pairs, -1).reshape(x.shape)
    return jnp.concatenate([x, rest], -1)
