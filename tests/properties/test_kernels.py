"""Kernels outside this package accept its rotated operands, its biases and its constants.

- cuDNN attention: the forward and the backward call take the bias as an operand. They are lowered, and not run here.
- examples/fused_rope.py, QK-norm and RoPE in one kernel, gives the values of the plain functions.

docs/tiles.md runs JAX's kernels for TPUs; tests/unit/test_kernel_tiles.py tests what the example calls.
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

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import spectra
from oracles.encodings import waves
from oracles.rotations import rotate

RNG = np.random.default_rng(0)
CALLS = "__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"


def test_cudnn_lowers_with_the_bias(monkeypatch):
    """Both the forward and the backward call take the bias of all four heads as an operand."""
    # JAX asks for cuDNN's version when it lowers.
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91200)

    def attend(q, k, v, slopes):
        at = np.arange(256)
        bias = pe.alibi(at, at, slopes)[None].astype(q.dtype)
        q, k = (pe.rotary(x, head_axis=-2) for x in (q, k))
        return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True, implementation="cudnn")

    q, k = (jax.ShapeDtypeStruct((2, 256, heads, 64), jnp.bfloat16) for heads in (4, 2))
    both = jax.jit(lambda *x: jax.vjp(attend, *x)[1](x[0]))  # q serves as the cotangent, which has its shape
    unchecked = [export.DisabledSafetyCheck.custom_call(name) for name in CALLS]
    exported = export.export(both, platforms=["cuda"], disabled_checks=unchecked)
    text = exported(q, k, k, jax.ShapeDtypeStruct((4,), jnp.float32)).mlir_module()
    calls = re.findall(r"custom_call @(__cudnn\$\w+)\(.*?: \((.*?)\) ->", text)
    assert tuple(name for name, _ in calls) == CALLS
    assert all("tensor<1x4x256x256xbf16>" in operands for _, operands in calls)


def test_qk_norm_and_rope_in_one_kernel():
    """The fused kernel agrees with the plain functions and with float64 NumPy; the second sequence ends at 2³¹ − 1."""
    path = Path(__file__).parents[2] / "examples" / "fused_rope.py"
    spec = importlib.util.spec_from_file_location("fused_rope", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    f, length = pe.geometric(64, 500_000.0), 32
    q, k = (RNG.normal(size=(2, length, heads, 64)).astype(jnp.bfloat16) for heads in (3, 1))
    weights = RNG.uniform(0.5, 2, (2, 64)).astype(np.float32)
    positions = np.int32([[0], [2**31 - length]]) + np.arange(length, dtype=np.int32)
    fused = functools.partial(example.fused, block=16, interpret=True)
    got, want = (
        jax.jit(lambda q, k, rope=rope: rope(q, k, *weights, positions, f))(q, k) for rope in (fused, example.plain)
    )
    sine, cosine = (wave[:, :, None] for wave in waves(positions, spectra.geometric(64, 500_000.0)))
    for a, b, x, weight in zip(got, want, (q, k), weights, strict=True):
        assert a.dtype == jnp.bfloat16
        x = np.asarray(x, np.float64)
        true = rotate(x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * weight, sine, cosine, "half")
        for wanted, against in ((true, "float64"), (b, "pe.rotary")):
            assert_within(a, wanted, 2**-7 * np.abs(true) + 1e-6, against=against)  # one bfloat16 ulp
    with pytest.raises(ValueError, match="the block, 128, must divide the length, 32"):
        example.fused(q, k, *weights, positions, f)
