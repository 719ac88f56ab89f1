"""Forward mode, and forward over reverse, of what rotates and of learned biases: beside differences of the formulas in float64.

First and second derivatives along directions are differences of the oracles, so no rule of this library is compared with
another of its rules alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles import biases, cameras, rotations

RNG = np.random.default_rng(0)
W = np.float32([1.3, 0.2, 0.7])


def normal(*shape, rng=RNG):
    return rng.normal(size=shape).astype(np.float32)


def angles(p, w):
    return np.asarray(p)[..., None, None] * w


def of_axes(x, p):
    """Axial RoPE of 8 features: the first two pairs turn by the first coordinate, the others by the second."""
    omega = pe.axial(8, 2).angular
    return rotations.rotate_by(x, np.repeat(p, 2, axis=-1)[..., None, :] * omega, "half")


def of_axes_and_heads(p, w):
    """The angles (..., heads, pairs) of positions (..., axes) by frequencies (heads, axes, pairs)."""
    return np.einsum("...a,hai->...hi", p, w)


def decayed(x, p, w, sign):
    turned = angles(p, w)
    distance = np.broadcast_to(sign * np.asarray(p)[..., None], turned.shape[:-1])
    return rotations.xpos(x, np.sin(turned), np.cos(turned), distance, "half", scale_base=20)


def polar(x, p, w, phase):
    turned = angles(p, w) + phase
    return rotations.pope(x, np.sin(turned), np.cos(turned), "interleaved")


AT = np.array([0, 2, 11, 3, 40], np.int32), np.array([3, 2, 0, 90], np.int32)


def two_tables(there, back):
    q, k = AT
    return pe.t5(q, k, there, max_distance=20) * pe.t5(k, q, back, bidirectional=False).mT


def of_two_tables(there, back):
    (q, k), distance = AT, biases.tile(*AT)
    after = q[:, None] < k
    of_there = biases.t5(distance, after, there, max_distance=20)
    return of_there * np.swapaxes(biases.t5(distance.T, ~after.T, back, bidirectional=False), 1, 2)


def fire(w1, b1, w2, b2, c, threshold, q, k):
    return pe.fire(q, k, (w1, b1, w2, b2), c=c, threshold=threshold)


def of_fire(w1, b1, w2, b2, c, threshold, q, k):
    return biases.fire(np.abs(q[:, None] - k), q[:, None], (w1, b1, w2, b2), c, threshold)


X, MIXED = normal(2, 5, 3, 8), RNG.uniform(-3, 3, (2, 5)).astype(np.float32)


def camera(m, turns, shift):
    """A pose (..., 4, 4), turned around two axes, by NumPy or by JAX."""
    (a, b), zero = (turns[..., i] for i in range(2)), 0 * turns[..., 0]
    (c, s), (d, t) = ((m.cos(x), m.sin(x)) for x in (a, b))
    rows = [[c, -s * d, s * t], [s, c * d, -c * t], [zero, t, d]]
    rows = [[*row, shift[..., i]] for i, row in enumerate(rows)] + [[zero, zero, zero, zero + 1]]
    return m.stack([m.stack(row, -1) for row in rows], -2)


def lens(m, focal):
    """K (3, 3) with everything that it may have, for an image of 3 × 4."""
    f, s, c, g, d = (focal[i] for i in range(5))
    zero = 0 * f
    return m.stack([m.stack(row) for row in ([f, s, c], [zero, g, d], [zero, zero, zero + 1])])


def in_view(role):
    def ours(x, turns, shift, focal):
        at = {"role": role, "head_axis": -2, "image_size": (3, 4), "width": 4}
        return pe.prope(x, camera(jnp, turns, shift), lens(jnp, focal), **at)

    def exact(x, turns, shift, focal):
        p = cameras.projection(camera(np, turns, shift), lens(np, focal), (3, 4))
        return cameras.transformed(x, cameras.matrix(role, p), 4)

    return ours, exact, (X, normal(2, 5, 2), normal(2, 5, 3), np.float32([3.1, 0.2, 1.7, 2.4, 1.6]))


FIRE = (
    *(normal(5), normal(5), normal(5, 3), normal(3), np.float32(0.7), np.float32(4.5)),
    *(np.float32([0.5, 2.2, 7.5, 4.1]), np.float32([1.1, 3, 0.2])),
)
# A function of floats, the same in float64, and the floats.
CASES = {
    "half": (
        lambda x, p, w: pe.rotary(x, p, w, head_axis=-2),
        lambda x, p, w: rotations.rotate_by(x, angles(p, w), "half"),
        (X[..., :6], MIXED, W),
    ),
    "interleaved, the last, inverse": (
        lambda x, p, w: pe.rotary(x, p, w, layout="interleaved", part="last", inverse=True, head_axis=-2),
        lambda x, p, w: rotations.rotate_by(x, -angles(p, w), "interleaved", "last"),
        (X, MIXED, W),
    ),
    "positions of a sequence": (
        lambda x, p, w: pe.rotary(x, p, w, layout="interleaved", head_axis=-2),
        lambda x, p, w: rotations.rotate_by(x, angles(p, w), "interleaved"),
        (X, MIXED[0], W),
    ),
    "a part, one offset": (
        lambda x, p, w: pe.shift_keys(x, p, w, head_axis=-2),
        lambda x, p, w: rotations.rotate_by(x, angles(p, w), "half"),
        (X, MIXED[0, 0], W),
    ),
    "static": (
        lambda x, p: pe.rotary(x, p, pe.geometric(8, 100.0), head_axis=-2),
        lambda x, p: rotations.rotate_by(x, angles(p, pe.geometric(8, 100.0).angular), "half"),
        (X, MIXED),
    ),
    "two coordinates": (lambda x, p: pe.rotary(x, p, pe.axial(8, 2), head_axis=-2), of_axes, (X, normal(2, 5, 2))),
    "several axes": (
        lambda x, p, w: pe.rotary(x, p, w, layout="interleaved", part="last", head_axis=-2),
        lambda x, p, w: rotations.rotate_by(x, of_axes_and_heads(p, w[None]), "interleaved", "last"),
        (X, normal(2, 5, 2), normal(2, 3)),
    ),
    "by heads": (
        lambda x, p, w: pe.rotary(x, p, w, head_axis=-2),
        lambda x, p, w: rotations.rotate_by(x, of_axes_and_heads(p, w), "half"),
        (X, normal(5, 2), normal(3, 2, 4)),
    ),
    "by cos_sin": (
        lambda x, c, s: pe.rotary(x, cos_sin=pe.CosSin(c, s, columns="pair"), head_axis=-2),
        lambda x, c, s: rotations.rotate(x, s[..., None, :], c[..., None, :], "half"),
        (X, normal(5, 4), normal(5, 4)),
    ),
    "cos_sin of the last": (
        lambda x, c, s: pe.rotary(
            x, cos_sin=pe.CosSin(c, s, columns="pair"), head_axis=-2, layout="interleaved", part="last"
        ),
        lambda x, c, s: rotations.rotate(x, s[..., None, :], c[..., None, :], "interleaved", "last"),
        (X, normal(1, 5, 2), normal(1, 5, 2)),
    ),
    "cos_sin": (
        lambda p, w: jnp.stack(pe.cos_sin(p, w)),
        lambda p, w: (lambda a: np.stack([np.cos(a), np.sin(a)]))(of_axes_and_heads(p, w[None])[..., 0, :]),
        (normal(5, 2), normal(2, 3)),
    ),
    "integers": (
        lambda x, w: pe.rotary(x, np.arange(3, 8), w, head_axis=-2),
        lambda x, w: rotations.rotate_by(x, angles(np.arange(3, 8), w), "half"),
        (X, W),
    ),
    "shift": (
        lambda x, k, w: pe.shift(x, k, w),
        lambda x, k, w: rotations.rotate_by(x, -angles(k, w)[..., 0, :], "interleaved"),
        (X[0, :, 0, :6], MIXED[0], W),
    ),
    "shift of halves by one": (
        lambda x, k, w: pe.shift(x, k, w, layout="half"),
        lambda x, k, w: rotations.rotate_by(x, -angles(k, w)[..., 0, :], "half"),
        (X[0, :, 0, :6], MIXED[0, 0], W),
    ),
    "xpos, query": (
        lambda x, p, w: pe.xpos(x, x, p, w, scale_base=20, head_axis=-2)[0],
        functools.partial(decayed, sign=1),
        (X[..., :6], MIXED[0], W),
    ),
    "xpos, key": (
        lambda x, p, w: pe.xpos(x, x, p, w, scale_base=20, head_axis=-2)[1],
        functools.partial(decayed, sign=-1),
        (X[..., :6], MIXED, W),
    ),
    "prope, query": in_view("query"),
    "prope, key": in_view("key"),
    "pope": (
        lambda x, p, w, phase: pe.pope(x, p, w, phase=phase, layout="interleaved", head_axis=-2),
        polar,
        (X[..., :3], MIXED, W, normal(3, 3)),
    ),
    "t5": (two_tables, of_two_tables, (normal(16, 3), normal(8, 3))),
    "fire": (fire, of_fire, FIRE),
}
FEW = [
    "by heads",
    "cos_sin of the last",
    "two coordinates",
    "xpos, key",
    "pope",
    "t5",
    "fire",
]


def directions(arrays, rng=RNG):
    """Along all arguments at once, and along each alone."""
    every = tuple(normal(*x.shape, rng=rng) for x in arrays)
    alone = [tuple(v * (i == j) for j, v in enumerate(every)) for i in range(len(arrays))]
    return [every, *alone]


def moved(arrays, *steps):
    """The arrays in float64, moved by h·v for each (h, v)."""
    return [np.float64(x) + sum(h * np.float64(v[i]) for h, v in steps) for i, x in enumerate(arrays)]


def oracle(name):
    """Directions, `along`, weights of a loss; differences along each direction, then `along` too, and those of the loss."""
    _, formula, arrays = CASES[name]
    rng = np.random.default_rng(1)  # the same numbers inside every transformation
    ways, h = directions(arrays, rng), 1e-5
    along = directions(arrays, rng)[0]
    first = [(formula(*moved(arrays, (h, v))) - formula(*moved(arrays, (-h, v)))) / (2 * h) for v in ways]
    weights, h = normal(*first[0].shape, rng=rng), 1e-4
    second, of_loss = [], []
    for v in ways:
        signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
        four = [(a * b, formula(*moved(arrays, (a * h, v), (b * h, along)))) for a, b in signs]
        second.append(sum(sign * y for sign, y in four) / (4 * h * h))
        of_loss.append(sum(sign * np.sum(weights * y**3) for sign, y in four) / (4 * h * h))
    return ways, along, weights, first, second, of_loss


def inner(a, b):
    return sum(jnp.vdot(x, y) for x, y in zip(a, b, strict=True))


def derivatives_of(f, along, weights, reverse):
    """Of f along v, along v and `along`, and of its gradient; the last by reverse over reverse, too."""
    loss = lambda *arrays: jnp.sum(weights * f(*arrays) ** 3)  # noqa: E731
    gradient = lambda *arrays: jax.grad(loss, tuple(range(len(arrays))))(*arrays)  # noqa: E731

    def of(arrays, v):
        first = lambda *arrays: jax.jvp(f, arrays, v)[1]  # noqa: E731
        along_v = lambda *arrays: inner(gradient(*arrays), v)  # noqa: E731
        backward = [inner(jax.grad(along_v, tuple(range(len(arrays))))(*arrays), along)] if reverse else []
        forward = inner(jax.jvp(gradient, arrays, v)[1], along)
        return first(*arrays), jax.jvp(first, arrays, along)[1], [forward, *backward]

    return of


def scanned(f):
    """f inside a scan, whose carry moves along."""

    def in_scan(*arrays):
        carry, y = lax.scan(lambda carry, _: (carry, f(*carry)), arrays, None, 2)
        return y[1] + 0 * sum(jnp.sum(x) for x in carry)

    return in_scan


PROGRAMS = {
    "jit": lambda f: f,
    "vmap": lambda f: lambda *arrays: jax.vmap(f)(*(jnp.stack([2 * x, x]) for x in arrays))[1],
    "vmap of one": lambda f: lambda x, *rest: jax.vmap(f, (0, *(None for _ in rest)))(jnp.stack([2 * x, x]), *rest)[1],
    "vmap of the others": lambda f: lambda x, *rest: jax.vmap(lambda *r: f(x, *r))(*(jnp.stack([2 * r, r]) for r in rest))[1],
    "scan": scanned,
    "remat": jax.checkpoint,
    "jit in jit": jax.jit,
}  # fmt: skip


def check(name, transform, program, reverse=True):
    f, _, arrays = CASES[name]
    ways, along, weights, *wanted = oracle(name)
    of = program(derivatives_of(transform(f), along, weights, reverse))
    size = float(np.sum(np.abs(weights)))
    for v, by_one, by_two, of_loss in zip(ways, *wanted, strict=True):
        tangent, second, hessians = of(arrays, v)
        assert tangent.dtype == np.float32
        assert_within(tangent, by_one, 3e-5 + 1e-5 * np.abs(by_one), against=f"the difference along {len(v)} tangents")
        assert_within(second, by_two, 1e-4 * (1 + np.abs(by_two)), against="the second difference")
        bound = 3e-5 * size + 1e-5 * abs(of_loss)
        forward, *backward = hessians
        assert_within(forward, of_loss, bound, against="the second difference of the loss")
        for one in backward:
            assert_within(forward, one, bound, against="reverse over reverse")
        seen = 1e-2 * min(1, max(np.max(np.abs(x)) for x in v))
        assert np.max(np.abs(by_one)) > seen and abs(of_loss) > seen


@pytest.mark.parametrize("name", FEW)
def test_beside_differences_in_float64(name):
    check(name, PROGRAMS["jit"], quick, reverse=False)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["scan"])
def test_inside_other_transformations(how):
    check("half", PROGRAMS[how], quick, reverse=False)


@pytest.mark.slow
@pytest.mark.parametrize("how", PROGRAMS)
@pytest.mark.parametrize("name", CASES)
def test_every_order_inside_every_transformation(name, how):
    check(name, PROGRAMS[how], quick)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_eagerly(name):
    check(name, PROGRAMS["jit"], lambda f: f)


# Not of waves themselves, in whose derivatives XLA may contract products and sums.
SAME_BITS = [name for name in CASES if name not in ("fire", "cos_sin", "pope") and name[:5] not in ("xpos,", "prope")]


@pytest.mark.parametrize("name", tiered(SAME_BITS, ["two coordinates"]))
def test_the_same_bits_with_and_without_jit(name):
    f, _, arrays = CASES[name]
    if name == "half":  # large enough that XLA may sum in another order
        arrays = normal(2, 65, 4, 64), RNG.uniform(-300, 300, (2, 65)).astype(np.float32), normal(32)
    v = directions(arrays)[0]
    weights = normal(*jax.eval_shape(f, *arrays).shape)

    forward = lambda arrays, v: jax.jvp(f, arrays, v)[1]  # noqa: E731
    reverse = lambda arrays, v: jax.vjp(f, *arrays)[1](weights)  # noqa: E731
    for derivative in (forward, reverse):
        eager, jitted = derivative(arrays, v), jax.jit(derivative)(arrays, v)
        for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(jitted), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("program", [slow(lambda f: f), jax.jit], ids=["eagerly", "jit"])
def test_the_derivative_in_x_is_the_rotation_itself(program):
    x, v = normal(2, 7, 3, 16), normal(2, 7, 3, 16)
    f = lambda x: pe.rotary(x, np.arange(2_000_000_000, 2_000_000_007), 8, head_axis=-2)  # noqa: E731
    row = lambda x: f(x[None, :, None])[0, :, 0]  # noqa: E731

    def derivatives(x, v):
        along = jax.jvp(f, (x,), (v,)), (f(x), jax.linearize(f, x)[1](v))
        jacobians = jax.jacfwd(row)(x[0, :, 0]), jax.jacrev(row)(x[0, :, 0])
        return f(v), along, jacobians, (*jax.linear_transpose(f, x)(v), *jax.vjp(f, x)[1](v))

    turned, (jvp, linearized), jacobians, back = program(derivatives)(x, v)
    np.testing.assert_array_equal(jvp[1], turned)
    for got, want in ((jvp, linearized), jacobians, back):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, slow(jnp.float16)])
@pytest.mark.parametrize(
    "f",
    [
        functools.partial(pe.rotary, head_axis=-2),
        slow(lambda x, p, w: pe.rotary(x, cos_sin=pe.cos_sin(p, w), head_axis=-2)),
        slow(lambda x, p, w: pe.xpos(x, x, p, w, head_axis=-2)[1]),
    ],
    ids=["rotary", "waves", "xpos"],
)
def test_a_tangent_in_16_bits_is_rounded_once(f, dtype):
    narrow = [(normal(2, 5, 3, 6).astype(dtype), *others) for others in ((MIXED, W), (normal(2, 5), normal(3)))]
    wide = [(x.astype(np.float32), *others) for x, *others in narrow]
    along = lambda x, v: jax.jvp(f, x, v)[1]  # noqa: E731
    got, want = quick(lambda narrow, wide: (along(*narrow), along(*wide)))(narrow, wide)
    assert got.dtype == dtype
    assert np.mean(np.asarray(got) != np.asarray(want).astype(dtype)) < 0.01  # 1e-7 may cross a boundary


@pytest.mark.parametrize("program", [slow(lambda f: f), jax.jit], ids=["eagerly", "jit"])
@pytest.mark.parametrize(("layout", "pair"), [("half", [2, 6]), slow("interleaved", [2, 3])])
def test_nothing_leaks_out_of_a_pair(layout, pair, program):
    x, v = normal(1, 4, 1, 10), normal(1, 4, 1, 10)
    x[0, 1, 0, 2], x[0, 1, 0, 9], x[0, 2, 0, 8] = np.inf, np.nan, np.inf  # 8 and 9 pass through
    w = np.geomspace(1, 0.1, 4).astype(np.float32)
    f = functools.partial(pe.rotary, layout=layout, head_axis=-2)
    along = np.asarray(program(lambda *x: jax.jvp(f, x, (v, np.ones(4, np.float32), w))[1])(x, MIXED[0, :4], w))
    assert {(i, j) for _, i, _, j in np.argwhere(~np.isfinite(along))} == {(1, j) for j in pair}
    np.testing.assert_array_equal(along[..., 8:], v[..., 8:])


# Residuals, and the programs of derivatives


def eqns_of(f, *arrays):
    """The names of the operations of a traced function, those of inner functions too."""

    def names(jaxpr):
        for eqn in jaxpr.eqns:
            inner = [p for p in jax.tree.leaves(tuple(eqn.params.values())) if hasattr(p, "jaxpr")]
            yield from ([eqn.primitive.name] if not inner else [])
            for p in inner:
                yield from names(p.jaxpr)

    return list(names(jax.make_jaxpr(f)(*arrays).jaxpr))


MAPS = [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (2, 1, None), (None, 0, 0)]


def batches(axes, n=4):
    arrays = normal(2, 5, 3, 8), MIXED, np.geomspace(1, 0.1, 4).astype(np.float32)
    return [x if a is None else np.stack([x * (1 + i) for i in range(n)], a) for x, a in zip(arrays, axes, strict=True)]


@pytest.mark.parametrize("axes", MAPS)
def test_batches_stay_one_rotation(axes):
    f = jax.vmap(functools.partial(pe.rotary, head_axis=-2), axes)
    assert eqns_of(f, *batches(axes)).count("rotation") == 1


@pytest.mark.parametrize("axes", tiered(MAPS, [(None, 0, 0)]))
def test_batches_turn_as_each_alone(axes):
    def both(f):
        return quick(lambda *b: (f(*b), *jax.grad(lambda *b: jnp.sum(jnp.sin(f(*b))), (0, 1, 2))(*b)))

    f, batched = functools.partial(pe.rotary, head_axis=-2), batches(axes)
    got, one = both(jax.vmap(f, axes)), both(f)
    y, *slopes = jax.device_get(got(*batched))
    each = [one(*(x if a is None else x.take(i, a) for x, a in zip(batched, axes, strict=True))) for i in range(len(y))]
    ys, *each = map(np.stack, zip(*each, strict=True))
    np.testing.assert_array_equal(y, ys)
    for got, want, a in zip(slopes, each, axes, strict=True):
        want = want.sum(0) if a is None else np.moveaxis(want, 0, a)
        assert_within(got, want, 1e-5 * (1 + np.abs(want).max()), against="one after the other")


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(None, 0, 0), (None, None, 0), (None, 0, None), (0, None, None)])
def test_batches_that_explicit_axes_split(axes, on_cpu):
    arrays = normal(2, 5, 1, 8), MIXED, np.geomspace(1, 0.1, 4).astype(np.float32)
    batched = [x if a is None else np.stack([x * (1 + i) for i in range(8)]) for x, a in zip(arrays, axes, strict=True)]
    f = jax.vmap(functools.partial(pe.rotary, head_axis=-2), axes)
    both = lambda *b: (f(*b), *jax.vjp(lambda *b: jnp.sin(f(*b)), *b)[1](jnp.ones(f(*b).shape, jnp.float32)))  # noqa: E731
    want = quick(both)(*batched)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu"))
    with jax.set_mesh(mesh):
        specs = [P() if a is None else P("d") for a in axes]
        placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(batched, specs, strict=True)]
        ones = jax.device_put(np.ones(want[0].shape, np.float32), NamedSharding(mesh, P("d")))
        got = quick(lambda *b: (f(*b), *jax.vjp(lambda *b: jnp.sin(f(*b)), *b)[1](ones)))(*placed)
        assert jax.typeof(got[0]).sharding.spec[0] == "d"
        for x, d in zip(placed, got[1:], strict=True):
            assert jax.typeof(d).sharding.spec == jax.typeof(x).sharding.spec
    for a, b in zip(got, want, strict=True):
        assert_within(a, b, 1e-5 * (1 + np.abs(b).max()), against="one device")


@pytest.mark.slow
def test_without_jit():
    want = both(functools.partial(pe.rotary, head_axis=-2), BIG, WAYS[0])
    with jax.disable_jit():
        got = both(functools.partial(pe.rotary, head_axis=-2), BIG, WAYS[0])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_within(a, b, 1e-5 * (1 + np.abs(b).max()), against="under jit")


def test_what_batches_keep():
    x, w = np.ones((8, 16, 4, 32), np.float32), np.ones((8, 16), np.float32)
    for axes, most in (((0, None), x.nbytes), ((None, 0), x.nbytes / 8), ((0, 0), x.nbytes)):
        arrays = x if axes[0] == 0 else x[0], w if axes[1] == 0 else w[0]
        f = jax.vmap(lambda x, w: pe.rotary(x, None, w, head_axis=-2), axes)
        kept = jax.eval_shape(lambda *a: jax.vjp(f, *a)[1], *arrays)  # noqa: B023
        assert sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(kept)) <= most + w.nbytes + 1024


def test_positions_that_do_not_move_keep_nothing_of_x():
    x, p = np.ones((2, 64, 8, 32), np.float32), np.linspace(0, 5, 64, dtype=np.float32)
    kept = jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(lambda x: pe.rotary(x, p, head_axis=-2), x)[1], x))
    assert sum(a.size for a in kept) <= 64 + 16


# Meshes


def mesh(kind):
    return jax.make_mesh((2, 4), ("d", "h"), axis_types=(kind,) * 2, devices=jax.devices("cpu"))


SPLIT = [
    (P("d", None, "h"), P("d")),
    slow(P("d", None, "h"), P()),
    slow(P(None, None, "h"), P("d")),
    slow(P(), P("d", "h")),
    slow(P(None, "d"), P()),
]
BIG = normal(4, 8, 4, 8), RNG.uniform(-3, 3, (4, 8)).astype(np.float32), np.geomspace(1, 0.1, 4).astype(np.float32)
WAYS = [tuple(normal(*x.shape) for x in BIG) for _ in range(2)]


def both(f, arrays, v):
    gradient = lambda *arrays: jax.grad(lambda *a: jnp.sum(f(*a) ** 3), (0, 1, 2))(*arrays)  # noqa: E731
    return jax.jvp(f, arrays, v), jax.jvp(gradient, arrays, v)


def assert_as_on_one_device(got):
    want = quick(lambda a, v: both(functools.partial(pe.rotary, head_axis=-2), a, v))(BIG, WAYS[0])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_within(a, b, 1e-4 + 1e-4 * np.abs(b), against="one device")


@pytest.mark.parametrize("kind", [slow(AxisType.Auto), AxisType.Explicit])
@pytest.mark.parametrize(("x_spec", "p_spec"), SPLIT)
def test_on_a_mesh(kind, x_spec, p_spec, on_cpu):
    specs = (x_spec, p_spec, P())
    m = mesh(kind)
    put = lambda each: tuple(jax.device_put(x, NamedSharding(m, s)) for x, s in zip(each, specs, strict=True))  # noqa: E731
    with jax.set_mesh(m):
        arrays, v = put(BIG), put(WAYS[0])
        program = quick(lambda a, v: both(functools.partial(pe.rotary, head_axis=-2), a, v))
        got = program(arrays, v)
        if kind == AxisType.Explicit:
            types = program.eval_shape(arrays, v)
            (y, along), (gradient, second) = jax.tree.map(lambda x: x.sharding.spec, types)
            want = jax.eval_shape(functools.partial(pe.rotary, head_axis=-2), *arrays).sharding.spec
            assert y == along == want and {*want} - {None} == {*x_spec, *p_spec} - {None}
            assert gradient == second == tuple(jax.typeof(x).sharding.spec for x in arrays)
    assert_as_on_one_device(got)


@pytest.mark.parametrize(("x_spec", "p_spec"), SPLIT)
def test_in_shard_map(x_spec, p_spec, on_cpu):
    """What is whole on every device gets the sum of all devices' cotangents."""
    m = mesh(AxisType.Auto)
    four = ((*spec, *[None] * 4)[:4] for spec in (x_spec, p_spec))
    rows = P(*(next((name for name in names if name), None) for names in zip(*four, strict=True)))
    specs = (x_spec, p_spec, P())

    def part(x, sizes, spec):
        """This device's part of an array that is whole here but split in the result."""
        for axis, name in enumerate((*rows, *[None] * 4)[: x.ndim - (x.ndim > 2)]):
            if name and x.shape[axis] == sizes[axis]:
                n = sizes[axis] // m.shape[name]
                x = lax.dynamic_slice_in_dim(x, lax.axis_index(name) * n, n, axis)
        return x

    def f(x, p, w):
        local = lambda x, p, w: pe.rotary(part(x, BIG[0].shape, x_spec), part(p, BIG[1].shape, p_spec), w, head_axis=-2)  # noqa: E731
        return jax.shard_map(local, mesh=m, in_specs=specs, out_specs=rows)(x, p, w)

    assert_as_on_one_device(quick(lambda a, v: both(f, a, v))(BIG, WAYS[0]))


