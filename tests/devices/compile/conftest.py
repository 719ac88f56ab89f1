"""What is compiled ahead of time, by `aot.py`; `test_tpu.py` and `test_cuda.py` say what must hold."""

import dataclasses
import functools
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from devices.aot import Target
from devices.on_pods import textbook

jax.config.update("jax_compilation_cache_dir", None)  # what compilers make is the subject
_ROWS = pytest.StashKey[list]()


def _shared_waves(x):
    """The true sine and cosine of each pair, for all batches and heads."""
    return jnp.split(pe.sinusoidal(jnp.arange(x.shape[1]), x.shape[3], layout="half")[None, :, None], 2, axis=-1)


def halves(x):
    """Rotary embeddings as libraries write them, but with exact phases."""
    sine, cosine = _shared_waves(x)
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x1 * cosine - x2 * sine, x2 * cosine + x1 * sine], axis=-1).astype(x.dtype)


def swapped(x):
    """The partner of each feature by the matrix unit: x C + (x R) S, with one ±1 in each column of R."""
    (sine, cosine), n = (jnp.tile(wave, 2) for wave in _shared_waves(x)), x.shape[3] // 2
    swap = jnp.asarray(np.eye(2 * n, k=n) - np.eye(2 * n, k=-n), x.dtype)
    partner = jnp.einsum("...i,ij->...j", x, swap, precision="highest", preferred_element_type=jnp.float32)
    return (x.astype(jnp.float32) * cosine + partner * sine).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class Case:
    """A public function with arguments, each (shape, dtype)."""

    name: str
    function: Callable
    arguments: tuple
    elementwise: bool = True
    oscillates: bool = True  # all but the learned tables
    copies: float = math.inf  # the most that it may cost on a TPU, where an elementwise copy costs 1
    table: int = 0  # rows of float32 that are kept for the heads to share: waves, or distances

    @property
    def result(self):
        """The first."""
        return jax.tree.leaves(jax.eval_shape(self.function, *(jax.ShapeDtypeStruct(*a) for a in self.arguments)))[0]

    @property
    def kept(self):
        """Bytes that a compiler may keep: two words for each row's position, seven if it is a float, the phase increments
        that are made of an array, and a table where there is one.
        """
        shape = self.result.shape
        rows, columns = (shape[:-1], shape[-1]) if self.elementwise else (shape, 0)
        floats = any(dtype == F32 and len(shape) < 3 for shape, dtype in self.arguments)
        positions = self.table or math.prod(rows)
        return positions * (28 if floats else 8) + 4 * columns * self.table + 48 * columns * floats + 4096


F32, BF16, I32 = np.dtype(np.float32), jnp.dtype(jnp.bfloat16), np.dtype(np.int32)
P, PF, W, W256 = ((131072,), I32), ((131072,), F32), ((64,), F32), ((256,), F32)
SEQ, BATCH, BATCHF = ((4096,), I32), ((16, 4096), I32), ((16, 4096), F32)
X, XB, WIDE = ((16, 4096, 512), F32), ((16, 4096, 512), BF16), ((2, 65536, 512), F32)
Q, QB, MLA = ((1, 4096, 32, 128), F32), ((1, 4096, 32, 128), BF16), ((1, 4096, 16, 192), BF16)
QS, QSB, EACH, EACHF = ((8, 1024, 16, 128), F32), ((8, 1024, 16, 128), BF16), ((8, 1024), I32), ((8, 1024), F32)
S64, H64 = ((8, 2048, 12, 64), BF16), ((8, 16, 512, 64), BF16)
TABLE, TABLEB, K, KF, K1 = ((8192, 512), F32), ((8192, 512), BF16), ((1024,), I32), ((1024,), F32), ((), I32)


def _array(x, frequencies):
    return pe.add_sinusoidal(x, None, frequencies)


def _by_cos_sin(x, cosine, sine, **settings):
    return pe.rotary(x, cos_sin=pe.CosSin(cosine, sine, columns="pair"), head_axis=-2, **settings)


