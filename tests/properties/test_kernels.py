"""Attention kernels of JAX given rotated operands and biases, as docs/kernels.md does, beside `attention`.

TPU kernels run in interpret mode and are lowered for the device. cuDNN cannot run here: it is lowered. The last test
runs a kernel of one's own, examples/fused_rope.py; tests/unit/test_kernel_tiles.py has what it calls.
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
from helpers.biases import TABLE
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow
from oracles import spectra
from oracles.encodings import waves
from oracles.rotations import rotate

RNG = np.random.default_rng(0)
BATCH, SEQ, HEADS, DIM = 1, 256, 3, 128
Q, K, V, DY = RNG.normal(size=(4, BATCH, SEQ, HEADS, DIM)).astype(np.float32)
IDS = np.repeat(np.int32([[0, 1]]), SEQ // 2, axis=1)
SCALE = DIM**-0.5
BIASES = {"alibi": (pe.alibi, np.float32([0.5, 0.1, 0.02])), "t5": (pe.t5, TABLE)}


@pytest.fixture(autouse=True)
def as_kernels():
    """JAX's kernels promote."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


OF_TPU = pytest.mark.skipif(jax.config.read("jax_enable_x64"), reason="JAX's kernels for TPUs do not run with x64")


@pytest.fixture
def interpreted():
    with pltpu.force_tpu_interpret_mode():
        yield


def heads_first(x):
    return jnp.swapaxes(x, 1, 2)


def by_flash(q, k, v, bias=None, scale=SCALE, divided=True):
    q, k = (pe.rotary(heads_first(x), head_axis=-3) for x in (q, k))
    if bias is not None:
        bias = jnp.broadcast_to(bias / (scale if divided else 1), (*q.shape[:3], k.shape[2]))
    return heads_first(flash.flash_attention(q, k, heads_first(v), bias, causal=True, sm_scale=scale))


def ours(q, k, v, **settings):
    q, k = (pe.rotary(x, head_axis=-2) for x in (q, k))
    return pe.attention(q, k, v, causal=True, **settings)


def value(f, *arguments):
    return f(*arguments)


def derivatives(f, *arguments):
    y, back = jax.vjp(f, *arguments)
    return y, *back(DY)


@OF_TPU
@pytest.mark.parametrize(
    ("name", "of"),
    [slow("alibi", value), *(slow(name, derivatives) for name in (None, "alibi", "t5"))],
)
def test_flash_attention(interpreted, name, of):
    bias, parameters = BIASES.get(name, (None, ()))
    i = np.arange(SEQ)
    theirs = lambda q, k, v, w: by_flash(q, k, v, bias and bias(i, i, w))  # noqa: E731
    same = lambda q, k, v, w: ours(q, k, v, bias=bias and (lambda i, j: bias(i, j, w)))  # noqa: E731
    got, want = (quick(functools.partial(of, f))(Q, K, V, parameters) for f in (theirs, same))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_within(a, b, 1e-5 * max(1, np.abs(b).max()), against="attention")


@OF_TPU
@pytest.mark.slow
def test_flash_attention_scales_its_bias(interpreted):
    """The controls: without dividing by the scale, or with the scale it has by default, another result and no error."""
    i = jnp.arange(SEQ)
    bias = pe.alibi(i, i, BIASES["alibi"][1])
    want = ours(Q, K, V, bias=lambda i, j: pe.alibi(i, j, BIASES["alibi"][1]))
    for settings in ({"divided": False}, {"scale": 1.0}):
        assert np.abs(quick(functools.partial(by_flash, bias=bias, **settings))(Q, K, V) - want).max() > 0.5


def by_splash(q, k, v, mask, segments=None, scale=SCALE, **settings):
    q, k, v = (heads_first(x) for x in (q, k, v))
    q, k = pe.rotary(q, head_axis=-3) * scale, pe.rotary(k, head_axis=-3)
    kernel = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([mask((q.shape[2], k.shape[2]))] * q.shape[1]), **settings
    )
    ids = None if segments is None else splash.SegmentIds(segments, segments)
    return heads_first(jax.vmap(kernel)(q, k, v, ids))


def local(shape):
    return splash.LocalMask(shape, (63, 0), 0)


@OF_TPU
@pytest.mark.parametrize(
    ("mask", "given", "settings"),
    [
        slow(splash.CausalMask, {}, {}),
        (local, {}, {"window": (63, 0)}),
        slow(splash.CausalMask, {"attn_logits_soft_cap": 1.5}, {"logits_soft_cap": 1.5}),
        slow(splash.CausalMask, {"segments": IDS}, {"query_segments": IDS, "key_segments": IDS}),
    ],
    ids=["causal", "window", "cap", "segments"],
)
def test_splash_attention(mask, given, settings):
    """With grouped queries."""
    q, k, v = Q[:, :, [0, 1, 2, 2]], K[:, :, :2], V[:, :, :2]
    got = quick(functools.partial(by_splash, mask=mask, interpret=True, **given))(q, k, v)
    assert_within(got, quick(functools.partial(ours, **settings))(q, k, v), 1e-5, against="attention")


@OF_TPU
@pytest.mark.slow
def test_splash_attention_does_not_scale_the_query():
    unscaled = quick(functools.partial(by_splash, mask=splash.CausalMask, scale=1.0, interpret=True))
    assert np.abs(unscaled(Q, K, V) - ours(Q, K, V)).max() > 0.5


