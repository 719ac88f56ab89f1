"""`attnax`: `PositionalEncoding`, `RotaryEmbedding` with `apply_rope`, and ALiBi in `memory_efficient_attention`.

Its tables are made at a module's construction: `table`, which is to make one, makes the module. Its rotation is in the
dtype of x. So are the distances of its ALiBi, which bfloat16 rounds.
"""

import attnax
import jax.numpy as jnp
import numpy as np

NAME, PACKAGES, FRAMEWORK = "attnax", ("attnax",), "jax"
IMPORT = "import attnax"
HEAD_AXIS, LAYOUTS = -3, ("half",)


def table(case):
    return lambda positions: attnax.PositionalEncoding(*case.shape).positional


def add(case):
    encoding = attnax.PositionalEncoding(*case.shape[1:])
    return lambda x: encoding(x).astype(x.dtype)


def rotation(head_dim, reach):
    rope = attnax.RotaryEmbedding(head_dim, reach)

    def f(x, positions):
        cos, sin = rope.cos_sin_for_positions(positions, out_dtype=x.dtype)
        return attnax.apply_rope(x, cos[:, None], sin[:, None])

    return f


def rotary(case):
    rotate = rotation(case.shape[-1], case.shape[1])
    return lambda x: rotate(x, jnp.arange(case.shape[1])[None])


def decode(case):
    return rotation(case.shape[-1], 8192)  # as many positions as its attention has unless told otherwise


def attention(case):
    mod = attnax.compose_score_mods(attnax.alibi_mod(case.shape[2]), attnax.causal_mod())

    def f(q, k, v):
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        return attnax.memory_efficient_attention(q, k, v, score_mod=mod).swapaxes(1, 2)

    return f


def waves(position):
    if position >= 2**20:
        return None
    x = jnp.ones((1, 1, 1, 128)).at[..., 64:].set(0)
    turned = np.asarray(rotation(128, position + 1)(x, jnp.array([[position]])))[0, 0, 0]
    return turned[:64] + 1j * turned[64:]