def _back(x, dy, *arguments, **settings):
    """The derivatives by x and the arrays among the arguments."""
    return jax.vjp(partial(pe.rotary, head_axis=-2, **settings), x, *arguments)[1](dy)


def _of_phase(x, phase, positions=None):
    return pe.pope(x, positions, phase=phase, head_axis=-2)


def _query(x, **settings):
    return pe.xpos(x, x[:, :, :8], head_axis=-2, **settings)[0]


_table, _add, _matrix = partial(pe.sinusoidal, frequencies=128), pe.add_sinusoidal, pe.rotation_matrix
_key, POSES = partial(pe.prope, role="key", head_axis=-2), ((1, 4096, 4, 4), F32)


def _back_by_key(x, dy, extrinsics):
    """The derivative by x."""
    return jax.vjp(lambda x: _key(x, extrinsics), x)[1](dy)[0]


_shift, _similarity = partial(pe.shift, frequencies=512), pe.offset_similarity
_sections, _last = pe.multi_section(128, (16, 24, 24)), {"part": "last"}
_half, _learned = {"layout": "half"}, {"elementwise": False, "oscillates": False}
_timesteps = partial(pe.timestep_embedding, dim=320, flip_sin_to_cos=True)
EIGHT, MLP = ((8,), F32), (((32,), F32), ((32,), F32), ((32, 8), F32), ((8,), F32), ((), F32), ((), F32))


def _fire(i, j, w1, b1, w2, b2, c, threshold):
    return pe.fire(i, j, (w1, b1, w2, b2), c=c, threshold=threshold)


# Of 8 heads: the bias as a function of positions and parameters, and these.
BIASES = {
    "alibi": (pe.alibi, (EIGHT,)),
    "t5": (pe.t5, (((32, 8), F32),)),
    "kerple_log": (pe.kerple_log, (EIGHT, EIGHT)),
    "kerple_power": (pe.kerple_power, (EIGHT, EIGHT)),
    "fire": (_fire, MLP),
    "sandwich": (lambda i, j, w: pe.sandwich(i, j, 8, w), (W,)),
}

# The same of queries: what a bias reads of each tile's, and the shape of its table for a length.
CONTENT = {
    "relative keys": ({"out_of_range": "nearest"}, lambda _: (129, 64)),
    "buckets": ({"max_distance": 512}, lambda _: (512, 8, 64)),
    "a row for each offset": ({}, lambda length: (2 * length - 1, 8, 64)),
}

