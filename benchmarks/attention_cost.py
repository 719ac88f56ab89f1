"""What attention under a bias costs: `python benchmarks/attention_cost.py [--rounds N] [--json PATH]`.

Times attention at 4,096 positions beside `jax.nn.dot_product_attention` with the dense bias. One jitted function makes
that bias, (1, heads, queries, keys), and uses it, so the compiler may fuse it as it likes; each round times all. Memory
is what the compiler says, without a run. Times each bias as a multiple of filling the memory of (8, 1024, 1024), beside
the formula as its authors' code has it. Exits with status 1 if attention keeps more than its bound.
"""

import argparse
import functools
import json
import math
import os
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from formulas import textbook
from reference import markdown, progress

import posenc_jax as pe

HEADS, WIDTH, LENGTH, TILE = 8, 64, 4096, 1024
LENGTHS = (4096, 8192, 16_384, 32_768, 65_536)
BOUND = 0.05  # of the dense bias, at 32,768 and bfloat16
SLOPES = np.exp2(-np.arange(1.0, HEADS + 1)).astype(np.float32)

HEAD = ["stage", "", "median, ms", "min, ms", "ratio (of minima)", "temporaries, bytes", "target", ""]


def interleaved(functions, argument, rounds):
    """Seconds that each compiled function takes, and bytes of its temporaries."""
    compiled = {name: jax.jit(f).lower(argument).compile() for name, f in functions.items()}
    temporaries = {name: f.memory_analysis().temp_size_in_bytes for name, f in compiled.items()}
    calls = {name: jax.jit(f) for name, f in functions.items()}
    for f in calls.values():  # compile, then see whether one call is long enough to time
        jax.block_until_ready(f(argument))
    start = time.perf_counter()
    jax.block_until_ready(next(iter(calls.values()))(argument))
    # Short calls are queued, so that a device works while the next one is on its way to it.
    repeat = max(1, min(100, int(5e-3 / (time.perf_counter() - start))))
    times, shuffled = {name: [] for name in calls}, np.random.default_rng(0)
    for _ in range(rounds):
        # A function that follows one with large temporaries pays for fresh pages of memory.
        for name in shuffled.permutation(list(calls)).tolist():
            start = time.perf_counter()
            for _ in range(repeat):
                out = calls[name](argument)
            jax.block_until_ready(out)
            times[name].append((time.perf_counter() - start) / repeat)
            del out
    return times, temporaries


def summary(stage, times, temporaries, yardstick, targets):
    """The figures of a stage: ratios to its yardstick."""
    base = [t for name in yardstick for t in times[name]]
    return [
        {
            "stage": stage,
            "what": name,
            "median_ms": 1e3 * statistics.median(t),
            "min_ms": 1e3 * min(t),
            "ratio": statistics.median(t) / statistics.median(base),
            "ratio_of_minima": min(t) / min(base),
            "temporaries": temporaries.get(name),
            "target": targets.get(name),
        }
        for name, t in times.items()
    ]


def verdict(figure):
    """Target and whether it is met."""
    if not figure["target"]:
        return "", ""
    return f"≤ {figure['target']} ×", "met" if figure["ratio"] <= figure["target"] else "MISSED"


def row(figure):
    ratio = f"{figure['ratio']:.2f} × ({figure['ratio_of_minima']:.2f})" if "ratio" in figure else ""
    kept = figure.get("temporaries")
    times = [f"{figure['median_ms']:.2f}", f"{figure['min_ms']:.2f}"]
    return [figure["stage"], figure["what"], *times, ratio, "" if kept is None else f"{kept:,}", *verdict(figure)]


def blockwise(q, k, v, biased, causal):
    return pe.attention(q, k, v, bias=(lambda i, j: pe.alibi(i, j, HEADS)) if biased else None, causal=causal)


def dense(q, k, v, biased, causal):
    i = jnp.arange(q.shape[1])
    bias = pe.alibi(i, i, HEADS)[None] if biased else None
    return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=causal)


def run(attend, biased, causal, backward):
    """A function of one argument: (q, k, v, cotangent)."""

    def forward(a):
        return attend(*a[:3], biased, causal)

    def both(a):
        y, back = jax.vjp(lambda *qkv: attend(*qkv, biased, causal), *a[:3])
        return y, back(a[3])

    return both if backward else forward


def beside_dense(dtype, backward, rounds):
    """Times of attention, and of dense attention twice."""
    what = f"{jnp.dtype(dtype).name}{', forward and backward' * backward}"
    progress(f"attention, {what}")
    qkv = jax.random.normal(jax.random.key(0), (4, 1, LENGTH, HEADS, WIDTH), jnp.float32).astype(dtype)
    figures = []
    for name, biased, causal in (("ALiBi", True, False), ("ALiBi, causal", True, True), ("no bias", False, False)):
        settings = biased, causal, backward
        functions = {
            "dense": run(dense, *settings),
            "dense again": lambda a, s=settings: run(dense, *s)(a),
            "attention": run(blockwise, *settings),
        }
        timed = interleaved(functions, tuple(qkv), rounds)
        figures += summary(f"{name}, {what}", *timed, ["dense", "dense again"], {"attention": 1.0})
    return figures


def memory_by_length(backward):
    """Bytes of temporaries at each length, compiled alone."""
    figures = []
    for length in LENGTHS:
        progress(f"memory, {length:,}{', forward and backward' * backward}")
        x = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), jnp.bfloat16)
        compiled = jax.jit(run(blockwise, True, True, backward)).lower((x,) * 4).compile()
        figures.append({"length": length, "temporaries": compiled.memory_analysis().temp_size_in_bytes})
    return figures


# The biases as their authors write them for causal models: positions of queries and keys → (heads, queries, keys).


