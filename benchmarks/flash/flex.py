"""Times PyTorch's FlexAttention under causal ALiBi, on a GPU; prints a line of JSON after each figure."""

from __future__ import annotations

import json
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HEADS = 16


def main() -> None:
    slopes = torch.exp2(-8 * torch.arange(1, HEADS + 1, device="cuda") / HEADS)
    attend, figures = torch.compile(flex_attention, dynamic=False), {"torch": torch.__version__}

    def score(x, batch, head, i, j):  # noqa: ANN001, ANN202 - FlexAttention reads its code
        return x - slopes[head] * (i - j)

    def causal(batch, head, i, j):  # noqa: ANN001, ANN202
        return i >= j

    def best(call) -> float:  # noqa: ANN001
        call()
        torch.cuda.synchronize()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(10):
                call()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / 10)
        return min(times)

    for tokens, head_dim, backward in ((8192, 128, False), (8192, 64, False), (8192, 128, True), (32768, 128, False)):
        shape = 1, HEADS, tokens, head_dim
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=backward) for _ in range(3))
        mask = create_block_mask(causal, None, None, tokens, tokens, device="cuda", _compile=True)
        forward = lambda: attend(q, k, v, score_mod=score, block_mask=mask)  # noqa: B023, E731

        def both() -> None:
            torch.autograd.grad(forward(), (q, k, v), v)  # noqa: B023

        seconds = best(both if backward else forward)
        flops = 2 * HEADS * tokens**2 * head_dim * (3.5 if backward else 1)
        name = f"1×{tokens}×{HEADS}×{head_dim}{', backward' * backward}"
        figures[name] = {"ms": seconds * 1e3, "tflops": flops / seconds / 1e12}
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
