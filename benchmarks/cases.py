"""What is timed: each case by name, with its shapes and the aim."""

from __future__ import annotations

import dataclasses
import math

ITEMSIZE = {"float32": 4, "bfloat16": 2}


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing that libraries do.

    `shape` is that of the result: (length, width) of a table, (batch, seq, width) of embeddings, (batch, seq, heads,
    head_dim) of queries. A decode step has one position of its own for each row of the batch.
    """

    kind: str  # "table", "add", "rotary", "decode" or "attention"
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = ""  # of rotary and decode: "half" or "interleaved"
    backward: bool = False  # forward and backward, both results written
    aim: float | None = None  # of this library: at most this multiple of a copy or a fill

    @property
    def name(self):
        """As in tables and in results."""
        words = [self.kind, str(self.shape).replace(" ", ""), self.dtype, self.layout]
        return ", ".join([w for w in words if w] + ["forward and backward"] * self.backward)

    @property
    def slow(self):
        """Left out of a quick run."""
        return self.kind == "attention" and self.shape[1] > 4096 or self.kind == "rotary" and self.shape[1] > 512

    @property
    def size(self):
        """Bytes of the array that is copied or filled beside it."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


def case_of(fields):
    """A case from its fields as JSON has them."""
    return Case(**fields | {"shape": tuple(fields["shape"])})


BOTH, LAYOUTS = ("float32", "bfloat16"), ("half", "interleaved")
SPEED = [
    Case("table", (131_072, 128), aim=1.1),
    *(Case("add", (16, 4096, 512), dtype, aim=1.15) for dtype in BOTH),
    *(
        Case("rotary", shape, dtype, layout, backward, aim=2.4 if backward else 1.2)
        for shape in ((1, 4096, 32, 128), (8, 512, 16, 64))
        for dtype in BOTH
        for layout in LAYOUTS
        for backward in (False, True)
    ),
    *(Case("decode", (32, 1, 32, 128), dtype, layout) for dtype in BOTH for layout in LAYOUTS),
    *(Case("attention", (1, length, 2, 64), dtype) for length in (4096, 16_384) for dtype in BOTH),
]
LENGTHS = tuple(2**n for n in range(10, 21, 2))
HEADS = (1, 4, 16, 64)
GROWTH = {
    "length": [Case("table", (n, 128)) for n in LENGTHS]
    + [Case("rotary", (1, n, 1, 128), "float32", "half") for n in LENGTHS],
    "heads": [Case("rotary", (1, 4096, n, 128), "float32", "half") for n in HEADS],
}
FIRST = [Case("table", (1024, 128))] + [Case("rotary", (1, 1024, 8, 128), "float32", layout) for layout in LAYOUTS]
POSITIONS = (10, 10**3, 10**4, 10**5, 10**6, 10**7, 2**31 - 1)  # where accuracy is measured
WIDTH, BASE = 128, 10_000.0  # there, and of every table and rotation whose shape does not say otherwise
