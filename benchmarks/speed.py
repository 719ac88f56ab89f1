"""How fast the library is, as multiples of what memory allows: `python benchmarks/speed.py [--rounds N] [--json PATH]`.

All figures of a table come from one run: each round times every function once, in an order that rotates, and a ratio
is that of the medians over the rounds (in brackets: of the minima). The yardstick is measured twice in each round,
under two names, and ratios are to both together; how far these two are from 1 is the noise. Runs on any device.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# A second process must find memory on the GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
from formulas import scattered, textbook
from reference import markdown

import posenc_jax as pe

LENGTH, WIDTH = 131_072, 128
SHAPE = (16, 4096, 512)
HEAD = ["stage", "", "median, ms", "min, ms", "ratio (of minima)", "temporaries, bytes", "target", ""]

IMPORT = """
import time, jax, flax
start = time.perf_counter()
import posenc_jax
print(time.perf_counter() - start)
"""
FIRST_CALL = """
import time, jax, jax.numpy as jnp, posenc_jax as pe
from formulas import textbook
positions = jnp.arange(1024)
(positions + 1).block_until_ready()
start = time.perf_counter()
jax.jit(lambda positions: {call})(positions).block_until_ready()
print(time.perf_counter() - start)
"""


def progress(text):
    print(f"  … {text}", file=sys.stderr, flush=True)


def in_fresh_processes(programs, rounds):
    """Seconds that each program prints, interleaved."""
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *sys.path])
    times = {name: [] for name in programs}
    for i in range(rounds):
        progress(f"fresh processes: {', '.join(programs)}: {i + 1} of {rounds}")
        for name, program in programs.items():
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(
                [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
            )
            times[name].append(float(done.stdout))
    return times


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
    times, names = {name: [] for name in calls}, list(calls)
    for _ in range(rounds):
        names = names[1:] + names[:1]
        for name in names:
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


def fresh(rounds):
    """Import and first call; before this process takes the device, which some cannot share."""
    imports = in_fresh_processes({"import posenc_jax": IMPORT}, rounds)["import posenc_jax"]
    figures = [
        {
            "stage": "import, on top of jax and flax",
            "what": "import posenc_jax",
            "median_ms": 1e3 * statistics.median(imports),
            "min_ms": 1e3 * min(imports),
            "target_ms": 50,
        }
    ]
    for width in (WIDTH, 4096):
        programs = {
            "textbook": FIRST_CALL.format(call=f"textbook(positions, {width})"),
            "sinusoidal": FIRST_CALL.format(call=f"pe.sinusoidal(positions, {width})"),
        }
        stage = f"first jitted call, width {width}"
        figures += summary(stage, in_fresh_processes(programs, rounds), {}, ["textbook"], {"sinusoidal": 1.05})
    return figures


def table(rounds):
    progress("table")
    value = jnp.arange(LENGTH, dtype=jnp.int32)

    def fill(positions):  # a traced value: a constant would be folded
        return jnp.full((LENGTH, WIDTH), positions[0].astype(jnp.float32))

    functions = {
        "fill the memory": fill,
        "fill again": lambda p: fill(p),
        "sinusoidal": lambda p: pe.sinusoidal(p, WIDTH),
        "textbook, stack": lambda p: textbook(p, WIDTH),
        "textbook, zeros then scatter": lambda p: scattered(p, WIDTH),
    }
    stage = f"table {LENGTH:,} × {WIDTH}, float32"
    return summary(
        stage, *interleaved(functions, value, rounds), ["fill the memory", "fill again"], {"sinusoidal": 1.2}
    )


def addition(dtype, rounds):
    name = jnp.dtype(dtype).name
    progress(f"addition, {name}")
    x = jnp.ones(SHAPE, dtype)
    functions = {
        "copy (x + 1)": lambda x: x + jnp.ones((), x.dtype),
        "copy again": lambda x: x + jnp.ones((), x.dtype),
        "add_sinusoidal": pe.add_sinusoidal,
        "textbook": lambda x: x + textbook(jnp.arange(x.shape[-2]), x.shape[-1]).astype(x.dtype),
    }
    stage = f"addition to {SHAPE}, {name}"
    return summary(stage, *interleaved(functions, x, rounds), ["copy (x + 1)", "copy again"], {"add_sinusoidal": 1.25})


def verdict(figure):
    """Target and whether it is met."""
    if figure.get("target_ms"):
        return f"≤ {figure['target_ms']} ms", "met" if figure["median_ms"] <= figure["target_ms"] else "MISSED"
    if figure["target"]:
        return f"≤ {figure['target']} ×", "met" if figure["ratio"] <= figure["target"] else "MISSED"
    return "", ""


def row(figure):
    ratio = f"{figure['ratio']:.2f} × ({figure['ratio_of_minima']:.2f})" if "ratio" in figure else ""
    kept = figure.get("temporaries")
    times = [f"{figure['median_ms']:.2f}", f"{figure['min_ms']:.2f}"]
    return [figure["stage"], figure["what"], *times, ratio, "" if kept is None else f"{kept:,}", *verdict(figure)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--processes", type=int, default=7, help="fresh processes for import and first call")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    figures = fresh(options.processes)
    figures += table(options.rounds)
    for dtype in (jnp.float32, jnp.bfloat16):
        figures += addition(dtype, options.rounds)
    device = jax.devices()[0]
    name = f"JAX {jax.__version__}, {device.platform}, {device.device_kind}, {os.cpu_count()} CPU cores"
    print(f"{name}; medians of {options.rounds} interleaved rounds, {options.processes} fresh processes:\n")
    print(markdown(HEAD, [row(figure) for figure in figures]))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": name, "rounds": options.rounds, "figures": figures}, file, indent=1)


if __name__ == "__main__":
    main()
