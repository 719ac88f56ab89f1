"""Modules of the biases, Fourier features and timesteps: both stacks, the same parameters, the same numbers."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
import posenc_jax.linen as linen
import posenc_jax.nnx as nnx_modules
from helpers.closeness import assert_within
from helpers.modules import content_by_loops, drawn
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles.biases import softplus, twice_sigmoid

KEY = jax.random.key(0)
QUERIES = np.array([[3, 4, 5], [2_000_000_000, 7, 0]], np.int32)
KEYS = np.array([0, 1, 5, 900, 2_000_000_001], np.int32)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 2)).astype(np.float32)


def free_kerple(p, second):
    return np.float32(softplus(p["free_r1"])), np.float32(second(p["free_r2"]))


def fire(p, q, k, start=512.0):
    mlp = p["kernel1"][0], p["bias1"], p["kernel2"], p["bias2"]
    return pe.fire(q, k, mlp, c=float(softplus(p["free_c"])), threshold=start * float(softplus(p["free_multiplier"])))


FREE = {"free_r1": (3,), "free_r2": (3,)}
# name, positional settings, settings, its call in terms of the functions, shapes of the parameters
BIASES = [
    ("ALiBi", (6,), {}, lambda p, q, k: pe.alibi(q, k, 6), {}),
    ("T5Bias", (3,), {}, lambda p, q, k: pe.t5(q, k, p["embedding"]), {"embedding": (32, 3)}),
    (
        "T5Bias",
        (3,),
        {"num_buckets": 8, "max_distance": 20, "bidirectional": False},
        lambda p, q, k: pe.t5(q, k, p["embedding"], max_distance=20, bidirectional=False),
        {"embedding": (8, 3)},
    ),
    (
        "RelativePositionBias",
        ((2_000,), 3),
        {"out_of_range": "zeros"},
        lambda p, q, k: pe.relative_position_bias(q, k, p["embedding"], out_of_range="zeros"),
        {"embedding": (3999, 3)},
    ),
    (
        "RelativePositionBias",
        ([901], 3),
        {"out_of_range": "zeros", "symmetric": True, "class_token": True},
        lambda p, q, k: pe.relative_position_bias(
            q, k, p["embedding"], prefix=p["prefix"], symmetric=True, out_of_range="zeros"
        ),
        {"embedding": (901, 3), "prefix": (3, 3)},
    ),
    (
        "ContentBias",
        (5, 4),
        {"source": "query", "scale": 0.3, "out_of_range": "nearest"},
        lambda p, q, k, x, _: 0.3 * pe.content_bias(q, k, p["embedding"], query=x, out_of_range="nearest"),
        {"embedding": (5, 4)},
    ),
    (
        "ContentBias",
        (8, 4),
        {"source": "key", "scale": 2, "num_heads": 3, "max_distance": 900},
        lambda p, q, k, _, x: 2 * pe.content_bias(q, k, p["embedding"], key=x, max_distance=900),
        {"embedding": (8, 3, 4)},
    ),
    ("KERPLE", (3,), {}, lambda p, q, k: pe.kerple_log(q, k, *free_kerple(p, softplus)), FREE),
    ("KERPLE", (3,), {"variant": "power"}, lambda p, q, k: pe.kerple_power(q, k, *free_kerple(p, twice_sigmoid)), FREE),
    (
        "FIRE",
        (3,),
        {"hidden": 8, "threshold": 30.0},
        lambda p, q, k: fire(p, q, k, 30.0),
        {
            "kernel1": (1, 8),
            "bias1": (8,),
            "kernel2": (8, 3),
            "bias2": (3,),
            "free_c": (),
            "free_multiplier": (),
        },
    ),
]
EACH = pytest.mark.parametrize(("name", "sizes", "settings", "function", "shapes"), BIASES, ids=lambda x: str(x)[:20])


def called_with(name, q, k):
    """Positions; `ContentBias` takes the queries and keys of three heads too."""
    draw = np.random.default_rng(2)
    content = [draw.normal(size=(*x.shape, 3, 4)).astype(np.float32) for x in (q, k)]
    return q, k, *(content if name == "ContentBias" else [])


def heads_of(name, sizes):
    return 3 if name == "ContentBias" else sizes[-1]


def made(name, *args, **settings):
    """Of NNX; rngs where the module takes them."""
    kind = getattr(nnx_modules, name)
    return (
        kind(*args, **settings) if name in ("ALiBi", "TimestepEmbedding") else kind(*args, **settings, rngs=nnx.Rngs(0))
    )


def parameters(module):
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def in_both(module, same, *arrays, variables=None):
    """What both stacks compute of the arrays with a module's parameters, in one program."""
    graphdef, state = nnx.split(module)
    variables = {"params": parameters(module)} if variables is None else variables
    both = lambda state, variables, *arrays: (nnx.merge(graphdef, state)(*arrays), same.apply(variables, *arrays))  # noqa: E731  # fmt: skip
    return jax.jit(both)(state, variables, *arrays)


