"""`positional_encodings.torch_encodings`: `PositionalEncoding1D`, and `Summer` of it, as in its README.

A module keeps its last table. So `add` finds it there from the second call on, and `table`, which is to make one, makes
the module as well: it has one small buffer. Both take an array for its shape, and no positions.
"""

import torch
from positional_encodings.torch_encodings import PositionalEncoding1D, Summer

NAME, PACKAGES, FRAMEWORK = "positional-encodings", ("positional-encodings",), "torch"
IMPORT = "from positional_encodings import torch_encodings"


def table(case):
    x = torch.zeros(1, *case.shape)
    return lambda positions: PositionalEncoding1D(case.shape[-1])(x)[0]


def add(case):
    return Summer(PositionalEncoding1D(case.shape[-1]))


def waves(position):
    if position >= 2**20:
        return None
    row = PositionalEncoding1D(128)(torch.zeros(1, position + 1, 128))[0, -1].cpu().numpy()
    return row[1::2] + 1j * row[::2]