@pytest.mark.slow
def test_an_x_that_is_one_for_all_devices(on_cpu):
    """`rotary` itself makes x vary, where only positions do."""
    m = mesh(AxisType.Auto)
    arrays, v = ((x[:1, :, :1], p[:2], w) for x, p, w in (BIG, WAYS[0]))

    def f(x, p, w):
        specs = P(), P("d"), P()
        return jax.shard_map(functools.partial(pe.rotary, head_axis=-2), mesh=m, in_specs=specs, out_specs=P("d"))(
            x, p, w
        )

    got = quick(lambda a, v: both(f, a, v))(arrays, v)
    repeat = lambda x, p, w: pe.rotary(jnp.repeat(x, 2, 0), p, w, head_axis=-2)  # noqa: E731
    want = quick(lambda a, v: both(repeat, a, v))(arrays, v)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_within(a, b, 1e-4 + 1e-4 * np.abs(b), against="one device")


TABLE, MLP = normal(16, 4), FIRE[:2] + (normal(5, 4), normal(4))
LEARNED = {  # functions of positions and of parameters, the parameters, and how these are sharded with the heads
    "t5": (pe.t5, (TABLE,), (P(None, "h"),)),
    "fire": (
        lambda i, j, *x: pe.fire(i, j, x[:4], c=x[4], threshold=x[5]),
        (*MLP, np.float32(0.7), np.float32(4.5)),
        (P(), P(), P(None, "h"), P("h"), P(), P()),
    ),
}
ROWS, COLUMNS = np.arange(12, dtype=np.int32).reshape(4, 3), np.arange(5, dtype=np.int32)


