"""`flash_attn.ops.triton.rotary.apply_rotary`, the Triton kernel of `flash_attn.layers.rotary`, by which many rotate.

It needs a CUDA device. Its layer keeps the cosines and sines, in the dtype of x, so here they are made beforehand; a
decode step finds each row's by its offset. Backward it is the same kernel with `conjugate`.
"""

import torch
from flash_attn.ops.triton.rotary import apply_rotary

NAME, PACKAGES, FRAMEWORK = "flash-attn", ("flash-attn",), "torch"
IMPORT = "from flash_attn.ops.triton import rotary"
HEAD_AXIS, LAYOUTS = -2, ("half", "interleaved")


class Turn(torch.autograd.Function):
    """As the library's own `ApplyRotaryEmb`, whose module imports the library's compiled kernels of attention."""

    @staticmethod
    def forward(ctx, x, cos, sin, interleaved):
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return apply_rotary(x, cos, sin, interleaved=interleaved)

    @staticmethod
    def backward(ctx, dy):
        cos, sin = ctx.saved_tensors
        return apply_rotary(dy, cos, sin, interleaved=ctx.interleaved, conjugate=True), None, None, None


def waves_of(length, head_dim, dtype):
    """As `RotaryEmbedding._update_cos_sin_cache` makes them."""
    omega = 1.0 / 10_000.0 ** (torch.arange(0, head_dim, 2, device="cuda", dtype=torch.float32) / head_dim)
    phase = torch.outer(torch.arange(length, device="cuda", dtype=torch.float32), omega)
    return torch.cos(phase).to(dtype), torch.sin(phase).to(dtype)


def rotary(case):
    cos, sin = waves_of(case.shape[1], case.shape[-1], getattr(torch, case.dtype))
    return lambda x: Turn.apply(x, cos, sin, case.layout == "interleaved")


def decode(case):
    cos, sin = waves_of(131_072, case.shape[-1], getattr(torch, case.dtype))  # positions below it
    interleaved = case.layout == "interleaved"
    return lambda x, positions: apply_rotary(x, cos, sin, seqlen_offsets=positions[:, 0], interleaved=interleaved)
