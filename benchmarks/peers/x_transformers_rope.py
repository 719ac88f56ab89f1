"""x-transformers' `RotaryEmbedding`, `apply_rotary_pos_emb`, and ALiBi, as its own attention layers call them.

The model finds the phases once for all of its layers. So `rotary`, of one layer, has them made beforehand, and
`decode`, whose positions are new at every step, makes them. `attention` is what a `Decoder` with `alibi_pos_bias` and
`attn_flash` does between its projections; the module of the bias keeps it, and is in the dtype of the model.
"""

import torch
from x_transformers.attend import Attend
from x_transformers.x_transformers import AlibiPositionalBias, RotaryEmbedding, apply_rotary_pos_emb

NAME, PACKAGES, FRAMEWORK = "x-transformers", ("x-transformers",), "torch"
IMPORT = "import x_transformers"
HEAD_AXIS, LAYOUTS = -3, ("interleaved",)


def rotary(case):
    phases, _ = RotaryEmbedding(case.shape[-1])(torch.arange(case.shape[1]))
    return lambda x: apply_rotary_pos_emb(x, phases)


def decode(case):
    rope = RotaryEmbedding(case.shape[-1])
    return lambda x, positions: apply_rotary_pos_emb(x, *rope(positions))


def attention(case):
    _, length, heads, _ = case.shape
    alibi = AlibiPositionalBias(heads).to(getattr(torch, case.dtype))
    attend = Attend(causal=True, heads=heads, flash=True)

    def f(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return attend(q, k, v, attn_bias=alibi(length, length))[0].transpose(1, 2)

    return f


def waves(position):
    x = torch.ones(1, 1, 1, 128)
    x[..., 1::2] = 0
    turned = apply_rotary_pos_emb(x, *RotaryEmbedding(128)(torch.tensor([position]))).cpu().numpy()[0, 0, 0]
    return turned[::2] + 1j * turned[1::2]