def drawn_in_both(name, *sizes, **settings):
    """The parameters that NNX and Linen draw, each in a program of its own."""
    yield quick(lambda: parameters(made(name, *sizes, **settings)))()
    yield quick(getattr(linen, name)(*sizes, **settings).init)(KEY, np.arange(2), np.arange(1))["params"]


@EACH
def test_is_the_function_in_both_stacks(name, sizes, settings, function, shapes):
    module = drawn(lambda: made(name, *sizes, **settings), RNG)
    same = getattr(linen, name)(*sizes, **settings)
    p = parameters(module)
    assert {n: x.shape for n, x in p.items()} == shapes
    arrays = called_with(name, QUERIES, KEYS)
    tile = [x[at] for x, at in zip(arrays, [np.s_[:, 1:], np.s_[2:4]] * 2, strict=False)]
    begun = jax.eval_shape(same.init, KEY, *arrays).get("params", {})
    assert jax.tree.map(lambda x: (x.shape, x.dtype), begun) == jax.tree.map(lambda x: (x.shape, x.dtype), p)
    graphdef, state = nnx.split(module)

    @jax.jit
    def compute(state, p, arrays, tile):
        m = nnx.merge(graphdef, state)
        return m(*arrays), same.apply({"params": p}, *arrays), m(*tile), function(parameters(module), *arrays)

    got, of_linen, part, want = map(np.asarray, compute(state, p, arrays, tile))
    assert got.dtype == jnp.float32 and got.shape == (2, heads_of(name, sizes), 3, 5)
    np.testing.assert_array_equal(of_linen, got)
    exact = name not in ("FIRE", "ContentBias")
    assert_within(part, got[..., 1:, 2:4], 0 if exact else 1e-6, against="the whole bias's tile")
    # A GPU's power of 10¹¹ is off by more than a CPU's.
    relative = 5e-6 if settings == {"variant": "power"} and jax.default_backend() != "cpu" else 2e-6
    assert_within(got, want, relative * np.abs(want) + 1e-6, against="the function")


@pytest.mark.slow
@EACH
def test_has_the_same_bits_without_jit(name, sizes, settings, function, shapes):
    module, same = made(name, *sizes, **settings), getattr(linen, name)(*sizes, **settings)
    arrays = called_with(name, QUERIES, KEYS)
    got = module(*arrays)
    np.testing.assert_array_equal(same.apply({"params": parameters(module)}, *arrays), got)
    np.testing.assert_array_equal(nnx.jit(lambda m, *arrays: m(*arrays))(module, *arrays), got)


@pytest.mark.slow
@EACH
def test_all_parameters_and_nothing_else_is_learned(name, sizes, settings, function, shapes):
    module = made(name, *sizes, **settings)
    graphdef, state = nnx.split(module)
    assert set(nnx.to_pure_dict(state)) == set(shapes)
    assert nnx.graphdef(made(name, *sizes, **settings)) == graphdef  # settings are values
    weight = np.random.default_rng(1).normal(size=(heads_of(name, sizes), 4, 40)).astype(np.float32)
    arrays = called_with(name, np.arange(20, 24), np.arange(-1, 39))

    def loss(b):
        return jnp.sum(b * weight)

    same = getattr(linen, name)(*sizes, **settings)

    @quick
    def gradients(state):
        of_linen = jax.grad(lambda p: loss(same.apply({"params": p}, *arrays)))(nnx.to_pure_dict(state))
        return nnx.to_pure_dict(nnx.grad(lambda m: loss(m(*arrays)))(nnx.merge(graphdef, state))), of_linen

    grads, wanted = gradients(state)
    assert set(grads) == set(shapes)
    for n in shapes:
        assert np.all(np.isfinite(grads[n])) and np.any(np.asarray(grads[n]) != 0), n
        assert_within(grads[n], wanted[n], 1e-5 * np.abs(wanted[n]), against=f"Linen's derivative by {n}")