CASES = [
    Case("sinusoidal", _table, (P,)),
    Case("sinusoidal, bfloat16", partial(_table, dtype=BF16), (P,)),
    Case("sinusoidal, half", partial(_table, **_half), (P,)),
    Case("sinusoidal, width 127", partial(pe.sinusoidal, frequencies=127), (P,)),
    Case("sinusoidal, (batch, seq)", _table, (((16, 8192), I32),)),
    Case("sinusoidal, float positions", _table, (PF,)),
    Case("sinusoidal, array frequencies", pe.sinusoidal, (P, W)),
    Case("sinusoidal, both", pe.sinusoidal, (PF, W)),
    Case("sinusoidal, axial", partial(pe.sinusoidal, frequencies=pe.axial(128, 2)), (((131072, 2), I32),)),
    Case("add_sinusoidal", _add, (X,)),
    Case("add_sinusoidal, bfloat16", _add, (XB,)),
    Case("add_sinusoidal, long", _add, (WIDE,)),
    Case("add_sinusoidal, long, bfloat16", _add, ((WIDE[0], BF16),)),
    Case("add_sinusoidal, (seq,)", _add, (X, SEQ)),
    Case("add_sinusoidal, (batch, seq)", _add, (X, BATCH)),
    Case("add_sinusoidal, float positions", _add, (X, ((4096,), F32))),
    Case("add_sinusoidal, array frequencies", _array, (X, W256)),
    Case("add_sinusoidal, both, bfloat16", _add, (XB, BATCHF, W256)),
    Case("add_sinusoidal, axial", partial(_add, frequencies=pe.axial(512, 2)), (X, ((4096, 2), I32))),
    Case("rotation_matrix", partial(_matrix, frequencies=128), (K,)),
    Case("rotation_matrix, half, bfloat16", partial(_matrix, frequencies=128, dtype=BF16, **_half), (K,)),
    Case("rotation_matrix, one offset", partial(_matrix, frequencies=1024), (K1,)),
    Case("rotation_matrix, both", _matrix, (KF, W)),
    Case("shift", _shift, (X, K1)),
    Case("shift, half", partial(_shift, **_half), (X, K1)),
    Case("shift, bfloat16", _shift, (XB, K1)),
    Case("shift, (batch, seq)", _shift, (X, BATCH)),
    Case("shift, (batch, seq), bfloat16", _shift, (XB, BATCH)),
    Case("shift, both", pe.shift, (X, ((), F32), W256)),
    *(
        Case(f"{name}, {layout}, {dtype}", partial(function, layout=layout), arguments, copies=2.1, table=4096)
        for layout in ("half", "interleaved")
        for dtype, x in (("float32", Q), ("bfloat16", QB))
        for name, function, arguments in (
            ("rotary", functools.partial(pe.rotary, head_axis=-2), (x,)),
            ("rotary, backward", _back, (x, x)),
        )
    ),
    Case("rotary, (seq,)", functools.partial(pe.rotary, head_axis=-2), (Q, SEQ), table=4096),
    Case("rotary, (batch, seq)", functools.partial(pe.rotary, head_axis=-2), (QS, EACH), table=8192),
    Case(
        "rotary, (batch, seq), float positions, bfloat16",
        functools.partial(pe.rotary, head_axis=-2),
        (QSB, EACHF),
        table=8192,
    ),
    # One pass over x, its two halves exchanged in place; tests/unit/rotary/test_rotation.py says when.
    Case("rotary, 12 heads of 64, bfloat16", partial(pe.rotary, head_axis=-2), (S64,), copies=1.06, table=2048),
    Case("rotary, 64, heads first, bfloat16", partial(pe.rotary, head_axis=-3), (H64,), copies=1.09, table=512),
    Case("rotary, 64, backward, bfloat16", _back, (S64, S64), copies=1.06, table=2048),
    Case("rotary, 64 first", partial(pe.rotary, frequencies=64, head_axis=-2), (Q,), table=4096),
    Case("rotary, 96 last, bfloat16", partial(pe.rotary, frequencies=96, head_axis=-2, **_last), (QB,), table=4096),
    Case("rotary, 112 first, bfloat16", partial(pe.rotary, frequencies=112, head_axis=-2), (QB,), table=4096),
    Case(
        "rotary, 64 last of 192, bfloat16",
        partial(pe.rotary, frequencies=64, head_axis=-2, **_last),
        (MLA,),
        table=4096,
    ),
    Case("rotary, head_axis=-3", partial(pe.rotary, head_axis=-3), (((1, 32, 4096, 128), F32),), table=4096),
    Case("rotary, head_axis=None", partial(pe.rotary, head_axis=None), (((32, 4096, 128), F32),), table=4096),
    Case("rotary, 8 heads", functools.partial(pe.rotary, head_axis=-2), (((1, 4096, 8, 128), F32),), table=4096),
    Case(
        "rotary, 8 heads, bfloat16",
        functools.partial(pe.rotary, head_axis=-2),
        (((1, 4096, 8, 128), BF16),),
        table=4096,
    ),
    Case("rotary, no heads", partial(pe.rotary, head_axis=None), (((32, 4096, 128), BF16), ((32, 4096), I32))),
    Case(
        "rotary, one head, 64 last",
        partial(pe.rotary, frequencies=64, head_axis=-2, **_last),
        (((1, 131072, 1, 128), F32),),
    ),
    Case(
        "rotary, axial",
        partial(pe.rotary, frequencies=pe.axial(128, 2), head_axis=-2),
        (Q, ((4096, 2), I32)),
        table=4096,
    ),
    Case(
        "rotary, sections",
        partial(pe.rotary, frequencies=_sections, head_axis=-2),
        (QSB, ((8, 1024, 3), I32)),
        table=8192,
    ),
    Case("rotary, waves", _by_cos_sin, (Q, ((4096, 64), F32), ((4096, 64), F32)), table=4096),
    Case(
        "rotary, waves, interleaved, bfloat16",
        partial(_by_cos_sin, layout="interleaved"),
        (QB, ((4096, 64), F32), ((4096, 64), F32)),
        table=4096,
    ),
    Case("cos_sin", partial(pe.cos_sin, frequencies=128), (P,)),
    Case("rotary, by heads", partial(pe.rotary, head_axis=-2), (Q, ((4096, 2), I32), ((32, 2, 64), F32))),
    Case("rotary, array frequencies", lambda x, w: pe.rotary(x, None, w, head_axis=-2), (Q, W), table=4096),
    Case("rotary, both, bfloat16", functools.partial(pe.rotary, head_axis=-2), (QB, ((4096,), F32), W), table=4096),
    Case("rotary, backward, both", _back, (Q, Q, ((4096,), F32), W), table=2 * 4096),
    Case(
        "rotary, decode step",
        functools.partial(pe.rotary, head_axis=-2),
        (((32, 1, 32, 128), BF16), ((32, 1), I32)),
        table=32,
    ),
    Case("xpos", _query, (Q,), table=2 * 4096),
    Case("xpos, bfloat16", _query, (QB,), table=2 * 4096),
    # A TPU reads x shifted by −3 to 3 features, prefetched; the limits are near what was seen.
    Case("prope", _key, (Q, POSES), elementwise=False, copies=5.3),
    Case("prope, bfloat16", _key, (QB, POSES), elementwise=False, copies=4.1),
    Case("prope, half", partial(_key, width=64), (QB, POSES), elementwise=False, copies=4.1),
    Case("prope, backward", _back_by_key, (Q, Q, POSES), elementwise=False, copies=5.3),
    Case("pope", partial(pe.pope, head_axis=-2), (Q,), table=2 * 4096),
    Case("pope, bfloat16", partial(pe.pope, head_axis=-2), (QB,), table=2 * 4096),  # a TPU spreads pairs in a pass
    Case("pope, phase", _of_phase, (Q, ((32, 128), F32))),
    Case("pope, phase, (batch, seq), bfloat16", _of_phase, (QSB, ((16, 128), F32), EACH)),
    Case("offset_similarity", partial(_similarity, frequencies=128), (P,), elementwise=False),
    Case("offset_similarity, both", _similarity, (PF, W), elementwise=False),
    Case("timestep_embedding", _timesteps, (((4096,), F32),), copies=2.3),
    Case("timestep_embedding, integers, bfloat16", partial(_timesteps, dtype=BF16), (SEQ,), copies=1.5),
    # Biases only write, so that less than a copy is possible; the limits are near what was seen. A GPU keeps for the
    # heads to share a distance of four bytes, and for T5 fifteen comparisons of one.
    Case("alibi", pe.alibi, (K, K, EIGHT), copies=0.75),
    Case("t5", pe.t5, (K, K, ((32, 8), F32)), copies=2.4, table=4 * 1024),
    Case("kerple_log", pe.kerple_log, (K, K, EIGHT, EIGHT), copies=0.85, table=1024),
    Case("kerple_power", pe.kerple_power, (K, K, EIGHT, EIGHT), copies=0.9, table=1024),
    Case("learned", pe.learned, (BATCH, TABLE), **_learned),
    Case("learned, bfloat16", pe.learned, (BATCH, TABLEB), **_learned),
    Case("add_learned", pe.add_learned, (X, TABLE), **_learned),
    Case("add_learned, (seq,)", pe.add_learned, (X, TABLE, SEQ), **_learned),
    Case("resize_table", partial(pe.resize_table, shape=8192), (((512, 1024), F32),), **_learned),
    Case(
        "resize_table, grid, PyTorch's cubic",
        partial(pe.resize_table, shape=(64, 48), method="torch_cubic", antialias=False),
        (((16, 16, 1024), F32),),
        **_learned,
    ),
    Case(
        "resize_table, grid, bfloat16",
        partial(pe.resize_table, shape=(64, 48), method="cubic"),
        (((16, 16, 1024), BF16),),
        **_learned,
    ),
]


