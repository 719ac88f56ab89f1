"""What the CUDA compiler makes of the library for an H200: `nox -s compile_cuda`."""

import functools
from pathlib import Path

import jax.numpy as jnp
import pytest
from jax.experimental import topologies

import posenc_jax as pe

pytestmark = pytest.mark.compile_cuda

POSITIONS = ((131_072,), jnp.int32)


@functools.cache
def gpu_of(make):
    config = (Path(__file__).parent / "h200.txtpb").read_text()
    return make("H200", topologies.get_topology_desc("h200", platform="cuda", topology="1x1x1", target_config=config))


@pytest.fixture
def gpu(make_target):
    return gpu_of(make_target)


def test_every_function(gpu, case, record):
    compiled = gpu.compile(case.function, *case.arguments)
    record(case.name, gpu, compiled)
    assert "f64[" not in compiled.text
    if case.oscillates:
        compiled.check_exact()
        assert compiled.temporaries <= case.kept
    if case.elementwise:
        compiled.check_elementwise(case.kept)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rotary_is_a_table_and_one_pass(gpu, layout, dtype):
    compiled = gpu.compile(functools.partial(pe.rotary, layout=layout), ((1, 4096, 32, 128), dtype))
    compiled.check_elementwise(4 * 4096 * 128)
    assert compiled.fusions == 2


def test_control_a_matrix_product_is_caught(gpu):
    matrix = jnp.zeros((128, 512))
    with pytest.raises(AssertionError):
        gpu.compile(lambda positions: pe.sinusoidal(positions, 128) @ matrix, POSITIONS).check_exact()


def test_control_an_intermediate_is_caught(gpu):
    def running_sum(positions):
        return jnp.cumsum(pe.sinusoidal(positions, 128), axis=0)

    with pytest.raises(AssertionError):
        gpu.compile(running_sum, POSITIONS).check_elementwise(8 * 131_072 + 4096)


def test_control_a_scatter_is_caught(gpu):
    def scattered(positions):
        return jnp.zeros((131_072, 128)).at[positions].set(1.0)

    with pytest.raises(AssertionError):
        gpu.compile(scattered, POSITIONS).check_exact()
