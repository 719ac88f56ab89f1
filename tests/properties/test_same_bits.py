"""The same position gives the same bits however it is reached."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.of_positions import CASES, DIM, POSITIONS, SEQ, X
from helpers.tiers import slow, tiered
from posenc_jax._numerics import sines

pytestmark = pytest.mark.usefixtures("compiled_anew")
RNG = np.random.default_rng(0)


# For the default: each kind of function that the others share, in one program.
FEW = (
    "array frequencies",
    "add, amplitude",
    "rotary, heads",
    "rotary, derivative",
    "xpos, key",
    "prope, key",
    "prope, heads",
    "pope",
    "pope, phase",
)


@functools.cache  # so that its programs are compiled once
def together(*names):
    """A function of positions and rows that gives a dictionary of all results; xPos does not decay by far positions."""

    def f(positions, x):
        near = lax.rem(positions, np.int32(9000)) if len(names) > 1 else positions
        return {name: CASES[name][0](near if name.startswith("xpos") else positions, x) for name in names}

    return f


@pytest.fixture(params=[FEW, *(slow((name,)) for name in CASES)], ids=lambda names: "; ".join(names))
def case(request):
    f, positions = together(*request.param), CASES[request.param[0]][1]
    return f, positions, jax.device_get(jax.jit(f)(positions, X))


def check(got, whole, rows=...):
    assert set(got) == set(whole)
    for name in whole:
        np.testing.assert_array_equal(got[name], whole[name][rows], err_msg=name, strict=True)


def mesh():
    return Mesh(np.array(jax.devices("cpu")), ("d",), axis_types=(AxisType.Auto,))


def test_eager(case):
    f, positions, whole = case
    check(f(positions, X), whole)


@pytest.mark.parametrize("program", [jax.jit, slow(lambda f: f)], ids=["jit", "eager"])
def test_one_row_at_a_time(case, program):
    f, positions, whole = case
    for i in range(0, SEQ, 5):
        check(program(f)(positions[i : i + 1], X[i : i + 1]), whole, slice(i, i + 1))


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 3, 7, 8, 9, 31])
def test_prefixes_of_any_length(case, length):
    f, positions, whole = case
    check(jax.jit(f)(positions[:length], X[:length]), whole, slice(length))


def row_of(f):
    """The same function of one position and one row."""
    return lambda p, x: jax.tree.map(lambda y: y[0], f(p[None], x[None]))


def test_decode_steps_in_a_scan(case):
    f, positions, whole = case
    step = lambda carry, px: (carry, row_of(f)(*px))  # noqa: E731
    check(jax.jit(lambda p, x: lax.scan(step, 0, (p, x))[1])(positions, X), whole)


def test_vmap(case):
    f, positions, whole = case
    check(jax.jit(jax.vmap(row_of(f)))(positions, X), whole)


@pytest.mark.slow
def test_eager_vmap(case):
    f, positions, whole = case
    check(jax.vmap(row_of(f))(positions, X), whole)


@pytest.mark.parametrize("shape", tiered([(4, 16), (2, 4, 8), (16, 1, 4), (1, 64), (64, 1)], [(16, 1, 4)]))
def test_packed_in_any_shape(case, shape):
    f, positions, whole = case
    packed = jax.jit(f)(positions.reshape(shape), X.reshape(*shape, DIM))
    check(jax.tree.map(lambda y: np.asarray(y).reshape(SEQ, DIM), packed), whole)


@pytest.mark.slow
def test_remat_and_value_and_grad(case):
    f, positions, whole = case

    def loss(x):
        y = jax.checkpoint(f)(positions, x)
        return sum(jnp.sum(a) for a in y.values()), y

    check(jax.jit(jax.value_and_grad(loss, has_aux=True))(X)[0][1], whole)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [P("d"), P()], ids=str)
def test_sharded_jit(case, on_cpu, spec):
    f, positions, _ = case
    whole, devices = jax.device_get(jax.jit(f)(positions, X)), mesh()
    assert devices.size == 8
    put = lambda a, spec: jax.device_put(a, NamedSharding(devices, spec))  # noqa: E731
    check(jax.jit(f)(put(positions, spec), put(X, P(*spec, None))), whole)


def test_shard_map(case, on_cpu):
    f, positions, _ = case
    whole = jax.device_get(jax.jit(f)(positions, X))
    rows = jax.shard_map(f, mesh=mesh(), in_specs=(P("d"), P("d", None)), out_specs=P("d", None))
    check(jax.jit(rows)(positions, X), whole)


def test_export_with_symbolic_shapes(case):
    f, positions, whole = case
    (n,) = export.symbolic_shape("n")
    args = jax.ShapeDtypeStruct((n,), positions.dtype), jax.ShapeDtypeStruct((n, DIM), jnp.float32)
    restored = export.deserialize(export.export(jax.jit(f))(*args).serialize())
    check(restored.call(positions, X), whole)


def test_inside_a_larger_program(case):
    f, positions, whole = case

    def larger(p, x):
        y = f(p, jnp.sin(jnp.arcsin(jnp.zeros((), jnp.float32))) + x)
        return jax.tree.map(lambda y: y * 2.0, y)

    check(jax.tree.map(lambda y: np.asarray(y) / 2, jax.jit(larger)(positions, X)), whole)


def test_none_positions_are_the_count():
    x = np.stack([X[:32], X[32:]])
    expected = pe.add_sinusoidal(x, np.arange(32), scale=1.7)
    np.testing.assert_array_equal(pe.add_sinusoidal(x, scale=1.7), expected)
    (b, s) = export.symbolic_shape("b, s")
    exported = export.export(jax.jit(pe.add_sinusoidal))(jax.ShapeDtypeStruct((b, s, DIM), jnp.float32))
    np.testing.assert_array_equal(exported.call(x), pe.add_sinusoidal(x))


def test_width_does_not_matter_where_the_frequencies_are_the_same():
    wide = pe.geometric(128)
    narrow = dataclasses.replace(wide, cycles=wide.cycles[:5], dim=10, axes=None)
    np.testing.assert_array_equal(pe.sinusoidal(POSITIONS, narrow), pe.sinusoidal(POSITIONS, wide)[:, :10])


def test_a_sine_is_what_numpy_computes_operation_by_operation():
    # No compiler's contraction of a·b + c to one rounding is in it: NumPy has none.
    phase = np.concatenate([RNG.integers(-(2**31), 2**31, 2**16), np.arange(-(2**31), 2**31, 2**18)]).astype(np.int32)
    one, half, c1, c3, r = np.float32(1), np.float32(0.5), sines._C1, sines._C3, sines._R
    z = (np.abs(phase) - np.int32(2**30)).astype(np.float32) * np.float32(2.0**-30)
    u = z * z
    v = one - u
    want = z + half * (z * (one - (u - v * v * (c1 + c3 * v * (r - u)))))
    np.testing.assert_array_equal(jax.jit(sines.sine_of_phase)(phase), want)


def test_additions_round_the_product_and_then_the_sum():
    encoding, scale = np.asarray(pe.sinusoidal(POSITIONS, DIM)), np.float32(1.7)
    np.testing.assert_array_equal(pe.add_sinusoidal(X, POSITIONS, scale=1.7), scale * X + encoding)
    np.testing.assert_array_equal(pe.add_learned(X, encoding, scale=1.7), scale * X + encoding)
    sine, cosine = encoding[:, 0::2], encoding[:, 1::2]
    moved = np.stack([X[:, 0::2] * cosine + X[:, 1::2] * sine, X[:, 1::2] * cosine - X[:, 0::2] * sine], -1)
    np.testing.assert_array_equal(pe.shift(X, POSITIONS, DIM), moved.reshape(X.shape))
    turned = np.stack([X[:, 0::2] * cosine - X[:, 1::2] * sine, X[:, 1::2] * cosine + X[:, 0::2] * sine], -1)
    rotary = pe.rotary(X, POSITIONS, layout="interleaved", head_axis=None)
    np.testing.assert_array_equal(rotary, turned.reshape(X.shape))
