"""Users' kernels may call all of `posenc_jax.kernels`: Pallas compiles them for TPUs, Mosaic GPU for an H200.

On a GPU no product of a rotation is contracted to a fused multiply-add.
"""

import functools
import importlib.util
import re
from pathlib import Path

import jax
import pytest
from jax.experimental import pallas as pl

import posenc_jax as pe
from devices.aot import Target, h200_topology, tpu_topology
from devices.compile.cases import BF16, F32, bf16, f32, i32
from posenc_jax import kernels

EXAMPLE = Path(__file__).parents[3] / "examples" / "fused_rope.py"
SMALL = 2**16  # bytes that count as none: positions and weights in another order
needs_012 = pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="another interface before JAX 0.12")


def shapes(*results):
    """The types of results (shape, dtype)."""
    return [jax.ShapeDtypeStruct(*result) for result in results]


def biases(i, j, slope, rate, *out):
    """Writes the three biases of a tile to three references."""
    out[0][...] = kernels.alibi(i, j, slope)
    out[1][...] = kernels.kerple_log(i, j, slope, rate)
    out[2][...] = kernels.kerple_power(i, j, slope, rate)


@pytest.fixture(params=["v5e", "v6e"])
def chip(request):
    return Target(request.param, tpu_topology(f"{request.param}:2x2"))


@pytest.mark.compile_tpu
@pytest.mark.parametrize(("dim", "dtype"), [(64, BF16), (96, F32), (128, BF16), (192, F32), (256, BF16)])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_tile_is_rotated_on_a_tpu(chip, layout, dim, dtype):
    def kernel(x, positions, constants, out):
        cosine, sine = kernels.cos_sin(positions[...], constants[...])
        out[...] = kernels.rotate(x[...], cosine[:, None], sine[:, None], layout)

    x = (32, 8, dim), dtype
    call, constants = pl.pallas_call(kernel, *shapes(x)), functools.partial(kernels.phase_constants, dim, layout)
    assert chip.compile(lambda x, p: call(x, p, constants()), x, i32(32, 1)).temporaries <= SMALL


@pytest.mark.compile_tpu
def test_pairs_are_rotated_and_biases_computed_on_a_tpu(chip):
    def kernel(x1, x2, i, j, slope, rate, constants, y1, y2, *out):
        y1[...], y2[...] = kernels.rotate_pairs(x1[...], x2[...], *kernels.cos_sin(i[...], constants[...]))
        biases(i[...], j[...], slope[...], rate[...], *out)

    member = bf16(32, 128)
    call = pl.pallas_call(kernel, shapes(member, member, *[f32(32, 256)] * 3))
    constants = functools.partial(kernels.phase_constants, 256)
    arguments = member, member, i32(32, 1), i32(1, 256), f32(1, 1), f32(1, 1)
    assert chip.compile(lambda *x: call(*x, constants()), *arguments).temporaries <= SMALL


@pytest.mark.compile_tpu
def test_qk_norm_and_rope_are_one_kernel(chip):
    spec = importlib.util.spec_from_file_location("fused_rope", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    arguments = bf16(1, 4096, 32, 128), bf16(1, 4096, 8, 128), f32(128), f32(128), i32(1, 4096)
    fused = chip.compile(functools.partial(example.fused, frequencies=pe.geometric(128)), *arguments)
    assert fused.text.count('"tpu_custom_call"') == 1
    assert fused.temporaries <= SMALL


# An H200, by Mosaic GPU

TILE = 64, 128  # positions, columns


@pytest.fixture
def gpu():
    return Target("H200", h200_topology())


@needs_012
@pytest.mark.compile_cuda
@pytest.mark.parametrize("semantics", ["Lane", "Warpgroup"])
def test_pairs_are_rotated_and_biases_computed_on_a_gpu(gpu, semantics):
    """By both lowerings of Mosaic GPU."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def tile(ref, axis=None):
        """Loads a tile, or broadcasts the vector along `axis` to one, in the layout of results of matrix products."""
        layout = plgpu.Layout.WGMMA
        if axis is None:
            return plgpu.load(ref, layout=layout, optimized=False)
        along = plgpu.load(ref, layout=layout.reduce(1 - axis), optimized=False)
        return plgpu.layout_cast(jax.lax.broadcast_in_dim(along, TILE, (axis,)), layout)

    def kernel(x1, x2, i, j, slope, rate, constants, y1, y2, *out):
        positions = tile(i, 0)
        cos_sin = kernels.cos_sin(positions, [tile(constants.at[row], 1) for row in range(6)])
        y1[...], y2[...] = kernels.rotate_pairs(tile(x1), tile(x2), *cos_sin)
        biases(positions, tile(j, 1), slope[0], rate[0], *out)

    parameters = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics[semantics])
    call = plgpu.kernel(kernel, out_type=shapes(*[f32(*TILE)] * 5), compiler_params=parameters)
    constants = functools.partial(kernels.phase_constants, 2 * TILE[1])
    arguments = f32(*TILE), f32(*TILE), i32(TILE[0]), i32(TILE[1]), f32(1), f32(1)
    assert gpu.compile(lambda *x: call(*x, constants()), *arguments).temporaries <= SMALL


@needs_012
@pytest.mark.compile_cuda
def test_no_product_of_a_rotation_is_contracted_on_a_gpu(gpu, tmp_path, monkeypatch):
    """`rotate_pairs` guards its products. Without that guard, which is the control, some become FMAs."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def contracted(name, rotate):
        """How many FMAs the PTX of a kernel with this rotation has."""

        def kernel(*refs):
            tiles = [plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False) for ref in refs[:4]]
            refs[4][...], refs[5][...] = rotate(*tiles)

        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv("MOSAIC_GPU_DUMP_TO", str(folder))
        gpu.compile(plgpu.kernel(kernel, out_type=shapes(*[f32(*TILE)] * 2)), *[f32(*TILE)] * 4)
        (ptx,) = folder.glob("*.ptx")
        return len(re.findall(r"\bfma\.rn\.f32\b", ptx.read_text()))

    assert contracted("guarded", kernels.rotate_pairs) == 0
    assert contracted("plain", lambda x1, x2, c, s: (x1 * c - x2 * s, x2 * c + x1 * s)) > 0
