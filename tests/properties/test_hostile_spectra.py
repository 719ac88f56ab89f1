"""Spectra of every kind, drawn, beside mpmath: encodings, rotations, and derivatives by positions and frequencies.

POSENC_HOSTILE=N multiplies what is tried, as in test_hostile.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.hostile import EDGES, FLOATS, TRIED, print_what_was_tried, profile  # noqa: F401 (a fixture)
from oracles import rotations
from oracles.encodings import waves
from oracles.rotations import features
from oracles.spectra import MP, axes_of, geometric

MPMATH = "mpmath at 60 digits"


INT32 = st.sampled_from(EDGES) | st.integers(-(2**31), 2**31 - 1)
LAYOUT = st.sampled_from(["half", "interleaved"])


@st.composite
def spectra(draw):
    """Frequencies or an array, with what the oracle needs: (argument, ω of each pair, its axis, amplitude)."""
    pairs = draw(st.integers(1, 6) | st.sampled_from([33, 64]))
    base = draw(st.sampled_from([10_000.0, 500_000.0, 2.0, 1.0, 0.5, 1e-3]))
    kind = draw(st.sampled_from(["endpoint", "axial", "sections", "dealt", "angular", "array", "float64 array"]))
    if "array" in kind or kind == "angular":
        width = 64 if kind == "float64 array" else 32
        values = st.floats(-1e8, 1e8, width=width) | st.sampled_from([0.0, 1e-20, 1.0, 2.0**27])
        drawn = np.array(draw(st.lists(values, min_size=pairs, max_size=pairs)), f"f{width // 8}")
        f = pe.geometric(2 * pairs).with_angular(drawn) if kind == "angular" else drawn
        return f, [MP.mpf(float(w)) for w in drawn], [0] * pairs, 1.0
    dim, factor = 2 * pairs, draw(st.sampled_from([1.0, 0.7, 2.0]))
    if kind == "endpoint":
        f, omegas, axes = pe.geometric(dim, base, endpoint=True), geometric(dim, base, True), [0] * pairs
    elif kind == "axial":
        count = draw(st.integers(2, 3))
        f, omegas = pe.axial(dim * count, count, base), geometric(dim, base) * count
        axes = [axis for axis in range(count) for _ in range(pairs)]
    else:
        dealt = kind == "dealt"
        cut = -(-pairs // 2) if dealt else draw(st.integers(1, max(pairs - 1, 1)))
        sections = (cut, pairs - cut) if pairs > 1 else (1,)
        f, omegas = pe.multi_section(pe.geometric(dim, base), sections, interleaved=dealt), geometric(dim, base)
        axes = axes_of(sections, interleaved=dealt).tolist()
    return f.with_attention_factor(factor), omegas, axes, factor


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
@given(spectra(), LAYOUT, st.sampled_from(FLOATS), st.data())
@with_x64
def test_encodings(spectrum, layout, dtype, data):
    TRIED["spectra"] += 1
    f, omegas, axes, factor = spectrum
    points, positions = points_for(data, axes)
    want = features(*(factor * wave for wave in waves(points, omegas, axes)), layout)
    encode = jax.jit(lambda p: [pe.sinusoidal(p, f, layout=layout, dtype=d) for d in (jnp.float32, dtype)])
    got, narrow = map(np.asarray, encode(positions))
    assert_within(got, want, 1e-7 * max(factor, 1), against=MPMATH)
    np.testing.assert_array_equal(narrow, got.astype(dtype), strict=True)  # rounded once


@profile(12, default=3)
@given(
    spectra(),
    LAYOUT,
    st.sampled_from(FLOATS),
    st.sampled_from([0, 3]),
    st.sampled_from(["first", "last"]),
    st.booleans(),
    st.data(),
)
@with_x64
def test_rotations(spectrum, layout, dtype, rest, part, inverse, data):
    TRIED["rotary"] += 1
    f, omegas, axes, factor = spectrum
    points, positions = points_for(data, axes)
    amplitude, sign = (1 / factor, -1) if inverse else (factor, 1)
    sine, cosine = waves(points, omegas, axes)
    x = np.random.default_rng(0).normal(size=(3, 2 * len(omegas) + rest)).astype(dtype)
    want = rotations.rotate(x, sign * amplitude * sine, amplitude * cosine, layout, part)
    got = pe.rotary(x, positions, f, head_axis=None, layout=layout, part=part, inverse=inverse)
    assert got.dtype == dtype
    assert_within(got, want, (float(jnp.finfo(dtype).eps) + 4e-7) * np.abs(want).max(), against=MPMATH)


@profile(8, default=3)
@given(spectra(), LAYOUT, st.data())
@with_x64
def test_derivatives_by_positions_and_frequencies(spectrum, layout, data):
    TRIED["derivatives"] += 1
    f, omegas, axes, factor = spectrum
    values = st.floats(-(2.0**20), 2.0**20, width=32) | st.sampled_from([0.0, 0.5, 1e-30])
    p = np.array(data.draw(st.lists(values, min_size=max(axes) + 1, max_size=max(axes) + 1)), np.float32)
    sine, cosine = (factor * wave for wave in waves(p, omegas, axes))
    encode = lambda p, f: pe.sinusoidal(p if len(p) > 1 else p[0], f, layout=layout)  # noqa: E731
    by_p = jax.jit(jax.jacfwd(lambda p: encode(p, f)))(p)
    rates = np.array([float(w) for w in omegas])
    each = [np.array(axes) == axis for axis in range(len(p))]
    want = np.stack([features(rates * cosine * own, -rates * sine * own, layout) for own in each], -1)
    assert_within(by_p, want, 3e-7 * (np.abs(rates).max() * factor + 1e-30), against=MPMATH)
    if not isinstance(f, pe.Frequencies):
        by_f = jax.jit(jax.jacfwd(lambda f: encode(p, f)))(f)
        every = np.eye(len(omegas))
        want = features(every * cosine * p[0], -every * sine * p[0], layout)  # (pairs, features)
        assert_within(by_f.T, want, 3e-7 * (1 + abs(p[0])), against=MPMATH)
