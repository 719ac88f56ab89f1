"""How fast each lowering of a rotation is: `python benchmarks/lowerings.py [--target v5e v6e h200]`.

Without a target, times every lowering that can compute a case on the device that is here, in rounds that alternate
between them and a plain copy of x. With targets, compiles them for these, without a device, in the environment that
`nox -f maintenance.py -s "bench_compiled(tpu)"` makes. In bold stands what `lowerings.LOWERINGS` takes. Where another
is ahead, that table should change.
"""

import argparse
import concurrent.futures
import math
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from cases import GPU_SIZE
from reference import markdown, processor, progress

import posenc_jax as pe
from posenc_jax._frequencies.angles import Angles
from posenc_jax._jax import workarounds
from posenc_jax._rotary import lowerings
from posenc_jax._rotary.rotation import Rotation, RotationSettings

LOWERINGS = lowerings.reference, *dict.fromkeys(f for rows in lowerings.LOWERINGS.values() for _, f in rows)
PLATFORMS = {"h200": "gpu", "v5e": "tpu", "v6e": "tpu"}
BOTH = "float32", "bfloat16"
# The shape of x (batch, seq, heads, head_dim), how many features rotate, the layout, the dtype.
CASES = [
    *(
        (shape, shape[-1], layout, dtype)
        for shape in ((1, 4096, 32, 128), (8, 512, 16, 64), (1, 4096, 1, 128), (32, 1, 32, 128))
        for layout in ("half", "interleaved")
        for dtype in BOTH
    ),
    *(((1, 2048, 32, 64), dim, "half", dtype) for dim in (16, 40) for dtype in BOTH),
    *(
        ((1, 2048, 16, 256), dim, layout, dtype)
        for dim, layout in ((32, "half"), (64, "interleaved"))
        for dtype in BOTH
    ),
]


def fits(lowering, layout, shape, dim, dtype):
    """Whether a lowering can compute a case."""
    half = layout == "half"
    return {
        "split_and_concatenate": half,
        "rotate_in_words": not half and dtype == "bfloat16",
        "split_and_stack": half or shape[-1] % 2 == 0,
        "reverse_halves_in_place": half and dim == shape[-1],
        "sum_columns": dim == shape[-1] if half else shape[-1] % 2 == 0,
    }.get(lowering.__name__, True)


def functions_of(platform, shape, dim, layout, dtype):
    """Each lowering by name, the shape of its positions, and the name of the one that is taken."""
    rows = (shape[0], 1, 1, 1) if shape[1] == 1 else (1, shape[1], 1, 1)  # a decode step, or a sequence
    settings, frequencies, target = RotationSettings(layout), pe.geometric(dim), workarounds.TARGETS[platform]

    def rotation(x, positions):
        return Rotation(settings, x, Angles(positions, frequencies), target).broadcast()

    taken = lowerings.lowering_of(platform, rotation(jnp.zeros(shape, dtype), jnp.zeros(rows, jnp.int32))).__name__
    functions = {
        lowering.__name__: lambda x, p, lowering=lowering: lowering(rotation(x, p))
        for lowering in LOWERINGS
        if fits(lowering, layout, shape, dim, dtype)
    }
    return functions, rows, taken


def timed(functions, rows, shape, dtype, rounds):
    """The median time of each function in copies of x, and its temporaries in sizes of x."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)
    arguments = x, jnp.arange(max(rows), dtype=jnp.int32).reshape(rows)
    functions = {"copy": lambda x, p: x + jnp.zeros((), x.dtype)} | functions
    with concurrent.futures.ThreadPoolExecutor() as pool:
        made = pool.map(lambda f: jax.jit(f).lower(*arguments).compile(), functions.values())
    compiled, repeats = dict(zip(functions, made, strict=True)), 3 if jax.default_backend() == "cpu" else 20
    ratios = {name: [] for name in compiled}
    for _ in range(rounds):
        times = {}
        for name, f in compiled.items():
            jax.block_until_ready(f(*arguments))
            start = time.perf_counter()
            for _ in range(repeats):
                y = f(*arguments)
                if jax.default_backend() == "cpu":  # another device works while the next call is on its way to it
                    jax.block_until_ready(y)
            jax.block_until_ready(y)
            times[name] = time.perf_counter() - start
        for name, t in times.items():
            ratios[name].append(t / times["copy"])
    size = {name: f.memory_analysis().temp_size_in_bytes / x.nbytes for name, f in compiled.items()}
    return {name: f"{statistics.median(r):.2f}; {size[name]:.1f}" for name, r in ratios.items()}


def compiled_for(target, functions, rows, shape, dtype):
    """The cycles of each function in those of a copy (a GPU's compiler estimates none), fusions and temporaries."""
    from estimates import unestimated

    copy, size, cells = target.copy(shape, jnp.dtype(dtype)).cycles, np.prod(shape) * jnp.dtype(dtype).itemsize, {}
    for name, f in functions.items():
        made = target.compile(f, (shape, jnp.dtype(dtype)), (rows, jnp.int32))
        cycles = f"{'≥ ' * bool(unestimated(made))}{made.cycles / copy:.2f}; " if copy else ""
        cells[name] = f"{cycles}{made.fusions} fusions; {made.temporaries / size:.1f}"
    return cells


def table(where, platform, told, measure, grow=False):
    """The markdown of one target, whose cells `measure` gives; with larger batches if the arrays must `grow`."""
    lines = []
    for i, case in enumerate(CASES, 1):
        progress(f"{where}: case {i} of {len(CASES)}")
        if grow and case[0][1] > 1:  # decode steps are as small as they are
            case = ((case[0][0] * max(1, GPU_SIZE // math.prod(case[0])), *case[0][1:]), *case[1:])
        shape, dim, layout, dtype = case
        functions, rows, taken = functions_of(platform, *case)
        cells = measure(functions, rows, shape, dtype)
        cells = [f"**{cells[f.__name__]}**" if f.__name__ == taken else cells.get(f.__name__, "–") for f in LOWERINGS]
        lines.append([str(shape).replace(" ", ""), f"{dim} of {shape[-1]}", layout, dtype, *cells])
    head = ["x", "rotates", "layout", "dtype", *(f"`{lowering.__name__}`" for lowering in LOWERINGS)]
    return f"{where}, JAX {jax.__version__}. {told}\n\n{markdown(head, lines)}\n"


def main():
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", choices=sorted(PLATFORMS), default=[])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    texts = []
    if not options.target:
        told = "Times in copies of x; temporaries in sizes of x."
        platform = jax.default_backend()
        where = processor() if platform == "cpu" else jax.devices()[0].device_kind
        measure = lambda *case: timed(*case, options.rounds)  # noqa: E731
        texts.append(table(where, platform, told, measure, grow=platform != "cpu"))
    for name in options.target:
        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        from devices import aot

        target = aot.Target(name, aot.h200_topology() if name == "h200" else aot.tpu_topology(f"{name}:2x2"))
        told = "Estimated cycles in those of a copy (≥: not all are known); fusions; temporaries in sizes of x."
        texts.append(table(name, PLATFORMS[name], told, lambda *case, target=target: compiled_for(target, *case)))
    print(*texts, sep="\n")


if __name__ == "__main__":
    main()
