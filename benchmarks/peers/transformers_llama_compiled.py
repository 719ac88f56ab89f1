"""transformers' `apply_rotary_pos_emb` as in `transformers_llama`, compiled by `torch.compile`, which fuses it.

Only on a CUDA device, where models are served so: on a CPU the uncompiled function stands for it.
"""

import torch

from . import transformers_llama as eager

NAME, PACKAGES, FRAMEWORK = "transformers, Llama, torch.compile", ("transformers",), "torch"
IMPORT = "from transformers.models.llama import modeling_llama"
HEAD_AXIS, LAYOUTS = -3, ("half",)

if not torch.cuda.is_available():
    raise RuntimeError("measured on a CUDA device only")


def rotary(case):
    return torch.compile(eager.rotary(case), dynamic=False)


def decode(case):
    return torch.compile(eager.decode(case), dynamic=False)