@pytest.mark.parametrize(("variant", "first", "second"), [slow("log", 2, 1), ("power", 1, 2)])
def test_kerple_begins_as_the_authors_do(variant, first, second):
    for p in drawn_in_both("KERPLE", 20_000, variant=variant):
        r1, r2 = softplus(p["free_r1"]), (twice_sigmoid if variant == "power" else softplus)(p["free_r2"])
        for values, high in ((r1, first), (r2, second)):
            assert 0.0099 < values.min() < 0.02 and 0.99 * high < values.max() < high
            quartiles = np.array([1, 2, 3]) * high / 4
            assert_within(np.quantile(values, [0.25, 0.5, 0.75]), quartiles, 0.03, against="a uniform distribution")
        assert not np.any(np.asarray(p["free_r1"]) == np.asarray(p["free_r2"]))


@pytest.mark.slow
def test_fire_begins_as_the_authors_do():
    for p in drawn_in_both("FIRE", 2000):
        assert softplus(p["free_c"]) == pytest.approx(0.1, rel=1e-6)
        assert softplus(p["free_multiplier"]) == pytest.approx(1, rel=1e-6)
        assert np.abs(p["kernel2"]).max() == pytest.approx(32**-0.5, rel=1e-3)
        assert np.std(np.asarray(p["kernel2"])) == pytest.approx((32 * 3) ** -0.5, rel=1e-2)
        assert 0.8 < np.abs(p["kernel1"]).max() < 1 and 0.8 < np.abs(p["bias1"]).max() < 1
    of_c = quick(lambda: {c: made("FIRE", 2, c=c).free_c[...] for c in (1e-6, 0.1, 3.0, 800.0)})()
    for c, free in of_c.items():
        assert softplus(free) == pytest.approx(c, rel=1e-5)


def test_t5_begins_as_t5x_does():
    table = np.asarray(next(drawn_in_both("T5Bias", 400))["embedding"])
    assert np.std(table) == pytest.approx((2 / 432) ** 0.5, rel=0.02)
    assert np.abs(table).max() == pytest.approx((6 / 432) ** 0.5, rel=1e-3)  # uniform


@pytest.mark.parametrize(
    ("name", "init", "of"),
    [
        ("T5Bias", {"embedding_init": 2}, {"embedding": "embedding_metadata"}),
        ("ContentBias", {"embedding_init": 3}, {"embedding": "embedding_metadata"}),
        ("KERPLE", {"r1_init": 1, "r2_init": 1}, {"free_r1": "metadata", "free_r2": "metadata"}),
        slow(
            "FIRE",
            {"kernel_init": 2, "bias_init": 1},
            {n: f"{n[:-1]}_metadata" for n in ("kernel1", "kernel2", "bias1", "bias2")},
        ),
    ],
)
def test_initialisers_dtype_and_metadata_pass_through(name, init, of):
    content = {"source": "query", "scale": 1.0, "out_of_range": "nearest", "num_heads": 3}
    sizes, settings = ((5, 4), content) if name == "ContentBias" else ((4,), {})
    arrays = called_with(name, QUERIES, KEYS)
    inits = dict.fromkeys(init, lambda key, shape, dtype: np.full(shape, 0.5, dtype))
    metadata = {of_name: {"role": "positions"} for of_name in of.values()}
    module = nnx.jit(lambda: made(name, *sizes, **settings, param_dtype=jnp.bfloat16, **inits, **metadata))()
    boxed = {
        n: nn.with_partitioning(inits[n], ("rows", "heads", None)[:rank] if rank == 3 else (None, "heads")[-rank:])
        for n, rank in init.items()
    }
    same = getattr(linen, name)(*sizes, **settings, param_dtype=jnp.bfloat16, **boxed)
    variables = quick(same.init)(KEY, *arrays)
    specs = nn.get_partition_spec(variables)["params"]
    for n in of:
        assert getattr(module, n).role == "positions"
        np.testing.assert_array_equal(np.asarray(getattr(module, n)[...], np.float32), 0.5)
        assert "heads" in specs[n]
    assert {x.dtype for x in jax.tree.leaves(variables)} == {np.dtype(jnp.bfloat16)}
    got, of_linen = in_both(module, same, *arrays, variables=variables)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(of_linen, got)


