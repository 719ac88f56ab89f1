"""Spectra, widths, axes, dtypes and settings of every kind, drawn, beside oracles that share nothing with the library.

POSENC_HOSTILE=N multiplies what is tried, as in test_hostile.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.hostile import EDGES, FLOATS, TRIED, print_what_was_tried, profile  # noqa: F401 (a fixture)
from helpers.quick import quick
from oracles import biases, rotations
from oracles import positions as loops
from oracles.encodings import waves
from oracles.fourier import fourier_features
from oracles.rotations import features
from oracles.spectra import MP, axes_of, geometric

MPMATH = "mpmath at 60 digits"


def normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


INT32 = st.sampled_from(EDGES) | st.integers(-(2**31), 2**31 - 1)
LAYOUT = st.sampled_from(["half", "interleaved"])


@st.composite
def spectra(draw, odd=False):
    """Frequencies or an array, with what the oracle needs: (argument, ω of each pair, its axis, amplitude)."""
    pairs = draw(st.integers(1, 6) | st.sampled_from([33, 64]))
    base = draw(st.sampled_from([10_000.0, 500_000.0, 2.0, 1.0, 0.5, 1e-3]))
    kinds = ["geometric", "endpoint", "axial", "sections", "dealt", "array", "angular", "float64 array"]
    kind = draw(st.sampled_from(kinds))
    drop = int(odd and kind in ("geometric", "endpoint") and draw(st.booleans()))
    dim = 2 * pairs - drop
    factor = draw(st.sampled_from([1.0, 0.7, 2.0])) if "array" not in kind else 1.0
    axes = [0] * pairs
    match kind:
        case "geometric" | "endpoint":
            f = pe.geometric(dim, base, endpoint=kind == "endpoint")
            omegas = geometric(dim, base, kind == "endpoint")
        case "axial":
            count = draw(st.integers(2, 3))
            f, omegas = pe.axial(2 * pairs * count, count, base), geometric(2 * pairs, base) * count
            axes = [axis for axis in range(count) for _ in range(pairs)]
        case "sections":
            cut = draw(st.integers(1, max(pairs - 1, 1)))
            sections = (cut, pairs - cut) if pairs > 1 else (1,)
            f, omegas = pe.multi_section(pe.geometric(dim, base), sections), geometric(dim, base)
            axes = axes_of(sections).tolist()
        case "dealt":
            sections = tuple(len(range(axis, pairs, 2)) for axis in range(min(pairs, 2)))
            f, omegas = (
                pe.multi_section(pe.geometric(dim, base), sections, interleaved=True),
                geometric(dim, base),
            )
            axes = axes_of(sections, interleaved=True).tolist()
        case _:
            width = 64 if kind == "float64 array" else 32
            values = st.floats(-1e8, 1e8, width=width) | st.sampled_from([0.0, 1e-20, 1.0, 2.0**27])
            drawn = np.array(draw(st.lists(values, min_size=pairs, max_size=pairs)), f"f{width // 8}")
            omegas = [MP.mpf(float(w)) for w in drawn]
            f = pe.geometric(dim).with_angular(drawn) if kind == "angular" else drawn
    if factor != 1:
        f = type(f)(f.cycles, f.dim, f.axes, factor)
    return f, omegas, axes, factor


def with_x64(test):
    """A test of a spectrum, with x64 on where that is an array of float64."""

    @functools.wraps(test)
    def run(spectrum, *args, **kwargs):
        with jax.enable_x64(getattr(spectrum[0], "dtype", None) == np.float64 or jax.config.read("jax_enable_x64")):
            test(spectrum, *args, **kwargs)

    return run


def points_for(data, axes):
    count = max(axes) + 1
    points = np.array(data.draw(st.lists(INT32, min_size=3 * count, max_size=3 * count)), np.int32).reshape(3, count)
    return points, points if count > 1 else points[:, 0]


@profile(16, default=4)
@given(spectra(odd=True), LAYOUT, st.sampled_from(FLOATS), st.data())
@with_x64
def test_sinusoidal_of_every_spectrum(spectrum, way, dtype, data):
    TRIED["spectra"] += 1
    f, omegas, axes, factor = spectrum
    points, given_points = points_for(data, axes)
    sine, cosine = (factor * wave for wave in waves(points, omegas, axes))
    dim = f.dim if isinstance(f, pe.Frequencies) else 2 * len(omegas)
    want = features(sine, cosine, way)[:, :dim]
    x = normal(*want.shape).astype(dtype)

    @jax.jit
    def wide_narrow_and_added(p, x):
        wide, narrow = (pe.sinusoidal(p, f, layout=way, dtype=d) for d in (jnp.float32, dtype))
        return wide, narrow, pe.add_sinusoidal(x, p, f, layout=way)

    got, narrow, added = map(np.asarray, wide_narrow_and_added(given_points, x))
    assert_within(got, want, 1e-7 * max(factor, 1), against=MPMATH)
    np.testing.assert_array_equal(narrow, got.astype(dtype))  # rounded once
    assert narrow.dtype == added.dtype == dtype
    exact = x.astype(np.float64) + want
    assert_within(added, exact, float(jnp.finfo(dtype).eps) * (1 + np.abs(exact).max()), against=f"x + PE of {MPMATH}")


@pytest.mark.slow
@profile(12)
@given(
    spectra(), LAYOUT, st.sampled_from(FLOATS), st.sampled_from([0, 2, 3, 8]), st.booleans(), st.booleans(), st.data()
)
@with_x64
def test_rotary_of_every_spectrum_part_and_axis(spectrum, way, dtype, rest, last, inverse, data):
    TRIED["rotary"] += 1
    f, omegas, axes, factor = spectrum
    points, given_points = points_for(data, axes)
    amplitude, sign = (1 / factor, -1) if inverse else (factor, 1)
    sine, cosine = waves(points, omegas, axes)
    x = normal(3, 2 * len(omegas) + rest).astype(dtype)
    settings = {"layout": way, "part": "last" if last else "first", "inverse": inverse}
    want = rotations.rotate(x, sign * amplitude * sine, amplitude * cosine, way, settings["part"])
    got = pe.rotary(x, given_points, f, head_axis=None, **settings)
    assert got.dtype == dtype
    assert_within(got, want, (float(jnp.finfo(dtype).eps) + 4e-7) * np.abs(want).max(), against=MPMATH)
    # The head axis anywhere, and any axis by vmap: the same bits.
    axis = data.draw(st.integers(0, 2))
    heads = np.stack([x[None]] * 4, axis)  # (1, 3, …) with four heads at 0, 1 or 2
    where, got = np.asarray(given_points)[None], np.asarray(got)

    @jax.jit
    def several_and_mapped(heads, *floats):
        w = floats[0] if floats else f
        turn = functools.partial(pe.rotary, positions=where, frequencies=w, **settings)
        return turn(heads, head_axis=axis), jax.vmap(lambda x: turn(x, head_axis=None), axis, axis)(heads)

    several, mapped = several_and_mapped(heads, *([] if isinstance(f, pe.Frequencies) else [f]))
    np.testing.assert_array_equal(several, np.stack([got[None]] * 4, axis))
    np.testing.assert_array_equal(mapped, several)


@profile(8, default=3)
@given(spectra(), LAYOUT, st.data())
@with_x64
def test_derivatives_by_positions_and_frequencies(spectrum, way, data):
    TRIED["derivatives"] += 1
    f, omegas, axes, factor = spectrum
    values = st.floats(-(2.0**20), 2.0**20, width=32) | st.sampled_from([0.0, 0.5, 1e-30])
    count = max(axes) + 1
    p = np.array(data.draw(st.lists(values, min_size=count, max_size=count)), np.float32)
    sine, cosine = (factor * wave for wave in waves(p, omegas, axes))
    encode = lambda p, f: pe.sinusoidal(p if count > 1 else p[0], f, layout=way)  # noqa: E731
    rates = np.array([float(w) for w in omegas])
    scale = np.abs(rates).max() * factor + 1e-30
    of_floats = not isinstance(f, pe.Frequencies)
    direction = np.full(count, 2.0, np.float32)

    def derivatives(p, *floats):
        """By p forward, in reverse and along a direction; and by frequencies that are floats."""
        by_p = functools.partial(encode, f=floats[0] if of_floats else f)
        along = jax.jvp(by_p, (p,), (direction,))[1]
        by_f = jax.jacfwd(lambda w: encode(p, w))(*floats) if of_floats else None
        return jax.jacfwd(by_p)(p), jax.jacrev(by_p)(p), along, by_f

    forward, reverse, tangent, by_f = jax.device_get(quick(derivatives)(p, *([f] if of_floats else [])))
    want = np.stack(
        [
            features(rates * cosine * (np.array(axes) == a), -rates * sine * (np.array(axes) == a), way)
            for a in range(count)
        ],
        -1,
    )
    assert_within(forward, want, 3e-7 * scale, against=f"jacfwd: {MPMATH}")
    assert_within(reverse, want, 3e-7 * scale, against=f"jacrev: {MPMATH}")
    assert_within(tangent, 2 * want.sum(-1), 1e-6 * scale, against=f"jvp: {MPMATH}")
    if of_floats:
        every = np.eye(len(omegas))
        want = features(every * cosine * p[0], -every * sine * p[0], way)  # (pairs, features)
        assert_within(by_f.T, want, 3e-7 * (1 + abs(p[0])), against=f"by frequencies: {MPMATH}")


@profile(10, default=3)
@given(
    st.integers(-9000, 9000), st.integers(-9000, 9000), st.integers(-500, 500), LAYOUT, st.integers(1, 5),
    st.sampled_from([512.0, 64.0, 4096.0]), st.sampled_from([0.4, 0.1, 2.0]),
)  # fmt: skip
def test_xpos_of_every_setting(p, q, origin, way, pairs, scale_base, gamma):
    TRIED["xpos"] += 1
    x = normal(2, 1, 2 * pairs)
    settings = {"origin": origin, "scale_base": scale_base, "gamma": gamma, "layout": way, "head_axis": None}
    got = quick(lambda x, p, q: pe.xpos(*x, p, key_positions=q, **settings))(x, np.int32([p]), np.int32([q]))
    for row, at, sign, turned in zip(x, (p, q), (1, -1), got, strict=True):
        sine, cosine = waves(at, geometric(2 * pairs, 10_000))
        want = rotations.xpos(row, sine, cosine, sign * (at - origin), way, scale_base, gamma)
        length = np.hypot(*rotations.pairs(want, way))
        fits = (length > 1e-30) & (length < 1e38)  # beyond, float32 has no such number
        for mine, true in zip(*(rotations.pairs(np.asarray(y, np.float64), way) for y in (turned, want)), strict=True):
            assert_within(mine[fits], true[fits], 3e-5 * length[fits], against=MPMATH)


@profile(10, default=3)
@given(st.integers(1, 3), st.integers(1, 4), LAYOUT, st.sampled_from(FLOATS), st.data())
def test_fourier_features_of_any_matrix(inputs, n, way, dtype, data):
    TRIED["fourier"] += 1
    numbers = lambda size: st.lists(size, min_size=inputs * n, max_size=inputs * n)  # noqa: E731
    small = st.floats(-(2.0**20), 2.0**20, width=32) | st.sampled_from([0.0, 0.5, 1e-30, 2.0**27])
    matrix = np.array(data.draw(numbers(small)), np.float32).reshape(inputs, n)
    values = st.floats(-(2.0**30), 2.0**30, width=32) | INT32.map(float) | st.sampled_from([0.25, -0.0, 1e-40])
    x = np.array(data.draw(st.lists(values, min_size=inputs, max_size=inputs))).astype(np.float32)
    x = np.minimum(x, np.float32(2.0**31 - 128))
    want = fourier_features(x[None], matrix, way)[0]

    @jax.jit
    def whole_and_narrow(x, matrix):
        return tuple(pe.fourier_features(x[None], matrix, layout=way, dtype=d)[0] for d in (jnp.float32, dtype))

    got, narrow = map(np.asarray, whole_and_narrow(x, matrix))
    assert_within(got, want, 9e-8 + 1e-8 * inputs, against=MPMATH)
    assert narrow.dtype == dtype
    np.testing.assert_array_equal(narrow, got.astype(dtype))


@profile(12, default=6)
@given(st.data(), st.sampled_from(["fire", "sandwich"]))
def test_fire_and_sandwich_of_exact_distances(data, name):
    TRIED["biases"] += 1
    i, j = (data.draw(st.lists(INT32, min_size=2, max_size=3)) for _ in range(2))
    at = np.array(i, np.int32), np.array(j, np.int32)
    if name == "sandwich":
        heads, width = data.draw(st.sampled_from([1, 2, 5])), data.draw(st.sampled_from([2, 6, 16]))
        bias = lambda i, j: pe.sandwich(i, j, heads, width)  # noqa: E731
        want = biases.sandwich(biases.tile(i, j), heads, geometric(width, 10_000))
        bound = heads / 8 * width * 5e-7
    else:
        hidden, c, threshold = 4, data.draw(st.sampled_from([0.125, 1.0, 8.0])), data.draw(st.sampled_from([1.0, 64.0]))
        mlp = tuple(normal(*shape) for shape in ((hidden,), (hidden,), (hidden, 2), (2,)))
        i = [abs(p + (p == -(2**31))) for p in i]  # queries from 0 on, as in the formula
        at = np.array(i, np.int32), at[1]
        bias = lambda i, j: pe.fire(i, j, mlp, c=c, threshold=threshold)  # noqa: E731
        exact = functools.partial(biases.fire, biases.tile(i, j), np.array(i)[:, None], c=c, threshold=threshold)
        want, bound = exact(mlp), 1e-6 * exact([np.abs(w) for w in mlp])
    assert_within(quick(bias)(*at), want, bound, against=f"{name} of exact distances")


@profile(10, default=3)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3), st.booleans(), st.integers(0, 3), st.integers(1, 4), st.data()
)
def test_grids_and_shards_as_loops_count_them(shape, by_column, leading, shards, data):
    TRIED["positions of a place"] += 1
    order = "column" if by_column and len(shape) > 1 else "row"
    chunk = data.draw(st.integers(1, 3))
    length = 2 * shards * chunk
    truth = {name: loops.shards(length, shards, name) for name in ("contiguous", "zigzag", "striped")}

    @quick
    def grid_and_shards():
        of_shards = {name: pe.shard_positions(length, shards, order=name) for name in truth}
        return pe.grid_positions(tuple(shape), order=order, leading=leading), of_shards

    grid, by_order = grid_and_shards()
    np.testing.assert_array_equal(grid, loops.grid(shape, order, leading))
    for name, want_shards in truth.items():
        np.testing.assert_array_equal(by_order[name], want_shards, err_msg=name)


@profile(25, default=12)
@given(
    st.lists(
        st.integers(1, 3) | st.tuples(*[st.integers(1, 3)] * 3) | st.tuples(*[st.integers(1, 3)] * 3, st.sampled_from([0.5, 1.0, 2.75])),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["maximum", "side"]),
)  # fmt: skip
def test_parts_as_loops_count_them(parts, following):
    TRIED["parts"] += 1
    want = loops.multimodal(parts, following)
    np.testing.assert_array_equal(pe.multimodal_positions(parts, following=following), want)


OF_ONE = {
    "rotary": functools.partial(pe.rotary, head_axis=-2),
    "shift": lambda x: pe.shift(x, 3, 8),
    "xpos": lambda x: pe.xpos(x, x, head_axis=-2)[0],
    "attention": lambda x: pe.attention(x, x, x),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_ONE)
def test_reverse_mode_gives_the_whole_jacobian(name):
    call, (x, along), step = OF_ONE[name], normal(2, 1, 4, 2, 8), np.float32(2**-8)
    jacobian = np.asarray(jax.jacrev(call)(x), np.float64)
    assert jacobian.shape == (*x.shape, *x.shape)
    after, before = (np.asarray(call(x + sign * step * along), np.float64) for sign in np.float32([1, -1]))
    got = np.tensordot(jacobian, along.astype(np.float64), x.ndim)
    assert_within(got, (after - before) / (2 * step), 2e-4, against="the difference of results along a direction")
