"""Measures `attention(implementation="mosaic_gpu")` on one NVIDIA Hopper GPU.

    python benchmarks/flash/device.py --output FILE --seconds 480
    python benchmarks/flash/device.py --output FILE --seconds 240

First the kernels beside a float64 formula, with a verdict each: "right" if the error is at most 1.5 times that of
rounding. Then times, forward and backward, up to 8,192 tokens with a verdict too: the kernels under biases as users
write them, the same attention by XLA, cuDNN without and with a dense bias, JAX's own Mosaic GPU kernel, and PyTorch's
FlexAttention. FILE is written after each case. A second run goes on where the first ended, on the same device with the
same JAX; the two above fit into a quarter of an hour, with the most valuable first. The last line says how many cases
were right, and the script fails if a kernel's was not.

`--seconds N` stops in time; `--only TEXT` runs cases whose names contain one of the texts; `--retry` runs what failed
again; `--list` names all with estimates; `--interpret` checks the kernels without a device.

The cases run in a process of its own, which is ended and started again if one hangs or breaks the device's context.
What one cannot do (no PyTorch, no cuDNN, too little memory) is kept as its result, and the others go on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

START = time.perf_counter()
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1])]

from cases import Case, cases, small  # noqa: E402 - from the folder
from truth import compare, compare_gradients, operands  # noqa: E402

# Running


def prepare(case: Case) -> Any:
    """Compiles a case; runs in a thread."""
    import jax

    start = time.perf_counter()
    function, more = case.make(case.problem)
    arguments = *operands(case.problem), *more
    return jax.jit(function).lower(*arguments).compile(), arguments, time.perf_counter() - start


def measure(case: Case, compiled: Any, arguments: Any) -> dict[str, Any]:
    import jax

    start = time.perf_counter()
    out = jax.block_until_ready(compiled(*arguments))
    result: dict[str, Any] = {"first_call_s": time.perf_counter() - start}
    if case.check:
        if case.backward:
            result |= compare_gradients(case.problem, *out)
        else:
            both = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
            result |= compare(case.problem, *both, scale=case.scale)
    if not case.timed:
        return result
    first = jax.tree.leaves(out)
    start = time.perf_counter()
    jax.block_until_ready(compiled(*arguments))
    once = time.perf_counter() - start
    count = max(2, min(100, round(0.03 / once)))
    times = []
    for _ in range(5 if once < 0.1 else 2):
        start = time.perf_counter()
        for _ in range(count):
            out = compiled(*arguments)
        jax.block_until_ready(out)
        times.append((time.perf_counter() - start) / count)
    flops = case.problem.flops * case.products
    if case.same_bits:
        import numpy as np

        pairs = zip(first, jax.tree.leaves(out), strict=True)
        result["same_bits"] = all(np.array_equal(*map(np.asarray, pair)) for pair in pairs)
    return result | {
        "ms": min(times) * 1e3,
        "ms_worst": max(times) * 1e3,
        "tflops": flops / min(times) / 1e12,
        "repeats": count,
    }


def environment() -> dict[str, Any]:
    import jax
    import jaxlib
    import numpy as np

    smi = "nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.limit --format=csv,noheader"
    try:
        card = subprocess.run(smi.split(), capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        card = ""
    versions = {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "numpy": np.__version__}
    return {"device": str(jax.devices()[0].device_kind), "card": card, **versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/flash.json"))
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--retry", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--interpret", action="store_true")
    parser.add_argument("--threads", type=int, default=8, help="how many compile side by side")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.interpret:
        os.environ["NPROC"] = "16"  # the interpreter's warpgroups block threads of XLA:CPU
    if arguments.list:
        ends = itertools.accumulate(c.seconds for c in cases())
        print(
            *(f"{c.seconds:4.0f} s, at {end:4.0f} s  {c.name}" for c, end in zip(cases(), ends, strict=True)), sep="\n"
        )
    elif arguments.work:
        work(arguments)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it has started ends too
        supervise(arguments)


def supervise(arguments: argparse.Namespace) -> None:
    """Runs the cases in processes of their own until one ends by itself."""
    output, now, last = arguments.output, _now(arguments.output), START + arguments.seconds
    output.parent.mkdir(parents=True, exist_ok=True)
    options = [x for x in sys.argv[1:] if x != "--retry"]
    for attempt in range(10):
        now.unlink(missing_ok=True)
        retry = ["--retry"] * (arguments.retry and not attempt)
        left = f"--seconds={last - time.perf_counter():.0f}"  # the last one counts
        command = [sys.executable, __file__, *options, *retry, left, "--work"]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            while process.poll() is None:
                time.sleep(0.25)
                if time.time() > _read(now).get("until", math.inf) or time.perf_counter() > last + 30:
                    break
        finally:  # with what it has started
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        names, stored = _read(now).get("names", []), _read(output) or {"cases": {}}
        if process.returncode == 0 or time.perf_counter() > last or not names:
            break
        if len(names) > 1:  # the next process finds out which it was
            stored["alone"] = [*stored.get("alone", ()), *names]
        elif names[0] not in stored["cases"]:
            stored["cases"][names[0]] = {"failed": f"its process hung or ended with {process.returncode}"}
            print(f"{names[0]}: FAILED, hung or ended with {process.returncode}", flush=True)
        _write(output, stored)
    now.unlink(missing_ok=True)
    wrong = verdicts(_read(output).get("cases", {}))
    print(f"{time.perf_counter() - START:.0f} s")
    sys.exit(process.returncode or bool(wrong))


def verdicts(results: dict[str, Any]) -> list[str]:
    """Says which results are right; those of kernels that are not, or that failed."""
    right = [name for name, result in results.items() if result.get("right")]
    wrong = [name for name, result in results.items() if result.get("right") is False]
    failed = [name for name, result in results.items() if "failed" in result]
    print(f"{len(right)} right, {len(wrong)} wrong: {wrong}, {len(failed)} failed: {failed}", flush=True)
    return [name for name in [*wrong, *failed] if name.startswith(("right", "kernel"))]


def _now(output: Path) -> Path:
    """Where a process says what it does, and until when."""
    return output.with_suffix(".now")


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return {}


def _write(file: Path, stored: dict[str, Any]) -> None:
    """Leaves the old file or the new one, whenever the process ends."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(stored, indent=1))
    part.replace(file)


