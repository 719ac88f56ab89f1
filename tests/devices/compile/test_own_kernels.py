"""Kernels that use all of `posenc_jax.kernels`, compiled by Pallas for TPUs and by Mosaic GPU for an H200."""

import functools
import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import posenc_jax as pe
from devices.aot import h200_topology, tpu_topology
from posenc_jax import kernels

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
EXAMPLE = Path(__file__).parents[3] / "examples" / "fused_rope.py"
SMALL = 2**16  # bytes: positions and weights in another order


def shapes(*results):
    return [jax.ShapeDtypeStruct(*result) for result in results]


def biases(i, j, slope, rate, *out):
    """The three biases of a tile, to three references."""
    functions = kernels.alibi, kernels.kerple_log, kernels.kerple_power
    for ref, f, parameters in zip(out, functions, ((slope,), (slope, rate), (slope, rate)), strict=True):
        ref[...] = f(i, j, *parameters)


# TPUs


@pytest.fixture(params=["v5e", "v6e"])
def chip(request, make_target):
    return make_target(request.param, tpu_topology(f"{request.param}:2x2"))


@pytest.mark.compile_tpu
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_tile_turns_on_a_tpu(chip, layout, dim, dtype):
    def kernel(x, positions, constants, out):
        cosine, sine = kernels.cos_sin(positions[...], constants[...])
        out[...] = kernels.rotate(x[...], cosine[:, None], sine[:, None], layout)

    x, positions = ((32, 8, dim), dtype), ((32, 1), I32)
    call = pl.pallas_call(kernel, *shapes(x))
    constants = functools.partial(kernels.phase_constants, dim, layout)
    assert chip.compile(lambda x, p: call(x, p, constants()), x, positions).temporaries <= SMALL


@pytest.mark.compile_tpu
def test_pairs_and_biases_on_a_tpu(chip):
    def kernel(x1, x2, i, j, slope, rate, constants, y1, y2, *out):
        y1[...], y2[...] = kernels.rotate_pairs(x1[...], x2[...], *kernels.cos_sin(i[...], constants[...]))
        biases(i[...], j[...], slope[...], rate[...], *out)

    member, tile, one = ((32, 128), BF16), ((32, 256), F32), ((1, 1), F32)
    call = pl.pallas_call(kernel, shapes(member, member, tile, tile, tile))
    constants = functools.partial(kernels.phase_constants, 256)
    arguments = member, member, ((32, 1), I32), ((1, 256), I32), one, one
    assert chip.compile(lambda *x: call(*x, constants()), *arguments).temporaries <= SMALL


@pytest.mark.compile_tpu
def test_qk_norm_and_rope_in_one_kernel(chip, record):
    spec = importlib.util.spec_from_file_location("fused_rope", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    q, k = (((1, 4096, heads, 128), BF16) for heads in (32, 8))
    arguments = q, k, ((128,), F32), ((128,), F32), ((1, 4096), I32)
    f = pe.geometric(128)
    fused = chip.compile(functools.partial(example.fused, frequencies=f), *arguments)
    plain = chip.compile(functools.partial(example.plain, frequencies=f), *arguments)
    record("QK-norm and RoPE, one kernel", chip, fused)
    record("QK-norm and RoPE, plain", chip, plain)
    assert fused.text.count('"tpu_custom_call"') == 1
    assert fused.temporaries <= SMALL


# An H200, by Mosaic GPU, in both of its lowerings


@pytest.fixture
def gpu(make_target):
    return make_target("H200", h200_topology())


TILE = 64, 128  # positions, columns


@pytest.mark.compile_cuda
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="another interface before JAX 0.12")
@pytest.mark.parametrize("semantics", ["Lane", "Warpgroup"])
def test_pairs_and_biases_on_a_gpu(gpu, semantics):
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def tile(ref, axis=None):
        """A tile of TILE, or a row or column broadcast to one, as matrix products lay their results out."""
        layout = plgpu.Layout.WGMMA
        if axis is None:
            return plgpu.load(ref, layout=layout, optimized=False)
        along = plgpu.load(ref, layout=layout.reduce(1 - axis), optimized=False)
        return plgpu.layout_cast(jax.lax.broadcast_in_dim(along, TILE, (axis,)), layout)

    def kernel(x1, x2, i, j, slope, rate, constants, y1, y2, *out):
        places = tile(i, 0)
        waves = kernels.cos_sin(places, [tile(constants.at[row], 1) for row in range(6)])
        y1[...], y2[...] = kernels.rotate_pairs(tile(x1), tile(x2), *waves)
        biases(places, tile(j, 1), slope[0], rate[0], *out)

    member, one = (TILE, F32), ((1,), F32)
    parameters = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics[semantics])
    call = plgpu.kernel(kernel, out_type=shapes(*[member] * 5), compiler_params=parameters)
    constants = functools.partial(kernels.phase_constants, 2 * TILE[1])
    arguments = member, member, ((TILE[0],), I32), ((TILE[1],), I32), one, one
    assert gpu.compile(lambda *x: call(*x, constants()), *arguments).temporaries <= SMALL


@pytest.mark.compile_cuda
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="another interface before JAX 0.12")
def test_no_product_of_a_rotation_is_contracted_on_a_gpu(gpu, tmp_path, monkeypatch):
    """The control: without the guard, as many products and sums become FMAs as the rotation has sums."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def contracted(name, rotate):
        def kernel(*refs):
            tiles = [plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False) for ref in refs[:4]]
            refs[4][...], refs[5][...] = rotate(*tiles)

        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv("MOSAIC_GPU_DUMP_TO", str(folder))
        member = TILE, F32
        gpu.compile(plgpu.kernel(kernel, out_type=shapes(member, member)), *[member] * 4)
        (ptx,) = folder.glob("*.ptx")
        return len(re.findall(r"\bfma\.rn\.f32\b", ptx.read_text()))

    assert contracted("guarded", kernels.rotate_pairs) == 0
    assert contracted("plain", lambda x1, x2, c, s: (x1 * c - x2 * s, x2 * c + x1 * s)) > 0
