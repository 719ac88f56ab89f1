"""The same position gives the same bits in every program: jit, op by op, vmap, scan, shards, exported.

- So a decode step is a row of the prefill, a shard is a part of the whole, and a batch is its sequences.
- A sine, an addition and a rotation have the bits of NumPy, which rounds after each operation.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.functions import FUNCTIONS, table
from helpers.slow import slow
from posenc_jax._numerics import sines

pytestmark = pytest.mark.usefixtures("compiled_anew")
RNG = np.random.default_rng(0)
# Eight heads, so that heads share a table of cosines and sines, and more tokens than a CPU vector has lanes
ROWS = table(batch=2, length=32, heads=8)
EXACT = {name: row for name, row in ROWS.items() if row.exact and "s" in "".join(jax.tree.leaves(row.result))}
# The default tests take one function of each kind.
FEW = "sinusoidal, array", "rotary", "rotary, by heads", "pope", "t5"


def along(axis, axes):
    """The index of an axis in each array's axes, or None for an array without it."""
    return [each.index(axis) if axis in each else None for each in axes]


def results_along(axis, row):
    """The index of an axis in each result."""
    return jax.tree.map(lambda axes: axes.find(axis), row.result)


def cut(row, axis, part):
    """The arrays of a call, a slice `part` of those that have the axis."""
    return [
        x if at is None else x[(slice(None),) * at + (part,)]
        for x, at in zip(row.arrays, along(axis, row.axes), strict=True)
    ]


def op_by_op(row):
    return row(*row.arrays)


def mapped(row):
    """By jax.vmap over the batch."""
    return jax.jit(jax.vmap(row, along("b", row.axes), results_along("b", row)))(*row.arrays)


def decoded(row):
    """One token after the other, in a scan over the sequence."""
    places = along("s", row.axes)  # where each array has its sequence
    moving = [jnp.moveaxis(x, at, 0) for x, at in zip(row.arrays, places, strict=True) if at is not None]

    def step(carry, tokens):
        tokens = iter(tokens)
        arrays = [
            x if at is None else jnp.expand_dims(next(tokens), at) for x, at in zip(row.arrays, places, strict=True)
        ]
        return carry, row(*arrays)

    steps = jax.jit(lambda *moving: lax.scan(step, 0, moving)[1])(*moving)
    back = lambda y, at: np.moveaxis(np.asarray(y).squeeze(at + 1), 0, at)  # noqa: E731
    return jax.tree.map(back, steps, results_along("s", row))


def prefixes(row):
    """A prefix of seven tokens and the rest, by two calls."""
    parts = [jax.jit(row)(*cut(row, "s", part)) for part in (slice(7), slice(7, None))]
    return jax.tree.map(lambda at, *parts: np.concatenate(parts, at), results_along("s", row), *parts)


def on_shards(row):
    """By jax.shard_map, with batch, sequence and heads over eight devices."""
    mesh = jax.make_mesh((2, 2, 2), ("b", "s", "h"), (AxisType.Auto,) * 3, devices=jax.devices("cpu"))
    spec = lambda axes: P(*(axis if axis in "bsh" else None for axis in axes))  # noqa: E731
    specs = {"in_specs": tuple(map(spec, row.axes)), "out_specs": jax.tree.map(spec, row.result)}
    return jax.jit(jax.shard_map(row, mesh=mesh, **specs))(*row.arrays)


def exported(row):
    """By a program that was exported for batches and sequences of any length, serialized and loaded."""
    sizes = dict(zip("bs", export.symbolic_shape("b, s"), strict=True))
    types = [
        jax.ShapeDtypeStruct([sizes.get(axis, n) for axis, n in zip(axes, x.shape, strict=True)], x.dtype)
        for x, axes in zip(row.arrays, row.axes, strict=True)
    ]
    return export.deserialize(export.export(jax.jit(row))(*types).serialize()).call(*row.arrays)


def in_a_larger_program(row):
    """Between operations that a compiler might fuse with it: adding a computed 0 before, and doubling after."""

    def larger(*arrays):
        nothing = lambda x: x + jnp.sin(jnp.arcsin(jnp.zeros((), x.dtype))) if x.dtype == jnp.float32 else x  # noqa: E731
        return jax.tree.map(lambda y: y * jnp.array(2, y.dtype), row(*map(nothing, arrays)))

    return jax.tree.map(lambda y: np.asarray(y) / np.array(2, y.dtype), jax.jit(larger)(*row.arrays))


