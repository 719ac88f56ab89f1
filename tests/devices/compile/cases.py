"""Cases for ahead-of-time compilers: public functions with arguments, biases, and attention.

`test_tpu.py` and `test_cuda.py` compile them.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import posenc_jax as pe

F32, BF16, I32 = np.dtype(np.float32), jnp.dtype(jnp.bfloat16), np.dtype(np.int32)


def f32(*shape):
    """The description (shape, dtype) of a float32 argument, of which nothing is computed."""
    return shape, F32


def bf16(*shape):
    return shape, BF16


def i32(*shape):
    return shape, I32


@dataclasses.dataclass(frozen=True)
class Case:
    """A public function with arguments (shape, dtype), and what compilers may make of it."""

    name: str
    function: Callable
    arguments: tuple
    elementwise: bool = True  # one pass over memory
    oscillates: bool = True  # computes sines or other exact formulas, as all do but learned tables
    copies: float = math.inf  # the most that it may cost on a TPU, where an elementwise copy costs 1
    table: int = 0  # rows of float32 that are kept for the heads to share: cosines and sines, or distances

    @property
    def result(self):
        """The type of the first result."""
        return jax.tree.leaves(jax.eval_shape(self.function, *(jax.ShapeDtypeStruct(*a) for a in self.arguments)))[0]

    @property
    def kept(self):
        """Bytes that the CUDA compiler may keep.

        Two words of 4 bytes for each row's position, seven if positions are floats, the phase increments that are made
        of an array of frequencies, and the table that heads share.
        """
        shape = self.result.shape
        rows, columns = (shape[:-1], shape[-1]) if self.elementwise else (shape, 0)
        floats = any(dtype == F32 and len(shape) < 3 for shape, dtype in self.arguments)
        positions = self.table or math.prod(rows)
        return positions * (28 if floats else 8) + 4 * columns * self.table + 48 * columns * floats + 4096


rotary, add = partial(pe.rotary, head_axis=-2), pe.add_sinusoidal
prope = partial(pe.prope, role="key", head_axis=-2)
half, interleaved, last = {"layout": "half"}, {"layout": "interleaved"}, {"part": "last"}
LEARNED = {"elementwise": False, "oscillates": False}


def back(x, dy, *arguments, function=rotary, **settings):
    """The derivatives of a function by x and the other arguments."""
    return jax.vjp(partial(function, **settings), x, *arguments)[1](dy)


def prope_back(x, dy, extrinsics):
    return back(x, dy, function=lambda x: prope(x, extrinsics))[0]


def by_cos_sin(x, cosine, sine, **settings):
    return rotary(x, cos_sin=pe.CosSin(cosine, sine, columns="pair"), **settings)


def query_of_xpos(x):
    return pe.xpos(x, x[:, :, :8], head_axis=-2)[0]


def fire(i, j, w1, b1, w2, b2, c, threshold):
    return pe.fire(i, j, (w1, b1, w2, b2), c=c, threshold=threshold)


# Biases of 8 heads: (function of positions and parameters, the parameters)
BIASES = {
    "alibi": (pe.alibi, (f32(8),)),
    "t5": (pe.t5, (f32(32, 8),)),
    "kerple_log": (pe.kerple_log, (f32(8), f32(8))),
    "kerple_power": (pe.kerple_power, (f32(8), f32(8))),
    "fire": (fire, (f32(32), f32(32), f32(32, 8), f32(8), f32(), f32())),
    "sandwich": (lambda i, j, w: pe.sandwich(i, j, 8, w), (f32(64),)),
}


def bias(name, copies, table=0):
    """The case of a bias of 1,024 queries and keys.

    A bias only writes, so it may cost less than a copy. The limits are near what was seen. On a GPU, heads share a
    distance of four bytes, and for T5 fifteen comparisons of one byte.
    """
    function, parameters = BIASES[name]
    return Case(name, function, (i32(1024), i32(1024), *parameters), copies=copies, table=table)


# Positions; the shape (batch, seq, width); and (batch, seq, heads, head_dim) in float32 and in bfloat16
P, X, Q, QB = i32(131_072), (16, 4096, 512), f32(1, 4096, 32, 128), bf16(1, 4096, 32, 128)
EACH, CAMERAS, PAIRS = (8, 1024, 16, 128), f32(1, 4096, 4, 4), f32(4096, 64)
CASES = [
    Case("sinusoidal, bfloat16", partial(pe.sinusoidal, frequencies=128, dtype=BF16), (P,)),
    Case("sinusoidal, half, width 127", partial(pe.sinusoidal, frequencies=127, **half), (P,)),
    Case("sinusoidal, float positions, array frequencies", pe.sinusoidal, (f32(131_072), f32(64))),
    Case("add_sinusoidal, (seq,)", add, (f32(*X), i32(4096))),
    Case("add_sinusoidal, (batch, seq), both, bfloat16", add, (bf16(*X), f32(16, 4096), f32(256))),
    Case("rotation_matrix, half", partial(pe.rotation_matrix, frequencies=128, **half), (i32(1024),)),
    Case("shift, (batch, seq), bfloat16", partial(pe.shift, frequencies=512), (bf16(*X), i32(16, 4096))),
    Case("rotary, half, float32", partial(rotary, **half), (Q,), copies=2.1, table=4096),
    Case("rotary, half, backward, bfloat16", partial(back, **half), (QB, QB), copies=2.1, table=4096),
    Case("rotary, interleaved, bfloat16", partial(rotary, **interleaved), (QB,), copies=2.1, table=4096),
    Case("rotary, backward, interleaved, float32", partial(back, **interleaved), (Q, Q), copies=2.1, table=4096),
    # One pass over x, its two halves exchanged in place; tests/unit/rotary/test_rotation.py says when.
    Case("rotary, 64, backward, bfloat16", back, 2 * (bf16(8, 2048, 12, 64),), copies=1.06, table=2048),
    Case("rotary, 64, heads first", partial(pe.rotary, head_axis=-3), (bf16(8, 16, 512, 64),), copies=1.09, table=512),
    Case("rotary, 64 last of 192", partial(rotary, frequencies=64, **last), (bf16(1, 4096, 16, 192),), table=4096),
    Case("rotary, no heads", partial(pe.rotary, head_axis=None), (bf16(32, 4096, 128), i32(32, 4096))),
    Case(
        "rotary, sections",
        partial(rotary, frequencies=pe.multi_section(128, (16, 24, 24))),
        (bf16(*EACH), i32(8, 1024, 3)),
        table=8192,
    ),
    Case("rotary, by cosines and sines", partial(by_cos_sin, **interleaved), (QB, PAIRS, PAIRS), table=4096),
    Case("rotary, backward, both", back, (Q, Q, f32(4096), f32(64)), table=2 * 4096),
    Case("rotary, decode step", rotary, (bf16(32, 1, 32, 128), i32(32, 1)), table=32),
    Case("cos_sin", partial(pe.cos_sin, frequencies=128), (P,)),
    Case("xpos, bfloat16", query_of_xpos, (QB,), table=2 * 4096),
    # A TPU reads x at shifts of −3 to 3 features; the limits are near what was seen.
    Case("prope, half of the width", partial(prope, width=64), (QB, CAMERAS), elementwise=False, copies=4.1),
    Case("prope, backward", prope_back, (Q, Q, CAMERAS), elementwise=False, copies=5.3),
    # A TPU takes one more pass, which spreads pairs.
    Case("pope, bfloat16", partial(pe.pope, head_axis=-2), (QB,), table=2 * 4096),
    Case("offset_similarity, both", pe.offset_similarity, (f32(131_072), f32(64)), elementwise=False),
    Case("timestep_embedding", partial(pe.timestep_embedding, dim=320, flip_sin_to_cos=True), (f32(4096),), copies=2.3),
    bias("alibi", 0.75),
    bias("t5", 2.4, table=4 * 1024),
    bias("kerple_log", 0.85, table=1024),
    bias("kerple_power", 0.9, table=1024),
    Case("learned, bfloat16", pe.learned, (i32(16, 4096), bf16(8192, 512)), **LEARNED),
    Case(
        "resize_table, grid",
        partial(pe.resize_table, shape=(64, 48), method="torch_cubic", antialias=False),
        (f32(16, 16, 1024),),
        **LEARNED,
    ),
]

# Biases of queries' content: (options of `content_bias`, the shape of its table for a length)
CONTENT = {
    "relative keys": ({"out_of_range": "nearest"}, lambda _: (129, 64)),
    "a row for each offset": ({}, lambda length: (2 * length - 1, 8, 64)),
}


@dataclasses.dataclass(frozen=True)
class Attention:
    """Causal attention under a bias, in bfloat16, with 8 heads of 64 features, or all its derivatives."""

    bias: str
    length: int
    backward: bool = True

    @property
    def limit(self):
        """Bytes that may be kept: eight arrays like the queries, and eight float32 tiles of 512 × 512 for all heads.

        With 32,768 queries and keys this is 2% of the bias in bfloat16. A bias of content may keep twice as much: a
        tile has up to 1,023 products of table rows with each query, and a table may have two rows for each query.
        """
        return (1 + (self.bias in CONTENT)) * (8 * self.length * 8 * 64 * 2 + 8 * 8 * 512**2 * 4)

    @property
    def compiled(self):
        """The function to compile, and its arguments."""
        x = bf16(1, self.length, 8, 64)
        if self.bias in CONTENT:
            options, shape = CONTENT[self.bias]
            bias, parameters = partial(pe.content_bias, **options), (bf16(*shape(self.length)),)
        else:
            bias, parameters = BIASES[self.bias]

        def forward(q, k, v, *p):
            if self.bias in BIASES:
                return pe.attention(q, k, v, bias=lambda i, j: bias(i, j, *p), causal=True)
            of_tokens = lambda i, j, q, _: bias(i, j, *p, query=q)  # noqa: E731
            return pe.attention(q, k, v, bias=of_tokens, query_data=q, causal=True)

        derivatives = lambda do, *arguments: jax.vjp(forward, *arguments)[1](do)  # noqa: E731
        return (derivatives, x, x, x, x, *parameters) if self.backward else (forward, x, x, x, *parameters)


# Alibi at several lengths, because memory must grow with the length alone, and every other kind of bias at one length.
# Compiling one takes up to a minute.
ATTENTION = [
    Attention("alibi", 32_768, backward=False),
    Attention("alibi", 4096),
    Attention("alibi", 65_536),
    Attention("t5", 32_768),
    Attention("fire", 32_768),
    *(Attention(bias, 16_384) for bias in CONTENT),
]


def derivative_of_bias(name):
    """The derivative of a bias by its parameters, a function of positions, cotangent and parameters; its arguments."""
    bias, parameters = BIASES[name]

    def derivative(i, j, dy, *parameters):
        return jax.vjp(partial(bias, i, j), *parameters)[1](dy)

    return derivative, i32(1024), i32(1024), f32(8, 1024, 1024), *parameters