# Settings, and how the loops are told of them; an offset without a row has the nearest one where `outside` is None.
CONTENT = {
    "one table, of queries": (
        {"source": "query", "scale": 8**-0.5, "out_of_range": "nearest"},
        {"of": "query", "first": -2, "outside": None},
    ),
    "a table a head, of keys": (
        {"source": "key", "scale": 0.7, "num_heads": 2, "first": -3, "out_of_range": "zeros"},
        {"of": "key", "first": -3, "outside": 0.0},
    ),
}


def test_content_bias_is_that_of_loops_in_both_stacks():
    i, j = np.array([0, 7, 3], np.int32), np.array([4, 2, 3, 12, 0], np.int32)
    q, k = RNG.normal(size=(2, 3, 2, 8)).astype(np.float32), RNG.normal(size=(2, 5, 2, 8)).astype(np.float32)
    weight = RNG.normal(size=(2, 2, 3, 5)).astype(np.float32)
    modules = {n: drawn(lambda s=s: made("ContentBias", 5, 8, **s), RNG) for n, (s, _) in CONTENT.items()}
    tables = {n: np.asarray(module.embedding[...]) for n, module in modules.items()}

    def of_linen(n, table):
        return linen.ContentBias(5, 8, **CONTENT[n][0]).apply({"params": {"embedding": table}}, i, j, q, k)

    @quick
    def compute(tables):
        loss = lambda table, n: jnp.sum(of_linen(n, table) * weight)  # noqa: E731
        return {n: (m(i, j, q, k), of_linen(n, tables[n]), jax.grad(loss)(tables[n], n)) for n, m in modules.items()}

    for n, (got, same, slope) in compute(tables).items():
        settings, told = CONTENT[n]
        scale, x = settings["scale"], q if settings["source"] == "query" else k
        loops = lambda table, x=x, told=told: content_by_loops(i, j, x, table, **told)  # noqa: E731
        want = scale * loops(tables[n])
        assert_within(got, want, 1e-6, against=f"loops in float64, {n}")
        assert_within(same, want, 1e-6, against=f"loops in float64, {n}, Linen")
        wrong = {
            "rows in the order of j − i": scale * loops(tables[n][::-1]),
            "heads swapped": scale * loops(tables[n], x[:, :, ::-1]),
            "a row further": scale * loops(tables[n], told=told | {"first": told["first"] + 1}),
            "no scale": loops(tables[n]),
        }
        for what, other in wrong.items():
            assert np.abs(np.asarray(got) - other).max() > 0.1, (n, what)
        units = np.eye(tables[n].size).reshape(-1, *tables[n].shape)
        slopes = np.reshape([scale * np.sum(loops(unit) * weight) for unit in units], tables[n].shape)
        assert_within(slope, slopes, 1e-5, against=f"the derivative of loops, {n}")


def test_content_bias_begins_as_other_tables_do():
    default = inspect.signature(nnx_modules.ContentBias.__init__).parameters["embedding_init"].default
    assert default is linen.ContentBias.embedding_init is linen.LearnedEncoding.embedding_init  # deviation 0.02


@pytest.mark.parametrize("learned", [slow(False), True])
def test_fourier_features(learned):
    settings = {"scale": 10.0, "learned": learned, "layout": "interleaved", "dtype": jnp.bfloat16}
    module, same = (
        drawn(lambda: made("FourierFeatures", 2, 5, **settings), RNG),
        linen.FourierFeatures(2, 5, **settings),
    )
    collection = "params" if learned else "constants"
    variables = {collection: {"matrix": module.matrix[...]}}
    got, of_linen = in_both(module, same, X, variables=variables)
    want = pe.fourier_features(X, module.matrix[...], layout="interleaved", dtype=jnp.bfloat16)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(of_linen, want)
    first, second = quick(lambda keys: [same.init(key, X) for key in keys])([KEY, jax.random.key(1)])
    assert jax.tree.structure(first) == jax.tree.structure(variables)
    assert np.any(np.asarray(first[collection]["matrix"]) != np.asarray(second[collection]["matrix"]))
    graphdef, state = nnx.split(module)
    grads = jax.eval_shape(lambda s: nnx.grad(lambda m: m(X).astype(jnp.float32).sum())(nnx.merge(graphdef, s)), state)
    assert set(nnx.to_pure_dict(grads)) == ({"matrix"} if learned else set())
    assert set(nnx.to_pure_dict(nnx.state(module))) == {"matrix"}
    assert set(parameters(module)) == ({"matrix"} if learned else set())


