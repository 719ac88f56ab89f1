"""What the CUDA compiler makes of the library for an H200: `nox -s "compile(cuda)"`."""

import functools

import jax
import jax.numpy as jnp
import pytest

import posenc_jax as pe
from devices.aot import h200_topology

pytestmark = pytest.mark.compile_cuda

POSITIONS = ((131_072,), jnp.int32)
TABLE = 4 * 4096 * 128  # bytes of the sines and cosines of 64 pairs, at 4096 positions


@functools.cache
def gpu_of(make):
    return make("H200", h200_topology())


@pytest.fixture
def gpu(make_target):
    return gpu_of(make_target)


def test_every_function(gpu, case, record):
    compiled = gpu.compile(case.function, *case.arguments)
    record(case.name, gpu, compiled)
    # Interleaved float32 is padded and selected, with a table for sines and one for cosines of each feature.
    kept = case.kept + TABLE * ("interleaved, float32" in case.name)
    assert "f64[" not in compiled.text
    if case.oscillates:
        compiled.check_exact()
        assert compiled.temporaries <= kept
    if case.elementwise:
        compiled.check_elementwise(kept)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rotary_is_a_table_and_one_pass(gpu, layout, dtype):
    compiled = gpu.compile(functools.partial(pe.rotary, layout=layout, head_axis=-2), ((1, 4096, 32, 128), dtype))
    tables = 2 if layout == "interleaved" and dtype == jnp.float32 else 1  # of sines and of cosines, for each feature
    compiled.check_elementwise(tables * TABLE)
    assert compiled.fusions == tables + 1


def test_fourier_features_are_one_pass(gpu, record):
    compiled = gpu.compile(pe.fourier_features, ((65_536, 3), jnp.float32), ((3, 256), jnp.float32))
    record("fourier_features", gpu, compiled)
    compiled.check_elementwise(3 * 28 * 65_536)  # seven words for each coordinate


@pytest.mark.parametrize(("name", "limit"), [("fire", 1.01), ("sandwich", 1.2)])
def test_a_bias_keeps_one_array_for_the_heads_to_share(gpu, biases, name, limit, record):
    bias, parameters = biases[name]
    positions = (1024,), jnp.int32
    compiled = gpu.compile(bias, positions, positions, *parameters)
    record(name, gpu, compiled)
    assert compiled.large == ["fusion"]
    assert compiled.temporaries <= limit * 4 * 1024**2


def test_what_the_derivative_of_a_bias_keeps(gpu, derivative, record):
    # Near what was seen. T5: the cotangent with the heads last, and the sums of each query in 32 buckets, a 32nd of that;
    # the compiler of JAX 0.10 also stores the index of the row, one for eight heads. FIRE: hidden features, and which of
    # them are positive.
    name, back, arguments = derivative
    compiled = gpu.compile(back, *arguments)
    record(f"{name}, backward", gpu, compiled)
    t5 = 1.032 if jax.__version_info__ >= (0, 12) else 1.157
    assert compiled.temporaries <= {"t5": t5, "fire": 5.3}[name] * 4 * 8 * 1024**2


def test_attention_keeps_arrays_like_the_queries_and_tiles(gpu, attention, record):
    compiled = gpu.compile(*attention.compiled)
    record(attention.name, gpu, compiled)
    assert compiled.temporaries <= attention.limit


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
