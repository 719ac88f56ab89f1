"""Modules of NNX and of Linen: each computes a function of the library, with settings and learned parameters.

- A module computes its function. Both stacks have the same bits, and gradients that are alike.
- Parameters have the names, shapes and dtypes of ROWS. They begin with the documented distributions, and take
  initialisers and metadata. An array that is not learned is no parameter.
- Modules are equal if their settings are, as `jax.jit` asks for. Wrong settings raise; errors name them.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

import posenc_jax as pe
import posenc_jax.linen as linen
import posenc_jax.nnx as nnx_modules
from helpers.closeness import assert_within
from helpers.modules import drawn
from helpers.slow import slow
from oracles.biases import softplus, twice_sigmoid

RNG_KEY = np.uint32([0, 0])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 8)).astype(np.float32)
POSITIONS = np.array([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]])
HEADS = RNG.normal(size=(2, 5, 3, 8)).astype(np.float32)  # batch, seq, heads, head_dim
QUERIES = np.array([[3, 4, 5], [2_000_000_000, 7, 0]], np.int32)
KEYS = np.array([0, 1, 5, 900, 2_000_000_001], np.int32)
# Positions of queries and keys; CONTENT adds vectors at both.
FAR, NEAR = (QUERIES, KEYS), (np.arange(3, 7), np.arange(-1, 39))
CONTENT = *FAR, *(RNG.normal(size=(*x.shape, 3, 4)).astype(np.float32) for x in FAR)
TIMES = np.float32([[0, 0.5], [999, 3]])
GRID = np.indices((2, 3, 4), np.int32).reshape(3, -1).T
TOKENS = np.pad(GRID, ((1, 0), (0, 0)), constant_values=-1)  # a class token, then the grid
INDICES = np.arange(25).reshape(5, 5), np.arange(25)  # of queries and keys, into TOKENS


class Row(NamedTuple):
    """A module with settings, the arrays of a call, the function that the call must equal, and parameters' shapes."""

    name: str
    settings: dict[str, Any]
    arrays: tuple[Any, ...]
    function: Callable[..., Any]  # takes the parameters, the arrays and, by name, the settings
    shapes: dict[str, tuple[int, ...]] = {}  # noqa: RUF012
    collection: str = "params"  # in Linen
    is_slow: bool = False  # faults that this row finds, a default row finds too

    def of_nnx(self, **more: Any) -> Any:
        rngs = {"rngs": nnx.Rngs(0)} if self.shapes else {}
        return getattr(nnx_modules, self.name)(**self.settings, **more, **rngs)

    def of_linen(self, **more: Any) -> Any:
        return getattr(linen, self.name)(**self.settings, **more)


# The functions of rows: from the parameters p, the library's function with explicit arrays.


def add_learned(p, x, positions=None, *, num_embeddings, features, **settings):
    return pe.add_learned(x, p["embedding"], positions, **settings)


def pope(p, query, key, positions=None, *, num_heads, **settings):
    phase = np.clip(p["phase"], np.float32(-2 * np.pi), 0)
    return pe.pope(query, positions, **settings), pe.pope(key, positions, phase=phase, **settings)


def t5(p, *at, num_heads, num_buckets=32, **settings):
    return pe.t5(*at, p["embedding"], **settings)


def relative(p, *at, window, num_heads, class_token=False, **settings):
    return pe.relative_position_bias(*at, p["embedding"], prefix=p.get("prefix"), **settings)


def relative_of_indices(p, queries, keys, *, flat, class_token=False, **settings):
    tokens = jnp.asarray(TOKENS if class_token else GRID)
    return relative(p, tokens[queries], tokens[keys], **settings)


def content(p, i, j, query, key, *, num_rows, head_dim, source, scale, num_heads=None, **settings):
    read = {"query": query} if source == "query" else {"key": key}
    return scale * pe.content_bias(i, j, p["embedding"], **read, **settings)


def kerple(p, *at, num_heads, variant="log"):
    function, second = (pe.kerple_log, softplus) if variant == "log" else (pe.kerple_power, twice_sigmoid)
    return function(*at, np.float32(softplus(p["free_r1"])), np.float32(second(p["free_r2"])))


