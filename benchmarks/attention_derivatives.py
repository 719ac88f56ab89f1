"""What attention and its derivatives cost: `python benchmarks/attention_derivatives.py [--lengths N …]`, `--help`.

Beside `jax.nn.dot_product_attention`, forward, backward, the tangent (jvp) and a Hessian-vector product (the jvp of a
gradient), float32, with causal ALiBi and without a bias. Memory is what the compiler says, without a run, at 4,096 and
32,768. Each round times all; what dense attention needs more than 20 GB for is timed for attention alone.
"""

import argparse
import functools
import os
import sys
import time

import jax
import jax.numpy as jnp
from reference import markdown, progress

import posenc_jax as pe

HEADS, WIDTH = 8, 64
LIMIT = 20e9  # the most bytes of temporaries of what is run


def blockwise(q, k, v, *, biased):
    bias = functools.partial(pe.alibi, heads=HEADS) if biased else None
    return pe.attention(q, k, v, bias=bias, causal=biased)


def dense(q, k, v, *, biased):
    i = jnp.arange(q.shape[1], dtype=jnp.int32)
    bias = pe.alibi(i, i, HEADS)[None] if biased else None
    return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=biased)


def stages(f):
    """Each derivative as a function of (query, key, value) and a direction for all three."""

    def loss(q, k, v):
        return jnp.sum(f(q, k, v) ** 2)

    return {
        "forward": lambda x, d: f(*x),
        "backward": lambda x, d: jax.vjp(f, *x)[1](d),
        "tangent": lambda x, d: jax.jvp(f, tuple(x), (d, d, d))[1],
        "Hessian-vector product": lambda x, d: jax.jvp(jax.grad(loss, (0, 1, 2)), tuple(x), (d, d, d))[1],
    }


def memory(length, stage, f):
    """The bytes of temporaries of the compiled program."""
    x = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), jnp.float32)
    compiled = jax.jit(stages(f)[stage]).lower((x, x, x), x).compile({"xla_backend_optimization_level": 0})
    return compiled.memory_analysis().temp_size_in_bytes


def best(functions, arguments, rounds):
    """The shortest time of each function in milliseconds."""
    compiled = {name: jax.jit(f).lower(*arguments).compile() for name, f in functions.items()}
    times = {name: [] for name in compiled}
    for _ in range(rounds):
        for name, f in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(f(*arguments))
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: min(t) for name, t in times.items()}


CASES = {"no bias": False, "causal ALiBi": True}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    rows = []
    for stage in stages(blockwise):
        for length in (4096, 32_768):
            progress(f"memory, {stage}, {length:,}")
            ours, theirs = (memory(length, stage, functools.partial(f, biased=True)) for f in (blockwise, dense))
            rows.append([stage, f"{length:,}", f"{ours / 1e6:,.0f}", f"{theirs / 1e6:,.0f}", f"{ours / theirs:.2%}"])
    print(f"Causal ALiBi, {HEADS} heads of {WIDTH}, float32, compiled, temporaries in MB:\n")
    print(markdown(["", "queries and keys", "attention", "dense", "ratio"], rows) + "\n", flush=True)
    device = jax.devices()[0]
    print(
        f"JAX {jax.__version__}, {device.platform}, {device.device_kind}, {os.cpu_count()} CPU cores; ms, least of",
        end=" ",
    )
    print(f"{options.rounds}:\n")
    rows = []
    for case in options.cases:
        for length in options.lengths:
            x, direction = jnp.split(jax.random.normal(jax.random.key(0), (4, 1, length, HEADS, WIDTH)), [3])
            for stage in stages(blockwise):
                progress(f"{case}, {stage}, {length:,}")
                peers = {
                    n: functools.partial(f, biased=CASES[case]) for n, f in (("ours", blockwise), ("dense", dense))
                }
                functions = {n: stages(f)[stage] for n, f in peers.items() if memory(length, stage, f) <= LIMIT}
                found = best(functions, (list(x), direction[0]), options.rounds)
                both = [f"{found[name]:,.1f}" if name in found else "" for name in peers]
                ratio = f"{found['ours'] / found['dense']:.2f}" if "dense" in found else ""
                rows.append([case, f"{length:,}", stage, *both, ratio])
    print(markdown(["", "length", "stage", "attention", "dense", "ratio"], rows))


if __name__ == "__main__":
    sys.exit(main())
