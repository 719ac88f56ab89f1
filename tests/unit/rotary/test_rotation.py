"""The forms of a rotation that platforms choose from, all of which run on a CPU: the same bits of every one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.quick import quick
from helpers.tiers import slow, tiered
from posenc_jax._frequencies.angles import Angles
from posenc_jax._jax import workarounds
from posenc_jax._rotary import lowerings
from posenc_jax._rotary.rotation import Rotation, RotationSettings

LAYOUTS = ["half", "interleaved"]


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def form(name, target=workarounds.CPU):
    """A form, told what one compiler is told; a CPU can run them all."""

    def rotate(settings, x, positions, frequencies):
        r = Rotation(settings, x, Angles(positions, frequencies), target).broadcast()
        return getattr(lowerings, name)(r)

    return rotate


FORMS = {
    "reference": form("reference"),
    "split and stack": form("split_and_stack"),
    "split and concatenate, halves, GPU": form("split_and_concatenate", workarounds.GPU),
    "pad and select": form("pad_and_select"),
    "rotate words, pairs, GPU": form("rotate_in_words", workarounds.GPU),
    "sum columns": form("sum_columns"),
    "reverse halves in place": form("reverse_halves_in_place"),
}
# The same forms, told what the other compilers are told.
ELSEWHERE = {
    "split and stack, GPU": form("split_and_stack", workarounds.GPU),
    "split and concatenate, halves": form("split_and_concatenate"),
    "pad and select, GPU": form("pad_and_select", workarounds.GPU),
    "pad and select, TPU": form("pad_and_select", workarounds.TPU),
    "rotate words, pairs": form("rotate_in_words"),
    "reverse halves in place, TPU": form("reverse_halves_in_place", workarounds.TPU),
}
EVERY = pytest.mark.parametrize("every", [FORMS, slow(ELSEWHERE)], ids=["forms", "forms elsewhere"])


def forms(every, layout, whole, dtype="float32"):
    """Those that turn such features: of one layout, all of a vector, or those in 16 bits, alone."""
    half = layout == "half"
    partial = lambda name: "reverse" not in name and not (half and name == "sum columns")  # noqa: E731
    names = [name for name in every if ("pairs" if half else "halves") not in name and (whole or partial(name))]
    return {name: every[name] for name in names if "words" not in name or dtype != "float32"}


AROUND_ZERO = np.arange(-3, 4).reshape(-1, 1, 1)


def vectors(heads, dtype):
    x = normal(7, heads, 16).astype(dtype)
    x[3] = np.where(np.arange(16) % 3, 0.0, -0.0)  # at position 0, where all sines are zero
    return x


def assert_same(name, got, want):
    if "TPU" in name:  # a CPU contracts them
        atol = {"float32": 3e-7, "bfloat16": 2e-2, "float16": 2e-3}[want.dtype.name]
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), atol=atol, err_msg=name)
    else:
        assert got.tobytes() == want.tobytes(), name


@pytest.mark.parametrize(
    ("dtype", "last", "backward", "dim", "heads", "layout"),
    [
        ("float32", False, True, 16, 4, "interleaved"),
        ("bfloat16", True, True, 6, 4, "half"),
        slow("float32", False, True, 16, 4, "half"),
        slow("bfloat16", True, True, 6, 4, "interleaved"),
        *(
            slow(*settings, layout)
            for layout in LAYOUTS
            for settings in [
                ("float32", False, False, 6, 1),
                ("float32", False, False, 16, 4),
                ("float32", True, True, 6, 4),
                ("float32", False, True, 6, 1),
                ("bfloat16", False, False, 16, 4),
                ("bfloat16", False, True, 6, 1),
            ]
        ),
    ],
)
def test_every_form_computes_the_same(layout, dtype, last, backward, dim, heads):
    x, settings, frequencies = vectors(heads, dtype), RotationSettings(layout, last, backward), pe.geometric(dim)
    every = forms(FORMS, layout, dim == 16, dtype)
    turned = jax.jit(lambda x, p: {name: rotate(settings, x, p, frequencies) for name, rotate in every.items()})
    results = jax.device_get(turned(x, AROUND_ZERO))
    for name, got in results.items():
        assert_same(name, got, results["reference"])


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("ends_and_ways", [((False, False), (True, True)), ((False, True), (True, False))])
def test_every_form_alone_computes_the_same(layout, dtype, ends_and_ways):
    """Each as a program of its own, told what each compiler is told."""
    cases = [(*way, *size) for way in ends_and_ways for size in ((6, 1), (6, 4), (16, 4))]
    x = {heads: vectors(heads, dtype) for heads in (1, 4)}

    def alone(name):
        def turned(x, p):
            return {
                (last, backward, dim, heads): rotate(
                    RotationSettings(layout, last, backward), x[heads], p, pe.geometric(dim)
                )
                for last, backward, dim, heads in cases
                if (rotate := forms(FORMS | ELSEWHERE, layout, dim == 16, dtype).get(name))
            }

        return jax.device_get(jax.jit(turned)(x, AROUND_ZERO))

    want = alone("reference")
    for name in forms(FORMS | ELSEWHERE, layout, True, dtype):
        for case, got in alone(name).items():
            assert_same(f"{name}, last, backward, dim, heads = {case}", got, want[case])


@EVERY
@pytest.mark.parametrize("layout", tiered(LAYOUTS, ["interleaved"]))
def test_frequencies_of_each_head(layout, every):
    x, w = normal(5, 6, 2, 8), np.float32([[1.3, 0.2, 0.7, 2], [3, 0.1, 0.5, 1]])
    p = 1_000_003 * np.arange(5, dtype=np.int32).reshape(5, 1, 1, 1)
    every = forms(every, layout, True)
    turned = jax.jit(
        lambda x, p, w: {name: rotate(RotationSettings(layout), x, p, w) for name, rotate in every.items()}
    )
    results = jax.device_get(turned(x, p, w.reshape(1, 1, 2, 4)))
    for head in range(2):
        want = np.asarray(pe.rotary(x[:, :, head], p[:, 0, 0, 0], w[head], layout=layout, head_axis=-2))
        for name, y in results.items():
            assert_same(f"{name}, head {head}", y[:, :, head], want)


def fact(of_rotation, settings, *operands):
    """What a function says of the rotation of x by positions and frequencies of these types."""
    found = []
    arrays = [x for x in operands if isinstance(x, jax.ShapeDtypeStruct)]

    def note(*given):
        x, *angles = *given, *operands[len(given) :]
        found.append(of_rotation(Rotation(settings, x, Angles(*angles)).broadcast()))

    jax.eval_shape(note, *arrays)
    return found[0]


def of(shape, dtype=np.int32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_table_pays_if_vectors_share_positions_and_frequencies():
    x, p = of((7, 8, 16), np.float32), of((7, 1, 1))
    for w, shared in ((pe.geometric(16), True), (of((1, 1, 8)), True), (of((1, 8, 8)), False)):
        assert fact(lambda r: r.shares_table, RotationSettings("half"), x, p, w) == shared, w
    assert not fact(lambda r: r.shares_table, RotationSettings("half"), x, of((7, 8, 1)), pe.geometric(16))


def test_pairs_of_8_bits_compile_for_a_gpu():
    """They are no words of 32 bits."""
    x = of((7, 8, 16), jnp.float8_e4m3fn)
    traced = jax.jit(lambda x: pe.rotary(x, head_axis=-2, layout="interleaved")).trace(x)
    assert "f8E4M3FN" in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_every_row_of_the_table_is_taken():
    shapes = [(length, heads, width) for length in (7, 128) for heads in (1, 8) for width in (16, 15, 12, 100)]
    forms_of = lambda r: [(platform, lowerings.lowering_of(platform, r)) for platform in lowerings.LOWERINGS]  # noqa: E731
    taken = {
        each
        for shape in shapes
        for dtype in (jnp.float32, jnp.bfloat16)
        for layout in LAYOUTS
        for f in (pe.geometric(8), pe.geometric(shape[-1] // 2 * 2))
        for each in fact(forms_of, RotationSettings(layout), of(shape, dtype), of((shape[0], 1, 1)), f)
    }
    rows = {(platform, form) for platform, rows in lowerings.LOWERINGS.items() for _, form in rows}
    assert taken == rows - (set() if workarounds.KEEPS_BARRIERS else {("cpu", lowerings.sum_columns)})


# The operations of a form on a CPU, and those of the others.
COLUMNS = ["iota", "barrier", "remainder"], ["concatenate", "pad", "reverse", "while"]
STACKED = ["concatenate", "remainder"], ["reverse", "while", "barrier"]
READS = ["pad", "remainder"], ["concatenate", "reverse", "while", "barrier"]
WORDS = ["shift_left", "or ", "barrier"]


@pytest.mark.parametrize(
    ("platform", "heads", "dtype", "layout", "expected", "missing"),
    [
        ("tpu", 16, "float32", "half", ["pad", "barrier"], ["concatenate", "while", "reverse", "reshape %x"]),
        ("tpu", 1, "float32", "half", ["pad"], ["concatenate", "while", "reverse", "barrier"]),
        ("tpu", 16, "bfloat16", "half", ["reverse", "barrier"], ["concatenate", "while", "pad"]),
        ("tpu", 1, "bfloat16", "half", ["pad"], ["concatenate", "while", "reverse", "barrier"]),
        ("tpu", 16, "bfloat16", "interleaved", ["pad", "barrier"], ["concatenate", "while", "reverse"]),
        ("cuda", 16, "float32", "half", ["concatenate", "barrier"], ["pad", "while", "reverse"]),
        ("cuda", 1, "float32", "half", ["pad"], ["concatenate", "while", "reverse", "barrier"]),
        ("cuda", 16, "float32", "interleaved", ["pad", "barrier"], ["concatenate", "while", "reverse"]),
        ("cuda", 16, "bfloat16", "half", ["concatenate", "barrier"], ["pad", "while", "reverse"]),
        ("cuda", 16, "bfloat16", "interleaved", WORDS, ["concatenate", "while", "reverse"]),
        ("cuda", 16, "float16", "interleaved", WORDS, ["concatenate", "while", "reverse"]),
        ("cuda", 1, "bfloat16", "interleaved", ["pad"], ["concatenate", "while", "reverse", "barrier"]),
        ("cpu", 1, "float32", "half", ["concatenate"], ["pad", "while", "reverse", "barrier", "remainder"]),
        *[("cpu", 16, "bfloat16", layout, *(COLUMNS if workarounds.KEEPS_BARRIERS else STACKED)) for layout in LAYOUTS],
        *[("cpu", 16, "float32", layout, *(COLUMNS if workarounds.KEEPS_BARRIERS else READS)) for layout in LAYOUTS],
    ],
)
def test_each_platform_gets_its_form(platform, heads, dtype, layout, expected, missing):
    x = normal(128, heads, 16).astype(dtype)
    traced = jax.jit(functools.partial(pe.rotary, layout=layout, head_axis=-2)).trace(x)
    text = traced.lower(lowering_platforms=(platform,)).as_text().replace("optimization_barrier", "barrier")
    assert all(f"stablehlo.{name}" in text for name in expected)
    assert not any(f"stablehlo.{name}" in text for name in missing)


@pytest.mark.parametrize(
    ("shape", "reverses"), [((128, 4, 112), True), ((128, 4, 128), False), ((128, 4, 72), False), ((127, 4, 64), False)]
)
def test_halves_are_reversed_where_a_tpu_puts_them_in_different_registers(shape, reverses):
    traced = jax.jit(functools.partial(pe.rotary, head_axis=-2)).trace(of(shape, jnp.bfloat16))
    assert ("stablehlo.reverse" in traced.lower(lowering_platforms=("tpu",)).as_text()) == reverses


@EVERY
@pytest.mark.parametrize("shape", tiered([(0, 5, 3, 8), (2, 0, 3, 8), (2, 0, 4, 8), (5, 0, 8)], [(2, 0, 4, 8)]))
@pytest.mark.parametrize("layout", tiered(LAYOUTS, ["half"]))
def test_nothing_to_turn(shape, layout, every):
    settings, p = RotationSettings(layout), np.zeros((1,) * len(shape), np.int32)

    @quick
    def turned(x, p):
        results = {
            (dim, name, dtype): rotate(settings, x.astype(dtype), p, pe.geometric(dim))
            for dtype in ("float32", "bfloat16")
            for dim in (6, 8)
            for name, rotate in forms(every, layout, dim == 8, dtype).items()
        }
        for dim in (6, 8):
            total = lambda x: pe.rotary(x, None, dim, layout=layout, head_axis=-2).sum()  # noqa: B023, E731
            results[dim, "derivative"] = jax.grad(total)(x)
        return results

    for case, y in turned(np.zeros(shape, np.float32), p).items():
        assert y.shape == shape, case


@EVERY
@pytest.mark.parametrize("layout", tiered(LAYOUTS, ["half"]))
def test_an_infinity_stays_in_its_pair(layout, every):
    partner = 7 if layout == "half" else 2
    inputs = {width: normal(4, 10, width) for width in (8, 12)}
    for x in inputs.values():
        x[1, 2, 3], x[1, 2, 8:] = np.inf, np.nan  # 8 and what follows is not turned

    @quick
    def turned(inputs, p):
        return {
            (width, name): rotate(RotationSettings(layout), x, p, pe.geometric(8))
            for width, x in inputs.items()
            for name, rotate in forms(every, layout, width == 8).items()
        }

    for (width, name), y in turned(inputs, np.arange(4).reshape(4, 1, 1)).items():
        bad = ~np.isfinite(np.asarray(y))
        assert bad[1, 2, [3, partner]].all() and bad[1, 2, 8:].all() and bad.sum() == width - 6, (width, name)


@pytest.mark.parametrize("dtype", tiered(["bfloat16", "float16"], ["bfloat16"]))
@pytest.mark.parametrize("last", [False, True])
def test_words_that_do_not_rotate_keep_their_bits(dtype, last):
    x = np.arange(2**16, dtype=np.uint16).reshape(-1, 4, 16)  # every number and every NaN
    rotate = functools.partial(form("rotate_in_words", workarounds.GPU), RotationSettings("interleaved", last))
    y = jax.jit(lambda x, p: rotate(x, p, pe.geometric(6)))(x.view(jnp.dtype(dtype)), np.ones((1, 1, 1), np.int32))
    kept = slice(10) if last else slice(6, 16)
    np.testing.assert_array_equal(np.asarray(y).view(np.uint16)[..., kept], x[..., kept])


@pytest.mark.parametrize("layout", tiered(LAYOUTS, ["half"]))
@pytest.mark.parametrize("dtype", tiered(["float32", "bfloat16"], ["bfloat16"]))
@pytest.mark.parametrize("shape", tiered([(2, 9, 1, 16), (9, 1, 5, 16), (1, 9, 1, 16), (3, 1, 1, 16)], [(2, 9, 1, 16)]))
def test_axes_of_one_change_no_bits(shape, dtype, layout):
    x = normal(*shape)
    x[0, 0, 0, 1], x[-1, -1, -1, 7], x[-1, -1, -1, 2] = np.nan, np.inf, -0.0
    x = x.astype(dtype)
    positions = 1_000_003 * np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape[:2])
    ways = {}, {"frequencies": 8}, {"frequencies": 6, "part": "last", "inverse": True}
    rotary = functools.partial(pe.rotary, layout=layout, head_axis=-2)
    turned = jax.jit(lambda x, p: [rotary(x, p, **options).astype(jnp.float32) for options in ways])
    got = jax.device_get(turned(x, positions))
    for i, j in np.ndindex(shape[:2]):
        for options, one, want in zip(ways, got, turned(x[i, j], positions[i, j]), strict=True):
            np.testing.assert_array_equal(one[i, j], want, f"vector {i}, {j}, {options}")


def test_an_axis_of_one_that_a_mesh_shards(on_cpu):
    mesh = jax.make_mesh((8, 1), ("d", "m"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices("cpu"))
    x = normal(8, 4, 1, 6)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, NamedSharding(mesh, P("d", None, "m", None)))
        got = jax.jit(functools.partial(pe.rotary, head_axis=-2))(sharded)
        assert jax.typeof(got).sharding.spec == P("d", None, "m", None)
    np.testing.assert_array_equal(got, pe.rotary(x, head_axis=-2))


def test_a_table_keeps_what_is_no_number():
    positions = np.array([0xFFFFFFFF, 0], np.uint32).view(np.float32)  # the NaN of all ones
    f = pe.geometric(6).with_precision("float32")
    for heads in (2, 8):  # without a table and with one
        turned = np.asarray(pe.rotary(np.ones((2, heads, 6), np.float32), positions, f, head_axis=-2))
        assert np.isnan(turned[0]).all() and np.isfinite(turned[1]).all()