def fire(p, *at, num_heads, hidden, threshold):
    mlp = p["kernel1"][0], p["bias1"], p["kernel2"], p["bias2"]
    factor = float(softplus(p["free_multiplier"]))
    return pe.fire(*at, mlp, c=float(softplus(p["free_c"])), threshold=threshold * factor)


def fourier(p, x, *, in_features, num_features, scale, learned=False, **settings):
    return pe.fourier_features(x, p["matrix"], **settings)


R1_AND_R2 = {"free_r1": (3,), "free_r2": (3,)}
MLP = {"kernel1": (1, 8), "bias1": (8,), "kernel2": (8, 3), "bias2": (3,), "free_c": (), "free_multiplier": ()}
TIMESTEP_SETTINGS = {
    "flip_sin_to_cos": True,
    "downscale_freq_shift": 0,
    "scale": 3.0,
    "max_period": 50.0,
    "dtype": jnp.bfloat16,
}
ENDPOINT = pe.geometric(8, 77.0, endpoint=True)
LAST_FEATURES = {"frequencies": pe.yarn(4, 99.0, 2.0, 64), "layout": "interleaved", "part": "last"}


def without_parameters(function):
    """This function of the library as the function of a row."""
    return lambda p, *arrays, **settings: function(*arrays, **settings)


sinusoidal, rotary, timestep = map(without_parameters, (pe.add_sinusoidal, pe.rotary, pe.timestep_embedding))
ROWS = [
    Row("SinusoidalEncoding", {"frequencies": 8}, (X,), sinusoidal),
    Row("SinusoidalEncoding", {"frequencies": ENDPOINT, "layout": "half", "scale": 1.7}, (X, POSITIONS), sinusoidal),
    Row("LearnedEncoding", {"num_embeddings": 16, "features": 8}, (X, POSITIONS), add_learned, {"embedding": (16, 8)}),
    Row(
        "LearnedEncoding",
        {"num_embeddings": 4, "features": 8, "out_of_range": "zeros", "scale": 0.3},
        (X, POSITIONS),
        add_learned,
        {"embedding": (4, 8)},
    ),
    Row("RotaryEncoding", {"frequencies": 8, "head_axis": -2}, (HEADS,), rotary, is_slow=True),
    Row("RotaryEncoding", {"frequencies": 8, "head_axis": None}, (X, POSITIONS), rotary),
    Row("RotaryEncoding", LAST_FEATURES | {"head_axis": -2}, (HEADS, POSITIONS), rotary),
    Row("RotaryEncoding", {"frequencies": 8, "head_axis": (-3, -2)}, (HEADS[:, :, None], POSITIONS), rotary),
    Row(
        "PoPE",
        {"num_heads": 3, "frequencies": 16, "head_axis": -2},
        (HEADS, -HEADS),
        pope,
        {"phase": (3, 8)},
        is_slow=True,
    ),
    Row(
        "PoPE",
        {"num_heads": 5, "frequencies": pe.geometric(16, 99.0), "layout": "interleaved", "head_axis": -3},
        (HEADS, -HEADS, np.arange(3) + 2),
        pope,
        {"phase": (5, 8)},
    ),
    Row(
        "FourierFeatures",
        {"in_features": 2, "num_features": 5, "scale": 10.0},
        (TIMES,),
        fourier,
        {"matrix": (2, 5)},
        "constants",
    ),
    Row(
        "FourierFeatures",
        {
            "in_features": 2,
            "num_features": 5,
            "scale": 1,
            "learned": True,
            "layout": "interleaved",
            "dtype": "bfloat16",
        },
        (TIMES,),
        fourier,
        {"matrix": (2, 5)},
    ),
    Row("TimestepEmbedding", {"dim": 9}, (TIMES,), timestep),
    Row("TimestepEmbedding", {"dim": 9} | TIMESTEP_SETTINGS, (TIMES,), timestep),
    Row("ALiBi", {"num_heads": 6}, FAR, lambda p, i, j, num_heads: pe.alibi(i, j, num_heads)),
    Row("T5Bias", {"num_heads": 3}, FAR, t5, {"embedding": (32, 3)}, is_slow=True),
    Row(
        "T5Bias",
        {"num_heads": 3, "num_buckets": 8, "max_distance": 20, "bidirectional": False},
        FAR,
        t5,
        {"embedding": (8, 3)},
    ),
    Row("KERPLE", {"num_heads": 3}, FAR, kerple, R1_AND_R2),
    Row("KERPLE", {"num_heads": 3, "variant": "power"}, NEAR, kerple, R1_AND_R2),
    Row("FIRE", {"num_heads": 3, "hidden": 8, "threshold": 30.0}, FAR, fire, MLP),
    Row(
        "RelativePositionBias",
        {"window": (2_000,), "num_heads": 3, "out_of_range": "zeros"},
        FAR,
        relative,
        {"embedding": (3999, 3)},
        is_slow=True,
    ),
    Row(
        "RelativePositionBias",
        {"window": [901], "num_heads": 3, "out_of_range": "zeros", "symmetric": True, "class_token": True},
        FAR,
        relative,
        {"embedding": (901, 3), "prefix": (3, 3)},
    ),
    Row(
        "RelativePositionBias",
        {"window": (2, 3, 4), "num_heads": 2, "flat": True, "class_token": True},
        INDICES,
        relative_of_indices,
        {"embedding": (3, 5, 7, 2), "prefix": (3, 2)},
    ),
    Row(
        "RelativePositionBias",
        {"window": (2, 3, 4), "num_heads": 2, "flat": True},
        (np.arange(24).reshape(2, 12), np.arange(24)),
        relative_of_indices,
        {"embedding": (3, 5, 7, 2)},
    ),
    Row(
        "ContentBias",
        {"num_rows": 5, "head_dim": 4, "source": "query", "scale": 0.3, "out_of_range": "nearest"},
        CONTENT,
        content,
        {"embedding": (5, 4)},
    ),
    Row(
        "ContentBias",
        {"num_rows": 8, "head_dim": 4, "source": "key", "scale": 2, "num_heads": 3, "max_distance": 900},
        CONTENT,
        content,
        {"embedding": (8, 3, 4)},
    ),
    Row(
        "ContentBias",
        {"num_rows": 4, "head_dim": 4, "source": "key", "scale": 1.0, "first": -3, "out_of_range": "zeros"},
        CONTENT,
        content,
        {"embedding": (4, 4)},
        is_slow=True,
    ),
]
FIRST_ROWS = {row.name: row for row in reversed(ROWS)}  # the first row of each module
LEARNED = [row for row in ROWS if row.shapes and row.collection == "params"]