def test_kerple_begins_at_least_a_hundredth_from_its_limits():
    """As the authors' code: r₁ of the power variant within (0.01, 1), its exponent r₂ within (0.01, 1.99)."""
    module = quick(lambda: parameters(made("KERPLE", 2**20, variant="power")))()
    found = softplus(module["free_r1"]), twice_sigmoid(module["free_r2"])
    for values, ends in zip(found, [(0.01, 1), (0.01, 1.99)], strict=True):
        assert_within([values.min(), values.max()], ends, [7e-6, 2e-5], against="the ends of the interval")


def test_the_fourier_matrix_is_gaussian():
    for matrix in (
        quick(lambda: made("FourierFeatures", 100, 200, scale=10.0).matrix[...])(),
        quick(linen.FourierFeatures(100, 200, scale=10.0).init)(KEY, np.zeros((1, 100), np.float32))["constants"][
            "matrix"
        ],
    ):
        values = np.sort(np.asarray(matrix).ravel())
        assert np.std(values) == pytest.approx(10, rel=0.02) and abs(np.mean(values)) < 0.3
        assert np.mean(np.abs(values) < 10) == pytest.approx(0.6827, abs=0.01)
    settings = {"scale": 1.0, "param_dtype": jnp.bfloat16, "matrix_metadata": {"role": "b"}}
    module = nnx.eval_shape(lambda: made("FourierFeatures", 2, 3, **settings))
    assert module.matrix.dtype == jnp.bfloat16 and module.matrix.role == "b"


@pytest.mark.parametrize(
    "settings",
    [{}, {"flip_sin_to_cos": True, "downscale_freq_shift": 0, "scale": 3.0, "max_period": 50.0, "dtype": jnp.bfloat16}],
    ids=str,
)
def test_timestep_embedding(settings):
    t = np.array([[0.0, 0.5], [999.0, 3.0]], np.float32)
    want = pe.timestep_embedding(t, 9, **settings)
    module, same = nnx_modules.TimestepEmbedding(9, **settings), linen.TimestepEmbedding(9, **settings)
    np.testing.assert_array_equal(module(t), want)
    np.testing.assert_array_equal(same.apply({}, t), want)
    assert same.init(KEY, t) == {} and jax.tree.leaves(nnx.state(module)) == []
    assert nnx.graphdef(module) == nnx.graphdef(nnx_modules.TimestepEmbedding(9, **settings))
    assert module(t).dtype == same.apply({}, t).dtype == want.dtype


TERM = {"source": "query", "scale": 1.0}