@OF_TPU
@pytest.mark.slow
def test_derivatives_of_splash_attention():
    blocks = {f"block_{name}": 128 for name in "q kv kv_compute q_dkv kv_dkv kv_dkv_compute q_dq kv_dq".split()}
    sizes = splash.BlockSizes(**blocks)
    theirs = functools.partial(by_splash, mask=splash.CausalMask, interpret=True, block_sizes=sizes)
    got, want = (quick(functools.partial(derivatives, f))(Q, K, V) for f in (theirs, ours))
    for a, b in zip(got, want, strict=True):
        assert_within(a, b, 1e-5 * max(1, np.abs(b).max()), against="attention")


def exported(f, platform, *shapes):
    """What is lowered for a platform that is not here."""
    calls = ("__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward")
    unchecked = [export.DisabledSafetyCheck.custom_call(name) for name in calls]
    return export.export(jax.jit(f), platforms=[platform], disabled_checks=unchecked)(*shapes).mlir_module()


@OF_TPU
def test_both_are_lowered_for_a_tpu():
    x = jax.ShapeDtypeStruct((BATCH, SEQ, HEADS, DIM), jnp.bfloat16)
    i = jnp.arange(SEQ)

    def both(q, k, v):
        return by_flash(q, k, v, pe.alibi(i, i, HEADS)) + by_splash(q, k, v, splash.CausalMask)

    assert exported(both, "tpu", x, x, x).count("tpu_custom_call") == 2


def by_jax(q, k, v, slopes, implementation, whole=True, dtype=None):
    i = jnp.arange(q.shape[1])
    bias = pe.alibi(i if whole else i[:1], i, slopes)[None].astype(dtype or q.dtype)
    q, k = (pe.rotary(x, head_axis=-2) for x in (q, k))
    return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True, implementation=implementation)


@pytest.fixture
def cudnn(monkeypatch):
    """JAX asks for cuDNN's version when it lowers."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91200)


def test_cudnn_is_lowered_with_the_bias(cudnn):
    q, k, slopes = (
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (((2, SEQ, 4, 64), jnp.bfloat16), ((2, SEQ, 2, 64), jnp.bfloat16), ((4,), jnp.float32))
    )
    forward = functools.partial(by_jax, implementation="cudnn")
    text = exported(lambda *a: jax.vjp(forward, *a)[1](a[0]), "cuda", q, k, k, slopes)
    calls = re.findall(r"custom_call @__cudnn\$(\w+)\(.*?: \((.*?)\) ->", text)
    assert [name for name, _ in calls] == ["fmhaScaleBiasSoftmax", "fmhaScaleBiasSoftmaxBackward"]
    assert all(f"tensor<1x4x{SEQ}x{SEQ}xbf16>" in operands for _, operands in calls)


@pytest.mark.parametrize(
    ("length", "dtype", "settings", "match"),
    [
        (SEQ, jnp.float32, {}, "Q must be fp16/bf16"),
        (SEQ, jnp.bfloat16, {"whole": False}, "Bias must have same seq length"),
        (SEQ - 1, jnp.bfloat16, {}, "Unsupported sequence length"),
    ],
)
def test_what_cudnn_does_not_take(cudnn, length, dtype, settings, match):
    x = jax.ShapeDtypeStruct((2, length, 4, 64), dtype)
    forward = functools.partial(by_jax, implementation="cudnn", **settings)
    with pytest.raises((NotImplementedError, ValueError), match=match):
        exported(lambda *a: jax.vjp(forward, *a)[1](a[0]), "cuda", x, x, x, jax.ShapeDtypeStruct((4,), jnp.float32))


@pytest.mark.slow
def test_the_same_operands_by_xla():
    slopes = BIASES["alibi"][1]
    q, k, v = (x.astype(jnp.bfloat16) for x in (Q, K, V))
    want = ours(q, k, v, bias=lambda i, j: pe.alibi(i, j, slopes)).astype(jnp.float32)
    got = by_jax(q, k, v, slopes, "xla").astype(jnp.float32)
    assert_within(got, want, 3e-2, against="attention")


@pytest.mark.parametrize("dtype", [slow(jnp.float32), jnp.bfloat16])
def test_qk_norm_and_rope_in_one_kernel(dtype):
    """Beside the plain functions, and beside NumPy; the second sequence is far from the origin."""
    spec = importlib.util.spec_from_file_location(
        "fused_rope", Path(__file__).parents[2] / "examples" / "fused_rope.py"
    )
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    f, length = pe.geometric(64, 500_000.0), 32
    q, k = (RNG.normal(size=(2, length, heads, 64)).astype(dtype) for heads in (3, 1))
    weights = RNG.uniform(0.5, 2, (2, 64)).astype(np.float32)
    positions = np.int32([[0], [2**31 - length]]) + np.arange(length, dtype=np.int32)
    run = {"fused": functools.partial(example.fused, block=16, interpret=True), "plain": example.plain}
    found = quick(lambda q, k: {name: one(q, k, *weights, positions, f) for name, one in run.items()})(q, k)
    sine, cosine = (wave[:, :, None] for wave in waves(positions, spectra.geometric(64, 500_000.0)))
    for got, want, x, weight in zip(found["fused"], found["plain"], (q, k), weights, strict=True):
        assert got.dtype == dtype
        x = np.asarray(x, np.float64)
        true = rotate(x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * weight, sine, cosine, "half")
        one = np.finfo(np.float32).eps if dtype == jnp.float32 else 2**-8
        assert_within(got, true, 2 * one * np.abs(true) + 1e-6, against="float64")
        assert_within(got, want, 2 * one * np.abs(true) + 1e-6, against="pe.rotary")
    with pytest.raises(ValueError, match="the block, 128, must divide the length, 32"):
        example.fused(q, k, *weights, positions, f)
