"""NNX modules: thin, stateless where there is nothing to learn, at home in Flax models."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from posenc_jax.nnx import LearnedEncoding, SinusoidalEncoding

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
POSITIONS = np.array([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]])


def test_sinusoidal_is_the_function():
    f = pe.geometric(8, 77.0, endpoint=True)
    module = SinusoidalEncoding(f, layout="half", scale=math.sqrt(8))
    want = pe.add_sinusoidal(X, POSITIONS, f, layout="half", scale=math.sqrt(8))
    np.testing.assert_array_equal(module(X, POSITIONS), want)
    np.testing.assert_array_equal(SinusoidalEncoding(8)(X), pe.add_sinusoidal(X))
    assert module(X.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_table(layout):
    table = SinusoidalEncoding(pe.geometric(8, 5.0), layout=layout).table(10)
    np.testing.assert_array_equal(table, pe.sinusoidal(np.arange(10), pe.geometric(8, 5.0), layout=layout))
    assert SinusoidalEncoding(8).table(3, jnp.bfloat16).dtype == jnp.bfloat16


def test_sinusoidal_has_no_state():
    module = SinusoidalEncoding(8)
    graphdef, state = nnx.split(module)
    assert jax.tree.leaves(state) == []
    np.testing.assert_array_equal(nnx.merge(graphdef, state)(X), module(X))
    assert nnx.split(SinusoidalEncoding(8))[0] == graphdef != nnx.split(SinusoidalEncoding(pe.geometric(8, 9.0)))[0]


def test_learned_is_the_function():
    module = LearnedEncoding(16, 8, scale=0.5, rngs=nnx.Rngs(0))
    table = module.embedding[...]
    assert table.shape == (16, 8) and table.dtype == np.float32
    np.testing.assert_array_equal(module(X, POSITIONS), pe.add_learned(X, table, POSITIONS, scale=0.5))
    np.testing.assert_array_equal(module(X), pe.add_learned(X, table, scale=0.5))


def test_learned_settings():
    module = LearnedEncoding(
        500, 100, param_dtype=jnp.bfloat16, out_of_range="zeros", rngs=nnx.Rngs(3),
        embedding_metadata={"role": "positions"},
    )  # fmt: skip
    assert module.embedding.dtype == jnp.bfloat16
    assert module.embedding.role == "positions"
    assert np.std(np.asarray(module.embedding[...], np.float32)) == pytest.approx(0.02, rel=0.02)
    x = np.zeros((3, 100), np.float32)
    np.testing.assert_array_equal(module(x, np.array([-1, 500, 3]))[:2], 0)
    constant = LearnedEncoding(4, 2, embedding_init=nnx.initializers.constant(2.5), rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(constant.embedding[...], np.full((4, 2), 2.5))


def test_only_the_table_is_learned():
    module = LearnedEncoding(16, 8, rngs=nnx.Rngs(0))
    grads = nnx.grad(lambda m: m(X, POSITIONS).sum())(module)
    assert [path for path, _ in nnx.to_flat_state(grads)] == [("embedding",)]
    want = np.zeros((16, 8))
    np.add.at(want, POSITIONS, 1.0)
    np.testing.assert_array_equal(grads["embedding"][...], want)


@pytest.mark.parametrize("make", [lambda: SinusoidalEncoding(8), lambda: LearnedEncoding(16, 8, rngs=nnx.Rngs(0))])
def test_under_nnx_transforms(make):
    module = make()
    want = np.asarray(module(X))
    np.testing.assert_array_equal(nnx.jit(lambda m, x: m(x))(module, X), want)
    np.testing.assert_array_equal(nnx.jit(nnx.remat(lambda m, x: m(x)))(module, X), want)
    np.testing.assert_array_equal(nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))(module, X), want)
    np.testing.assert_array_equal(jax.jit(lambda m, x: m(x))(module, X), want)


def test_in_a_model():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(50, 8, rngs=rngs)
            self.encode = SinusoidalEncoding(8, scale=8**0.5)
            self.attend = nnx.MultiHeadAttention(num_heads=2, in_features=8, decode=False, rngs=rngs)

        def __call__(self, tokens):
            return self.attend(self.encode(self.embed(tokens)))

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # Flax's own layers need both
        model, tokens = Block(nnx.Rngs(0)), np.array([[3, 3, 7]])
        out = nnx.jit(lambda m, t: m(t))(model, tokens)
        model.encode = lambda x: x
        without = model(tokens)
    assert not np.allclose(out[0, 0], out[0, 1])  # the same token at two positions
    np.testing.assert_allclose(without[0, 0], without[0, 1], atol=1e-6)


def test_sharded_input():
    mesh = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
    x = np.zeros((len(jax.devices()), 5, 8), np.float32)
    put = jax.device_put(x, NamedSharding(mesh, P("d")))
    out = nnx.jit(lambda m, x: m(x))(SinusoidalEncoding(8), put)
    np.testing.assert_array_equal(out, SinusoidalEncoding(8)(x))
    assert out.sharding.is_equivalent_to(put.sharding, 3)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: SinusoidalEncoding(0), ValueError, "SinusoidalEncoding: frequencies .* must be at least 1, got 0"),
        (lambda: SinusoidalEncoding(jnp.ones(4)), TypeError, "SinusoidalEncoding: frequencies must be Frequencies or an integer width, got an array"),  # type: ignore
        (lambda: SinusoidalEncoding(8, layout="x"), ValueError, "SinusoidalEncoding: layout must be one of"),  # type: ignore
        (lambda: SinusoidalEncoding(8, scale=jnp.ones((), jnp.float32)), TypeError, "SinusoidalEncoding: scale must be a number, got float32"),  # type: ignore
        (lambda: SinusoidalEncoding(8).table(0), ValueError, "SinusoidalEncoding.table: length must be at least 1, got 0"),
        (lambda: SinusoidalEncoding(8).table(2.5), TypeError, "SinusoidalEncoding.table: length must be an integer, got float 2.5"),  # type: ignore
        (lambda: SinusoidalEncoding(6)(X), ValueError, r"frequencies of width 6 must match x, shape \(2, 5, 8\)"),
        (lambda: LearnedEncoding(0, 8, rngs=nnx.Rngs(0)), ValueError, "LearnedEncoding: num_embeddings must be at least 1, got 0"),
        (lambda: LearnedEncoding(4, 8.0, rngs=nnx.Rngs(0)), TypeError, "LearnedEncoding: features must be an integer, got float 8.0"),  # type: ignore
        (lambda: LearnedEncoding(4, 8, out_of_range="clip", rngs=nnx.Rngs(0)), ValueError, "LearnedEncoding: out_of_range must be one of"),  # type: ignore
        (lambda: LearnedEncoding(4, 8, param_dtype=int, rngs=nnx.Rngs(0)), TypeError, "LearnedEncoding: param_dtype must be a float dtype"),
        (lambda: LearnedEncoding(4, 8, rngs=nnx.Rngs(0))(X), ValueError, "table of 4 rows is too small for a sequence of 5"),
        (lambda: LearnedEncoding(9, 8, rngs=nnx.Rngs(0))(X, POSITIONS + 3), ValueError, "positions must be from 0 to 8, got 3 to 12"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
