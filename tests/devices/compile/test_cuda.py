"""What the CUDA compiler makes of the library for an H200: `nox -s "compile(cuda)"`, which needs no device.

- An elementwise function is one pass over memory, besides a table that heads share.
- A bias keeps one array that heads share, and attention nothing of the size of its bias.
- The derivative of a bias keeps what the test states.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

import posenc_jax as pe
from devices.aot import Target, h200_topology
from devices.compile.cases import ATTENTION, BF16, BIASES, CASES, F32, derivative_of_bias, f32, i32

pytestmark = pytest.mark.compile_cuda
P = i32(131_072)
TABLE = 4 * 4096 * 128  # bytes of the sines and cosines of 64 pairs, at 4096 positions


@pytest.fixture(scope="module")
def gpu():
    return Target("H200", h200_topology())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_function_keeps_what_its_case_says(gpu, case):
    """And is one pass over memory where the case says so."""
    compiled = gpu.compile(case.function, *case.arguments)
    # Interleaved float32 is lowered by padding and selecting, which takes a second table: a sine and a cosine for each
    # feature instead of each pair.
    kept = case.kept + TABLE * ("interleaved, float32" in case.name)
    assert "f64[" not in compiled.text
    if case.oscillates:
        compiled.check_exact()
        assert compiled.temporaries <= kept
    if case.elementwise:
        compiled.check_elementwise(kept)


@pytest.mark.parametrize(("layout", "dtype", "tables"), [("half", BF16, 1), ("interleaved", F32, 2)])
def test_rotary_is_a_table_and_one_pass(gpu, layout, dtype, tables):
    rotary = functools.partial(pe.rotary, layout=layout, head_axis=-2)
    compiled = gpu.compile(rotary, ((1, 4096, 32, 128), dtype))
    compiled.check_elementwise(tables * TABLE)
    assert compiled.fusions == tables + 1


def test_fourier_features_are_one_pass(gpu):
    compiled = gpu.compile(pe.fourier_features, f32(65_536, 3), f32(3, 256))
    compiled.check_elementwise(3 * 28 * 65_536)  # seven words of 4 bytes for each of 3 coordinates


@pytest.mark.parametrize(("name", "limit"), [("fire", 1.01), ("sandwich", 1.2)])
def test_a_bias_keeps_one_array_for_the_heads_to_share(gpu, name, limit):
    bias, parameters = BIASES[name]
    compiled = gpu.compile(bias, i32(1024), i32(1024), *parameters)
    assert compiled.large == ["fusion"]
    assert compiled.temporaries <= limit * 4 * 1024**2


@pytest.mark.parametrize("name", ["t5", "fire"])
def test_what_the_derivative_of_a_bias_keeps(gpu, name):
    # Limits near what was seen, in arrays of the size of the bias. T5 keeps the cotangent with the heads last and, a
    # 32nd of it, each query's sums in 32 buckets; before JAX 0.12 also an index per distance, an eighth. FIRE keeps
    # hidden features and which of them are positive.
    t5 = 1.032 if jax.__version_info__ >= (0, 12) else 1.157
    limit = {"t5": t5, "fire": 5.3}[name]
    assert gpu.compile(*derivative_of_bias(name)).temporaries <= limit * 4 * 8 * 1024**2


@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_keeps_arrays_like_the_queries_and_tiles(gpu, case):
    assert gpu.compile(*case.compiled).temporaries <= case.limit


def test_control_a_matrix_product_is_caught(gpu):
    with pytest.raises(AssertionError):
        gpu.compile(lambda positions: pe.sinusoidal(positions, 128) @ jnp.zeros((128, 512)), P).check_exact()


def test_control_an_intermediate_is_caught(gpu):
    with pytest.raises(AssertionError):
        gpu.compile(lambda positions: jnp.cumsum(pe.sinusoidal(positions, 128), axis=0), P).check_elementwise(2**21)
