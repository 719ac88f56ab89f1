"""What `device.py` measures, the most valuable first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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


def flex() -> dict[str, Any]:
    """PyTorch's FlexAttention, in a process of its own."""
    script = Path(__file__).with_name("flex.py")
    command = ["timeout", "120", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()  # what is printed before it is cut off counts
    if not lines:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(lines[-1]) | ({"ended": done.stderr[-500:]} if done.returncode else {})


def cases() -> list[Case]:
    """All, in the order in which they run."""
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
        right("ALiBi fading", bias="alibi-fading", queries=1024, keys=1024),
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
        right("overlap, ALiBi fading", ours(overlap=True), bias="alibi-fading", queries=1024, keys=1024),
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
        return Case(name, seconds, problem, cudnn(backward), check=not backward, products=3.5 if backward else 1)

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
            kernel(at(8192, head_dim, bias="alibi-fading")),
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
            kernel(at(tokens, head_dim, bias="alibi-fading")),
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
    return [*core, *main, *variants, *long, *biased, *explicit, *old, *more, *full, *short, *torch, *rest]


def _title(problem: Problem) -> str:
    mask = "causal" if problem.causal else "not causal"
    where = f", {problem.positions}" if problem.positions else ""
    size = f"{problem.batch}×{problem.queries}×{problem.heads}×{problem.head_dim}"
    return f"{size}, {problem.dtype}, {mask}, {problem.bias}{where}"


def small(problem: Problem) -> Problem:
    """A problem that the interpreter finishes in seconds."""
    return problem._replace(
        queries=min(problem.queries, 576), keys=min(problem.keys, 576), heads=2, kv_heads=1, batch=min(problem.batch, 2)
    )