@pytest.mark.parametrize("stack", ["nnx", "linen"])
@pytest.mark.parametrize(
    ("name", "args", "settings", "error", "match"),
    [
        ("ALiBi", (0,), {}, ValueError, "ALiBi: num_heads must be at least 1, got 0"),
        ("ALiBi", (np.ones(3),), {}, TypeError, "ALiBi: num_heads must be an integer"),
        ("T5Bias", (2.0,), {}, TypeError, "T5Bias: num_heads must be an integer"),
        ("T5Bias", (2,), {"num_buckets": 0}, ValueError, "T5Bias: num_buckets must be at least 1"),
        ("T5Bias", (2,), {"max_distance": 0}, ValueError, "T5Bias: max_distance must be at least 1"),
        ("T5Bias", (2,), {"bidirectional": 1}, TypeError, "T5Bias: bidirectional must be True or False"),
        ("T5Bias", (2,), {"param_dtype": int}, TypeError, "T5Bias: param_dtype must be a float dtype"),
        ("RelativePositionBias", ((0, 3), 2), {}, ValueError, r"RelativePositionBias: window\[0\] must be at least 1"),
        ("RelativePositionBias", (3, 2), {}, TypeError, "RelativePositionBias: window must be a sequence of integers"),
        ("RelativePositionBias", ((3,), 0), {}, ValueError, "RelativePositionBias: num_heads must be at least 1"),
        ("RelativePositionBias", ((3,), 2), {"symmetric": 1}, TypeError, "RelativePositionBias: symmetric must be True or False"),
        ("RelativePositionBias", ((3,), 2), {"flat": 1}, TypeError, "RelativePositionBias: flat must be True or False"),
        ("RelativePositionBias", ((3,), 2), {"class_token": 1}, TypeError, "RelativePositionBias: class_token must be True or False"),
        ("RelativePositionBias", ((3,), 2), {"out_of_range": "clip"}, ValueError, "RelativePositionBias: out_of_range must be one of"),
        ("RelativePositionBias", ((3,), 2), {"param_dtype": int}, TypeError, "RelativePositionBias: param_dtype must be a float dtype"),
        ("ContentBias", (0, 4), TERM, ValueError, "ContentBias: num_rows must be at least 1, got 0"),
        ("ContentBias", (5.0, 4), TERM, TypeError, "ContentBias: num_rows must be an integer, got float 5.0"),
        ("ContentBias", (2**30 + 1, 4), TERM, ValueError, "ContentBias: num_rows must be below 2³⁰, got 1073741825"),
        ("ContentBias", (5, 0), TERM, ValueError, "ContentBias: head_dim must be at least 1, got 0"),
        ("ContentBias", (5, np.ones(1)), TERM, TypeError, "ContentBias: head_dim must be an integer"),
        ("ContentBias", (5, 4), {"scale": 1.0}, TypeError, "'?source'?$"),
        ("ContentBias", (5, 4), {"source": "key"}, TypeError, "'?scale'?$"),
        ("ContentBias", (5, 4), TERM | {"source": "value"}, ValueError, r"ContentBias: source must be one of \('query', 'key'\), got 'value'"),
        ("ContentBias", (5, 4), TERM | {"source": None}, ValueError, "ContentBias: source must be one of .* got None"),
        ("ContentBias", (5, 4), TERM | {"scale": "1"}, TypeError, "ContentBias: scale must be a number, got str '1'"),
        ("ContentBias", (5, 4), TERM | {"scale": np.ones(2)}, TypeError, "ContentBias: scale must be a number"),
        ("ContentBias", (5, 4), TERM | {"scale": float("nan")}, ValueError, "ContentBias: scale must be finite, got nan"),
        ("ContentBias", (5, 4), TERM | {"scale": 1e39}, ValueError, r"ContentBias: scale must fit into float32, got 1e\+39"),
        ("ContentBias", (5, 4), TERM | {"num_heads": 0}, ValueError, "ContentBias: num_heads must be at least 1, got 0"),
        ("ContentBias", (5, 4), TERM | {"num_heads": True}, TypeError, "ContentBias: num_heads must be an integer"),
        ("ContentBias", (4, 4), TERM, ValueError, "ContentBias: first must be given for a table with an even number of rows, 4, got None"),
        ("ContentBias", (4, 4), TERM | {"first": 0.5}, TypeError, "ContentBias: first must be an integer, got float 0.5"),
        ("ContentBias", (4, 4), TERM | {"first": 2**30 + 1}, ValueError, "ContentBias: first must be from"),
        ("ContentBias", (4, 4), TERM | {"max_distance": 9}, ValueError, "ContentBias: table must have an even number of rows, .* with max_distance, got 4"),
        ("ContentBias", (8, 4), TERM | {"max_distance": 3}, ValueError, "ContentBias: max_distance must be above 3 .* got 3"),
        ("ContentBias", (8, 4), TERM | {"max_distance": 9.0}, TypeError, "ContentBias: max_distance must be an integer"),
        ("ContentBias", (8, 4), TERM | {"max_distance": 9, "first": -4}, ValueError, "ContentBias: first must not be given with max_distance, got -4"),
        ("ContentBias", (8, 4), TERM | {"max_distance": 9, "out_of_range": "nearest"}, ValueError, "ContentBias: out_of_range must not be given with max_distance, got 'nearest'"),
        ("ContentBias", (5, 4), TERM | {"out_of_range": "clip"}, ValueError, "ContentBias: out_of_range must be one of"),
        ("ContentBias", (5, 4), TERM | {"param_dtype": int}, TypeError, "ContentBias: param_dtype must be a float dtype"),
        ("KERPLE", (0,), {}, ValueError, "KERPLE: num_heads must be at least 1"),
        ("KERPLE", (2,), {"variant": "exp"}, ValueError, "KERPLE: variant must be one of .* got 'exp'"),
        ("KERPLE", (2,), {"param_dtype": int}, TypeError, "KERPLE: param_dtype must be a float dtype"),
        ("FIRE", (-1,), {}, ValueError, "FIRE: num_heads must be at least 1"),
        ("FIRE", (2,), {"hidden": 0}, ValueError, "FIRE: hidden must be at least 1"),
        ("FIRE", (2,), {"c": 0}, ValueError, "FIRE: c must be positive"),
        ("FIRE", (2,), {"threshold": -1.0}, ValueError, "FIRE: threshold must be positive"),
        ("FIRE", (2,), {"c": 1e-300}, ValueError, "FIRE: c must be from 1.2e-38 to .* for float32, got 1e-300"),
        ("FIRE", (2,), {"c": 1e-20, "threshold": 1e-20}, ValueError, "FIRE: c times the threshold must be from 1.2e-38 to .* for float32, got 1e-40"),
        ("FIRE", (2,), {"threshold": 1e-39}, ValueError, "FIRE: threshold must be from 1.2e-38 to .* for float32, got 1e-39"),
        ("FIRE", (2,), {"threshold": np.ones(2)}, TypeError, "FIRE: threshold must be a number"),
        ("FIRE", (2,), {"param_dtype": int}, TypeError, "FIRE: param_dtype must be a float dtype"),
        ("FourierFeatures", (0, 2), {"scale": 1.0}, ValueError, "FourierFeatures: in_features must be at least 1"),
        ("FourierFeatures", (2, 0), {"scale": 1.0}, ValueError, "FourierFeatures: num_features must be at least 1"),
        ("FourierFeatures", (2, 2), {"scale": 0.0}, ValueError, "FourierFeatures: scale must be positive"),
        ("FourierFeatures", (2, 2), {}, TypeError, "scale"),
        ("FourierFeatures", (2, 2), {"scale": 1.0, "learned": "no"}, TypeError, "learned must be True or False"),
        ("FourierFeatures", (2, 2), {"scale": 1.0, "layout": "x"}, ValueError, "FourierFeatures: layout must be one of"),
        ("FourierFeatures", (2, 2), {"scale": 1.0, "dtype": int}, TypeError, "FourierFeatures: dtype must be a float"),
        ("TimestepEmbedding", (-1,), {}, ValueError, "timestep_embedding: dim must be at least 0"),
        ("TimestepEmbedding", (8,), {"scale": np.ones(2)}, TypeError, "timestep_embedding: scale must be a number"),
        ("TimestepEmbedding", (8,), {"downscale_freq_shift": 4}, ValueError, "downscale_freq_shift must be below"),
        ("TimestepEmbedding", (8,), {"dtype": int}, TypeError, "timestep_embedding: dtype must be a float dtype"),
        ("FourierFeatures", (2, 2), {"scale": 1.0, "param_dtype": int}, TypeError, "FourierFeatures: param_dtype must be a float"),
    ],
)  # fmt: skip
def test_bad_settings(stack, name, args, settings, error, match):
    with pytest.raises(error, match=match):
        made(name, *args, **settings) if stack == "nnx" else getattr(linen, name)(*args, **settings)