@dataclasses.dataclass(frozen=True)
class Attention:
    """Attention under a bias, causal, bfloat16, of 8 heads of 64, or all its derivatives."""

    bias: str
    length: int
    backward: bool

    @property
    def name(self):
        return f"attention, {self.bias}, {self.length:,}" + ", backward" * self.backward

    @property
    def limit(self):
        """Bytes, growing with the length: eight arrays like the queries, and eight tiles of float32 for all heads.

        Of 32,768 queries and keys this is 2% of the bias in bfloat16. Twice that for products of tokens and rows, of which
        a tile has up to 1,023 for each query, and whose table may have two rows for each query.
        """
        return (1 + (self.bias in CONTENT)) * (8 * self.length * 8 * 64 * 2 + 8 * 8 * 512**2 * 4)

    @property
    def compiled(self):
        """The function and its arguments."""
        x = ((1, self.length, 8, 64), BF16)
        if self.bias in CONTENT:
            options, shape = CONTENT[self.bias]
            parameters = ((shape(self.length), BF16),)
        else:
            bias, parameters = BIASES[self.bias]

        def forward(q, k, v, *p):
            if self.bias in BIASES:
                return pe.attention(q, k, v, bias=lambda i, j: bias(i, j, *p), causal=True)
            of_tokens = lambda i, j, q, _: pe.content_bias(i, j, *p, query=q, **options)  # noqa: E731
            return pe.attention(q, k, v, bias=of_tokens, query_data=q, causal=True)

        def derivatives(do, *arguments):
            return jax.vjp(forward, *arguments)[1](do)

        return (derivatives, x, x, x, x, *parameters) if self.backward else (forward, x, x, x, *parameters)


