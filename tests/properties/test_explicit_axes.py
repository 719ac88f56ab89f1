"""On Explicit axes of a mesh: what cannot be split says so, where the compiler may not fetch what it needs."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from devices.aot import Compiled
from helpers import pages
from helpers.biases import BIASES
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered

pytestmark = pytest.mark.usefixtures("on_cpu")
D, H = "data", "heads"
AT, X = np.arange(128, dtype=np.int32).reshape(8, 16), np.ones((8, 16, 8, 16), np.float32)
GRID = AT[..., None].repeat(2, -1)
ONES, SQUARE = np.ones(8, np.float32), np.ones((8, 8), np.float32)


def relative(i, j, table):
    return pe.relative_position_bias(i, j, table, symmetric=True, out_of_range="zeros")


def content(x, i, table):
    return pe.content_bias(i, i, table, query=x, first=0, out_of_range="zeros")


def by_cos_sin(x, *arrays):
    return pe.rotary(x, cos_sin=pe.CosSin(*arrays, columns="pair"), head_axis=-2)


def place(*arguments):
    """Arrays on the mesh that is set; each is given alone or with what shards it."""
    pairs = (x if isinstance(x, tuple) else (x, P()) for x in arguments)
    return [jax.device_put(x, NamedSharding(jax.sharding.get_mesh(), spec)) for x, spec in pairs]


def mesh_of(kind):
    return jax.make_mesh((2, 4), (D, H), (kind,) * 2, devices=jax.devices("cpu"))


@pytest.fixture
def mesh():
    with jax.set_mesh(mesh_of(AxisType.Explicit)) as mesh:
        yield mesh


class OfBias:
    """Cases of a bias with parameters of eight heads."""

    def __init__(self, bias):
        self.call, self.parameters = bias.of(8)
        self.names = bias.parameter_names(8)
        self.per_head = [n for n, x in enumerate(self.parameters) if x.shape[-1:] == (8,)]

    def by_head(self, first, others):
        """The parameters; the first that is per head is split over an axis of the mesh, and others over another."""
        axes = dict.fromkeys(self.per_head, others) | {self.per_head[0]: first}
        return [(x, P(*[None] * (x.ndim - 1), axes[n])) if n in axes else x for n, x in enumerate(self.parameters)]

    def whole(self):
        """A call, its arguments, the name of one in errors, its axis that must be whole, and its index."""
        for n, (name, x) in enumerate(zip(self.names, self.parameters, strict=True)):
            for axis in range(x.ndim - (n in self.per_head)):
                if x.shape[axis] % 2 == 0:  # or no mesh of two devices could split it
                    yield self.call, [AT, AT, *self.parameters], name, axis, 2 + n

    def split(self):
        """A call, its arguments, the index of one of them and its axis that may be split."""
        for n in self.per_head:
            yield self.call, [AT, AT, *self.parameters], 2 + n, self.parameters[n].ndim - 1

    def apart(self):
        """A call, its arguments as they may be split, some split so that they fit no more, and what the error names."""
        batch, rows, columns = (AT, P(D)), (AT, P(None, D)), (AT, P(None, H))
        positions, given = "query_positions, key_positions", self.parameters
        yield self.call, [rows, columns, *given], [rows, rows, *given], f"{positions}(, .+)?"
        yield self.call, [batch, batch, *given], [batch, (AT, P(H)), *given], f"{positions}(, .+)?"
        names = ", ".join([positions, *(self.names[n] for n in self.per_head)])
        if self.per_head:
            given = self.by_head(H, H)
            yield self.call, [batch, AT, *given], [(AT, P(H)), AT, *given], names
            yield self.call, [rows, AT, *given], [columns, AT, *given], names
            yield self.call, [AT, rows, *given], [AT, columns, *given], names
        if len(self.per_head) > 1:
            yield self.call, [AT, AT, *given], [AT, AT, *self.by_head(D, H)], names


EACH_BIAS = {name: OfBias(bias) for name, bias in BIASES.items()}
POSE, LENS = np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32)
POSES = np.broadcast_to(POSE, (*AT.shape, 4, 4)).copy()
IN_VIEW = partial(pe.prope, role="key", head_axis=-2, image_size=(1, 1))
# name of a function, a call of it, its arguments, the name of one of them and its axis that must be whole
WHOLE = [
    ("sinusoidal", partial(pe.sinusoidal, layout="half"), [AT, ONES], "frequencies", 0),
    ("sinusoidal", partial(pe.sinusoidal, frequencies=pe.axial(16, 2)), [AT[..., None].repeat(2, -1)], "positions", 2),
    ("fourier_features", pe.fourier_features, [SQUARE, SQUARE], "matrix", 1),
    ("rotary", partial(pe.rotary, head_axis=-2), [X, AT], "x", 3),
    ("rotary", partial(pe.rotary, frequencies=8, layout="interleaved", head_axis=-2), [X, AT], "x", 3),
    ("rotary", partial(pe.rotary, head_axis=-2), [X, AT, ONES], "frequencies", 0),
    ("rotary", partial(pe.rotary, head_axis=-2), [X, GRID, np.ones((8, 2, 8), np.float32)], "frequencies", 2),
    ("rotary", partial(pe.rotary, head_axis=-2), [X, GRID, np.ones((8, 2, 8), np.float32)], "frequencies", 1),
    ("rotary", by_cos_sin, [X, *2 * [np.ones((16, 8), np.float32)]], "cos_sin", 1),
    ("cos_sin", pe.cos_sin, [GRID, np.ones((2, 8), np.float32)], "frequencies", 1),
    ("cos_sin", pe.cos_sin, [GRID, np.ones((2, 8), np.float32)], "frequencies", 0),
    ("xpos", partial(pe.xpos, head_axis=-2), [X, X, AT], "query", 3),
    ("xpos", partial(pe.xpos, head_axis=-2), [X, X, AT], "key", 3),
    ("prope", IN_VIEW, [X, POSE, LENS], "x", 3),
    ("prope", IN_VIEW, [X, POSE, LENS], "extrinsics", 0),
    ("prope", IN_VIEW, [X, POSE, LENS[None]], "extrinsics", 1),
    ("pope", partial(pe.pope, head_axis=-2), [X, AT], "x", 3),
    ("pope", lambda x, p, d: pe.pope(x, p, phase=d, head_axis=-2), [X, AT, np.ones((8, 16), np.float32)], "phase", 1),
    ("shift", partial(pe.shift, offset=3, frequencies=16, layout="half"), [X], "encodings", 3),
    ("shift", lambda x, f: pe.shift(x, 3, f), [X, ONES], "frequencies", 0),
    ("rotation_matrix", partial(pe.rotation_matrix, layout="half"), [AT, ONES], "frequencies", 0),
    ("relative_position_bias", relative, [AT, AT, SQUARE], "table", 0),
    ("relative_position_bias", relative, [GRID, GRID, np.ones((8, 8, 8), np.float32)], "key_positions", 2),
    ("content_bias", content, [X[..., :8], AT, SQUARE], "table", 0),
    ("content_bias", content, [X[..., :8], AT, SQUARE], "table", 1),
    ("content_bias", content, [X[..., :8], AT, SQUARE], "query", 3),
    ("sandwich", lambda i, j, f: pe.sandwich(i, j, 2, f), [AT, AT, ONES], "frequencies", 0),
    ("attention", pe.attention, [X, X, X], "query", 1),
    ("attention", pe.attention, [X, X, X], "key", 1),
    ("attention", pe.attention, [X, X, X], "value", 3),
    ("attention", lambda q, i, j: pe.attention(q, q, q, query_positions=i, key_positions=j), [X, AT, AT], "query_positions", 1),
    ("attention", lambda q, i, j: pe.attention(q, q, q, query_segments=i, key_segments=j), [X, AT, AT], "key_segments", 1),
    ("positions_from_segments", pe.positions_from_segments, [AT], "ids", 1),
    ("positions_from_mask", pe.positions_from_mask, [AT > 0], "mask", 1),
    ("positions_from_lengths", partial(pe.positions_from_lengths, total=64), [AT], "lengths", 1),
    ("shard_positions", lambda n: pe.shard_positions(64, 2, lengths=n), [AT], "lengths", 1),
    ("convert_layout", partial(pe.convert_layout, frequencies=8, source="half", target="interleaved", axis=-1, num_heads=1), [SQUARE], "weights", 1),
]  # fmt: skip
INDEX = {
    "phase": 2, "query": 0, "key": 1, "cos_sin": 2, "value": 2, "extrinsics": 1, "x": 0, "encodings": 0, "frequencies": -1, "table": 2, "matrix": 1, "positions": 0,
    "query_positions": 1, "key_positions": 1, "key_segments": 2, "ids": 0, "mask": 0, "lengths": 0, "weights": 0,
}  # fmt: skip
WHOLE = [(*case, INDEX[case[3]]) for case in WHOLE]
WHOLE += [(name, *case) for name, bias in EACH_BIAS.items() for case in bias.whole()]


@pytest.mark.parametrize(("where", "f", "arguments", "name", "axis", "index"), WHOLE)
def test_what_must_be_whole(mesh, where, f, arguments, name, axis, index):
    arguments = list(arguments)
    jax.eval_shape(f, *place(*arguments))
    split = P(*[None] * axis, D)
    arguments[index] = arguments[index], split
    message = f"{where}: {name} must not be sharded along axis {axis} on Explicit axes of a mesh"
    message = rf"^{message}, got P.*'data'.*; reshard it, or use jax.shard_map"
    with pytest.raises(ValueError, match=message):
        f(*place(*arguments))
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(f, *place(*arguments))


def test_the_page_names_every_function_with_an_argument_that_must_be_whole():
    named = [
        set(re.findall(r"`(\w+)`", functions)) for functions, _ in pages.rows("docs/devices.md", "on Explicit axes")
    ]
    assert {where for where, *_ in WHOLE} <= set().union(*named) <= set(pe.__all__)


# a call, its arguments, the index of one of them and its axis that may be split
SPLIT = [
    (partial(pe.rotary, layout="interleaved", head_axis=-2), [X, AT], 0, 3),
    (partial(pe.xpos, layout="interleaved", head_axis=-2), [X, X, AT], 1, 3),
    (IN_VIEW, [X, POSES, LENS], 0, 2),
    (IN_VIEW, [X, POSES, LENS], 1, 0),
    (partial(pe.shift, offset=3, frequencies=16), [X], 0, 3),
    (partial(pe.rotary, head_axis=-2), [X, GRID, np.ones((8, 2, 8), np.float32)], 2, 0),
    (by_cos_sin, [X, *2 * [np.ones((8, 16, 8), np.float32)]], 1, 0),
    (partial(pe.cos_sin, frequencies=8), [AT], 0, 0),
    (pe.cos_sin, [AT, ONES], 1, 0),
    (pe.sinusoidal, [AT, ONES], 1, 0),
    (pe.rotation_matrix, [AT, ONES], 1, 0),
    (partial(pe.fourier_features, layout="interleaved"), [SQUARE, SQUARE], 1, 1),
]
SPLIT += [case for bias in EACH_BIAS.values() for case in bias.split()]


def placed_split(arguments, index, axis):
    arguments = list(arguments)
    arguments[index] = arguments[index], P(*[None] * axis, D)
    return place(*arguments)


def check_split(f, arguments, index, axis):
    got = jax.tree.leaves(f(*placed_split(arguments, index, axis)))
    assert any(D in jax.typeof(y).sharding.spec for y in got)
    for a, b in zip(got, jax.tree.leaves(f(*arguments)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("f", "arguments", "index", "axis"), SPLIT)
def test_what_is_split_splits_the_result(mesh, f, arguments, index, axis):
    results = jax.eval_shape(f, *placed_split(arguments, index, axis))
    assert any(D in y.sharding.spec for y in jax.tree.leaves(results))


@pytest.mark.parametrize(
    ("f", "arguments", "index", "axis"), [x if i in (0, 3) else slow(*x) for i, x in enumerate(SPLIT)]
)
def test_what_may_be_split(mesh, f, arguments, index, axis):
    check_split(quick(f), arguments, index, axis)


@pytest.mark.slow
@pytest.mark.parametrize(("f", "arguments", "index", "axis"), SPLIT)
def test_what_may_be_split_by_eager_calls(mesh, f, arguments, index, axis):
    check_split(f, arguments, index, axis)


ROWS, OF_HEADS = P(D, None, H), P(None, None, H)
TABLE, Y = np.ones((16, 8), np.float32), X[:, :, 0]
# a call, its arguments as they may be split, and one of them split so that it fits no more; what the error names
APART = [
    (pe.sinusoidal, [(AT, P(H)), (ONES, P(D))], [(AT, P(D)), (ONES, P(D))], "positions, frequencies"),
    (pe.rotation_matrix, [(AT, P(H)), (ONES, P(D))], [(AT, P(None, D)), (ONES, P(D))], "offset, frequencies"),
    (partial(pe.fourier_features, layout="interleaved"), [(SQUARE, P(H)), (SQUARE, P(None, D))], [(SQUARE, P(D)), (SQUARE, P(None, D))], "x, matrix"),
    (pe.offset_similarity, [(AT, P(H)), (ONES, P(D))], [(AT, P(D)), (ONES, P(D))], "offset, frequencies"),
    (lambda x, p: pe.add_sinusoidal(x, p), [(Y, P(D)), (AT[0], P(H))], [(Y, P(D)), (AT[0], P(D))], "positions, x"),
    (partial(pe.rotary, head_axis=-2), [(X, ROWS), (AT, P(D))], [(X, ROWS), (AT, P(H))], "positions, x"),
    (partial(pe.rotary, head_axis=-2), [(X, P(None, D, H)), (AT[0], P(D))], [(X, P(None, D, H)), (AT[0], P(H))], "positions, x"),
    (partial(pe.rotary, head_axis=-3), [(X, P(D, H)), (AT[:1, :8], P())], [(X, P(D, H)), (AT[:1, :8], P(None, H))], "positions, x"),
    (lambda x, e: pe.prope(x, e, role="key", head_axis=-2), [(X, ROWS), (POSES, P(D))], [(X, ROWS), (POSES, P(H))], "extrinsics, x"),
    (partial(pe.pope, head_axis=-2), [(X, ROWS), (AT, P(D))], [(X, ROWS), (AT, P(H))], "positions, x"),
    (lambda x, d: pe.pope(x, phase=d, head_axis=-2), [(X, ROWS), (np.ones((8, 16), np.float32), P(H))], [(X, ROWS), (np.ones((8, 16), np.float32), P(D))], "phase, x"),
    (lambda x, p: pe.xpos(x, x, p, head_axis=-2), [(X, ROWS), (AT, P(D))], [(X, ROWS), (AT, P(None, D))], "positions, query"),
    (lambda x, p: pe.shift(x, p, 16), [(Y, P(D)), (AT[:, :1], P(D))], [(Y, P(D)), (AT[:, :1], P(H))], "offset, encodings"),
    (lambda x, i, j: pe.content_bias(i, j, SQUARE, query=x, first=0, out_of_range="zeros"), [(X[..., :8], P(None, D)), (AT, P(None, D)), (AT, P(None, H))], [(X[..., :8], P(None, H)), (AT, P(None, D)), AT], "query_positions, key_positions, query"),
    (content, [(X[..., :8], P(D)), (AT, P(D)), (np.ones((8, 8, 8), np.float32), P(None, H))], [(X[..., :8], P(H)), (AT, P(D)), (np.ones((8, 8, 8), np.float32), P(None, H))], "query_positions, key_positions, query, table"),
    (pe.learned, [(AT % 8, P(D)), (SQUARE, P(None, H))], [(AT % 8, P(None, D)), (SQUARE, P(None, D))], "positions, table"),
    (lambda x, t, p: pe.add_learned(x, t, p), [(Y[..., :8], P(D)), TABLE, (AT[0] % 8, P(H))], [(Y[..., :8], P(D)), TABLE, (AT[0] % 8, P(D))], "x, positions, table"),
    (pe.add_learned, [(Y[..., :8], P(H, D)), (TABLE, P(D))], [(Y[..., :8], P(H, D)), (TABLE, P(None, D))], "x, table"),
]  # fmt: skip
APART += [case for bias in EACH_BIAS.values() for case in bias.apart()]


@pytest.mark.slow
@pytest.mark.parametrize(("f", "fitting", "apart", "names"), APART)
def test_arguments_that_split_a_result_as_it_may_be(mesh, f, fitting, apart, names):
    plain = [x[0] if isinstance(x, tuple) else x for x in fitting]
    want = jax.tree.leaves(quick(f)(*plain))
    for a, b in zip(jax.tree.leaves(f(*place(*fitting))), want, strict=True):
        assert_within(a, b, 1e-5 * np.abs(b) + 1e-5, against="one device")


@pytest.mark.parametrize("program", [jax.jit, slow(lambda f: f)], ids=["jit", "eager"])
@pytest.mark.parametrize(("f", "fitting", "apart", "names"), APART)
def test_arguments_that_split_a_result_in_two_ways(mesh, f, fitting, apart, names, program):
    message = f"{names} must be sharded alike where they share an axis of the result, and over no Explicit axis"
    jax.eval_shape(f, *place(*fitting))
    with pytest.raises(ValueError, match=rf"^\w+: {message} of a mesh twice, got \("):
        program(f)(*place(*apart))


@pytest.mark.parametrize("documents", tiered([2, 3, 4], [3]))
def test_known_lengths_of_split_packs(mesh, documents):
    lengths = np.full((8, documents), 2, np.int32)
    (split,) = place((lengths, P(D)))
    both = lambda n: (pe.positions_from_lengths(n, 8), pe.shard_positions(8, 2, lengths=n))  # noqa: E731
    got, want = both(split), quick(both)(lengths)
    assert jax.typeof(got[0]).sharding.spec[0] == D
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="^positions_from_lengths: lengths must sum to at most total = 3, got"):
        pe.positions_from_lengths(split, 3)


def test_a_table_that_is_cut_must_be_whole(mesh):
    x, few, table = place((Y[..., :8], P(D)), (Y[:, :9, :8], P(D)), (TABLE, P(H)))
    np.testing.assert_array_equal(pe.add_learned(x, table), 2)
    with pytest.raises(ValueError, match="^add_learned: table must not be sharded along axis 0 on Explicit axes"):
        pe.add_learned(few, table)


@pytest.mark.parametrize(
    ("q", "k", "v", "positions", "message"),
    [
        (P(D), ROWS, P(D), P(D), "key must be sharded on Explicit axes of a mesh as query is, P.*, or not at all, got P"),
        (OF_HEADS, OF_HEADS, ROWS, P(), "value must be sharded on Explicit axes of a mesh as query is"),
        (OF_HEADS, P(), P(), P(D), "key_positions must be sharded on .* as key is, .*, or not at all"),
    ],
)  # fmt: skip
def test_attention_wants_one_sharding(mesh, q, k, v, positions, message):
    operands = [(X, spec) for spec in (q, k, v)]
    with pytest.raises(ValueError, match=rf"^attention: {message}"):
        q, k, v, i, j = place(*operands, AT, (AT, positions))
        pe.attention(q, k, v, query_positions=i, key_positions=j)


def test_attention_of_more_parts_than_heads_of_keys(mesh):
    message = (
        "heads of key must be as many as query's are split into on Explicit axes of a mesh, 4, or a multiple, or one"
    )
    for q, k in (place((X, ROWS), X[:, :, :2]), place((X[0], P(*ROWS[1:])), X[0, :, :2])):
        with pytest.raises(ValueError, match=rf"^attention: the {message}, got 2$"):
            pe.attention(q, k, k)


@pytest.mark.parametrize("slopes", [P(H), P(D)])
def test_attention_wants_a_bias_as_its_queries(mesh, slopes):
    q, m = place((X, P(D)), (ONES, slopes))
    message = r"a tile of bias must be sharded .* as query is, P\('data', None, None, None\), or not at all, got P"
    with pytest.raises(ValueError, match=f"^attention: {message}"):
        pe.attention(q, q, q, bias=lambda i, j: pe.alibi(i, j, m))


def check_more_leading_axes(program, specs):
    x = np.random.default_rng(0).normal(size=(4, 8, 17, 8, 4)).astype(np.float32)
    f = partial(pe.attention, causal=True, block_size=8, bias=partial(pe.alibi, heads=8))
    (q,) = place((x, P(None, D, None, H)))
    with pytest.raises(ValueError, match=r"^attention: the leading axes of query must be sharded on .*; use jax.vmap"):
        f(q, q, q)
    y = program(jax.vmap(f))(q, q, q)
    assert y.sharding.is_equivalent_to(q.sharding, 5)
    y = np.asarray(y)
    for spec in specs:
        (first,) = place((x, spec))
        assert_within(
            program(f)(first, first, first), y, 1e-6, against=f"jax.vmap over the first axis, split by {spec}"
        )
    (one,) = place((x[:1], P(None, D)))  # an axis of one is none
    assert_within(program(f)(one, one, one), y[:1], 1e-6, against="jax.vmap over the first axis, of one")


@pytest.mark.parametrize("specs", [[P(D, None, None, H)], slow([P(D)])], ids=str)
def test_attention_with_more_leading_axes(mesh, specs):
    check_more_leading_axes(quick, specs)


@pytest.mark.slow
def test_eager_attention_with_more_leading_axes(mesh):
    check_more_leading_axes(lambda f: f, [P(D, None, None, H), P(D)])


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_eager_derivative_by_slopes_that_are_split(causal):
    x, slopes = np.random.default_rng(0).normal(size=(8, 17, 8, 4)).astype(np.float32), 0.1 + 0.1 * np.arange(8)

    def derivative(q, m):
        return jax.grad(
            lambda m: jnp.sum(
                pe.attention(q, q, q, bias=lambda i, j: pe.alibi(i, j, m), causal=causal, block_size=8) ** 2
            )
        )(m)

    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        q, m = place((x, ROWS), (slopes.astype(np.float32), P(H)))
        got = derivative(q, m)
    assert got.sharding.is_equivalent_to(m.sharding, 1) and np.all(np.abs(got) > 1e-3)
    want = quick(derivative)(x, slopes.astype(np.float32))
    assert_within(got, want, 1e-5 * np.abs(want), against="one device, under jit")


to_alibi = partial(pe.attention, causal=True, block_size=8, bias=partial(pe.alibi, heads=8))


def derivatives(q, k, v, dy):
    y, transpose = jax.vjp(to_alibi, q, k, v)
    return y, *transpose(dy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kv_heads", "q_spec", "k_spec", "v_spec", "collectives"),
    [
        slow(8, ROWS, P(D), P(), {"all-gather"}),  # of the keys' derivative
        slow(4, ROWS, ROWS, OF_HEADS, {"all-gather"}),
        (1, ROWS, P(D), P(D), {"all-reduce"}),  # over the heads that share a key
        slow(1, OF_HEADS, P(), P(), {"all-reduce"}),
        slow(1, P(D), P(D), P(D), set()),
    ],
)
def test_attention_to_keys_that_are_whole(mesh, kv_heads, q_spec, k_spec, v_spec, collectives):
    rng = np.random.default_rng(0)
    q, dy, k, v = (rng.normal(size=(8, 17, heads, 4)).astype(np.float32) for heads in (8, 8, kv_heads, kv_heads))
    with jax.set_mesh(None):
        want = quick(derivatives)(q, k, v, dy)
    placed = place((q, q_spec), (k, k_spec), (v, v_spec), (dy, q_spec))
    compiled = quick(derivatives).lower(*placed).compile()
    assert set(Compiled(compiled.as_text(), 0, 0).collectives[0]) == collectives
    results = zip(("y", "dq", "dk", "dv"), compiled(*placed), want, (placed[0], *placed[:3]), strict=True)
    for name, a, b, like in results:
        assert a.sharding.is_equivalent_to(like.sharding, a.ndim)
        assert_within(a, b, 2e-6, against=f"one device: {name}")
    forward = quick(to_alibi).lower(*placed[:3]).compile().as_text()
    assert Compiled(forward, 0, 0).collectives == ([], [])


OF_ATTENTION = {
    "none": None,
    "t5": lambda i, j: pe.t5(i, j, np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)),
    "sandwich": lambda i, j: pe.sandwich(i, j, 8, 16),
}


def attend(q, i, j, bias, causal):
    sides = {"query_positions": i, "key_positions": j, "causal": causal}
    return pe.attention(q, q, q, bias=OF_ATTENTION[bias], block_size=8, **sides)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(("bias", "i_spec"), [("none", P(D)), ("t5", P(D)), ("sandwich", P())])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_rows_with_positions_of_their_own(bias, i_spec, kind, causal):
    rng = np.random.default_rng(0)
    q, i = rng.normal(size=(8, 17, 8, 4)).astype(np.float32), rng.integers(0, 99, (8, 17)).astype(np.int32)
    want = quick(partial(attend, bias=bias, causal=causal))(q, i, i)
    with jax.set_mesh(mesh_of(kind)):
        arguments = place((q, ROWS), (i, i_spec), (i, P(D)))
        compiled = quick(partial(attend, bias=bias, causal=causal)).lower(*arguments).compile()
        assert_within(compiled(*arguments), want, 1e-6, against="one device")
    found = Compiled(compiled.as_text(), 0, 0).collectives
    assert {*found[0], *found[1]} == ({"all-reduce"} if causal else set())
    # Whether a tile is passed over is asked of all rows; nothing else is.
    assert {*re.findall(r"= (.+?) all-reduce\(", compiled.as_text())} == ({"pred[]"} if causal else set())
