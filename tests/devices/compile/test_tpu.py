"""What the TPU compilers make of the library: `nox -s "compile(tpu)"`, which needs no device.

- An elementwise function is one pass over memory, with no temporary of its size and no matrix product.
- A table costs little more than writing it, and an addition and a rotation little more than a copy.
- Attention and derivatives of biases keep nothing of the size of the bias.

Costs are the compiler's estimates of cycles.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import posenc_jax as pe
from devices.aot import Target, tpu_topology
from devices.compile.cases import ATTENTION, BF16, BIASES, CASES, F32, bf16, derivative_of_bias, f32, i32
from devices.on_pods import textbook

pytestmark = pytest.mark.compile_tpu
SMALL = 8192  # bytes of high-bandwidth memory that count as none
LENGTH, DIM = 131_072, 128


@functools.cache
def chip_of(name):
    return Target(name, tpu_topology(f"{name}:2x2"))


@pytest.fixture(params=["v5e", "v6e"])
def chip(request):
    return chip_of(request.param)


def table(positions):
    return pe.sinusoidal(positions, DIM)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_function_stays_within_its_copies(chip, case):
    """And is one pass over memory where the case says so."""
    compiled = chip.compile(case.function, *case.arguments)
    assert compiled.cycles <= case.copies * chip.copy(case.result.shape, case.result.dtype).cycles
    assert "f64[" not in compiled.text
    if case.oscillates:
        compiled.check_exact()
        assert compiled.temporaries <= SMALL
    if case.elementwise:
        compiled.check_elementwise(SMALL)


def test_a_table_costs_little_more_than_its_memory(chip):
    ours, textbooks = (chip.compile(f, i32(LENGTH)) for f in (table, functools.partial(textbook, dim=DIM)))
    assert ours.cycles <= 0.5 * textbooks.cycles
    assert ours.cycles <= 2.3 * chip.fill((LENGTH, DIM), F32).cycles


@pytest.mark.parametrize("shape", [(16, 4096, 512), (2, 65_536, 512)])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_an_addition_costs_a_copy(chip, shape, dtype):
    """No (seq, d_model) table is kept for the batch to share, which for the second shape would be half of x."""
    compiled = chip.compile(pe.add_sinusoidal, (shape, dtype))
    compiled.check_elementwise(SMALL)
    assert compiled.cycles <= 1.25 * chip.copy(shape, dtype).cycles


@pytest.mark.parametrize(("layout", "columns", "results"), [("half", 256, 3.01), ("interleaved", 30, 0)])
def test_fourier_features_keep_at_most_so_many_results(chip, layout, columns, results):
    """Separate passes put cosines and sines side by side. The limits, in multiples of the result, are what was seen."""
    function, rows = functools.partial(pe.fourier_features, layout=layout), 65_536
    compiled = chip.compile(function, f32(rows, 3), f32(3, columns))
    compiled.check_exact()
    assert compiled.temporaries <= SMALL + results * 4 * rows * 2 * columns


@pytest.mark.parametrize(("name", "copies"), [("fire", 3.1), ("sandwich", 1.2)])
def test_a_bias_that_is_a_matrix_product_stays_within_its_copies(chip, name, copies):
    bias, parameters = BIASES[name]
    compiled = chip.compile(bias, i32(1024), i32(1024), *parameters)
    assert compiled.temporaries <= SMALL
    assert compiled.cycles <= copies * chip.copy((8, 1024, 1024), F32).cycles


@pytest.mark.parametrize("name", ["t5", "fire"])
def test_the_derivative_of_a_bias_keeps_nothing_of_its_size(name):
    assert chip_of("v5e").compile(*derivative_of_bias(name)).temporaries <= 2**19


@pytest.mark.parametrize("case", [case for case in ATTENTION if case.bias != "t5"], ids=str)  # t5 takes a minute
def test_attention_keeps_arrays_like_the_queries_and_tiles(case):
    assert chip_of("v5e").compile(*case.compiled).temporaries <= case.limit


def test_attention_over_batch_and_heads_sends_nothing_but_the_sum_of_slopes():
    """Four chips split batch and heads. The derivative by slopes is summed over the batch once, after all tiles."""
    mesh, axes = Target("v5e:2x2", tpu_topology("v5e:2x2"), (2, 2)), ("x", None, "y")
    x, slopes = (*bf16(4, 2048, 8, 64), *axes), (*f32(8), "y")

    def attend(q, k, v, slopes, along=()):
        # Derivatives of slopes that shard_map knows to be the same along an axis would be summed with every tile.
        slopes = jax.lax.pcast(slopes, along, to="varying") if along else slopes
        return pe.attention(q, k, v, bias=lambda i, j: pe.alibi(i, j, slopes), causal=True)

    assert mesh.compile(attend, x, x, x, slopes, out=axes).collectives == ([], [])
    each, local = PartitionSpec(*axes), PartitionSpec("y")

    @functools.partial(jax.shard_map, mesh=mesh.mesh, in_specs=(each,) * 4 + (local,), out_specs=local)
    def by_slopes(q, k, v, do, slopes):
        return jax.vjp(functools.partial(attend, q, k, v, along=("x",)), slopes)[1](do)[0]

    compiled = mesh.compile(by_slopes, x, x, x, x, slopes, out=("y",))
    assert compiled.collectives == (["all-reduce"], ["all-reduce"])  # at the end, not with every tile


def test_control_the_textbook_formula_is_caught(chip):
    compiled = chip.compile(functools.partial(textbook, dim=DIM), i32(LENGTH))
    with pytest.raises(AssertionError):
        compiled.check_elementwise(SMALL)


def test_control_a_matrix_product_is_caught(chip):
    with pytest.raises(AssertionError):
        chip.compile(lambda positions: table(positions) @ jnp.zeros((DIM, 512)), i32(LENGTH)).check_exact()