@pytest.mark.parametrize("class_token", tiered([False, True], [True]))
def test_a_bias_of_offsets_by_the_index_of_a_token(class_token):
    settings = {"class_token": class_token, "flat": True}
    module = drawn(lambda: made("RelativePositionBias", (2, 3, 4), 2, **settings), RNG)
    same, p = linen.RelativePositionBias((2, 3, 4), 2, **settings), parameters(module)
    grid = np.indices((2, 3, 4), np.int32).reshape(3, -1).T
    tokens = np.pad(grid, ((int(class_token), 0), (0, 0)), constant_values=-1)
    index = np.arange(len(tokens)).reshape(-1, 5) if class_token else np.arange(24).reshape(2, 12)
    want = pe.relative_position_bias(tokens[index], tokens, p["embedding"], prefix=p.get("prefix"))
    known = jax.jit(lambda: (module(index, np.arange(len(tokens))), same.apply({"params": p}, index, np.arange(len(tokens)))))()  # fmt: skip
    for got in (*known, *in_both(module, same, index, np.arange(len(tokens)))):
        np.testing.assert_array_equal(got, want)
    for call in (module, lambda *at: same.apply({"params": p}, *at)):
        with pytest.raises(ValueError, match="relative_position_bias: .* at most 1 in coordinate 0 for this table, got 2"):  # fmt: skip
            jax.jit(lambda call=call: call(np.arange(class_token, 30), np.arange(class_token, 4)))()
        with pytest.raises(
            ValueError, match="query_positions must be one number for each token, .* got the coordinates"
        ):
            call(np.indices((2, 3)).reshape(2, -1).T, np.arange(3))
        with pytest.raises(TypeError, match="key_positions must be an array of signed integers, got uint32"):
            jax.eval_shape(call, np.arange(3), np.arange(3, dtype=np.uint32))

    def layer():
        attend = nnx_modules.positional_attention(bias=made("RelativePositionBias", (2, 3, 4), 2, **settings))
        return nnx.MultiHeadAttention(2, 8, attention_fn=attend, decode=False, rngs=nnx.Rngs(0))

    graphdef, state = nnx.split(drawn(layer, RNG))
    x = RNG.normal(size=(2, len(tokens), 8)).astype(np.float32)
    gradient = quick(lambda state: nnx.grad(lambda layer: jnp.sum(layer(x) ** 2))(nnx.merge(graphdef, state)))(state)
    found = nnx.to_pure_dict(gradient)["attention_fn"]["bias"]
    assert set(found) == set(p) and all(np.any(np.asarray(g)) for g in found.values())


