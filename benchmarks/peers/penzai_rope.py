"""`penzai.pz.nn.ApplyRoPE` on named arrays, with the names and positions that the library's transformers give it."""

import jax.numpy as jnp
import numpy as np
from penzai import pz

NAME, PACKAGES, FRAMEWORK = "penzai", ("penzai",), "jax"
IMPORT = "from penzai import pz"
HEAD_AXIS, LAYOUTS = -2, ("half",)
AXES = "batch", "seq", "heads", "projection"
ROPE = pz.nn.ApplyRoPE(positions_input_name="token_positions", embedding_axis="projection", max_wavelength=10_000.0)


def rotate(x, positions):
    return ROPE(pz.nx.wrap(x, *AXES), token_positions=positions).unwrap(*AXES)


def rotary(case):
    return lambda x: rotate(x, pz.nx.arange("seq", case.shape[1]))


def decode(case):
    return lambda x, positions: rotate(x, pz.nx.wrap(positions, "batch", "seq"))


def waves(position):
    x = jnp.ones((1, 1, 1, 128)).at[..., 64:].set(0)
    turned = np.asarray(rotate(x, pz.nx.wrap(jnp.array([[position]]), "batch", "seq")))[0, 0, 0]
    return turned[:64] + 1j * turned[64:]
