"""The lowerings of a rotation, all of which run on a CPU.

- The lowering `reference` is the formula.
- Each other lowering gives the bits of `reference`, with infinities, NaN and signs of zeros in the same pairs.
- Each platform takes the lowering that was measured to be fastest there.
- Vectors that share positions and frequencies share a table of cosines and sines.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import encodings, rotations, spectra
from posenc_jax._frequencies.angles import Angles
from posenc_jax._jax import workarounds
from posenc_jax._rotary import lowerings
from posenc_jax._rotary.rotation import Rotation, RotationSettings

AROUND_ZERO = np.arange(-3, 4, dtype=np.int32)


def vectors(heads, dtype):
    """Zeros of both signs at position 0; infinities and NaN at others, in features 4 and 10, and the last four."""
    x = np.random.default_rng(0).normal(size=(7, heads, 16)).astype(dtype)
    x[3] = np.where(np.arange(16) % 3, 0.0, -0.0)
    x[1, 0, 4], x[5, 0, 10], x[4, 0, 12:] = np.inf, np.nan, [np.inf, -np.inf, np.nan, 7]
    return x


# name → dtype, heads, how many of 16 features rotate, and settings
CASES = {
    "all": (np.float32, 4, 16, {"backward": False}),
    "all, backward, in 16 bits": (jnp.bfloat16, 4, 16, {"backward": True}),
    "the last, backward, in 16 bits": (jnp.bfloat16, 4, 6, {"last": True, "backward": True}),
    "the first, of one head": (np.float32, 1, 6, {}),
}
LAYOUTS = "half", "interleaved"


def lowered(name, case, layouts=LAYOUTS, target="cpu"):
    """The vectors (positions, heads, features) of a case, rotated in each layout by a lowering for one compiler."""
    dtype, heads, dim, settings = CASES[case]

    def rotate(x, positions, layout):
        angles = Angles(positions[:, None, None], pe.geometric(dim))
        r = Rotation(RotationSettings(layout, **settings), x, angles, workarounds.TARGETS[target]).broadcast()
        return getattr(lowerings, name)(r)

    every = jax.jit(lambda *x: {layout: rotate(*x, layout) for layout in layouts})
    return jax.device_get(every(vectors(heads, dtype), AROUND_ZERO))


# case → its vectors by layout
by_reference = functools.cache(functools.partial(lowered, "reference"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_the_reference_is_the_formula(case, layout):
    dtype, heads, dim, settings = CASES[case]
    sine, cosine = (w[:, None] for w in encodings.waves(AROUND_ZERO, spectra.geometric(dim, 10_000)))
    part, sign = "last" if settings.get("last") else "first", -1 if settings.get("backward") else 1
    with np.errstate(invalid="ignore"):
        want = rotations.rotate(vectors(heads, dtype), sign * sine, cosine, layout, part)
    bound = float(jnp.finfo(dtype).eps) * (1 + np.abs(np.where(np.isfinite(want), want, 0)))
    assert_within(by_reference(case)[layout], want, 2 * bound, against="float64")


# cases in which all features rotate, several heads share positions, and vectors have 16 bits
ALL, SHARED, IN_16_BITS = [*CASES][:2], [*CASES][:3], [*CASES][1:3]
# lowering, the layouts and the cases that it rotates, and for which compiler it rotates one of the cases
LOWERINGS = [
    ("split_and_stack", LAYOUTS, CASES, "gpu"),
    ("split_and_concatenate", ["half"], SHARED, "gpu"),
    ("pad_and_select", LAYOUTS, CASES, "tpu"),
    ("rotate_in_words", ["interleaved"], IN_16_BITS, "gpu"),
    ("sum_columns", LAYOUTS, ALL, "cpu"),
    ("sum_columns", ["interleaved"], SHARED[2:], "cpu"),
    ("reverse_halves_in_place", ["half"], ALL, "tpu"),
]
TRIED = [
    (name, case, layouts, target if case == "all, backward, in 16 bits" else "cpu")
    for name, layouts, cases, target in LOWERINGS
    for case in cases
]


@pytest.mark.parametrize(("name", "case", "layouts", "target"), TRIED)
def test_every_lowering_computes_the_same(name, case, layouts, target):
    dtype = CASES[case][0]
    for layout, got in lowered(name, case, layouts, target).items():
        want = by_reference(case)[layout]
        assert got.dtype == dtype
        if target == "tpu":  # what it tells a TPU lets the CPU here fuse products into sums
            bound = 3e-7 + float(jnp.finfo(dtype).eps) * np.nan_to_num(np.abs(np.float64(want)))
            assert_within(got, want, bound, against=f"{layout}, the reference")
        else:
            signs = (np.signbit(x) & np.isfinite(want) for x in (got, want))
            np.testing.assert_array_equal(np.float64(got), np.float64(want), layout)
            np.testing.assert_array_equal(*signs, layout)


@pytest.mark.parametrize("last", [False, True])
def test_words_that_do_not_rotate_keep_their_bits(last):
    """`rotate_in_words` takes a pair of 16-bit features as one word of 32 bits."""
    x = np.arange(2**16, dtype=np.uint16).reshape(-1, 16)  # every number and every NaN

    def rotate(x):
        angles = Angles(np.ones((1, 1), np.int32), pe.geometric(6))
        return lowerings.rotate_in_words(
            Rotation(RotationSettings("interleaved", last), x, angles, workarounds.GPU).broadcast()
        )

    y = jax.jit(rotate)(x.view(jnp.bfloat16))
    kept = slice(10) if last else slice(6, 16)
    np.testing.assert_array_equal(np.asarray(y).view(np.uint16)[:, kept], x[:, kept])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in LOWERINGS))
def test_there_may_be_nothing_to_rotate(name, layout):
    def rotate(x):
        angles = Angles(np.zeros((1, 1, 1), np.int32), pe.geometric(8))
        return getattr(lowerings, name)(Rotation(RotationSettings(layout), x, angles).broadcast())

    assert jax.eval_shape(rotate, jax.ShapeDtypeStruct((0, 4, 8), jnp.bfloat16)).shape == (0, 4, 8)


# (platform, lowering that it takes) → vectors: (positions, heads, features), how many features rotate, layout, dtype
HALF, PAIRS, F32, BF16 = "half", "interleaved", jnp.float32, jnp.bfloat16
TAKEN = {
    ("tpu", "reverse_halves_in_place"): [((128, 4, 112), 112, HALF, BF16)],
    ("tpu", "pad_and_select"): [
        ((128, 4, 112), 112, HALF, F32),
        ((128, 1, 112), 112, HALF, BF16),
        ((128, 4, 112), 64, HALF, BF16),
        ((128, 4, 112), 112, PAIRS, BF16),
        ((128, 4, 128), 128, HALF, BF16),
        ((128, 4, 72), 72, HALF, BF16),
        ((127, 4, 64), 64, HALF, BF16),
    ],
    ("gpu", "split_and_concatenate"): [((7, 4, 16), 8, HALF, BF16)],
    ("gpu", "rotate_in_words"): [((7, 4, 16), 8, PAIRS, BF16)],
    ("gpu", "pad_and_select"): [
        ((7, 3, 16), 16, HALF, F32),
        ((7, 3, 16), 8, PAIRS, BF16),
        ((7, 4, 16), 16, PAIRS, F32),
        ((7, 4, 15), 8, PAIRS, BF16),
        ((7, 4, 16), 8, PAIRS, jnp.float8_e4m3fn),
    ],
    ("cpu", "sum_columns"): [((7, 4, 16), 16, HALF, F32), ((7, 3, 16), 8, PAIRS, F32)],
    ("cpu", "split_and_stack"): [((7, 1, 16), 16, PAIRS, F32), ((7, 3, 64), 16, HALF, F32)],
    ("cpu", "pad_and_select"): [
        ((7, 4, 16), 8, HALF, F32),
        ((7, 4, 15), 8, PAIRS, BF16),
        ((7, 3, 72), 16, HALF, F32),
    ],
    ("cpu of JAX 0.11", "split_and_stack"): [((7, 4, 16), 16, HALF, BF16), ((7, 3, 16), 8, PAIRS, F32)],
    ("cpu of JAX 0.11", "pad_and_select"): [((7, 4, 16), 16, HALF, F32), ((7, 4, 16), 8, HALF, BF16)],
}


def rotation(shape, frequencies, positions=(1, 1), layout=HALF, dtype=F32):
    angles = Angles(np.zeros((shape[0], *positions), np.int32), frequencies)
    return Rotation(RotationSettings(layout), np.empty(shape, dtype), angles)


@pytest.mark.parametrize(("platform", "want"), TAKEN)
def test_each_platform_takes_its_lowering(platform, want, monkeypatch):
    monkeypatch.setattr(workarounds, "KEEPS_BARRIERS", platform == "cpu")  # unlike JAX 0.11 on a CPU
    for case in TAKEN[platform, want]:
        shape, dim, layout, dtype = case
        r = rotation(shape, pe.geometric(dim), layout=layout, dtype=dtype)
        assert lowerings.lowering_of(platform[:3], r).__name__ == want, case


@pytest.mark.parametrize(
    ("frequencies", "positions", "shares"),
    [
        (pe.geometric(16), (1, 1), True),
        (pe.geometric(16), (8, 1), False),
        (np.ones((1, 1, 8), F32), (1, 1), True),
        (np.ones((1, 8, 8), F32), (1, 1), False),
    ],
    ids=["static", "positions of heads", "an array", "an array by head"],
)
def test_vectors_that_share_positions_and_frequencies_share_a_table(frequencies, positions, shares):
    assert rotation((7, 8, 16), frequencies, positions).shares_table == shares


@pytest.mark.parametrize(
    ("platform", "operation"),
    [("tpu", "reverse"), ("cuda", "concatenate"), ("rocm", "concatenate"), ("cpu", "remainder")],
)
def test_a_program_for_a_platform_has_its_lowering(platform, operation):
    traced = jax.jit(functools.partial(pe.rotary, head_axis=-2)).trace(jax.ShapeDtypeStruct((128, 4, 64), BF16))
    assert f"stablehlo.{operation} " in traced.lower(lowering_platforms=(platform,)).as_text()


def test_an_axis_of_size_1_keeps_its_sharding(on_cpu):
    mesh = jax.make_mesh((8, 1), ("d", "m"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices("cpu"))
    x = vectors(1, np.float32)[[0, 2] * 4][..., None, :]  # eight finite vectors
    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, NamedSharding(mesh, P("d", "m", None, None)))
        got = jax.jit(functools.partial(pe.rotary, head_axis=-2, positions=np.zeros((8, 1), int)))(sharded)
        assert jax.typeof(got).sharding.spec == P("d", "m", None, None)
    np.testing.assert_array_equal(got, x)
