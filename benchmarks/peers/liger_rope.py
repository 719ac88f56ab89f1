"""`liger_kernel.transformers.liger_rotary_pos_emb`, in the place of transformers' function as its own patch puts it.

It needs a CUDA device. The cosines and sines are transformers', made as in `transformers_llama`. Its kernel wants keys
too: here one head of them, made beforehand. Where (batch, seq, heads, head_dim) is contiguous, as in models, its
result overwrites what it is given.
"""

import torch
from liger_kernel.transformers import liger_rotary_pos_emb

from .transformers_llama import embedding

NAME, PACKAGES, FRAMEWORK = "Liger-Kernel", ("liger-kernel", "transformers"), "torch"
IMPORT = "from liger_kernel.transformers import liger_rotary_pos_emb"
HEAD_AXIS, LAYOUTS = -3, ("half",)


def one_key(case):
    batch, length, _, head_dim = case.shape
    return torch.zeros(batch, 1, length, head_dim, dtype=getattr(torch, case.dtype), device="cuda")


def rotary(case):
    keys = one_key(case)
    cos, sin = embedding(*case.shape[2:]).to("cuda")(keys, torch.arange(case.shape[1], device="cuda")[None])
    return lambda x: liger_rotary_pos_emb(x, keys, cos, sin)[0]


def decode(case):
    rope, keys = embedding(*case.shape[2:]).to("cuda"), one_key(case)
    return lambda x, positions: liger_rotary_pos_emb(x, keys, *rope(x, positions))[0]


def waves(position):
    x = torch.ones(1, 1, 1, 128, device="cuda")
    x[..., 64:] = 0
    cos, sin = embedding(1, 128).to("cuda")(x, torch.tensor([[position]], device="cuda"))
    turned = liger_rotary_pos_emb(x, torch.zeros_like(x), cos, sin)[0].cpu().numpy()[0, 0, 0]
    return turned[:64] + 1j * turned[64:]
