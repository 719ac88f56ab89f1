"""Attention kernels of JAX given rotated operands and biases, as docs/kernels.md does, beside `attention`.

- Kernels for TPUs, in interpret mode, give what `attention` gives; all of them lower for their devices.
- cuDNN cannot run here: it lowers with the bias as an operand, and its backward pass too.
- A kernel of one's own, examples/fused_rope.py; tests/unit/test_kernel_tiles.py has what it calls.
"""

import functools
import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import splash_attention as splash

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.tiers import slow
from oracles import spectra
from oracles.encodings import waves
from oracles.rotations import rotate

RNG = np.random.default_rng(0)
SEQ, HEADS, DIM = 256, 3, 128
Q, K, V, DY = RNG.normal(size=(4, 1, SEQ, HEADS, DIM)).astype(np.float32)
IDS, AT, SLOPES = np.repeat(np.int32([[0, 1]]), SEQ // 2, axis=1), np.arange(SEQ), np.float32([0.5, 0.1, 0.02])
OF_TPU = pytest.mark.skipif(jax.config.read("jax_enable_x64"), reason="JAX's kernels for TPUs do not run with x64")


@pytest.fixture(autouse=True)
def as_kernels():
    """JAX's kernels promote."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def heads_first(x):
    return jnp.swapaxes(x, 1, 2)


def ours(q, k, v, **settings):
    q, k = (pe.rotary(x, head_axis=-2) for x in (q, k))
    return pe.attention(q, k, v, causal=True, **settings)


def by_flash(q, k, v, slopes):
    """Its bias is scaled too."""
    q, k, scale = *(pe.rotary(heads_first(x), head_axis=-3) for x in (q, k)), DIM**-0.5
    bias = jnp.broadcast_to(pe.alibi(AT, AT, slopes) / scale, (*q.shape[:3], SEQ))
    return heads_first(flash.flash_attention(q, k, heads_first(v), bias, causal=True, sm_scale=scale))


@OF_TPU
@pytest.mark.slow
def test_flash_attention_and_its_derivative():
    def derivatives(f):
        def of(*x):
            y, back = jax.vjp(f, *x)
            return y, *back(DY)

        return jax.jit(of)(Q, K, V, SLOPES)

    with pltpu.force_tpu_interpret_mode():
        got = derivatives(by_flash)
    want = derivatives(lambda q, k, v, slopes: ours(q, k, v, bias=lambda i, j: pe.alibi(i, j, slopes)))
    for a, b in zip(got, want, strict=True):
        assert_within(a, b, 1e-5 * max(1, np.abs(b).max()), against="attention")


def by_splash(q, k, v, mask, segments=None, **settings):
    """Its query comes scaled."""
    q, k, v = (heads_first(x) for x in (q, k, v))
    q, k = pe.rotary(q, head_axis=-3) * DIM**-0.5, pe.rotary(k, head_axis=-3)
    masks = splash.MultiHeadMask([mask((q.shape[2], k.shape[2]))] * q.shape[1])
    kernel = splash.make_splash_mha_single_device(masks, **settings)
    ids = None if segments is None else splash.SegmentIds(segments, segments)
    return heads_first(jax.vmap(kernel)(q, k, v, ids))


def local(shape):
    return splash.LocalMask(shape, (63, 0), 0)


@OF_TPU
@pytest.mark.parametrize(
    ("mask", "given", "settings"),
    [
        (local, {}, {"window": (63, 0)}),
        slow(splash.CausalMask, {"attn_logits_soft_cap": 1.5}, {"logits_soft_cap": 1.5}),
        slow(splash.CausalMask, {"segments": IDS}, {"query_segments": IDS, "key_segments": IDS}),
    ],
    ids=["window", "cap", "segments"],
)
def test_splash_attention(mask, given, settings):
    """With grouped queries."""
    q, k, v = Q[:, :, [0, 1, 2, 2]], K[:, :, :2], V[:, :, :2]
    got = jax.jit(functools.partial(by_splash, mask=mask, interpret=True, **given))(q, k, v)
    assert_within(got, jax.jit(functools.partial(ours, **settings))(q, k, v), 1e-5, against="attention")


def exported(f, platform, *shapes):
    """What is lowered for a platform that is not here."""
    calls = ("__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward")
    unchecked = [export.DisabledSafetyCheck.custom_call(name) for name in calls]
    return export.export(jax.jit(f), platforms=[platform], disabled_checks=unchecked)(*shapes).mlir_module()


@OF_TPU
def test_both_lower_for_a_tpu():
    x, slopes = jax.ShapeDtypeStruct(Q.shape, jnp.bfloat16), jax.ShapeDtypeStruct((HEADS,), np.float32)
    both = lambda *x: by_flash(*x) + by_splash(*x[:3], splash.CausalMask)  # noqa: E731
    assert exported(both, "tpu", x, x, x, slopes).count("tpu_custom_call") == 2


def test_cudnn_lowers_with_the_bias(monkeypatch):
    """JAX asks for cuDNN's version when it lowers."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91200)

    def by_jax(q, k, v, slopes):
        bias = pe.alibi(AT, AT, slopes)[None].astype(q.dtype)
        q, k = (pe.rotary(x, head_axis=-2) for x in (q, k))
        return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True, implementation="cudnn")

    q, k = (jax.ShapeDtypeStruct((2, SEQ, heads, 64), jnp.bfloat16) for heads in (4, 2))
    slopes = jax.ShapeDtypeStruct((4,), jnp.float32)
    text = exported(lambda *a: jax.vjp(by_jax, *a)[1](a[0]), "cuda", q, k, k, slopes)
    calls = re.findall(r"custom_call @__cudnn\$(\w+)\(.*?: \((.*?)\) ->", text)
    assert [name for name, _ in calls] == ["fmhaScaleBiasSoftmax", "fmhaScaleBiasSoftmaxBackward"]
    assert all(f"tensor<1x4x{SEQ}x{SEQ}xbf16>" in operands for _, operands in calls)


@pytest.mark.parametrize("dtype", [slow(jnp.float32), jnp.bfloat16])
def test_qk_norm_and_rope_in_one_kernel(dtype):
    """Beside the plain functions, and beside NumPy; the second sequence is far from the origin."""
    path = Path(__file__).parents[2] / "examples" / "fused_rope.py"
    spec = importlib.util.spec_from_file_location("fused_rope", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    f, length = pe.geometric(64, 500_000.0), 32
    q, k = (RNG.normal(size=(2, length, heads, 64)).astype(dtype) for heads in (3, 1))
    weights = RNG.uniform(0.5, 2, (2, 64)).astype(np.float32)
    positions = np.int32([[0], [2**31 - length]]) + np.arange(length, dtype=np.int32)
    fused = functools.partial(example.fused, block=16, interpret=True)
    more = *weights, positions, f
    got, want = (jax.jit(lambda q, k, one=one: one(q, k, *more))(q, k) for one in (fused, example.plain))
    sine, cosine = (wave[:, :, None] for wave in waves(positions, spectra.geometric(64, 500_000.0)))
    one = np.finfo(np.float32).eps if dtype == jnp.float32 else 2**-8
    for a, b, x, weight in zip(got, want, (q, k), weights, strict=True):
        assert a.dtype == dtype
        x = np.asarray(x, np.float64)
        true = rotate(x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * weight, sine, cosine, "half")
        for wanted, against in ((true, "float64"), (b, "pe.rotary")):
            assert_within(a, wanted, 2 * one * np.abs(true) + 1e-6, against=against)
    with pytest.raises(ValueError, match="the block, 128, must divide the length, 32"):
        example.fused(q, k, *weights, positions, f)
