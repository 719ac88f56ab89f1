"""Linen modules: the same settings as in NNX, the same numbers."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
import posenc_jax.linen as linen
import posenc_jax.nnx as nnx_modules
from devices.aot import Compiled
from helpers.closeness import assert_within
from helpers.modules import drawn
from helpers.quick import quick
from helpers.tiers import slow

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 8)).astype(np.float32)
POSITIONS = np.array([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]])
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    "settings",
    [slow({}), {"layout": "half", "scale": 1.7}, {"frequencies": pe.geometric(8, 99.0, endpoint=True)}],
    ids=str,
)
def test_sinusoidal_is_that_of_nnx(settings):
    settings = {"frequencies": 8} | settings
    module, other = linen.SinusoidalEncoding(**settings), nnx_modules.SinusoidalEncoding(**settings)
    assert jax.eval_shape(module.init, KEY, X) == {}
    both = lambda x, *given: (module.apply({}, x, *given), other(x, *given))  # noqa: E731
    compute = jax.jit(lambda x, p: (both(x), both(x, p), (module.table(7), other.table(7))))
    for name, (got, want) in zip(("counted", "given", "table"), compute(X, POSITIONS), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize(
    "settings",
    [{}, {"layout": "interleaved", "part": "last", "frequencies": pe.yarn(4, 99.0, 2.0, 64)}, {"head_axis": None}],
    ids=str,
)
def test_rotary_is_that_of_nnx(settings):
    settings = {"frequencies": 8, "head_axis": -2} | settings
    x = X if settings["head_axis"] is None else X[:, :, None] * np.ones((3, 1), np.float32)
    module, other = linen.RotaryEncoding(**settings), nnx_modules.RotaryEncoding(**settings)
    assert jax.eval_shape(module.init, KEY, x) == {}
    each = lambda x, p: (module.apply({}, x, p), other(x, p), pe.rotary(x, p, **settings))  # noqa: E731
    found = jax.jit(lambda x, p: {"counted": each(x, None), "given": each(x, p)})(x, POSITIONS)
    for name, (got, of_nnx, want) in found.items():
        np.testing.assert_array_equal(got, want, err_msg=name)
        np.testing.assert_array_equal(of_nnx, want, err_msg=name)


def test_rotary_does_not_guess_the_head_axis():
    with pytest.raises(TypeError, match="head_axis"):
        linen.RotaryEncoding(8)  # type: ignore


@pytest.mark.parametrize(
    "settings", [{}, {"out_of_range": "zeros", "scale": 0.3, "param_dtype": jnp.bfloat16}], ids=str
)
def test_learned_is_that_of_nnx(settings):
    module = linen.LearnedEncoding(16, 8, **settings)
    other = drawn(lambda: nnx_modules.LearnedEncoding(16, 8, **settings, rngs=nnx.Rngs(0)), RNG)
    variables = quick(module.init)(KEY, X)
    ((name, table),) = variables["params"].items()
    assert name == "embedding" and table.shape == (16, 8) and table.dtype == other.embedding.dtype
    assert np.std(np.asarray(table, np.float32)) == pytest.approx(0.02, rel=0.2)
    other.embedding[...] = table
    for positions in (None, POSITIONS):
        np.testing.assert_array_equal(module.apply(variables, X, positions), other(X, positions))


def test_tables_begin_with_a_standard_deviation_of_a_fiftieth():
    of_nnx = inspect.signature(nnx_modules.LearnedEncoding.__init__).parameters["embedding_init"].default
    for init in (of_nnx, linen.LearnedEncoding.embedding_init):
        want = 0.02 * np.asarray(jax.random.normal(KEY, (64,), jnp.float32))
        assert_within(init(KEY, (64,), jnp.float32), want, 1e-7 + 1e-6 * np.abs(want), against="0.02 times the normals")


def test_metadata_passes_through():
    init = nn.with_partitioning(nn.initializers.ones, ("positions", "model"))
    module = linen.LearnedEncoding(16, 8, embedding_init=init)
    variables = quick(module.init)(KEY, X)
    assert nn.get_partition_spec(variables)["params"]["embedding"] == jax.sharding.PartitionSpec("positions", "model")
    np.testing.assert_allclose(module.apply(variables, X), X + 1, rtol=1e-6)


def test_in_a_model_under_jit_and_bound():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(50, 8)(tokens)
            return linen.LearnedEncoding(16, 8)(linen.SinusoidalEncoding(8, scale=8**0.5)(x))

    model, tokens = Model(), np.array([[3, 3, 7]])
    shapes = jax.eval_shape(model.init, KEY, tokens)
    variables = jax.tree.map(lambda w: RNG.normal(size=w.shape).astype(w.dtype), shapes)
    assert set(variables["params"]) == {"Embed_0", "LearnedEncoding_0"}
    params = variables["params"]
    embedded = np.asarray(params["Embed_0"]["embedding"])[tokens]
    want = pe.add_learned(pe.add_sinusoidal(embedded, scale=8**0.5), params["LearnedEncoding_0"]["embedding"])
    np.testing.assert_allclose(jax.jit(model.apply)(variables, tokens), want, rtol=1e-6)
    assert jax.eval_shape(linen.SinusoidalEncoding(8).bind({}), X).shape == X.shape


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sharded_input(kind, on_cpu):
    content = linen.ContentBias(9, 8, source="query", scale=1.0, out_of_range="nearest")
    attend = linen.positional_attention(rotation=6, bias=linen.T5Bias(3), content_bias=content)
    rotary = linen.RotaryEncoding(8, head_axis=-2)
    x, positions = RNG.normal(size=(8, 5, 3, 8)).astype(np.float32), np.arange(40).reshape(8, 5)
    shapes = jax.eval_shape(attend.init, KEY, x, x, x)
    variables = jax.tree.map(lambda w: RNG.normal(size=w.shape).astype(w.dtype), shapes)

    @quick
    def f(x, positions):
        return rotary.apply({}, x, positions), attend.apply(variables, x, x, x, input_positions=positions)

    want = f(x, positions)
    mesh = Mesh(np.array(jax.devices("cpu")), ("d",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        put = [jax.device_put(a, NamedSharding(mesh, P("d"))) for a in (x, positions)]
        compiled = f.lower(*put).compile()
    turned, attended = compiled(*put)
    assert Compiled(compiled.as_text(), 0, 0).collectives == ([], [])
    np.testing.assert_array_equal(turned, want[0])
    assert_within(attended, want[1], 2e-6, against="one device")  # Flax's products are in whatever order
    for y in (turned, attended):
        assert y.sharding.is_equivalent_to(put[0].sharding, 4)


def test_modules_are_values():
    assert linen.SinusoidalEncoding(8) == linen.SinusoidalEncoding(pe.geometric(8))
    assert hash(linen.SinusoidalEncoding(8)) == hash(linen.SinusoidalEncoding(8))
    assert linen.RotaryEncoding(8, head_axis=-2) == linen.RotaryEncoding(pe.geometric(8), head_axis=-2)
    assert linen.RotaryEncoding(8, head_axis=-2) != linen.RotaryEncoding(8, head_axis=None)
    clone = linen.SinusoidalEncoding(8).clone(scale=2.0)
    np.testing.assert_array_equal(clone.apply({}, X), pe.add_sinusoidal(X, scale=2.0))


ARRAY = jnp.asarray(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: linen.SinusoidalEncoding(-1), ValueError, "SinusoidalEncoding: frequencies .* must be at least 0, got -1"),
        (lambda: linen.SinusoidalEncoding(ARRAY), TypeError, "SinusoidalEncoding: frequencies must be .* got an array"),  # type: ignore
        (lambda: linen.SinusoidalEncoding(8, layout="x"), ValueError, "SinusoidalEncoding: layout must be one of"),  # type: ignore
        (lambda: linen.SinusoidalEncoding(8, scale="1"), TypeError, "SinusoidalEncoding: scale must be a number, got str '1'"),  # type: ignore
        (lambda: linen.SinusoidalEncoding(8).table(0), ValueError, "SinusoidalEncoding.table: length must be at least 1"),
        (lambda: linen.RotaryEncoding(ARRAY, head_axis=-2), TypeError, "RotaryEncoding: frequencies must be .* got an array"),  # type: ignore
        (lambda: linen.RotaryEncoding(7, head_axis=-2), ValueError, "RotaryEncoding: frequencies must have an even dim, got 7"),
        (lambda: linen.RotaryEncoding(8, head_axis=-2, layout="x"), ValueError, "RotaryEncoding: layout must be one of"),  # type: ignore
        (lambda: linen.RotaryEncoding(8, head_axis=-2, part=None), ValueError, "RotaryEncoding: part must be one of"),  # type: ignore
        (lambda: linen.LearnedEncoding(0, 8), ValueError, "LearnedEncoding: num_embeddings must be at least 1, got 0"),
        (lambda: linen.LearnedEncoding(8, True), TypeError, "LearnedEncoding: features must be an integer, got bool True"),
        (lambda: linen.LearnedEncoding(4, 8, out_of_range="wrap"), ValueError, "LearnedEncoding: out_of_range must be one of"),  # type: ignore
        (lambda: linen.LearnedEncoding(4, 8, param_dtype=int), TypeError, "LearnedEncoding: param_dtype must be a float dtype"),
        (lambda: linen.LearnedEncoding(4, 8, scale=float("nan")), ValueError, "LearnedEncoding: scale must be finite, got nan"),
        (lambda: jax.eval_shape(linen.LearnedEncoding(4, 8).init, KEY, X), ValueError, "table of 4 rows is too small for a sequence of 5"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