def derivatives_of_bias(f, i, j, parameters, v):
    """Along v: the bias, the derivative of the bias, and of the gradient of a loss, and the gradient."""
    gradient = lambda *p: jax.grad(lambda *p: jnp.sum(f(i, j, *p) ** 3), tuple(range(len(p))))(*p)  # noqa: E731
    return jax.jvp(functools.partial(f, i, j), parameters, v), jax.jvp(gradient, parameters, v)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("t5", "shard_map"), slow("fire", "explicit"), slow("t5", "auto"), slow("t5", "explicit")),
        *(slow("fire", "auto"), slow("fire", "shard_map")),
    ],
)
def test_learned_biases_on_a_mesh(name, mode, on_cpu):
    """In `shard_map` parameters are whole along "d", so their gradient is a sum over devices."""
    f, parameters, specs = LEARNED[name]
    v = tuple(normal(*np.shape(x)) for x in parameters)
    want = quick(functools.partial(derivatives_of_bias, f))(ROWS, COLUMNS, parameters, v)
    m = mesh(AxisType.Explicit if mode == "explicit" else AxisType.Auto)
    if mode == "shard_map":
        f = jax.shard_map(f, mesh=m, in_specs=(P("d"), P(), *specs), out_specs=P("d", "h"))
    with jax.set_mesh(m):
        put = lambda x, spec: jax.device_put(x, NamedSharding(m, spec))  # noqa: E731
        arguments = put(ROWS, P("d")), put(COLUMNS, P()), tuple(map(put, parameters, specs)), tuple(map(put, v, specs))
        program = quick(functools.partial(derivatives_of_bias, f))
        got = program(*arguments)
        if mode == "explicit":
            types = program.eval_shape(*arguments)
            (y, along), (gradient, second) = jax.tree.map(lambda x: x.sharding.spec, types)
            assert y == along == P("d", "h", None, None)
            assert gradient == second == tuple(jax.typeof(x).sharding.spec for x in arguments[2])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_within(a, b, 1e-4 + 1e-5 * np.abs(b).max(), against="one device")


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_learned_biases_that_each_row_of_a_batch_has_to_itself(name):
    """Mapped parameters at the same positions, and the same parameters at mapped positions."""
    f, parameters, _ = LEARNED[name]
    v = tuple(normal(*np.shape(x)) for x in parameters)
    run = quick(functools.partial(derivatives_of_bias, f))
    for axes in ((None, None, 0, 0), (0, None, None, None), (0, None, 0, None)):
        arguments = [ROWS if axes[0] == 0 else ROWS[0], COLUMNS, parameters, v]
        stack = lambda x: np.stack([x * np.float32(1 + n / 4) for n in range(4)])  # noqa: E731
        arguments[2:] = [jax.tree.map(stack, x) if a == 0 else x for x, a in zip(arguments[2:], axes[2:], strict=True)]
        got = jax.device_get(quick(jax.vmap(functools.partial(derivatives_of_bias, f), axes))(*arguments))
        for n in range(4):
            one = [jax.tree.map(lambda x: x[n], x) if a == 0 else x for x, a in zip(arguments, axes, strict=True)]  # noqa: B023
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(run(*one)), strict=True):
                assert_within(a[n], b, 1e-4 + 1e-5 * np.abs(b).max(), against="one after the other")


