"""Kernels that rotate, as a TPU's compiler schedules them, and what XLA makes of the plain functions; no device needed.

`pip install -e . "jax[tpu]" tokamax==0.0.17`, then `python benchmarks/schedules.py [--target v5e v6e]`, with the
environment that tests/tools/sessions.py calls NO_TPU; `nox -f maintenance.py -s "bench_compiled(tpu)"` does both.
Writes results/schedules.md.

The work is that of examples/fused_rope.py, and that of tokamax's `deepseek_rope` in two modes, in bfloat16:

    bundles       of instructions for one position with all of its heads: the schedule of a tile of 64 positions less
                  that of 32, over 32, so that prologues do not count. One takes about a cycle if memory keeps up
    cycles        bundles of all positions, or what XLA's compiler estimates, over the estimate for an elementwise copy
                  of what is rotated. A kernel takes at least the copy, 1: below 1 its instructions hide behind it
    temporaries   bytes of the device's memory that the program keeps for itself

tokamax reads its cosines and sines from a table in memory: starting a transfer for each position is in its bundles,
waiting for one is not. It also takes over the buffer of x, which XLA copies if the caller does not donate it.
"""

import argparse
import datetime
import functools
import os
import re
import sys
import tempfile
from importlib import metadata, util
from pathlib import Path

DUMPS = tempfile.mkdtemp(prefix="schedules")
os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={DUMPS} --xla_jf_dump_llo_text=true"  # read when JAX starts
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402
from reference import markdown, progress  # noqa: E402

import posenc_jax as pe  # noqa: E402
from posenc_jax import kernels  # noqa: E402

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "examples")]
import fused_rope as example  # noqa: E402

from devices import aot  # noqa: E402

LENGTH, HEADS, KEY_HEADS, TILES = 4096, 32, 8, (32, 64)
F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32


def trailing(x, rotate, norm):
    """RMS-norm, if wanted, and a rotation of the last 128 features."""
    x = x.astype(F32)
    if norm:
        x = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    if x.shape[-1] == 128:
        return rotate(x)
    return jnp.concatenate([x[..., :-128], rotate(x[..., -128:])], axis=-1)


def by_kernels(tile, norm):
    """The work of `deepseek_rope` by `posenc_jax.kernels`."""

    def kernel(x, positions, words, out):
        cosine, sine = (w[:, None] for w in kernels.cos_sin(positions[...].reshape(-1, 1), words[...]))
        rotate = functools.partial(kernels.rotate, cosine=cosine, sine=sine, layout="interleaved")
        out[...] = trailing(x[...], rotate, norm).astype(out.dtype)

    def run(x, positions):
        words = kernels.phase_constants(128, "interleaved")
        rows = pl.BlockSpec((tile, *x.shape[1:]), lambda i: (i, 0, 0))
        at, whole = pl.BlockSpec((None, 1, tile), lambda i: (i, 0, 0)), pl.BlockSpec(words.shape, lambda i: (0, 0))
        call = pl.pallas_call(
            kernel,
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(LENGTH // tile,),
            in_specs=[rows, at, whole],
            out_specs=rows,
        )
        return call(x, positions.reshape(-1, 1, tile), words)

    return run


def by_tokamax(tile, norm):
    from tokamax._src.ops.deepseek_rope import pallas_mosaic_tpu_kernel as theirs

    run = theirs.qnorm_rope if norm else theirs.rope
    return lambda x, positions, table: run(x, positions, table, tile_n=tile)


def by_xla(norm):
    def run(x, positions):
        rotate = functools.partial(pe.rotary, positions=positions, frequencies=128, head_axis=-2, layout="interleaved")
        return trailing(x, rotate, norm).astype(x.dtype) if norm else rotate(x)

    return run


def fused(tile):
    return functools.partial(example.fused, frequencies=pe.geometric(128), block=tile)


def programs():
    """The work, who does it, one function for each tile or a function for XLA, and its arguments."""
    tokamax = util.find_spec("tokamax")
    for work, width, norm in (("RoPE", 128, False), ("RMS-norm, RoPE of the last 128 of 256", 256, True)):
        x, positions, table = ((LENGTH, HEADS, width), BF16), ((LENGTH,), I32), ((LENGTH, 128), F32)
        yield work, "posenc_jax.kernels", [by_kernels(tile, norm) for tile in TILES], (x, positions)
        if tokamax:
            yield work, "tokamax", [by_tokamax(tile, norm) for tile in TILES], (x, positions, table)
        yield work, "XLA, plain functions", by_xla(norm), (x, positions)
    q, k = (((1, LENGTH, heads, 128), BF16) for heads in (HEADS, KEY_HEADS))
    arguments = q, k, ((128,), F32), ((128,), F32), ((1, LENGTH), I32)
    work = "QK-norm and RoPE, 32 and 8 heads of 128"
    yield work, "examples/fused_rope.py", [fused(tile) for tile in TILES], arguments
    yield work, "XLA, plain functions", functools.partial(example.plain, frequencies=pe.geometric(128)), arguments


def compiled(target, function, arguments):
    with jax.sharding.use_abstract_mesh(target.mesh.abstract_mesh):  # tokamax asks which TPU it is
        return target.compile(function, *arguments)


def bundles(target, function, arguments):
    """The number of bundles of the one kernel in a function."""
    before = {*os.listdir(DUMPS)}
    text = compiled(target, function, arguments).text
    (name,) = re.findall(r'%?([\w.\-]+) = [^\n]* custom-call\([^\n]*"tpu_custom_call"', text)
    (path,) = (p for p in {*os.listdir(DUMPS)} - before if re.search(rf"-{re.escape(name)}-\d+-final_bundles", p))
    return len(re.findall(r"^ *(?:0x[0-9a-f]+|0) .*:", (Path(DUMPS) / path).read_text(), re.M))


def row(target, work, who, functions, arguments):
    progress(f"{target.name}: {work}: {who}")
    copies = sum(target.copy(*array).cycles for array in arguments if array[1] == BF16)
    if callable(functions):
        result = compiled(target, functions, arguments)
        each, cycles = "", result.cycles
    else:
        counts = [bundles(target, function, arguments) for function in functions]
        result = compiled(target, functions[-1], arguments)
        each = (counts[1] - counts[0]) / (TILES[1] - TILES[0])
        each, cycles = f"{each:.1f}", each * LENGTH
    return [target.name, work, who, each, f"{cycles / copies:.2f}", f"{result.temporaries:,}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", choices=("v5e", "v6e"), default=["v5e", "v6e"])
    options = parser.parse_args()
    targets = [aot.Target(name, aot.tpu_topology(f"{name}:2x2")) for name in options.target]
    rows = [row(target, *program) for target in targets for program in programs()]
    head = ["target", "work", "by", "bundles a position", "cycles, copies", "temporaries, bytes"]
    found = [(name, metadata.version(name)) for name in ("jax", "libtpu", "tokamax") if util.find_spec(name)]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    text = f"`python benchmarks/schedules.py`, {today}: {', '.join(map(' '.join, found))}.\n\n{markdown(head, rows)}\n"
    (ROOT / "benchmarks" / "results" / "schedules.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
