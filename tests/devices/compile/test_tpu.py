"""What the TPU compilers make of the library: `nox -s "compile(tpu)"`."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import posenc_jax as pe
from devices.aot import tpu_topology

pytestmark = pytest.mark.compile_tpu

LENGTH, DIM = 131_072, 128
POSITIONS = ((LENGTH,), jnp.int32)
ROTATED = (1, 4096, 32, 128)
SMALL = 8192  # bytes of high-bandwidth memory that count as none


@functools.cache
def chip_of(make, name):
    return make(name, tpu_topology(f"{name}:2x2"))


@pytest.fixture(params=["v5e", "v6e"])
def chip(request, make_target):
    return chip_of(make_target, request.param)


def table(positions):
    return pe.sinusoidal(positions, DIM)


def test_every_function(chip, case, record):
    compiled, result = chip.compile(case.function, *case.arguments), case.result
    fills = not case.name.startswith(("add", "shift", "rotary", "xpos", "learned", "resize"))
    fill = chip.fill(result.shape, result.dtype) if fills else None
    copy = chip.copy(result.shape, result.dtype)
    record(case.name, chip, compiled, copy, fill)
    assert compiled.cycles <= case.copies * copy.cycles
    assert "f64[" not in compiled.text
    if case.oscillates:
        compiled.check_exact()
        assert compiled.temporaries <= SMALL
    if case.elementwise:
        compiled.check_elementwise(SMALL)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_shift_is_one_pass(chip, layout, dtype):
    shift = functools.partial(pe.shift, frequencies=512, layout=layout)
    chip.compile(shift, ((16, 4096, 512), dtype), ((), jnp.int32)).check_elementwise(SMALL)


def test_a_table_costs_little_more_than_its_memory(chip, control, record):
    ours = chip.compile(table, POSITIONS)
    theirs = chip.compile(lambda positions: control(positions, DIM), POSITIONS)
    shape = (LENGTH, DIM), jnp.dtype(jnp.float32)
    record("textbook formula", chip, theirs, chip.copy(*shape), chip.fill(*shape))
    assert ours.cycles <= 0.5 * theirs.cycles
    assert ours.cycles <= 2.3 * chip.fill(*shape).cycles


@pytest.mark.parametrize("shape", [(16, 4096, 512), (2, 65_536, 512)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_addition_costs_a_copy(chip, shape, dtype):
    # Nor is a (seq, d_model) table kept for the batch to share, which for the second shape is half of x.
    compiled = chip.compile(pe.add_sinusoidal, (shape, dtype))
    compiled.check_elementwise(SMALL)
    assert compiled.cycles <= 1.25 * chip.copy(shape, jnp.dtype(dtype)).cycles


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_plain_form_of_rotary_is_faster(chip, plain_rotary, dtype, record):
    x, copy = (ROTATED, dtype), chip.copy(ROTATED, jnp.dtype(dtype))
    plain = {form.__name__: chip.compile(form, x) for form in plain_rotary}
    for name, compiled in plain.items():
        record(f"{name}, {jnp.dtype(dtype)}", chip, compiled, copy)
    with pytest.raises(AssertionError):
        plain["halves"].check_elementwise(SMALL)
    if chip.name == "v5e":  # there the matrix unit is a tenth faster in float32, and makes an infinity a vector of NaN
        del plain["swapped"]
    assert chip.compile(functools.partial(pe.rotary, head_axis=-2), x).cycles <= min(
        compiled.cycles for compiled in plain.values()
    )


@pytest.mark.parametrize(("layout", "columns", "results"), [("half", 256, 3.01), ("interleaved", 30, 0)])
def test_fourier_features(chip, layout, columns, results, record):
    # The features of both waves are put side by side in passes of their own; the limits are what was seen.
    function, rows = functools.partial(pe.fourier_features, layout=layout), 65_536
    compiled = chip.compile(function, ((rows, 3), jnp.float32), ((3, columns), jnp.float32))
    shape = (rows, 2 * columns), jnp.dtype(jnp.float32)
    record(f"fourier_features, {layout}", chip, compiled, chip.copy(*shape), chip.fill(*shape))
    compiled.check_exact()
    assert compiled.temporaries <= SMALL + results * 4 * rows * 2 * columns


@pytest.mark.parametrize(("name", "copies"), [("fire", 3.1), ("sandwich", 1.2)])
def test_a_bias_that_is_a_matrix_product(chip, biases, name, copies, record):
    bias, parameters = biases[name]
    positions, shape = ((1024,), jnp.int32), ((8, 1024, 1024), jnp.dtype(jnp.float32))
    compiled, copy = chip.compile(bias, positions, positions, *parameters), chip.copy(*shape)
    record(name, chip, compiled, copy, chip.fill(*shape))
    assert compiled.temporaries <= SMALL
    assert compiled.cycles <= copies * copy.cycles


def test_the_derivative_of_a_bias_keeps_nothing_of_its_size(make_target, derivative, record):
    chip, (name, back, arguments) = chip_of(make_target, "v5e"), derivative
    compiled = chip.compile(back, *arguments)
    record(f"{name}, backward", chip, compiled)
    assert compiled.temporaries <= 2**19


def test_attention_keeps_arrays_like_the_queries_and_tiles(chip, attention, record):
    kind = attention.bias, attention.length, attention.backward
    if attention.bias == "t5" or chip.name == "v6e" and kind != ("alibi", 32_768, True):
        pytest.skip("takes a minute to compile")
    compiled = chip.compile(*attention.compiled)
    record(attention.name, chip, compiled)
    assert compiled.temporaries <= attention.limit


def test_attention_over_batch_and_heads(make_target, record):
    mesh = make_target("v5e:2x2", tpu_topology("v5e:2x2"), (2, 2))
    axes, x = ("x", None, "y"), ((4, 2048, 8, 64), jnp.bfloat16, "x", None, "y")
    slopes = (8,), jnp.float32, "y"

    def attend(q, k, v, slopes, along=()):
        # Slopes that are the same along an axis would be summed over it with every tile.
        slopes = jax.lax.pcast(slopes, along, to="varying") if along else slopes
        return pe.attention(q, k, v, bias=lambda i, j: pe.alibi(i, j, slopes), causal=True)

    compiled = mesh.compile(attend, x, x, x, slopes, out=axes)
    record("attention, batch and heads", mesh, compiled)
    assert compiled.collectives == ([], [])

    each, local = PartitionSpec(*axes), PartitionSpec("y")

    @functools.partial(jax.shard_map, mesh=mesh.mesh, in_specs=(each,) * 4 + (local,), out_specs=local)
    def slope(q, k, v, do, slopes):
        return jax.vjp(functools.partial(attend, q, k, v, along=("x",)), slopes)[1](do)[0]

    compiled = mesh.compile(slope, x, x, x, x, slopes, out=("y",))
    record("attention, batch and heads, derivative by the bias", mesh, compiled)
    assert compiled.collectives == (["all-reduce"], ["all-reduce"])  # at the end, not with every tile


SHARDED = {
    # function, arguments with the axes of the mesh, those of the result, bytes for each position of a device's share
    "table, rows": (table, [((2**28,), jnp.int32, ("x", "y"))], [("x", "y")], 0),
    "table, rows and columns": (table, [((2**28,), jnp.int32, "x")], ["x", "y"], 8 * 2**24),
    "add, batch and width": (pe.add_sinusoidal, [((256, 4096, 4096), jnp.bfloat16, "x", None, "y")], None, 8 * 4096),
    "add, batch and sequence": (pe.add_sinusoidal, [((256, 32_768, 512), jnp.float32, "x", "y")], None, 8 * 4096),
    "add, sharded positions": (
        pe.add_sinusoidal,
        [((256, 32_768, 512), jnp.float32, "x", "y"), ((32_768,), jnp.int32, "y")],
        None,
        0,
    ),
    "rotary, batch and heads": (
        functools.partial(pe.rotary, head_axis=-2),
        [((256, 4096, 128, 128), jnp.bfloat16, "x", None, "y")],
        None,
        0,
    ),
    "rotary, 64, sequence and heads": (
        functools.partial(pe.rotary, head_axis=-2),
        [((1, 2**18, 128, 64), jnp.bfloat16, None, "x", "y")],
        None,
        12 * 2**14,
    ),
    "rotary, sequence and heads": (
        functools.partial(pe.rotary, head_axis=-2),
        [((1, 2**18, 128, 128), jnp.bfloat16, None, "x", "y")],
        None,
        8 * 2**14,
    ),
    "rotary, sequence": (
        functools.partial(pe.rotary, head_axis=-2),
        [((1, 2**20, 8, 128), jnp.bfloat16, None, ("x", "y"))],
        None,
        0,
    ),
    "rotary, sharded positions": (
        functools.partial(pe.rotary, head_axis=-2),
        [((256, 32_768, 8, 128), jnp.bfloat16, "x", "y"), ((256, 32_768), jnp.int32, "x", "y")],
        None,
        0,
    ),
    "rotary, backward, sequence": (
        lambda x, dy: jax.vjp(functools.partial(pe.rotary, head_axis=-2), x)[1](dy),
        [((1, 2**20, 8, 128), jnp.bfloat16, None, ("x", "y"))] * 2,
        None,
        0,
    ),
}


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_over_256_chips(name, make_target, record):
    mesh = make_target("v5e:16x16", tpu_topology("v5e:16x16"), (16, 16))
    function, arguments, out, kept = SHARDED[name]
    compiled = mesh.compile(function, *arguments, out=arguments[0][2:] if out is None else out)
    record(name, mesh, compiled)
    compiled.check_elementwise(SMALL + kept)


def test_control_the_textbook_formula_is_caught(chip, control):
    compiled = chip.compile(lambda positions: control(positions, DIM), POSITIONS)
    assert len(compiled.large) > 1  # an array of its own for the waves, in HBM or VMEM as the compiler likes
    with pytest.raises(AssertionError):
        compiled.check_elementwise(SMALL)


def test_control_a_collective_is_caught(make_target):
    mesh = make_target("v5e:16x16", tpu_topology("v5e:16x16"), (16, 16))
    compiled = mesh.compile(lambda x: x - x.mean(axis=-1, keepdims=True), ((256, 256), jnp.float32, "x", "y"))
    with pytest.raises(AssertionError):
        compiled.check_exact()


def test_control_a_matrix_product_is_caught(chip):
    matrix = jnp.zeros((DIM, 512))
    with pytest.raises(AssertionError):
        chip.compile(lambda positions: table(positions) @ matrix, POSITIONS).check_exact()