@pytest.mark.parametrize("name", LEARNED)
def test_what_derivatives_of_learned_biases_keep(name):
    """Distances, whether keys come after, and arrays of that shape; nothing for each head, bucket or hidden unit."""
    f, parameters, _ = LEARNED[name]
    i, n = np.arange(64), {"t5": 2, "fire": 4}[name]
    kept = jax.tree.leaves(jax.eval_shape(lambda *p: jax.vjp(functools.partial(f, i, i), *p)[1], *parameters))
    assert sum(x.size for x in kept) <= n * 64**2 + 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_an_exported_derivative_of_a_learned_bias(name):
    f, parameters, _ = LEARNED[name]
    f = jax.jit(functools.partial(derivatives_of_bias, f))
    arguments = ROWS, COLUMNS, parameters, parameters
    loaded = export.deserialize(export.export(f, platforms=("cpu", "cuda", "tpu"))(*arguments).serialize())
    for a, b in zip(jax.tree.leaves(loaded.call(*arguments)), jax.tree.leaves(f(*arguments)), strict=True):
        assert_within(a, b, 1e-5 * (1 + np.abs(b).max()), against="before the export")


# Exports


@pytest.mark.slow
def test_an_exported_derivative():
    f = jax.jit(lambda a, v: both(functools.partial(pe.rotary, head_axis=-2), a, v))
    exported = export.export(f, platforms=("cpu", "cuda", "tpu"))(BIG, WAYS[0])
    loaded = export.deserialize(exported.serialize())
    got = loaded.call(BIG, WAYS[0])
    np.testing.assert_array_equal(got[0][0], f(BIG, WAYS[0])[0][0])
    assert_as_on_one_device(got)


@pytest.mark.slow
def test_an_exported_function_with_its_derivative():
    exported = export.export(jax.jit(functools.partial(pe.rotary, head_axis=-2)))(*BIG)
    loaded = export.deserialize(exported.serialize(vjp_order=1))
    loss = lambda f: lambda *a: jnp.sum(f(*a) ** 3)  # noqa: E731
    got = jax.jit(jax.grad(loss(loaded.call), (0, 1, 2)))(*BIG)
    want = jax.jit(jax.grad(loss(functools.partial(pe.rotary, head_axis=-2)), (0, 1, 2)))(*BIG)
    for a, b in zip(got, want, strict=True):
        assert_within(a, b, 1e-5 * (1 + np.abs(b)), against="the derivative before the export")
    with pytest.raises(Exception, match="jvp|forward"):  # JAX exports reverse mode alone
        jax.jvp(loaded.call, BIG, WAYS[0])
