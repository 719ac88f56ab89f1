"""transformers' `LlamaRotaryEmbedding` and `apply_rotary_pos_emb`, as `LlamaModel` and its attention call them.

The model finds the cosines and sines once for all of its layers. So `rotary`, of one layer, has them made beforehand,
and `decode`, whose positions are new at every step, makes them. One call rotates queries and keys: here with keys of no
heads, which costs a few empty operations.
"""

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

NAME, PACKAGES, FRAMEWORK = "transformers, Llama", ("transformers",), "torch"
IMPORT = "from transformers.models.llama import modeling_llama"
HEAD_AXIS, LAYOUTS = -3, ("half",)


def embedding(heads, head_dim):
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    return LlamaRotaryEmbedding(
        LlamaConfig(hidden_size=heads * head_dim, num_attention_heads=heads, rope_parameters=rope)
    )


def rotary(case):
    x = torch.zeros(1, dtype=getattr(torch, case.dtype))  # of which it takes the dtype
    cos, sin = embedding(*case.shape[2:])(x, torch.arange(case.shape[1])[None])
    return lambda x: apply_rotary_pos_emb(x, x[:, :0], cos, sin)[0]


def decode(case):
    rope = embedding(*case.shape[2:])
    return lambda x, positions: apply_rotary_pos_emb(x, x[:, :0], *rope(x, positions))[0]


def waves(position):
    x = torch.ones(1, 1, 1, 128)
    x[..., 64:] = 0
    turned = apply_rotary_pos_emb(x, x, *embedding(1, 128)(x, torch.tensor([[position]])))[0].cpu().numpy()[0, 0, 0]
    return turned[:64] + 1j * turned[64:]
