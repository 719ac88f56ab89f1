"""`flax.nnx.RoPE`, mapped over the heads as its own attention does, with the tables that its documentation keeps."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

NAME, PACKAGES, FRAMEWORK = "flax.nnx.RoPE", ("flax",), "jax"
IMPORT = "from flax import nnx"
HEAD_AXIS, LAYOUTS = -2, ("half",)


def rotary(case):
    rope = nnx.RoPE(embedding_size=case.shape[-1], max_seq_len=case.shape[1])
    return lambda x: jax.vmap(rope, in_axes=-2, out_axes=-2)(x).astype(x.dtype)


def decode(case):
    rope = nnx.RoPE()  # one row of the batch at a time: it takes no positions that differ between rows
    heads = jax.vmap(rope, in_axes=(-2, None), out_axes=-2)
    return lambda x, positions: jax.vmap(heads)(x, positions).astype(x.dtype)


def waves(position):
    turned = np.asarray(nnx.RoPE()(jnp.ones((1, 128)).at[:, 64:].set(0), jnp.array([position])))[0]
    return turned[:64] + 1j * turned[64:]
