"""`rotary_embedding_torch.RotaryEmbedding.rotate_queries_or_keys`, one module for all calls as in its README.

It keeps the phases, up to 8192 positions, from the first call on, and counts positions in the dtype of its inputs: in
bfloat16 they are rounded to it. Its `offset` is that of a whole batch, so nothing here decodes a row at its own
position.
"""

import torch
from rotary_embedding_torch import RotaryEmbedding

NAME, PACKAGES, FRAMEWORK = "rotary-embedding-torch", ("rotary-embedding-torch",), "torch"
IMPORT = "import rotary_embedding_torch"
HEAD_AXIS, LAYOUTS = -3, ("interleaved",)


def rotary(case):
    return RotaryEmbedding(dim=case.shape[-1]).rotate_queries_or_keys


def waves(position):
    x = torch.ones(1, 1, 1, 128)
    x[..., 1::2] = 0
    turned = RotaryEmbedding(dim=128).rotate_queries_or_keys(x, offset=position).cpu().numpy()[0, 0, 0]
    return turned[::2] + 1j * turned[1::2]