# That it grows with the length, and at one length for every kind of bias: compiling takes up to a minute.
ATTENTION = [
    Attention("alibi", 32_768, False),
    *(Attention("alibi", length, True) for length in (4096, 32_768, 65_536)),
    *(Attention(bias, 32_768, True) for bias in ("t5", "fire")),
    *(Attention(bias, 16_384, True) for bias in CONTENT),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name.replace(", ", "-"))
def case(request):
    return request.param


@pytest.fixture
def control():
    return textbook


@pytest.fixture
def plain_rotary():
    return halves, swapped


@pytest.fixture(params=ATTENTION, ids=lambda case: case.name.replace(", ", "-"))
def attention(request):
    return request.param


@pytest.fixture
def biases():
    return BIASES


@pytest.fixture(params=["t5", "fire"])
def derivative(request):
    """The name of a bias, a function of positions, a cotangent and parameters, and its arguments."""
    bias, parameters = BIASES[request.param]

    def back(i, j, dy, *parameters):
        return jax.vjp(partial(bias, i, j), *parameters)[1](dy)

    return request.param, back, (K, K, ((8, 1024, 1024), F32), *parameters)


@pytest.fixture
def record(request):
    """Adds a line to the table at the end of the session."""
    rows = request.config.stash.setdefault(_ROWS, [])

    def add(name, target, compiled, copy=None, fill=None):
        ratios = [f"{compiled.cycles / y.cycles:.2f}" if y and y.cycles else "–" for y in (copy, fill)]
        rows.append((name, target.name, *ratios, f"{compiled.temporaries:,}", str(compiled.fusions)))

    return add


@pytest.fixture
def make_target():
    return Target


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash.get(_ROWS, [])
    if rows:
        terminalreporter.section("compiled ahead of time")
        head = ("function", "target", "cycles / copy", "cycles / fill", "temporaries, bytes", "fusions")
        for row in (head, ("---",) * len(head), *rows):
            terminalreporter.write_line("| " + " | ".join(row) + " |")