def work(arguments: argparse.Namespace) -> None:
    """Runs the cases that have no result."""
    wanted = [c for c in cases() if not arguments.only or any(text in c.name for text in arguments.only)]
    if arguments.interpret:
        sys.path.insert(0, str(FOLDER.parents[1] / "tests"))
        from helpers.hopper import interpreted  # noqa: PLC0415

        interpreted()
        wanted = [c._replace(problem=small(c.problem)) for c in wanted if c.name.startswith("right")]
    if arguments.output.exists() and not _read(arguments.output):
        sys.exit(f"{arguments.output} is no JSON of results")
    stored = _read(arguments.output) or {"cases": {}}
    stored["environment"] = _same(stored.get("environment"), environment(), arguments)
    done = stored["cases"]
    wanted = [c for c in wanted if c.name not in done or (arguments.retry and "failed" in done[c.name])]
    print(stored["environment"], f"{len(wanted)} cases", flush=True)

    def keep(case: Case, result: dict[str, Any]) -> None:
        done[case.name] = result | {"at_s": round(time.perf_counter() - START, 1)}
        _write(arguments.output, stored)
        print(_line(case.name, done[case.name]), flush=True)

    def announce(names: list[str], seconds: float) -> None:
        _write(_now(arguments.output), {"names": names, "until": time.time() + seconds})

    def left() -> float:
        return arguments.seconds - (time.perf_counter() - START)

    with ThreadPoolExecutor(arguments.threads) as pool:
        for group in _groups(wanted, arguments.threads, stored.get("alone", [])):
            group = [c for c in group if c.seconds + 15 <= left()]  # what takes less may still fit
            if not group:
                continue
            announce([c.name for c in group], 200)
            futures = {c.name: pool.submit(prepare, c) for c in group if c.run is None}
            for future in futures.values():  # none is timed while another is compiled
                future.exception()
            for case in group:
                if left() < 0:
                    break
                announce([case.name], case.seconds + (300 if arguments.interpret else 40))
                try:
                    if case.run is not None:
                        keep(case, case.run(left()))
                        continue
                    compiled, values, seconds = futures.pop(case.name).result()
                    keep(case, measure(case, compiled, values) | {"compile_s": round(seconds, 2)})
                    del compiled, values
                except Exception as error:  # noqa: BLE001 - one case must not end the others
                    keep(case, {"failed": traceback.format_exc()[-3000:]})
                    if "CUDA_ERROR" in str(error):  # what comes after it in this process fails too
                        os._exit(3)
            _now(arguments.output).unlink(missing_ok=True)
    if stored.pop("alone", None):
        _write(arguments.output, stored)
    if missing := [c.name for c in wanted if c.name not in done]:
        print(f"stops with {left():.0f} s left; run it again for {len(missing)} more", flush=True)


def _same(before: Any, now: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """What is here, if all results of the file are from here."""
    if not arguments.interpret and "NVIDIA" not in now["device"].upper():
        sys.exit(f"device.py needs an NVIDIA GPU, or --interpret; this is {now['device']}")
    names = "device", "jax", "jaxlib"
    if before and [before.get(n) for n in names] != [now[n] for n in names]:
        sys.exit(f"{arguments.output} has results of {before}, but this is {now}: give another --output")
    return now


def _groups(wanted: list[Case], size: int, alone: list[str]) -> list[list[Case]]:
    """What is compiled together, in order: of those `alone` one ended its process."""
    groups: list[list[Case]] = []
    for case in wanted:
        single = case.name in alone
        if not groups or single or len(groups[-1]) == size or groups[-1][0].name in alone:
            groups.append([])
        groups[-1].append(case)
    return groups


def _line(name: str, result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"{name}: FAILED {result['failed'].strip().splitlines()[-1][:200]}"
    figures = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in result.items()}
    return f"{name}: " + ", ".join(f"{k} {v}" for k, v in figures.items())


if __name__ == "__main__":
    main()
