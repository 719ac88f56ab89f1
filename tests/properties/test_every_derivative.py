"""Derivatives of every function with a float64 formula agree with differences of that formula.

- Forward mode, reverse mode, second order, and each inside vmap, scan and checkpoint.
- A rotation's derivative by x is the rotation itself, is rounded once in 16 bits, and keeps to its pair.
- Derivatives store no more than they need, and a mapped rotation stays one operation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.differences import Directions, stored
from helpers.functions import FUNCTIONS
from helpers.slow import slow

SMOOTH = {name: row for name, row in FUNCTIONS.items() if row.formula and row.floats}
# One function for each kind of derivative rule, which other transformations are tried on; and of these, the ones that
# the default tests take, because no file of their own tests their derivatives.
KINDS = "rotary, by heads", "rotary, cos_sin", "xpos, array", "pope, array", "prope, key", "t5", "fire"
FEW = "rotary, by heads", "rotary, cos_sin", "xpos, array", "t5", "fire"


def directions(name):
    """The function as one of its float arrays, its formula, and directions v and u (helpers/differences.py)."""
    row = SMOOTH[name]
    f = lambda *floats: row(*row.with_floats(floats))  # noqa: E731
    return Directions(f, lambda *floats: row.truth(floats), row.floats)


def inner(a, b):
    """The inner product of two lists of arrays."""
    return sum((x * y).sum() for x, y in zip(a, b, strict=True))


def check_first(d, got):
    """Asserts the derivatives along v, one per result.

    They sum the derivatives by each float, which may cancel, and of which a power rounds each by up to 5e-7.
    """
    by_each = [d.along(d.truth, d.alone(i)) for i in range(len(d.floats))]
    for a, b, *terms in zip(jax.tree.leaves(got), d.along(d.truth, d.v), *by_each, strict=True):
        assert a.dtype == np.float32
        bound = 3e-5 + 1e-5 * np.abs(b) + 5e-7 * sum(map(np.abs, terms))
        assert_within(a, b, bound, against="the difference along v")
        assert np.max(np.abs(b)) > 1e-2  # or zeros would pass


def check_second(got, want):
    """Asserts the second derivatives along v and u, one per result."""
    for a, b in zip(jax.tree.leaves(got), want, strict=True):
        assert_within(a, b, 1e-4 * (1 + np.abs(b)), against="the difference along v and u")


@pytest.mark.parametrize("name", [name if name in FEW else slow(name) for name in SMOOTH])
def test_forward_mode_of_first_and_second_order(name):
    d = directions(name)

    def along_v(*floats):
        return jax.jvp(d.f, floats, tuple(d.v))[1]

    first, second = jax.jit(lambda *floats: jax.jvp(along_v, floats, tuple(d.u)))(*d.floats)
    check_first(d, first)
    check_second(second, d.along_two(d.truth))


@pytest.mark.parametrize("name", [name if name in FEW else slow(name) for name in SMOOTH])
def test_reverse_mode_by_each_argument_and_forward_over_reverse(name):
    d = directions(name)
    gradient, along_u = jax.device_get(jax.jit(lambda *x: jax.jvp(d.gradient, x, tuple(d.u)))(*d.floats))
    for i in range(len(d.floats)):
        d.check_loss(inner(gradient, d.alone(i)), *d.along(d.true_loss, d.alone(i)))
    d.check_loss(inner(along_u, d.v), *d.along_two(d.true_loss))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOOTH)
def test_reverse_over_reverse(name):
    d = directions(name)
    along_v = lambda *x: inner(d.gradient(*x), d.v)  # noqa: E731
    second = jax.jit(lambda *x: inner(jax.grad(along_v, [*range(len(x))])(*x), d.u))(*d.floats)
    d.check_loss(second, *d.along_two(d.true_loss))


def scanned(f):
    """f inside a scan of two steps; a derivative of the carry, times 0, is added to its second result."""

    def second_step(*floats):
        carry, ys = lax.scan(lambda carry, _: (carry, f(*carry)), floats, None, 2)
        return jax.tree.map(lambda y: y[1] + 0 * sum(jnp.sum(x) for x in carry), ys)

    return second_step


def mapped(f):
    """f by vmap over copies of all arguments, of which the first are doubled; the second result."""
    return lambda *floats: jax.tree.map(lambda y: y[1], jax.vmap(f)(*(jnp.stack([2 * x, x]) for x in floats)))


def mapped_by_the_first(f):
    """f by vmap over copies of the first argument alone."""

    def second_copy(x, *rest):
        ys = jax.vmap(f, (0, *[None] * len(rest)))(jnp.stack([2 * x, x]), *rest)
        return jax.tree.map(lambda y: y[1], ys)

    return second_copy


def mapped_by_the_others(f):
    """f by vmap over copies of all arguments but the first."""

    def second_copy(x, *rest):
        if not rest:
            return f(x)
        ys = jax.vmap(lambda *rest: f(x, *rest))(*(jnp.stack([2 * r, r]) for r in rest))
        return jax.tree.map(lambda y: y[1], ys)

    return second_copy


@pytest.mark.slow
@pytest.mark.parametrize("transform", [mapped, mapped_by_the_first, mapped_by_the_others, scanned, jax.checkpoint])
@pytest.mark.parametrize("name", KINDS)
def test_derivatives_inside_other_transformations(name, transform):
    d = directions(name)
    g = transform(d.f)
    along_v = lambda *x: jax.jvp(g, x, tuple(d.v))[1]  # noqa: E731
    cotangent = jax.tree.unflatten(jax.tree.structure(jax.eval_shape(g, *d.floats)), d.weights)

    @jax.jit
    def derivatives(*x):
        return *jax.jvp(along_v, x, tuple(d.u)), jax.vjp(g, *x)[1](cotangent)

    first, second, back = jax.device_get(derivatives(*d.floats))
    check_first(d, first)
    check_second(second, d.along_two(d.truth))
    d.check_loss(inner(back, d.v), inner(d.weights, d.along(d.truth, d.v)))


# Derivatives of a rotation


RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def test_the_derivative_of_a_rotation_by_x_is_the_rotation_itself():
    """Forward mode has the bits of the rotation; reverse mode rotates back."""
    x, v = normal(2, 7, 3, 16), normal(2, 7, 3, 16)
    f = lambda x: pe.rotary(x, np.arange(2_000_000_000, 2_000_000_007), 8, head_axis=-2)  # noqa: E731

    @jax.jit
    def derivatives(x, v):
        forward = jax.jvp(f, (x,), (v,))[1], jax.linearize(f, x)[1](v)
        return f(v), forward, (*jax.vjp(f, x)[1](v), *jax.linear_transpose(f, x)(v)), jax.vjp(f, x)[1](f(v))

    rotated, forward, (back, transposed), (returned,) = derivatives(x, v)
    for tangent in forward:
        np.testing.assert_array_equal(tangent, rotated)
    np.testing.assert_array_equal(back, transposed)
    assert_within(returned, v, 1e-6 * (1 + np.abs(v)), against="the vector that was rotated and rotated back")


@pytest.mark.parametrize(
    "f",
    [
        lambda x, p, w: pe.rotary(x, p, w, head_axis=-2),
        slow(lambda x, p, w: pe.rotary(x, cos_sin=pe.cos_sin(p, w), head_axis=-2)),
        slow(lambda x, p, w: pe.xpos(x, x, p, w, head_axis=-2)[1]),
    ],
    ids=["rotary", "cos_sin", "xpos"],
)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, slow(jnp.float16)])
def test_a_tangent_in_16_bits_is_rounded_once(f, dtype):
    """A tangent has the bits of the float32 tangent, rounded, in 99 of 100 elements."""
    p, w, x, tangent = normal(2, 5), normal(3), *normal(2, 2, 5, 3, 6).astype(dtype)
    along = jax.jit(lambda x, tangent: jax.jvp(f, (x, p, w), (tangent, np.ones_like(p), np.ones_like(w)))[1])
    got, want = along(x, tangent), along(x.astype(np.float32), tangent.astype(np.float32))
    assert got.dtype == dtype
    # Errors of 1e-7 in float32 may round some elements to a neighbour.
    assert np.mean(np.asarray(got) != np.asarray(want).astype(dtype)) < 0.01


@pytest.mark.parametrize(("layout", "pair"), [("half", [2, 6]), slow("interleaved", [2, 3])])
def test_nothing_leaks_out_of_a_pair(layout, pair):
    """NaN and infinity in x reach the tangent of their own pair alone; features 8 and 9 do not rotate."""
    x, v, p, w = normal(1, 4, 1, 10), normal(1, 4, 1, 10), normal(4), normal(4)
    x[0, 1, 0, 2], x[0, 1, 0, 9], x[0, 2, 0, 8] = np.inf, np.nan, np.inf
    f = lambda *arrays: pe.rotary(*arrays, layout=layout, head_axis=-2)  # noqa: E731
    along = np.asarray(jax.jit(lambda *arrays: jax.jvp(f, arrays, (v, np.ones_like(p), w))[1])(x, p, w))
    assert {(i, j) for _, i, _, j in np.argwhere(~np.isfinite(along))} == {(1, j) for j in pair}
    np.testing.assert_array_equal(along[..., 8:], v[..., 8:])


# What derivatives store, and one operation for batches


def operations(jaxpr):
    """The names of all operations of a jaxpr and of the functions that it calls."""
    for eqn in jaxpr.eqns:
        inner = [p for p in jax.tree.leaves(tuple(eqn.params.values())) if hasattr(p, "jaxpr")]
        yield from (name for p in inner for name in operations(p.jaxpr))
        yield from [] if inner else [eqn.primitive.name]


@pytest.mark.parametrize(
    "axes", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (2, 1, None), (None, 0, 0)]
)
def test_a_mapped_rotation_stays_one_rotation(axes):
    arrays = normal(2, 5, 3, 8), normal(2, 5), normal(4)
    batched = [x if a is None else np.stack([x] * 4, a) for x, a in zip(arrays, axes, strict=True)]
    f = jax.vmap(lambda *arrays: pe.rotary(*arrays, head_axis=-2), axes)
    assert [*operations(jax.make_jaxpr(f)(*batched).jaxpr)].count("rotation") == 1


def test_a_rotation_keeps_x_only_if_positions_or_frequencies_have_derivatives():
    x, p, w = np.ones((2, 64, 8, 32), jnp.bfloat16), np.linspace(0, 5, 64, dtype=np.float32), np.ones(16, np.float32)
    # Bytes of float32: 64 positions and 16 frequencies; and of some constants
    assert stored(lambda x: pe.rotary(x, p, head_axis=-2), x) <= 4 * (64 + 16)
    assert stored(lambda x, p, w: pe.rotary(x, p, w, head_axis=-2), x, p, w) <= x.nbytes + 4 * (16 + 256)
    # Under vmap over x, over the frequencies, and over both: x is stored as often as it is mapped.
    for axes, rows in (((0, None), 8), ((None, 0), 1), ((0, 0), 8)):
        f = jax.vmap(lambda x, w: pe.rotary(x, None, w, head_axis=-2), axes)
        batched = [a if axis is None else np.stack([a] * 8) for a, axis in zip((x[0], w), axes, strict=True)]
        assert stored(f, *batched) <= rows * x[0].nbytes + 4 * (8 * w.size + 256)


@pytest.mark.parametrize(("name", "arrays"), [("t5", 2), ("fire", 4)])
def test_a_learned_bias_keeps_distances_alone(name, arrays):
    """It stores so many arrays (64, 64), and none with an axis of heads, buckets or hidden units."""
    row = FUNCTIONS[name]
    i = np.arange(64)
    parameters = {name: x for name, x in row.arguments.items() if "positions" not in name}
    f = lambda parameters: row.function(i, i, **parameters)  # noqa: E731
    floats = {name: x for name, x in parameters.items() if not isinstance(x, float)}
    assert stored(lambda floats: f(parameters | floats), floats) <= 4 * (arrays * 64**2 + 1024)
