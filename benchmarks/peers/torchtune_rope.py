"""`torchtune.modules.RotaryPositionalEmbeddings`, with its cache made at construction, and `input_pos` for decoding."""

import torch
from torchtune.modules import RotaryPositionalEmbeddings

NAME, PACKAGES, FRAMEWORK = "torchtune", ("torchtune", "torchao"), "torch"
IMPORT = "from torchtune.modules import RotaryPositionalEmbeddings"
HEAD_AXIS, LAYOUTS = -2, ("interleaved",)


def rotary(case):
    return RotaryPositionalEmbeddings(dim=case.shape[-1], max_seq_len=case.shape[1])


def decode(case):
    rope = RotaryPositionalEmbeddings(dim=case.shape[-1], max_seq_len=131_072)  # positions below it, as in Llama 3.1
    return lambda x, positions: rope(x, input_pos=positions)


def waves(position):
    if position >= 2**20:
        return None
    x = torch.ones(1, 1, 1, 128)
    x[..., 1::2] = 0
    rope = RotaryPositionalEmbeddings(dim=128, max_seq_len=position + 1)
    turned = rope(x, input_pos=torch.tensor([[position]])).cpu().numpy()[0, 0, 0]
    return turned[::2] + 1j * turned[1::2]