def checkpointed(row):
    """The value that is computed with a derivative, under jax.checkpoint."""

    def loss(x, *rest):
        y = jax.checkpoint(row)(x, *rest)
        return sum(jnp.sum(a) for a in jax.tree.leaves(y)).astype(jnp.float32), y

    floats = [i for i, x in enumerate(row.arrays) if x.dtype == np.float32]
    return jax.jit(jax.value_and_grad(lambda *arrays: loss(*arrays), floats[:1], has_aux=True))(*row.arrays)[0][1]


PROGRAMS = [op_by_op, mapped, decoded, prefixes, on_shards, exported, slow(in_a_larger_program), slow(checkpointed)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", [name if name in FEW else slow(name) for name in EXACT])
def test_every_program_gives_the_same_bits(name, program, on_cpu):
    """The reference is jax.jit of the whole call."""
    row = EXACT[name]
    if program is checkpointed and not row.floats:
        return
    if "counted" in name and program in (decoded, prefixes, on_shards):  # each would count its own part from 0
        return
    want, got = jax.jit(row)(*row.arrays), program(row)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("name", ["rotary, by heads", *map(slow, ("rotary, array", "shift, array", "t5"))])
def test_derivatives_have_the_same_bits_with_and_without_jit(name):
    row, normal = FUNCTIONS[name], lambda x: RNG.normal(size=x.shape).astype(np.float32)
    f = lambda *floats: row(*row.with_floats(floats))  # noqa: E731
    # Tangents, a cotangent, and both modes
    v, dy = tuple(map(normal, row.floats)), normal(jax.eval_shape(f, *row.floats))
    for derivative in (lambda *x: jax.jvp(f, x, v)[1], lambda *x: jax.vjp(f, *x)[1](dy)):
        got, want = derivative(*row.floats), jax.jit(derivative)(*row.floats)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(a, b)


def test_positions_that_are_not_given_are_counted():
    x, positions = ROWS["add_sinusoidal"].arguments["x"], np.arange(32)
    np.testing.assert_array_equal(pe.add_sinusoidal(x), pe.add_sinusoidal(x, positions))
    np.testing.assert_array_equal(pe.rotary(x, head_axis=None), pe.rotary(x, positions, head_axis=None))


def test_width_does_not_matter_where_the_frequencies_are_the_same():
    """The first five of 64 frequencies give the first ten of 128 features."""
    wide, positions = pe.geometric(128), ROWS["rotary"].arguments["positions"]
    narrow = dataclasses.replace(wide, cycles=wide.cycles[:5], dim=10, axes=None)
    np.testing.assert_array_equal(pe.sinusoidal(positions, narrow), pe.sinusoidal(positions, wide)[..., :10])


def test_a_sine_is_what_numpy_computes_operation_by_operation():
    """NumPy rounds each product and each sum, so no compiler has contracted a·b + c to one rounding."""
    phase = np.concatenate([RNG.integers(-(2**31), 2**31, 2**16), np.arange(-(2**31), 2**31, 2**18)]).astype(np.int32)
    one, half, c1, c3, r = np.float32(1), np.float32(0.5), sines._C1, sines._C3, sines._R
    z = (np.abs(phase) - np.int32(2**30)).astype(np.float32) * np.float32(2.0**-30)
    u = z * z
    v = one - u
    want = z + half * (z * (one - (u - v * v * (c1 + c3 * v * (r - u)))))
    np.testing.assert_array_equal(jax.jit(sines.sine_of_phase)(phase), want)


def test_additions_and_rotations_round_each_product_and_then_the_sum():
    positions, x = RNG.integers(-(2**31), 2**31, 64).astype(np.int32), RNG.normal(size=(64, 12)).astype(np.float32)
    encoding, scale = np.asarray(pe.sinusoidal(positions, 12)), np.float32(1.7)
    np.testing.assert_array_equal(pe.add_sinusoidal(x, positions, scale=1.7), scale * x + encoding)
    np.testing.assert_array_equal(pe.add_learned(x, encoding, scale=1.7), scale * x + encoding)
    # Members of the pairs of x; the interleaved encoding alternates sines and cosines.
    (a, b), (sine, cosine) = ((y[:, 0::2], y[:, 1::2]) for y in (x, encoding))
    rotated = np.stack([a * cosine - b * sine, b * cosine + a * sine], -1).reshape(x.shape)
    np.testing.assert_array_equal(pe.rotary(x, positions, layout="interleaved", head_axis=None), rotated)
    shifted = np.stack([a * cosine + b * sine, b * cosine - a * sine], -1).reshape(x.shape)
    np.testing.assert_array_equal(pe.shift(x, positions, 12), shifted)
