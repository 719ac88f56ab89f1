"""Times PyTorch's FlexAttention, causal and with a bias, on a GPU; prints a line of JSON after each figure."""

from __future__ import annotations

import json
import time

import numpy as np
import torch
from biases import bucket, slopes, table
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HEADS = 16
CASES = [  # tokens, head_dim, bias, what is computed
    (8192, 128, "alibi", "forward"),
    (8192, 64, "alibi", "forward"),
    (8192, 128, "none", "backward"),
    (8192, 128, "alibi", "backward"),
    (8192, 128, "alibi", "backward, gradients of the bias"),
    (8192, 128, "t5", "backward"),
    (8192, 128, "t5", "backward, gradients of the bias"),
    (8192, 64, "none", "backward"),
    (8192, 64, "t5", "backward, gradients of the bias"),
    (32768, 128, "alibi", "forward"),
    (32768, 128, "none", "backward"),
    (32768, 128, "alibi", "backward, gradients of the bias"),
    (2048, 128, "none", "backward"),
    (2048, 128, "alibi", "backward, gradients of the bias"),
]


def main() -> None:
    attend, figures = torch.compile(flex_attention, dynamic=False), {"torch": torch.__version__}

    def causal(batch, head, i, j):  # noqa: ANN001, ANN202 - FlexAttention reads its code
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

    for tokens, head_dim, bias, what in CASES:
        batch, backward = max(1, round(8192 / tokens)), what != "forward"
        shape = batch, HEADS, tokens, head_dim
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=backward) for _ in range(3))
        learned = torch.tensor(slopes(HEADS) if bias == "alibi" else table(HEADS), device="cuda")
        learned.requires_grad_("gradients" in what)
        of_distance = torch.tensor(bucket(np.arange(tokens)), device="cuda")

        def alibi(x, batch, head, i, j):  # noqa: ANN001, ANN202
            return x - learned[head] * (i - j)  # noqa: B023

        def t5(x, batch, head, i, j):  # noqa: ANN001, ANN202
            return x + learned[of_distance[(i - j).clamp(min=0)], head]  # noqa: B023

        mask = create_block_mask(causal, None, None, tokens, tokens, device="cuda", _compile=True)
        options = {"score_mod": {"alibi": alibi, "t5": t5}.get(bias), "block_mask": mask}
        wanted = (q, k, v, learned) if learned.requires_grad else (q, k, v)

        def run() -> None:
            y = attend(q, k, v, **options)  # noqa: B023
            if backward:  # noqa: B023
                torch.autograd.grad(y, wanted, q)  # noqa: B023

        name = f"{batch}×{tokens}×{HEADS}×{head_dim}, {bias}, {what}"
        try:
            seconds = best(run)
            flops = 2 * batch * HEADS * tokens**2 * head_dim * (3.5 if backward else 1)
            figures[name] = {"ms": seconds * 1e3, "tflops": flops / seconds / 1e12}
        except Exception as error:  # noqa: BLE001 - the others still count
            figures[name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