def bloom_alibi(i, j):
    """A function of the keys' positions alone, which a softmax under a causal mask cannot tell from ALiBi."""
    slopes = SLOPES[:, None, None] * jnp.ones((1, i.shape[0], 1))
    return slopes * j.astype(jnp.float32)[None, None, :]


def t5_gathered(i, j, table, buckets=32, largest=128):
    """Both directions: a logarithm for the bucket, then a look-up."""
    relative = j[None, :] - i[:, None]
    buckets //= 2
    begin, distance = jnp.where(relative > 0, buckets, 0), jnp.abs(relative)
    exact = buckets // 2
    far = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(largest / exact) * (buckets - exact)
    far = jnp.minimum(exact + far.astype(jnp.int32), buckets - 1)
    return jnp.transpose(table[begin + jnp.where(distance < exact, distance, far)], (2, 0, 1))


def before(i, j):
    return jnp.maximum(i[:, None] - j[None, :], 0).astype(jnp.float32)


def kerple_log(i, j, p, a):
    return -p[:, None, None] * jnp.log(1 + a[:, None, None] * before(i, j))


def kerple_power(i, j, a, p):
    return -a[:, None, None] * before(i, j) ** p[:, None, None]


def fire(i, j, mlp, c, threshold):
    w1, b1, w2, b2 = mlp
    relative = (i[:, None] - j[None, :]).astype(jnp.float32)
    normalizer = jnp.maximum(i.astype(jnp.float32), jnp.abs(threshold))[:, None]
    x = jnp.log(jnp.abs(c * relative) + 1) / (jnp.log(jnp.abs(c * normalizer) + 1) + 1e-6)
    return jnp.transpose(jax.nn.relu(x[..., None] * w1 + b1) @ w2 + b2, (2, 0, 1))


def sandwich(i, j):
    similarity = textbook(i, 128) @ textbook(j, 128).T
    return similarity / (8 / HEADS * np.arange(1, HEADS + 1, dtype=np.float32))[:, None, None]


def biases(rounds):
    progress("biases")
    rng, i = np.random.default_rng(0), jnp.arange(TILE, dtype=jnp.int32)
    some = lambda *shape: jnp.asarray(rng.uniform(0.1, 1.0, shape), jnp.float32)  # noqa: E731
    rates, table, mlp = (some(HEADS), some(HEADS)), some(32, HEADS), (some(32), some(32), some(32, HEADS), some(HEADS))
    constants = some(), 512 * some()
    pairs = {
        "alibi": (lambda i, j, a: pe.alibi(i, j, a[0][0]), lambda i, j, a: bloom_alibi(i, j)),
        "t5": (lambda i, j, a: pe.t5(i, j, a[1]), lambda i, j, a: t5_gathered(i, j, a[1])),
        "kerple_log": (lambda i, j, a: pe.kerple_log(i, j, *a[0]), lambda i, j, a: kerple_log(i, j, *a[0])),
        "kerple_power": (lambda i, j, a: pe.kerple_power(i, j, *a[0]), lambda i, j, a: kerple_power(i, j, *a[0])),
        "fire": (
            lambda i, j, a: pe.fire(i, j, a[2], c=a[3][0], threshold=a[3][1]),
            lambda i, j, a: fire(i, j, a[2], *a[3]),
        ),
        "sandwich": (lambda i, j, a: pe.sandwich(i, j, HEADS, 128), lambda i, j, a: sandwich(i, j)),
    }

    def fill(a):  # a traced value: a constant would be folded
        return jnp.full((HEADS, TILE, TILE), a[1][0, 0])

    functions = {"fill the memory": lambda a: fill(a[1]), "fill again": lambda a: fill(a[1])}
    for name, (ours, theirs) in pairs.items():
        functions[name] = lambda a, f=ours: f(a[0], a[0], a[1])
        functions[f"{name}, textbook"] = lambda a, f=theirs: f(a[0], a[0], a[1])
    timed = interleaved(functions, (i, (rates, table, mlp, constants)), rounds)
    return summary(f"bias ({HEADS}, {TILE:,}, {TILE:,})", *timed, ["fill the memory", "fill again"], {})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="for biases; a fifth of them for attention")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    memory = {"forward": memory_by_length(False), "forward and backward": memory_by_length(True)}
    rows, missed = [], False
    for name, figures in memory.items():
        for figure in figures:
            length, size = figure["length"], figure["temporaries"]
            share, bound = size / (2 * HEADS * length**2), length == 32_768
            missed |= bound and share > BOUND
            against = [f"≤ {BOUND:.0%}", "met" if share <= BOUND else "MISSED"] if bound else ["", ""]
            rows.append([name, f"{length:,}", f"{size:,}", f"{size / length:,.0f}", f"{share:.2%}", *against])
    print(f"`attention` with ALiBi, causal, {HEADS} heads of {WIDTH}, bfloat16, compiled:\n")
    head = ["", "queries and keys", "temporaries, bytes", "of each position", "of the dense bias", "target", ""]
    print(markdown(head, rows) + "\n", flush=True)
    few = max(3, options.rounds // 5)
    device = jax.devices()[0]
    name = f"JAX {jax.__version__}, {device.platform}, {device.device_kind}, {os.cpu_count()} CPU cores"
    print(f"{name}; medians of {options.rounds} interleaved rounds, {few} for attention at {LENGTH:,}:\n")
    timed = []
    stages = [functools.partial(biases, options.rounds)]
    stages += [
        functools.partial(beside_dense, d, back, few) for d in (jnp.float32, jnp.bfloat16) for back in (False, True)
    ]
    for stage in stages:  # some take minutes
        timed += (figures := stage())
        print(markdown(HEAD, [row(figure) for figure in figures]) + "\n", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": name, "memory": memory, "figures": timed}, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
