"""What is timed: each case by name, with its shapes and the aim."""

from __future__ import annotations

import dataclasses
import math

ITEMSIZE = {"float32": 4, "bfloat16": 2}
PROGRAMS = ("loop", "stack", "compile")  # kinds of `loops.py`, in which JAX peers rotate


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing that libraries do.

    `shape` is that of the result: (length, width) of a table, (batch, seq, width) of embeddings, (batch, seq, heads,
    head_dim) of queries. A decode step has one position of its own for each row of the batch. `loops.py` says what is
    in a loop, a stack and a compilation.
    """

    kind: str  # "table", "add", "rotary", "decode" or "attention"; "loop", "stack" or "compile"
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = ""  # of rotations: "half" or "interleaved"
    backward: bool = False  # forward and backward, both results written: two copies are the unit
    aim: float | None = None  # of this library: at most this multiple of the unit
    way: str = ""  # of a loop: "position unchanged" or "position moving"; of a stack: "scanned" or "unrolled"

    @property
    def name(self):
        """As in tables and in results."""
        words = [self.kind, str(self.shape).replace(" ", ""), self.dtype, self.layout, self.way]
        return ", ".join([w for w in words if w] + ["forward and backward"] * self.backward)

    @property
    def unit(self):
        """The module of `peers` whose time is 1: a copy or a fill, or the textbook rotation in the same program."""
        return "textbook" if self.kind in ("loop", "compile") else "plain"

    @property
    def slow(self):
        """Left out of a quick run."""
        most = {"attention": 4096, "rotary": 512, "stack": 1}
        return len(self.shape) > 1 and self.shape[1] > most.get(self.kind, self.shape[1])

    @property
    def size(self):
        """Bytes of the array that is copied or filled beside it."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


def case_of(fields):
    """A case from its fields as JSON has them."""
    return Case(**fields | {"shape": tuple(fields["shape"])})


BOTH, LAYOUTS = ("float32", "bfloat16"), ("half", "interleaved")
LARGE, SMALL = (1, 4096, 32, 128), (8, 512, 16, 64)
AIMS = {("half", "float32"): 1.1, ("half", "bfloat16"): 1.2, ("interleaved", "float32"): 1.25}
AIMS |= {("interleaved", "bfloat16"): 1.4, (SMALL, "half", "bfloat16"): 1.25}
SPEED = [
    Case("table", (131_072, 128), aim=1.15),
    *(Case("add", (16, 4096, 512), dtype, aim=1.15) for dtype in BOTH),
    *(
        Case("rotary", shape, dtype, layout, backward, aim=AIMS.get((shape, *of), AIMS[of]))
        for shape in (LARGE, SMALL)
        for dtype in BOTH
        for layout in LAYOUTS
        for backward in (False, True)
        for of in [(layout, dtype)]
    ),
    *(Case("decode", (32, 1, 32, 128), dtype, layout) for dtype in BOTH for layout in LAYOUTS),
    *(Case("attention", (1, length, 2, 64), dtype) for length in (4096, 8192) for dtype in BOTH),
]
LOOPS = [
    *(
        Case("loop", (8, 1, 32, 128), dtype, layout, aim=aim, way=way)
        for way, aims in (("position unchanged", (1.2, 1.5)), ("position moving", (0.15, None)))
        for layout, aim in zip(LAYOUTS, aims, strict=True)
        for dtype in BOTH
    ),
    *(
        Case("stack", shape, dtype, "half", way=way)
        for shape in ((1, 256, 8, 64), (8, 1, 8, 64))
        for dtype in BOTH
        for way in ("scanned", "unrolled")
    ),
    Case("compile", (1, 256, 8, 64), layout="half", backward=True, aim=0.3),
]
# On a GPU: arrays that its cache does not hold, and nine tenths of a copy's bandwidth.
GPU_SIZE = 2**26  # numbers
GPU = [
    dataclasses.replace(
        case,
        shape=(case.shape[0] * (GPU_SIZE // math.prod(case.shape) if case.kind in ("table", "add", "rotary") else 8),)
        + case.shape[1:],
        aim=1.1 if case.aim else None,
    )
    for case in SPEED
]
LENGTHS = tuple(2**n for n in range(10, 19, 2))
HEADS = (1, 4, 16, 64)
GROWTH = {
    "length": [Case("table", (n, 128)) for n in LENGTHS]
    + [Case("rotary", (1, n, 1, 128), "float32", "half") for n in LENGTHS],
    "heads": [Case("rotary", (1, 4096, n, 128), "float32", "half") for n in HEADS],
}
FIRST = [Case("table", (1024, 128))] + [Case("rotary", (1, 1024, 8, 128), "float32", layout) for layout in LAYOUTS]
POSITIONS = (10, 10**3, 10**4, 10**5, 10**6, 10**7, 2**31 - 1)  # where accuracy is measured
WIDTH, BASE = 128, 10_000.0  # there, and of every table and rotation whose shape does not say otherwise
