"""Measures the trial kernel on one NVIDIA Hopper GPU: `python benchmarks/flash/device.py --output FILE`.

First the kernel beside a float64 formula, then times: the kernel and its variants, this library's attention by XLA,
cuDNN without and with a dense bias, JAX's own Mosaic GPU kernel, and PyTorch's FlexAttention. FILE is written after each
case. A second run goes on where it ended. `--seconds N` stops in time; `--only TEXT` runs cases whose names contain one
of the texts; `--retry` runs what failed again; `--list` names all; `--interpret` checks the kernel without a device.

The cases run in a process of its own, which is ended and started again if one hangs or breaks the device's context.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

START = time.perf_counter()
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1])]
HEADS = 16


class Problem(NamedTuple):
    """Operands, drawn by NumPy."""

    queries: int
    keys: int
    head_dim: int
    heads: int = HEADS
    kv_heads: int = HEADS
    batch: int = 1
    dtype: str = "bfloat16"
    causal: bool = True
    bias: str = "none"
    positions: str | None = None  # "shuffled" or "documents"

    @property
    def flops(self) -> float:
        """Of both products forward; a causal mask halves them."""
        return 4.0 * self.batch * self.heads * self.queries * self.keys * self.head_dim / (2 if self.causal else 1)


class Case(NamedTuple):
    """One measurement."""

    name: str
    seconds: float  # an estimate, its compilation included
    problem: Problem | None
    make: Callable[[Problem], Any] | None = None  # a function of query, key, value and more, and what is more
    check: bool = True  # whether its output is compared with float64
    timed: bool = True
    products: float = 1  # how many times the products of a forward pass it computes
    scale: float | None = None
    run: Callable[[], dict[str, Any]] | None = None  # instead of all of the above


# Operands and the truth


def operands(problem: Problem) -> tuple[Any, ...]:
    """Query, key and value."""
    return _drawn(problem._replace(bias="none", causal=True, positions=None))


@functools.lru_cache(maxsize=4)
def _drawn(problem: Problem) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    def draw(seed: int, length: int, heads: int) -> Any:
        shape = problem.batch, length, heads, problem.head_dim
        return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(problem.dtype)

    lengths = (problem.queries, problem.heads), (problem.keys, problem.kv_heads), (problem.keys, problem.kv_heads)
    return tuple(draw(i, *size) for i, size in enumerate(lengths))


@functools.lru_cache(maxsize=1)
def _on_host(problem: Problem) -> tuple[Any, ...]:
    import numpy as np

    return tuple(np.asarray(x) for x in operands(problem))


def positions_of(problem: Problem) -> tuple[Any, Any] | None:
    """Positions of queries and keys, int32 (batch, length)."""
    import numpy as np

    random = np.random.default_rng(0)
    if problem.positions == "shuffled":
        order = np.stack([random.permutation(problem.keys) for _ in range(problem.batch)])
        return order[:, : problem.queries].astype(np.int32), order.astype(np.int32)
    if problem.positions == "documents":  # each starts at 0 again; shared by the batch
        where = np.arange(problem.keys) % (problem.keys // 3)
        return where[None, : problem.queries].astype(np.int32), where[None].astype(np.int32)
    return None


def compare(problem: Problem, out: Any, residual: Any, scale: float | None = None, rows: int = 12) -> dict[str, Any]:
    """The error of some rows of the output beside float64."""
    import numpy as np
    from biases import BIASES

    scale = 1 / math.sqrt(problem.head_dim) if scale is None else scale
    random, (q, k, v), positions = np.random.default_rng(2), _on_host(problem), positions_of(problem)
    out, residual = np.asarray(out), None if residual is None else np.asarray(residual)
    wrong, size, worst, worst_sum = 0.0, 0.0, 0.0, 0.0
    for head in sorted({0, problem.heads // 2, problem.heads - 1}):
        batch = int(random.integers(problem.batch))
        chosen = np.unique(np.append(random.integers(problem.queries, size=rows), [0, problem.queries - 1]))
        group = head // (problem.heads // problem.kv_heads)
        q64 = q[batch, chosen, head].astype(np.float64)
        k64, v64 = (x[batch, :, group].astype(np.float64) for x in (k, v))
        i, j = chosen, np.arange(problem.keys)
        if positions is not None:
            i, j = (p[min(batch, len(p) - 1)].astype(int) for p in positions)
            i = i[chosen]
        i, j = i[:, None], j[None, :]
        scores = q64 @ k64.T * scale + BIASES[problem.bias].formula(head, problem.heads, i, j)
        if problem.causal:
            scores = np.where(j <= i, scores, -np.inf)
        top = scores.max(1, keepdims=True)
        p = np.exp(scores - top)
        truth = p @ v64 / p.sum(1, keepdims=True)
        got = out[batch, chosen, head].astype(np.float64)
        wrong, size = wrong + np.sum((got - truth) ** 2), size + np.sum(truth**2)
        worst = max(worst, float(np.max(np.abs(got - truth))))
        if residual is not None:
            error = residual[batch, head, chosen] - (top + np.log(p.sum(1, keepdims=True)))[:, 0]
            worst_sum = max(worst_sum, float(np.max(np.abs(error))))
    result = {"error": float(math.sqrt(wrong / size)), "worst": worst}
    return result if residual is None else result | {"residual_error": worst_sum}


# What is measured: functions of a problem that return a function of query, key, value and more, and what is more


def ours(**config: Any) -> Callable[[Problem], Any]:
    def make(problem: Problem) -> Any:
        import jax.numpy as jnp
        from biases import BIASES
        from kernel import Config, flash

        named, positions = BIASES[problem.bias], positions_of(problem)
        arrays = [jnp.asarray(a) for a in named.operands(problem.heads, problem.head_dim)]
        where = None if positions is None else tuple(map(jnp.asarray, positions))
        interpret = bool(os.environ.get("FLASH_INTERPRET"))
        options = {"bias": named.bias, "causal": problem.causal, "config": Config(**config), "positions": where}
        return lambda q, k, v: flash(q, k, v, *arrays, **options, interpret=interpret), ()

    return make


def library(block_size: int, backward: bool = False) -> Callable[[Problem], Any]:
    def make(problem: Problem) -> Any:
        import jax.numpy as jnp
        from biases import slopes

        import posenc_jax as pe

        of_heads = jnp.asarray(slopes(problem.heads))
        bias = {"none": None, "alibi": lambda i, j: pe.alibi(i, j, of_heads)}[problem.bias]
        options = {"bias": bias, "causal": problem.causal, "block_size": block_size}
        return _maybe_backward(lambda q, k, v: pe.attention(q, k, v, **options), backward), ()

    return make


def cudnn(backward: bool = False) -> Callable[[Problem], Any]:
    def make(problem: Problem) -> Any:
        import jax
        import jax.numpy as jnp
        from biases import slopes

        options = {"is_causal": problem.causal, "implementation": "cudnn"}

        def attend(q: Any, k: Any, v: Any, *bias: Any) -> Any:
            of = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, *bias, **options)  # noqa: E731
            return _maybe_backward(of, backward)(q, k, v)

        if problem.bias == "none":
            return attend, ()
        i, j = jnp.arange(problem.queries)[:, None], jnp.arange(problem.keys)
        of_heads = jnp.asarray(slopes(problem.heads))[:, None, None]
        # (1, heads, queries, keys), made once, outside what is timed
        return attend, (jax.jit(lambda: (-of_heads * jnp.abs(i - j)).astype(problem.dtype)[None])(),)

    return make


def mosaic(block_kv: int, backward: bool = False, **config: Any) -> Callable[[Problem], Any]:
    def make(problem: Problem) -> Any:
        from jax.experimental.pallas.ops.gpu import attention_mgpu

        tuning = attention_mgpu.TuningConfig(64, block_kv, 2, causal=problem.causal, **config)
        return _maybe_backward(lambda q, k, v: attention_mgpu.attention(q, k, v, tuning), backward), ()

    return make


def _maybe_backward(attend: Callable[..., Any], backward: bool) -> Callable[..., Any]:
    """Attention, or its gradients by query, key and value, for a cotangent that is the values of the keys."""
    if not backward:
        return attend
    import jax

    def gradients(q: Any, k: Any, v: Any) -> Any:
        _, pull = jax.vjp(attend, q, k, v)
        return pull(v)

    return gradients


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
        both = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
        result |= compare(case.problem, *both, scale=case.scale)
    if not case.timed:
        return result
    first = jax.tree.leaves(out)[0]
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
    if case.check:
        import numpy as np

        result["same_bits"] = bool(np.array_equal(np.asarray(first), np.asarray(jax.tree.leaves(out)[0])))
    return result | {
        "ms": min(times) * 1e3,
        "ms_worst": max(times) * 1e3,
        "tflops": flops / min(times) / 1e12,
        "repeats": count,
    }


def flex() -> dict[str, Any]:
    """PyTorch's FlexAttention, in a process of its own."""
    script = FOLDER / "flex.py"
    command = ["timeout", "120", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()  # what is printed before it is cut off counts
    if not lines:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(lines[-1]) | ({"ended": done.stderr[-500:]} if done.returncode else {})


def cases() -> list[Case]:
    """The most valuable first."""
    both = (128, 64)
    right = lambda name, make=None, **p: Case(  # noqa: E731
        f"right: {name}",
        5,
        Problem(**({"queries": 512, "keys": 512, "head_dim": 64, "heads": 4, "kv_heads": 2, "batch": 2} | p)),
        make or ours(),
        timed=False,
    )
    core = [
        right("no bias, not causal", causal=False),
        right("no bias, causal, heads of 128", head_dim=128),
        right("ALiBi", bias="alibi"),
        right("ALiBi by distance, heads of 128", head_dim=128, bias="alibi-distance"),
        right("ALiBi, shuffled positions", bias="alibi", positions="shuffled"),
        right("ALiBi split", bias="alibi-split"),
        right("T5", bias="t5"),
        right("overlap, no bias, heads of 128", ours(overlap=True), head_dim=128),
    ]
    more = [
        right("ALiBi, exact, documents", bias="alibi-exact", positions="documents"),
        right("ALiBi by float positions", bias="alibi-float"),
        right("ALiBi by distance, not causal", bias="alibi-distance", causal=False),
        right("ALiBi divided", bias="alibi-divided"),
        right("ragged, not causal", queries=300, keys=333, causal=False),
        right("ragged, ALiBi", queries=300, keys=300, bias="alibi"),
        right("float16", dtype="float16", bias="alibi-distance"),
        right("three warpgroups", ours(warpgroups=3), queries=576, keys=576, bias="alibi-distance"),
        right("overlap, ALiBi split", ours(overlap=True), bias="alibi-split"),
        right("T5 everywhere", bias="t5-everywhere"),
        right("one warpgroup", ours(warpgroups=1), bias="alibi-distance"),
        right("tiles of 256 keys", ours(block_kv=256), bias="alibi-distance"),
        right("heads of 256", ours(block_kv=64), head_dim=256, bias="alibi-distance"),
        right("overlap, shuffled positions", ours(overlap=True), bias="alibi", positions="shuffled"),
        right("overlap, ragged", ours(overlap=True), queries=300, keys=333, causal=False),
    ]

    def at(tokens: int, head_dim: int, **p: Any) -> Problem:
        return Problem(tokens, tokens, head_dim, batch=max(1, round(8192 / tokens)), **p)

    def kernel(problem: Problem, seconds: float = 5, **config: Any) -> Case:
        options = ", ".join(f"{k} {v}" for k, v in config.items())
        return Case(f"kernel: {_title(problem)}{', ' * bool(options)}{options}", seconds, problem, ours(**config))

    def xla(problem: Problem, block_size: int, backward: bool = False, seconds: float = 8) -> Case:
        name = f"XLA: {_title(problem)}, tiles of {block_size}{', backward' * backward}"
        make = library(block_size, backward)
        return Case(name, seconds, problem, make, check=not backward, products=3.5 if backward else 1)

    def by_cudnn(problem: Problem, backward: bool = False, seconds: float = 8) -> Case:
        name = f"cuDNN: {_title(problem)}{', backward' * backward}"
        return Case(
            name, seconds, problem, cudnn(backward), check=not backward, products=3.5 if backward else 1
        )

    def by_mosaic(problem: Problem, seconds: float = 5) -> Case:
        problem = problem._replace(dtype="float16")
        make = mosaic(256 if problem.head_dim == 64 else 128)
        return Case(f"attention_mgpu: {_title(problem)}", seconds, problem, make, scale=1.0)

    main = [
        case
        for head_dim in both
        for case in (
            kernel(at(8192, head_dim)),
            kernel(at(8192, head_dim, bias="alibi-split")),
            by_cudnn(at(8192, head_dim)),
            by_cudnn(at(8192, head_dim, bias="alibi")),
            by_mosaic(at(8192, head_dim)),
            kernel(at(8192, head_dim), overlap=True),
            kernel(at(8192, head_dim, bias="alibi-split"), overlap=True),
            kernel(at(8192, head_dim, bias="alibi-distance")),
            kernel(at(8192, head_dim, bias="alibi")),
        )
    ]
    shapes = {
        128: [
            {"turns": False},
            {"heads_first": False},
            {"block_kv": 64, "stages": 4},
            {"block_kv": 64, "stages": 4, "overlap": True},
            {"turns": False, "overlap": True},
        ],
        64: [
            {"stages": 4},
            {"turns": False},
            {"block_kv": 256},
            {"block_q": 128, "block_kv": 64, "stages": 4},
            {"turns": False, "overlap": True},
        ],
    }
    variants = [
        kernel(at(8192, head_dim, bias=bias), **config)
        for head_dim in both
        for config in shapes[head_dim]
        for bias in ("none", "alibi-split")
    ]
    biased = [
        kernel(at(8192, head_dim, bias=bias))
        for head_dim in both
        for bias in ("t5", "t5-everywhere", "alibi-exact", "alibi-float", "alibi-causal", "alibi-divided")
    ]
    # A multiple of 3 · 64.
    variants += [kernel(at(8064, 64, bias=b), warpgroups=3, stages=3) for b in ("none", "alibi-distance")]
    explicit = [kernel(at(8192, 128, bias="alibi", positions="documents"))]
    old = [
        *(xla(at(8192, 128, bias="alibi"), n) for n in (512, 1024, 2048)),
        xla(at(8192, 128), 1024),
        xla(at(8192, 128, bias="alibi"), 1024, backward=True),
        by_cudnn(at(8192, 128), backward=True),
        by_cudnn(at(8192, 128, bias="alibi"), backward=True),
    ]
    long = [
        case
        for tokens in (32768, 65536)
        for head_dim in both
        for case in (
            kernel(at(tokens, head_dim, bias="alibi-split")),
            kernel(at(tokens, head_dim)),
            *((by_cudnn(at(tokens, head_dim)), by_mosaic(at(tokens, head_dim))) if tokens == 32768 else ()),
        )
    ]
    long += [xla(at(32768, 128, bias="alibi"), n) for n in (1024, 2048)]
    short = [
        case
        for head_dim in both
        for case in (
            kernel(at(2048, head_dim)),
            kernel(at(2048, head_dim, bias="alibi-split")),
            by_cudnn(at(2048, head_dim)),
            by_cudnn(at(2048, head_dim, bias="alibi")),
            by_mosaic(at(2048, head_dim)),
        )
    ]
    short.append(xla(at(2048, 128, bias="alibi"), 512))
    full = [
        case
        for head_dim in both
        for problem in [at(8192, head_dim, causal=False, dtype="float16")]
        for case in (kernel(problem), by_mosaic(problem), by_cudnn(problem), kernel(problem, overlap=True))
    ]
    rest = [
        *(xla(at(8192, 64, bias="alibi"), n, backward) for n in (512, 1024) for backward in (False, True)),
        xla(at(8192, 128, bias="alibi"), 512, backward=True),
        xla(at(8192, 128, bias="alibi"), 2048, backward=True),
        xla(at(8192, 128), 1024, backward=True),
        by_cudnn(at(8192, 64), backward=True),
        by_cudnn(at(8192, 64, bias="alibi"), backward=True),
        xla(at(2048, 64, bias="alibi"), 512),
        xla(at(32768, 128, bias="alibi"), 1024, backward=True, seconds=12),
    ]
    torch = [Case("FlexAttention", 90, None, run=flex)]
    return [*core, *main, *variants, *old, *more, *long, *biased, *explicit, *full, *short, *torch, *rest]


def _title(problem: Problem) -> str:
    mask = "causal" if problem.causal else "not causal"
    where = f", {problem.positions}" if problem.positions else ""
    size = f"{problem.batch}×{problem.queries}×{problem.heads}×{problem.head_dim}"
    return f"{size}, {problem.dtype}, {mask}, {problem.bias}{where}"


def environment() -> dict[str, Any]:
    import jax
    import jaxlib
    import numpy as np

    smi = "nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.limit --format=csv,noheader"
    try:
        card = subprocess.run(smi.split(), capture_output=True, text=True, timeout=20).stdout.strip()
    except OSError:
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
        os.environ |= {"FLASH_INTERPRET": "1", "NPROC": "16"}  # the interpreter's warpgroups block threads of XLA:CPU
    if arguments.list:
        print(*(f"{c.seconds:4.0f} s  {c.name}" for c in cases()), sep="\n")
    elif arguments.work:
        work(arguments)
    else:
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
        process = subprocess.Popen([sys.executable, __file__, *options, *retry, left, "--work"])
        while process.poll() is None:
            time.sleep(0.25)
            if time.time() > _read(now).get("until", math.inf) or time.perf_counter() > last + 30:
                process.kill()
                process.wait()
        if process.returncode == 0 or time.perf_counter() > last:
            break
        stored = _read(output) or {"cases": {}}
        for name in _read(now).get("names", []):
            if name not in stored["cases"]:
                stored["cases"][name] = {"failed": f"its process hung or ended with {process.returncode}"}
                print(f"{name}: FAILED, hung or ended with {process.returncode}", flush=True)
        output.write_text(json.dumps(stored, indent=1))
    now.unlink(missing_ok=True)
    print(f"{time.perf_counter() - START:.0f} s")


def _now(output: Path) -> Path:
    """Where a process says what it does, and until when."""
    return output.with_suffix(".now")


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return {}


def work(arguments: argparse.Namespace) -> None:
    """Runs the cases that have no result."""
    wanted = [c for c in cases() if not arguments.only or any(text in c.name for text in arguments.only)]
    if arguments.interpret:
        wanted = [c._replace(problem=_small(c.problem)) for c in wanted if c.name.startswith("right")]
    stored = _read(arguments.output) or {"cases": {}}
    stored["environment"] = environment()
    done = stored["cases"]
    wanted = [c for c in wanted if c.name not in done or (arguments.retry and "failed" in done[c.name])]
    print(stored["environment"], f"{len(wanted)} cases", flush=True)

    def keep(case: Case, result: dict[str, Any]) -> None:
        done[case.name] = result | {"at_s": round(time.perf_counter() - START, 1)}
        arguments.output.write_text(json.dumps(stored, indent=1))
        print(_line(case.name, done[case.name]), flush=True)

    def announce(names: list[str], seconds: float) -> None:
        _now(arguments.output).write_text(json.dumps({"names": names, "until": time.time() + seconds}))

    with ThreadPoolExecutor(arguments.threads) as pool:
        for group in (wanted[i : i + arguments.threads] for i in range(0, len(wanted), arguments.threads)):
            left = arguments.seconds - (time.perf_counter() - START)
            if left < max(c.seconds for c in group) + 15:
                print(f"stops with {left:.0f} s left", flush=True)
                break
            announce([c.name for c in group], 150)
            futures = {c.name: pool.submit(prepare, c) for c in group if c.run is None}
            for future in futures.values():  # none is timed while another is compiled
                future.exception()
            for case in group:
                if time.perf_counter() - START > arguments.seconds:
                    break
                announce([case.name], case.seconds + (300 if arguments.interpret else 40))
                try:
                    if case.run is not None:
                        keep(case, case.run())
                        continue
                    compiled, values, seconds = futures.pop(case.name).result()
                    keep(case, measure(case, compiled, values) | {"compile_s": round(seconds, 2)})
                    del compiled, values
                except Exception as error:  # noqa: BLE001 - one case must not end the others
                    keep(case, {"failed": traceback.format_exc()[-3000:]})
                    if "CUDA_ERROR" in str(error):  # what comes after it in this process fails too
                        os._exit(3)
            _now(arguments.output).unlink(missing_ok=True)


def _line(name: str, result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"{name}: FAILED {result['failed'].strip().splitlines()[-1][:200]}"
    figures = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in result.items()}
    return f"{name}: " + ", ".join(f"{k} {v}" for k, v in figures.items())


def _small(problem: Problem) -> Problem:
    """A problem that the interpreter finishes in seconds."""
    return problem._replace(
        queries=min(problem.queries, 320), keys=min(problem.keys, 320), heads=2, kv_heads=1, batch=min(problem.batch, 2)
    )


if __name__ == "__main__":
    main()
