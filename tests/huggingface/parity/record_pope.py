"""Writes tests/oracles/recorded/pope.json: queries, keys and scores as PoPE-pytorch computes them.

    nox -s parity -- --record

does, with the peers that the dependency group "record" in pyproject.toml names.
"""

from importlib import metadata
from types import SimpleNamespace

import numpy as np
import PoPE_pytorch
import torch
from PoPE_pytorch.attention import compute_attn_similarity_non_fused
from record_positions import numbers, write

RNG = np.random.default_rng(0)
WIDTH, HEADS = 6, 2


def case(positions, theta):
    """Queries and keys (HEADS, seq, WIDTH), and a bias of which some leaves [−2π, 0]."""
    bias = RNG.uniform(-7, 1, (HEADS, WIDTH)).round(3).astype(np.float32)
    q, k = RNG.normal(0, 2, (2, HEADS, len(positions), WIDTH)).round(3).astype(np.float32)
    module = PoPE_pytorch.PoPE(WIDTH, heads=HEADS, theta=theta)
    with torch.no_grad():
        module.bias.copy_(torch.tensor(bias))
        angles = module(torch.tensor(positions, dtype=torch.float32))
        given = [torch.tensor(x)[None] for x in (q, k)]
        query, key = module.apply_pope_to_qk(angles, *given)
        scores = compute_attn_similarity_non_fused(*given, angles)
    inputs = {"positions": positions, "theta": theta, "bias": numbers(bias), "q": numbers(q), "k": numbers(k)}
    return inputs | {"query": numbers(query[0]), "key": numbers(key[0]), "scores": numbers(scores[0])}


if __name__ == "__main__":
    peer = SimpleNamespace(__name__="PoPE-pytorch", __version__=metadata.version("PoPE-pytorch"))
    about = (
        "apply_pope_to_qk and compute_attn_similarity_non_fused of PoPE-pytorch, pairs interleaved, heads before seq."
    )
    write("pope.json", about, peer, [case([0, 1, 2, 3, 4], 10_000), case([7, 3, 40, 12], 100)])