def each(rows):
    """Parametrizes a test by rows."""
    return pytest.mark.parametrize("row", rows, ids=lambda row: f"{row.name} {ROWS.index(row)}")


def types(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


@each([slow(row) if row.is_slow else row for row in ROWS])
def test_a_module_computes_its_function_and_both_stacks_have_one_gradient(row):
    """Gradients are taken at NEAR instead of FAR: between far positions those by some parameters are 0."""
    graphdef, state = nnx.split(drawn(row.of_nnx, RNG))
    linen_module, p = row.of_linen(), nnx.to_pure_dict(state)
    loss = lambda y: sum(jnp.sum(jnp.sin(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(y))  # noqa: E731

    @jax.jit
    def compute(state, p_of_linen, arrays, near):
        apply = lambda p, arrays: linen_module.apply({row.collection: p}, *arrays)  # noqa: E731
        merged = nnx.merge(graphdef, state)
        values = merged(*arrays), apply(p_of_linen, arrays), row.function(p, *arrays, **row.settings)
        if row not in LEARNED:
            return values, None
        of_nnx = nnx.grad(lambda m: loss(m(*near)))(merged)
        return values, (nnx.to_pure_dict(of_nnx), jax.grad(lambda p: loss(apply(p, near)))(p_of_linen))

    values, gradients = jax.device_get(compute(state, p, row.arrays, NEAR if row.arrays is FAR else row.arrays))
    for got, of_linen, want in zip(*map(jax.tree.leaves, values), strict=True):
        assert got.dtype == of_linen.dtype == want.dtype
        np.testing.assert_array_equal(of_linen, got)
        # Others compute softplus of free parameters, or the scale, in another order than the row's function.
        is_exact = row.name not in ("KERPLE", "FIRE", "ContentBias")
        bound = 0 if is_exact else 2e-6 * np.abs(want) + 1e-6
        assert_within(got, want, bound, against="the function")
    if row not in LEARNED:
        return
    got, want = gradients
    assert set(got) == set(row.shapes)
    for name in row.shapes:
        assert np.all(np.isfinite(got[name])) and np.any(got[name]), name
        assert_within(got[name], want[name], 1e-5 * np.abs(want[name]), against=f"Linen's derivative by {name}")


def test_every_module_has_a_row():
    no_modules = {"SegmentMask", "positional_attention"}
    assert {*FIRST_ROWS, *no_modules} == {*nnx_modules.__all__} == {*linen.__all__}


@each(ROWS)
def test_parameters_have_the_names_shapes_and_dtypes_of_the_table(row):
    for more in ({}, {"param_dtype": jnp.bfloat16}) if row.shapes else ({},):
        module = nnx.eval_shape(lambda more=more: row.of_nnx(**more))
        want = {name: (shape, np.dtype(more.get("param_dtype", np.float32))) for name, shape in row.shapes.items()}
        assert types(nnx.to_pure_dict(nnx.state(module))) == want
        assert set(nnx.to_pure_dict(nnx.state(module, nnx.Param))) == set(want if row.collection == "params" else ())
        variables = jax.eval_shape(row.of_linen(**more).init, RNG_KEY, *row.arrays)
        assert types(variables) == ({row.collection: want} if want else {})


def test_equal_settings_make_equal_modules_and_others_do_not():
    of_nnx = [[nnx.graphdef(nnx.eval_shape(row.of_nnx)) for row in ROWS] for _ in range(2)]
    of_linen = [[row.of_linen() for row in ROWS] for _ in range(2)]
    for one, other in of_nnx, of_linen:
        for i, module in enumerate(one):
            assert [module == x for x in other] == [i == j for j in range(len(ROWS))], ROWS[i]
            assert hash(module) == hash(other[i])
    assert linen.SinusoidalEncoding(8) == linen.SinusoidalEncoding(pe.geometric(8))
    assert linen.SinusoidalEncoding(8).clone(scale=2.0) == linen.SinusoidalEncoding(8, scale=2.0)


# Initial values.

NORMAL, TENTHS = NormalDist(), np.linspace(0.1, 0.9, 9)


def uniform(low, high):
    """The ends and the tenths of a uniform distribution."""
    return low, high, low + TENTHS * (high - low)


def normal(deviation):
    """The tenths of a normal distribution, which has no ends."""
    return None, None, [deviation * NORMAL.inv_cdf(q) for q in TENTHS]


SMALL = normal(0.02)
# Settings that make many parameters; and for each parameter, what the module makes of it, and the distribution of that.
INITIAL = {
    "LearnedEncoding": ({"num_embeddings": 99_999}, {"embedding": (np.asarray, SMALL)}),
    "PoPE": ({}, {"phase": (np.asarray, uniform(0, 0))}),
    "FourierFeatures": ({"num_features": 99_999}, {"matrix": (np.asarray, normal(10))}),
    "T5Bias": (
        {"num_heads": 2000},
        {"embedding": (np.asarray, uniform(-((6 / 2032) ** 0.5), (6 / 2032) ** 0.5))},
    ),
    "KERPLE": (
        {"num_heads": 2**17},
        {"free_r1": (softplus, uniform(0.01, 2)), "free_r2": (softplus, uniform(0.01, 1))},
    ),
    "KERPLE of powers": (
        {"num_heads": 2**17, "variant": "power"},
        {"free_r1": (softplus, uniform(0.01, 1)), "free_r2": (twice_sigmoid, uniform(0.01, 1.99))},
    ),
    "FIRE": (
        {"num_heads": 2000, "hidden": 400, "c": 3.0},
        {name: (np.asarray, uniform(-1, 1)) for name in ("kernel1", "bias1", "bias2")}
        | {"kernel2": (np.asarray, uniform(-(400**-0.5), 400**-0.5))}
        | {"free_c": (softplus, uniform(3, 3)), "free_multiplier": (softplus, uniform(1, 1))},
    ),
    "RelativePositionBias": (
        {"window": (20,), "num_heads": 2000, "class_token": True},
        {"embedding": (np.asarray, SMALL), "prefix": (np.asarray, SMALL)},
    ),
    "ContentBias": ({"num_rows": 99_999}, {"embedding": (np.asarray, SMALL)}),
}


# The next test compares the initialisers of the slow cases exactly.
@pytest.mark.parametrize(
    "name", [slow(name) if name in ("LearnedEncoding", "ContentBias") else name for name in INITIAL]
)
def test_parameters_begin_with_the_documented_distributions(name):
    settings, distributions = INITIAL[name]
    row = FIRST_ROWS[name.split()[0]]
    row = row._replace(settings=row.settings | settings)
    of_nnx = lambda: nnx.to_pure_dict(nnx.state(row.of_nnx()))  # noqa: E731
    of_linen = lambda: row.of_linen().init(RNG_KEY, *row.arrays)[row.collection]  # noqa: E731
    for stack, found in jax.device_get(jax.jit(lambda: {"NNX": of_nnx(), "Linen": of_linen()})()).items():
        assert set(found) == set(distributions)
        for parameter, (function, (low, high, tenths)) in distributions.items():
            values, label = function(np.float64(found[parameter])), f"{parameter}, {stack}"
            spread = tenths[-1] - tenths[0]
            # some three standard errors of a tenth
            assert_within(np.quantile(values, TENTHS), tenths, 2 * values.size**-0.5 * spread + 1e-6, against=label)
            if low is not None:
                ends = [values.min(), values.max()]
                assert_within(ends, [low, high], 8 / values.size * spread + 1e-6, against=f"the ends of {label}")
        largest = [np.argmax(x) for x in found.values() if x.size > 1]
        assert len({*largest}) == len(largest), stack  # parameters of one size are drawn by keys of their own


def test_default_initialisers_of_three_tables_are_normal_times_0_02():
    """FIRE's own initialiser has float32 as its default."""
    assert jax.eval_shape(lambda: linen.FIRE.bias_init(RNG_KEY, (2,))).dtype == np.float32
    inits = {}
    for name in ("LearnedEncoding", "RelativePositionBias", "ContentBias"):
        inits[name, "Linen"] = getattr(linen, name).embedding_init
        of_nnx = inspect.signature(getattr(nnx_modules, name).__init__).parameters
        inits[name, "NNX"] = of_nnx["embedding_init"].default
    draw = jax.jit(lambda: [init(RNG_KEY, (64,), jnp.float32) for init in (jax.random.normal, *inits.values())])
    normals, *found = jax.device_get(draw())
    want = 0.02 * normals
    for init, got in zip(inits, found, strict=True):
        assert_within(got, want, 1e-7 + 1e-6 * np.abs(want), against=f"0.02 times normals, {init}")


EMBEDDING = {"embedding": ("embedding_init", "embedding_metadata")}
# For each parameter, the setting that is its initialiser, and the setting of NNX that is its metadata.
INIT_AND_METADATA = {
    "LearnedEncoding": EMBEDDING,
    "PoPE": {"phase": ("phase_init", "phase_metadata")},
    "FourierFeatures": {"matrix": (None, "matrix_metadata")},
    "T5Bias": EMBEDDING,
    "KERPLE": {"free_r1": ("r1_init", "metadata"), "free_r2": ("r2_init", "metadata")},
    "FIRE": {f"{kind}{i}": (f"{kind}_init", f"{kind}_metadata") for kind in ("kernel", "bias") for i in (1, 2)},
    "RelativePositionBias": EMBEDDING | {"prefix": ("prefix_init", "prefix_metadata")},
    "ContentBias": EMBEDDING,
}


@pytest.mark.parametrize("name", INIT_AND_METADATA)
def test_initialisers_and_metadata_reach_their_parameters(name):
    """Each initialiser has a number of its own, and each parameter the name of its metadata as its role.

    Initialisers of Linen carry metadata themselves, here a partitioning that has the initialiser's name.
    """
    row = FIRST_ROWS[name]
    row = row._replace(settings=row.settings | ({"class_token": True} if "prefix" in INIT_AND_METADATA[name] else {}))
    inits = sorted({init for init, _ in INIT_AND_METADATA[name].values() if init})
    constants = {init: lambda key, shape, dtype, i=i: np.full(shape, i, dtype) for i, init in enumerate(inits)}
    roles = {metadata: {"role": metadata} for _, metadata in INIT_AND_METADATA[name].values()}
    partitioned = {init: nn.with_partitioning(constants[init], (init,)) for init in inits}
    specs = nn.get_partition_spec(jax.eval_shape(row.of_linen(**partitioned).init, RNG_KEY, *row.arrays))

    def check():
        module = row.of_nnx(**constants, **roles)
        for parameter, (init, metadata) in INIT_AND_METADATA[name].items():
            assert getattr(module, parameter).role == metadata
            if init:
                np.testing.assert_array_equal(getattr(module, parameter)[...], inits.index(init))
                assert specs["params"][parameter] == PartitionSpec(init)

    jax.eval_shape(check)


# Features of modules beyond their functions.


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_the_table_of_sinusoids_is_that_of_positions_from_zero(layout):
    f, p = pe.geometric(8, 5.0), np.arange(10, dtype=np.int32)
    for module in (nnx_modules.SinusoidalEncoding(f, layout=layout), linen.SinusoidalEncoding(f, layout=layout)):
        got, want = jax.jit(lambda m=module: (m.table(10), pe.sinusoidal(p, f, layout=layout)))()
        np.testing.assert_array_equal(got, want)
        assert jax.eval_shape(lambda m=module: m.table(3, jnp.bfloat16)).dtype == jnp.bfloat16
        with pytest.raises(ValueError, match="SinusoidalEncoding.table: length must be at least 1, got 0"):
            module.table(0)


def test_the_phase_of_pope_acts_clipped_and_learns_at_the_ends():
    """The phase is clipped to [−2π, 0]. The derivative of clipping is 1 at both ends, since phases begin at 0."""
    phase = np.float32([[-2 * np.pi, -7, -1, -6, -2, -3, 0, 0.5]] * 3)
    module = nnx_modules.PoPE(3, 16, head_axis=-2, phase_init=lambda *_: phase, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(module)

    @jax.jit
    def compute(state):
        loss = lambda key: jnp.sum(jnp.sin(key))  # noqa: E731
        call = lambda m: m(HEADS, HEADS, POSITIONS, key_positions=POSITIONS + 2)  # noqa: E731
        of_nnx = call(nnx.merge(graphdef, state))
        gradient = nnx.grad(lambda m: loss(call(m)[1]))(nnx.merge(graphdef, state))["phase"][...]
        variables = {"params": {"phase": phase}}
        of_linen = linen.PoPE(3, 16, head_axis=-2).apply(
            variables, HEADS, HEADS, POSITIONS, key_positions=POSITIONS + 2
        )
        rotated_key = lambda phase: pe.pope(HEADS, POSITIONS + 2, 16, head_axis=-2, phase=phase)  # noqa: E731
        clipped = np.clip(phase, np.float32(-2 * np.pi), 0)
        want = pe.pope(HEADS, POSITIONS, 16, head_axis=-2), rotated_key(clipped)
        return of_nnx, of_linen, want, gradient, jax.grad(lambda phase: loss(rotated_key(phase)))(clipped)

    (query, key), (_, key_of_linen), (want_query, want_key), gradient, want_gradient = compute(state)
    np.testing.assert_array_equal(query, want_query)
    np.testing.assert_array_equal(key, want_key)
    np.testing.assert_array_equal(key_of_linen, want_key)
    inside = np.float32([1, 0, 1, 1, 1, 1, 1, 0])  # −7 and 0.5 are beyond the ends
    against = "the derivative by the phase, and 0 beyond its ends"
    assert_within(gradient, np.asarray(want_gradient) * inside, 1e-6, against=against)


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (linen.SinusoidalEncoding(8), X),
        (linen.LearnedEncoding(16, 8), X),
        (linen.RotaryEncoding(8, head_axis=-2), HEADS),
        (linen.RotaryEncoding(8, head_axis=(1, -2)), HEADS[:, None]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_linen_initialises_with_one_token_whose_position_is_not_given(module, x):
    """Models are initialised with one token. A call with one token, and coordinates, must have positions."""
    one = x[..., :1, :] if x.ndim == 3 else x[..., :1, :, :]
    variables = jax.eval_shape(module.init, RNG_KEY, one)
    with pytest.raises(ValueError, match="positions must be given"):
        jax.eval_shape(module.apply, variables, one)
    jax.eval_shape(module.apply, variables, x)
    if not variables:  # all but LearnedEncoding, whose positions have one coordinate
        with pytest.raises(ValueError, match="positions must be given"):
            jax.eval_shape(module.clone(frequencies=pe.axial(8, 2)).init, RNG_KEY, one)


@pytest.mark.skipif(not hasattr(nnx, "RoPE"), reason="this Flax has no nnx.RoPE (0.12.9 has)")
def test_rotary_replaces_rope_of_flax():
    rope = nnx_modules.RotaryEncoding(8, head_axis=None)
    with jax.enable_x64(False):  # with x64, theirs mixes dtypes
        got, want = jax.jit(lambda x: (rope(x), nnx.RoPE()(x)))(X)
    assert_within(got, want, 2e-6, against="nnx.RoPE")


# Settings.

SIZE = [(0, ValueError, "must be at least 1"), (2.0, TypeError, "must be an integer")]
SCALE = [(0, ValueError, "must be positive"), (np.ones(2), TypeError, "must be a number")]
SIZES = "num_embeddings features num_heads num_buckets hidden in_features num_features num_rows head_dim"
ONES = jax.device_put(np.ones(4))
# For each setting of any module: a value that it rejects, the error, and the constraint in the message.
REJECTED = {
    "frequencies": [
        (-1, ValueError, "must be at least 0"),
        (ONES, TypeError, "must be .* got an array"),
    ],
    "scale": [("1", TypeError, "must be a number"), (math.nan, ValueError, "must be finite")],
    "window": [(3, TypeError, "must be a sequence of integers"), ((0, 3), ValueError, r"\[0\] must be at least 1")],
    "first": [(0.5, TypeError, "must be an integer")],
    "c": SCALE,
    "threshold": SCALE,
    "dim": [(-1, ValueError, "must be at least 0")],
    "downscale_freq_shift": [(5, ValueError, "must be below")],
    "max_period": [(0, ValueError, "must be positive")],
    **dict.fromkeys(SIZES.split(), SIZE),
    **dict.fromkeys(
        "class_token symmetric flat learned bidirectional flip_sin_to_cos".split(),
        [(1, TypeError, "must be True or False")],
    ),
    **dict.fromkeys("layout part out_of_range variant source".split(), [("x", ValueError, "must be one of")]),
    **dict.fromkeys("param_dtype dtype".split(), [(int, TypeError, "must be a float dtype")]),
}
# A module, its wrong settings, the error, and how the message goes on behind the module's name.
WRONG = [
    (row.name, {field.name: value}, error, rf"{field.name}\b.*{constraint}")
    for row in FIRST_ROWS.values()
    for field in dataclasses.fields(row.of_linen())
    if field.name not in ("parent", "name", "head_axis", "max_distance") and not field.name.endswith("_init")
    for value, error, constraint in REJECTED[field.name]
]
BUCKETS = {"num_rows": 8, "max_distance": 9, "out_of_range": "error"}
WRONG += [
    ("RotaryEncoding", {"frequencies": 7}, ValueError, "frequencies must have an even dim, got 7"),
    ("PoPE", {"frequencies": 7}, ValueError, "frequencies must have an even dim, got 7"),
    ("PoPE", {"head_axis": None}, TypeError, "head_axis must be an integer"),
    ("LearnedEncoding", {"scale": math.inf}, ValueError, "scale must be finite"),
    ("FourierFeatures", {"scale": 0.0}, ValueError, "scale must be positive"),
    ("T5Bias", {"max_distance": 0}, ValueError, "max_distance must be at least 1"),
    ("ContentBias", BUCKETS | {"max_distance": 9.0}, TypeError, "max_distance must be an integer"),
    ("FIRE", {"c": 1e-300}, ValueError, "c must be from"),
    ("FIRE", {"c": 1e-20, "threshold": 1e-20}, ValueError, "c times the threshold must be from"),
    ("ContentBias", {"num_rows": 2**30 + 1}, ValueError, "num_rows must be below 2³⁰, got 1073741825"),
    ("ContentBias", {"scale": 1e39}, ValueError, "scale must fit into float32"),
    ("ContentBias", {"num_rows": 4}, ValueError, "first must be given for a table with an even number of rows"),
    ("ContentBias", BUCKETS | {"num_rows": 4}, ValueError, "table must have an even number of rows"),
    ("ContentBias", BUCKETS | {"max_distance": 3}, ValueError, "max_distance must be above 3"),
    ("ContentBias", BUCKETS | {"first": -4}, ValueError, "first must not be given with max_distance"),
    ("ContentBias", BUCKETS | {"out_of_range": "nearest"}, ValueError, "out_of_range must not be given with max_dist"),
]


@pytest.mark.parametrize("stack", ["nnx", "linen"])
@pytest.mark.parametrize(("name", "settings", "error", "match"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_wrong_settings_raise_and_are_named(stack, name, settings, error, match):
    row = FIRST_ROWS[name]
    row = row._replace(settings=row.settings | settings)
    with pytest.raises(error, match=f"^{re.sub('TimestepEmbedding', 'timestep_embedding', name)}: {match}"):
        row.of_nnx() if stack == "nnx" else row.of_linen()


@pytest.mark.parametrize("stack", [nnx_modules, linen], ids=["nnx", "linen"])
def test_settings_that_depend_on_the_model_have_no_default(stack):
    for make, missing in (
        (lambda: stack.RotaryEncoding(8), "head_axis"),
        (lambda: stack.ContentBias(5, 4, scale=1.0), "source"),
        (lambda: stack.ContentBias(5, 4, source="key"), "scale"),
        (lambda: stack.FourierFeatures(2, 2), "scale"),
    ):
        with pytest.raises(TypeError, match=missing):
            make()


@each([row for row in LEARNED if row.name in ("T5Bias", "ContentBias", "LearnedEncoding") or "flat" in row.settings])
def test_calls_raise_what_the_function_raises(row):
    """NumPy's positions are concrete in a traced function too, and so is the table of coordinates by index."""
    settings, arrays, match = {
        "T5Bias": ({"num_buckets": 7, "bidirectional": True}, row.arrays, "^t5: .* an even number of rows"),
        "LearnedEncoding": (
            {"out_of_range": "error"},
            (X, POSITIONS + 90),
            "positions must be from 0 to .*, got 90 to 99",
        ),
        "ContentBias": ({"head_dim": 3}, row.arrays, "^content_bias: .* must have shape"),
        "RelativePositionBias": ({}, (INDICES[0] + 9, INDICES[1]), "must differ by .* in coordinate 0"),
    }[row.name]
    row = row._replace(settings=row.settings | settings)
    for call in (lambda: drawn(row.of_nnx, RNG)(*arrays), lambda: row.of_linen().init(RNG_KEY, *arrays)):
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(call)


@pytest.mark.parametrize("stack", ["nnx", "linen"])
def test_flat_positions_must_be_signed_indices(stack):
    row = next(row for row in ROWS if "flat" in row.settings)
    module = drawn(row.of_nnx, RNG) if stack == "nnx" else lambda *at: row.of_linen().init(RNG_KEY, *at)
    with pytest.raises(ValueError, match="query_positions must be one number for each token, .* got the coordinates"):
        jax.eval_shape(lambda: module(GRID, np.arange(3)))
    with pytest.raises(TypeError, match="key_positions must be an array of signed integers, got uint32"):
        jax.eval_shape(module, np.arange(3), np.arange(3, dtype=np.uint32))