def test_buckets_that_do_not_fit_are_refused_when_called():
    for settings, match in (
        ({"num_buckets": 7}, "an even number of rows"),
        ({"max_distance": 8}, "max_distance must be"),
    ):
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(lambda settings=settings: made("T5Bias", 2, **settings)(QUERIES, KEYS))
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(linen.T5Bias(2, **settings).init, KEY, QUERIES, KEYS)


def test_content_bias_refuses_what_the_function_does_when_called():
    q, k = (np.ones((2, n, 3, 4), np.float32) for n in (3, 5))
    near = np.arange(3), np.arange(5)
    module = drawn(lambda: made("ContentBias", 11, 4, **TERM), RNG)
    same = linen.ContentBias(11, 4, **TERM)
    jax.eval_shape(lambda: module(*near, q, None))  # what is not read is not checked
    for arrays, error, match in (
        ((*near, q[..., :3], k), ValueError, r"^content_bias: query must have shape .* got \(2, 3, 3, 3\)"),
        ((*near, k, k), ValueError, "^content_bias: query must have shape"),
        ((*near, None, k), ValueError, "^content_bias: either query or key must be given, got neither"),
        ((*near, q.astype(int), k), TypeError, "^content_bias: query must be a float array"),
        ((near[0] + 9, near[1], q, k), ValueError, "^content_bias: .* must differ by -5 to 5 for this table, got 5 to 11"),
        ((near[0] * 1.0, near[1], q, k), TypeError, "^content_bias: query_positions must be an integer array"),
    ):  # fmt: skip
        for call in (lambda a: module(*a), lambda a: same.init(KEY, *a)):
            with pytest.raises(error, match=match):
                jax.eval_shape(lambda call=call, arrays=arrays: call(arrays))


def test_several_head_axes():
    x = RNG.normal(size=(2, 5, 2, 3, 8)).astype(np.float32)
    want = pe.rotary(x.reshape(2, 5, 6, 8), head_axis=-2).reshape(x.shape)
    for heads in ((-3, -2), (2, 3)):
        rope = nnx_modules.RotaryEncoding(8, head_axis=heads)
        np.testing.assert_array_equal(nnx.jit(lambda m, x: m(x))(rope, x), want)
        assert not jax.tree.leaves(nnx.state(rope))
        np.testing.assert_array_equal(linen.RotaryEncoding(8, head_axis=heads).apply({}, x), want)
