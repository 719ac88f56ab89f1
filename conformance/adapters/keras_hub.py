"""The layers of `keras_hub.layers` on Keras's JAX backend.

`RotaryEmbedding` has the half layout and whole heads; its "dynamic" takes no length, so it is not the formula of that
name here. `AlibiBias` has the causal form for a query at the last key, from which its other rows differ by a constant,
which changes no attention: its cases are those of one query, the last.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax.numpy as jnp  # noqa: E402
import keras_hub  # noqa: E402
import numpy as np  # noqa: E402

from conformance.adapters import only  # noqa: E402

NAME, PACKAGES = "keras_hub", ("keras-hub", "keras", "jax")


def sinusoidal(positions, width, base, layout, endpoint=False, axes=None):
    only(layout == "interleaved" and not endpoint and not axes, "max_wavelength is its one setting")
    layer = keras_hub.layers.SinePositionEncoding(max_wavelength=base)
    return layer(jnp.zeros((1, len(positions), width)), positions=jnp.array(positions))[0]


def rotary(positions, x, rotary_width, base, layout, scaling=None, axes=None):
    only(layout == "half" and rotary_width == len(x) and not axes, "half layout, whole heads, one coordinate")
    settings = dict(scaling or {"type": "linear", "factor": 1.0})
    kind, factor = settings.pop("type"), settings.pop("factor", None)
    only(kind in ("linear", "yarn"), f"no {kind}")
    only(settings.pop("attention_factor", None) is None, "no attention_factor")
    if kind == "yarn":
        settings["original_max_position_embeddings"] = settings.pop("original_max")
    layer = keras_hub.layers.RotaryEmbedding(max_wavelength=base, scaling_factor=factor, rope_type=kind, **settings)
    rows = jnp.tile(jnp.array(x, jnp.float32), (1, len(positions), 1))
    return layer(rows, positions=jnp.array(positions))[0]


def alibi(queries, keys, heads):
    last = queries[-1]
    only(queries == [last] and max(keys) <= last < 2**17, "of the last query, its keys counted from 0")
    bias = keras_hub.layers.AlibiBias()(jnp.zeros((1, heads, 1, last + 1)))
    return bias[0][..., np.array(keys)]
