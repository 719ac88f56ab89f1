"""Transformer Engine's `RotaryPositionEmbedding` and fused `apply_rotary_pos_emb`, as its attention calls them.

It needs a CUDA device. Its examples make the phases once, when the model is made; decoding finds each row's by
`start_positions`, as in inference.
"""

import torch
from transformer_engine.pytorch.attention import RotaryPositionEmbedding
from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb

NAME, PACKAGES, FRAMEWORK = "Transformer Engine", ("transformer-engine",), "torch"
IMPORT = "import transformer_engine.pytorch"
HEAD_AXIS, LAYOUTS = -2, ("half", "interleaved")


def turn(case, length):
    interleaved = case.layout == "interleaved"
    phases = RotaryPositionEmbedding(case.shape[-1], interleaved=interleaved)(length)

    def f(x, start=None):
        return apply_rotary_pos_emb(x, phases, "bshd", start_positions=start, interleaved=interleaved, fused=True)

    return f


def rotary(case):
    return turn(case, case.shape[1])


def decode(case):
    rotate = turn(case, 131_072)  # positions below it
    return lambda x, positions: rotate(x, positions[:, 0])


def waves(position):
    x = torch.ones(1, 1, 1, 128, device="cuda")
    x[..., 64:] = 0
    phases = RotaryPositionEmbedding(128)(1, offset=position)
    turned = apply_rotary_pos_emb(x, phases, "bshd", fused=True).cpu().numpy()[0, 0, 0]
    return turned[:64] + 1j * turned[64:]
