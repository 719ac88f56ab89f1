"""Encodings of spectra that are drawn at random, of every kind, are those of mpmath.

POSENC_HOSTILE=N multiplies the number of spectra (`nox -f maintenance.py -s fuzz`).
"""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.hostile import EDGES, FLOATS, TRIED, print_what_was_tried, profile  # noqa: F401 (a fixture)
from oracles.encodings import waves
from oracles.rotations import features
from oracles.spectra import MP, axes_of, geometric

INT32 = st.sampled_from(EDGES) | st.integers(-(2**31), 2**31 - 1)


@st.composite
def spectra(draw):
    """(Frequencies or an array, ω of each pair, its coordinate, amplitude); the oracle needs the last three."""
    pairs = draw(st.integers(1, 6) | st.sampled_from([33, 64]))
    kind = draw(st.sampled_from(["endpoint", "axial", "sections", "in turn", "angular", "float32", "float64"]))
    if kind in ("angular", "float32", "float64"):
        width = 64 if kind == "float64" else 32
        values = st.floats(-1e8, 1e8, width=width) | st.sampled_from([0.0, 1e-20, 1.0, 2.0**27])
        array = np.array(draw(st.lists(values, min_size=pairs, max_size=pairs)), f"f{width // 8}")
        f = pe.geometric(2 * pairs).with_angular(array) if kind == "angular" else array
        return f, [MP.mpf(float(w)) for w in array], [0] * pairs, 1.0
    dim, base = 2 * pairs, draw(st.sampled_from([10_000.0, 500_000.0, 2.0, 1.0, 0.5, 1e-3]))
    omegas, amplitude = geometric(dim, base, kind == "endpoint"), draw(st.sampled_from([1.0, 0.7, 2.0]))
    if kind == "endpoint":
        f, axes = pe.geometric(dim, base, endpoint=True), [0] * pairs
    elif kind == "axial":
        count = draw(st.integers(2, 3))
        f, omegas, axes = pe.axial(dim * count, count, base), omegas * count, np.arange(count).repeat(pairs).tolist()
    else:
        first = -(-pairs // 2) if kind == "in turn" else draw(st.integers(1, max(pairs - 1, 1)))
        sections = (first, pairs - first) if pairs > 1 else (1,)
        f = pe.multi_section(pe.geometric(dim, base), sections, interleaved=kind == "in turn")
        axes = axes_of(sections, interleaved=kind == "in turn").tolist()
    return f.with_attention_factor(amplitude), omegas, axes, amplitude


@profile(8)
@given(spectra(), st.sampled_from(["half", "interleaved"]), st.sampled_from(FLOATS), st.data())
def test_encodings_of_any_spectrum_are_exact(spectrum, layout, dtype, data):
    TRIED["spectra"] += 1
    f, omegas, axes, amplitude = spectrum
    count = max(axes) + 1
    points = np.int32(data.draw(st.lists(INT32, min_size=3 * count, max_size=3 * count))).reshape(3, count)
    want = features(*(amplitude * wave for wave in waves(points, omegas, axes)), layout)
    encode = jax.jit(lambda p: [pe.sinusoidal(p, f, layout=layout, dtype=d) for d in (jnp.float32, dtype)])
    with jax.enable_x64(getattr(f, "dtype", None) == np.float64 or jax.config.read("jax_enable_x64")):
        got, narrow = map(np.asarray, encode(points if count > 1 else points[:, 0]))
    assert_within(got, want, 1e-7 * max(amplitude, 1), against="mpmath at 60 digits")
    np.testing.assert_array_equal(narrow, got.astype(dtype), strict=True)  # rounded once
