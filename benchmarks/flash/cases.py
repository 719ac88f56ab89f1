"""What `device.py` measures, the most valuable first."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

HEADS = 16
JAX_BACKWARD = {"compute_wgs_bwd": 2} | {f"block_{x}_{of}": 64 for x in ("q", "kv") for of in ("dq", "dkv")}


class Problem(NamedTuple):
    """Operands, drawn by NumPy."""

    queries: int
    keys: int
    head_dim: int
    heads: int = HEADS
    kv_heads: int = HEADS
    batch: int = 1
    dtype: str = "bfloat16"
    value_dim: int | None = None  # None: head_dim
    causal: bool = True
    bias: str = "none"
    positions: str | None = None  # what masks and bias read of tokens: see `sides_of`
    window: int | None = None  # how many keys before a query it sees
    right: int | None = None  # how many keys after it
    mapped: str | None = None  # "vmap" over the batch, or "shard_map" over one device
    soft_cap: float | None = None
    sinks: bool = False
    learns: bool = False  # whether gradients of the bias are computed too

    @property
    def flops(self) -> float:
        """Of both products forward; a causal mask halves them, documents and windows leave less."""
        seen = self.keys / (2 if self.causal else 1) / (3 if self.positions == "documents" else 1)
        if self.window is not None:
            seen = min(seen, self.window)
        return 4.0 * self.batch * self.heads * self.queries * self.head_dim * seen


class Case(NamedTuple):
    """One measurement."""

    name: str
    seconds: float  # an estimate, its compilation included
    problem: Problem | None
    make: Callable[[Problem], Any] | None = None  # a function of query, key, value and more, and what is more
    check: bool = True  # whether its output is compared with float64
    timed: bool = True
    backward: bool = False
    same_bits: bool = False  # whether repeated calls are compared
    products: float = 1  # how many times the products of a forward pass it computes
    scale: float | None = None
    run: Callable[[float], dict[str, Any]] | None = None  # of the seconds left, instead of all of the above


def sides_of(problem: Problem) -> dict[str, tuple[Any, Any]]:
    """What is given of queries and keys, "positions", "segments" and "order": int32 (batch or 1, length)."""
    import numpy as np

    random, count = np.random.default_rng(0), np.arange(problem.keys)[None]
    third = -(-problem.keys // 3)
    given = {
        None: {},
        "shuffled": {"positions": np.stack([random.permutation(problem.keys) for _ in range(problem.batch)])},
        "documents": {"positions": count % third, "segments": count // third},  # each starts at 0 again
        "segments": {"segments": count // third},
        "segments by row": {"segments": count // (third + 40 * np.arange(problem.batch)[:, None])},
        "order": {"positions": count // 3, "order": count},  # as the tokens of images share their time
    }[problem.positions]
    return {name: (x[:, : problem.queries].astype(np.int32), x.astype(np.int32)) for name, x in given.items()}


def sinks_of(problem: Problem) -> Any:
    """The logit of the sink of each head."""
    import numpy as np

    return np.linspace(-1, 2, problem.heads, dtype=np.float32) if problem.sinks else None


# What is measured: functions of a problem that return a function of query, key, value and more, and what is more


def kernel(backward: bool = False) -> Callable[[Problem], Any]:
    return _library("mosaic_gpu", backward)


def library(block_size: int, backward: bool = False) -> Callable[[Problem], Any]:
    return _library("xla", backward, block_size=block_size)


def _library(implementation: Any, backward: bool, **more: Any) -> Callable[[Problem], Any]:
    def make(problem: Problem) -> Any:
        import jax.numpy as jnp
        from biases import BIASES

        import posenc_jax as pe

        bias = BIASES[problem.bias]
        learned = tuple(map(jnp.asarray, bias.learned(problem.heads)))
        options: dict[str, Any] = {"causal": problem.causal, "window": (problem.window, problem.right)}
        options |= {"logits_soft_cap": problem.soft_cap, "sinks": sinks_of(problem)}
        for name, sides in sides_of(problem).items():
            options |= {f"{side}_{name}": jnp.asarray(x) for side, x in zip(("query", "key"), sides, strict=True)}
        options |= {"implementation": implementation, "return_residual": not backward} | more

        def attend(q: Any, k: Any, v: Any, *own: Any) -> Any:
            return pe.attention(q, k, v, bias=bias.closed(own or learned), **options)

        return _maybe_backward(_mapped(attend, problem.mapped), backward), learned if problem.learns else ()

    return make


def _mapped(attend: Callable[..., Any], how: str | None) -> Callable[..., Any]:
    """Attention by the sequences of a batch, or by devices, of which there is one."""
    import jax

    if how is None:
        return attend
    if how == "vmap":
        return lambda q, k, v, *own: jax.vmap(lambda *x: attend(*x, *own))(q, k, v)
    auto = (jax.sharding.AxisType.Auto,)
    mesh, rows = jax.make_mesh((1,), ("x",), axis_types=auto, devices=jax.devices()[:1]), jax.P("x")
    return lambda q, k, v, *own: jax.shard_map(
        attend, mesh=mesh, in_specs=(rows, rows, rows, *[jax.P()] * len(own)), out_specs=rows
    )(q, k, v, *own)


def cudnn(backward: bool = False) -> Callable[[Problem], Any]:
    def make(problem: Problem) -> Any:
        import jax
        import jax.numpy as jnp
        from biases import slopes

        options = {"is_causal": problem.causal, "implementation": "cudnn"}

        def attend(q: Any, k: Any, v: Any, *bias: Any) -> Any:
            def of(q: Any, k: Any, v: Any, *own: Any) -> Any:
                return jax.nn.dot_product_attention(q, k, v, *(own or bias), **options)

            return _maybe_backward(of, backward)(q, k, v, *(bias if problem.learns else ()))

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
    """Attention, or its output and gradients by all its operands, for a cotangent that is the query, cut to fit."""
    if not backward:
        return attend
    import jax

    def gradients(q: Any, *more: Any) -> Any:
        out, pull = jax.vjp(attend, q, *more)
        return out, pull(q[..., : out.shape[-1]])

    return gradients


def flex(left: float) -> dict[str, Any]:
    """PyTorch's FlexAttention, in a process of its own."""
    if not find_spec("torch"):
        raise RuntimeError("PyTorch is not installed")
    script = Path(__file__).with_name("flex.py")
    command = ["timeout", f"{min(left, 150):.0f}", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()  # what is printed before it is cut off counts
    if not lines:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(lines[-1]) | ({"ended": done.stderr[-500:]} if done.returncode else {})


def at(tokens: int, head_dim: int, **p: Any) -> Problem:
    return Problem(tokens, tokens, head_dim, batch=max(1, round(8192 / tokens)), **p)


def timed(name: str, make: Any, problem: Problem, backward: bool = False, seconds: float = 5, **more: Any) -> Case:
    title, products = f"{name}: {_title(problem)}{', backward' * backward}", 3.5 if backward else 1
    flags = {"check": not backward, "backward": backward, "products": products}
    return Case(title, seconds, problem, make, **(flags | more))


def ours(problem: Problem, backward: bool = False) -> Case:
    # Of more tokens NumPy takes minutes for gradients, and of a group of heads one for each.
    checked = not backward or problem.keys <= 8192
    seconds = 5 if not backward else 7 if problem.kv_heads == problem.heads else 20
    return timed("kernel", kernel(backward), problem, backward, seconds, check=checked, same_bits=True)


def cases() -> list[Case]:
    """All, in the order in which they run."""

    def right(name: str, backward: bool = False, **p: Any) -> Case:
        problem = {
            "queries": 512,
            "keys": 512,
            "head_dim": 64,
            "heads": 4,
            "kv_heads": 2,
            "batch": 2,
            "learns": backward,
        }
        make = kernel(backward)
        return Case(f"right: {name}", 4, Problem(**(problem | p)), make, timed=False, backward=backward)

    never = {  # what no device ran in any form
        "no bias, right window": {"causal": False, "right": 60, "window": 90},
        "ALiBi, values of 32": {"bias": "alibi", "value_dim": 32},
        "ALiBi, order": {"bias": "alibi", "positions": "order"},
        "no bias, segments by row": {"positions": "segments by row"},
        "T5, segments": {"bias": "t5", "positions": "segments"},
        "T5, documents": {"bias": "t5", "positions": "documents"},
        "ALiBi, vmap": {"bias": "alibi", "mapped": "vmap"},
        "ALiBi, shard_map": {"bias": "alibi", "mapped": "shard_map"},
        "no bias, not causal, ragged": {"queries": 300, "keys": 333, "causal": False},
        "a bias of its own, ragged": {"queries": 300, "keys": 300, "bias": "own"},
    }
    masks = {"window": 100, "sinks": True, "soft_cap": 5.0}
    checks = [
        right("no bias, not causal", causal=False),
        right("no bias, causal, heads of 128", head_dim=128),
        right("ALiBi", bias="alibi"),
        right("ALiBi, not causal, heads of 128", head_dim=128, bias="alibi", causal=False),
        right("T5", bias="t5"),
        right("T5, shuffled positions", bias="t5", positions="shuffled"),
        right("KERPLE, heads of 128", head_dim=128, bias="kerple_log"),
        right("KERPLE, documents", bias="kerple_log", positions="documents"),
        right("FIRE", bias="fire"),
        right("a bias of its own", bias="own"),
        right("ALiBi, shuffled positions", bias="alibi", positions="shuffled"),
        right("window, sinks and soft cap", **masks),
        right("documents, heads of 128", head_dim=128, positions="documents", bias="alibi"),
        right("ragged, not causal", queries=300, keys=333, causal=False),
        right("ragged, T5", queries=300, keys=300, bias="t5"),
        right("float16", dtype="float16", bias="alibi"),
        right("heads of 80", head_dim=80, bias="t5"),
        right("heads of 192", head_dim=192, bias="alibi"),
        right("heads of 256", head_dim=256, bias="own"),
        right("gradients, no bias, not causal", True, causal=False),
        right("gradients, ALiBi", True, bias="alibi"),
        right("gradients, ALiBi, heads of 128", True, bias="alibi", head_dim=128),
        right("gradients, T5", True, bias="t5"),
        right("gradients, T5, heads of 128, window, sinks and soft cap", True, bias="t5", head_dim=128, **masks),
        right("gradients, T5, ragged", True, queries=300, keys=300, bias="t5"),
        right("gradients, KERPLE, documents", True, bias="kerple_log", positions="documents"),
        right("gradients, ALiBi, shuffled positions", True, bias="alibi", positions="shuffled"),
        right("gradients, a bias of its own, window, sinks and soft cap", True, bias="own", **masks),
        right("gradients, float16", True, dtype="float16", bias="alibi"),
        right("gradients, T5, shuffled positions", True, bias="t5", positions="shuffled"),
        *(right(f"{'gradients, ' * back}{name}", back, **p) for back in (False, True) for name, p in never.items()),
    ]

    def by_cudnn(problem: Problem, backward: bool = False) -> Case:
        return timed("cuDNN", cudnn(backward), problem, backward, 8)

    def by_mosaic(problem: Problem) -> Case:
        make = mosaic(256 if problem.head_dim == 64 else 128)
        return timed("attention_mgpu", make, problem._replace(dtype="float16"), scale=1.0)

    def xla(problem: Problem, block_size: int, backward: bool = False) -> Case:
        return timed(f"XLA, tiles of {block_size}", library(block_size, backward), problem, backward, 8)

    both = 128, 64
    main = [
        case
        for head_dim in both
        for case in (
            ours(at(8192, head_dim)),
            ours(at(8192, head_dim, bias="alibi")),
            by_cudnn(at(8192, head_dim)),
            by_cudnn(at(8192, head_dim, bias="alibi")),
            *(ours(at(8192, head_dim, bias=bias)) for bias in ("t5", "kerple_log", "own", "fire")),
            by_mosaic(at(8192, head_dim)),
        )
    ]
    options = [
        ours(at(8192, 128, window=1024)),
        ours(at(8192, 128, soft_cap=30.0)),
        ours(at(8192, 128, kv_heads=2, bias="alibi")),
        ours(at(8192, 128, bias="alibi", positions="documents")),
        ours(at(8192, 128, bias="t5", positions="documents")),
        ours(at(8192, 128, causal=False, bias="alibi")),
        ours(at(8192, 128, causal=False)),
        by_cudnn(at(8192, 128, causal=False)),
        ours(at(8192, 256, bias="alibi")),
        by_cudnn(at(8192, 256)),
        by_cudnn(at(8192, 256, bias="alibi")),
    ]
    long = [
        case
        for tokens in (32768, 65536)
        for head_dim in both
        for case in (
            *(ours(at(tokens, head_dim, bias=bias)) for bias in ("none", "alibi", "t5")),
            *([by_cudnn(at(tokens, head_dim))] if tokens == 32768 else []),
        )
    ]
    short = [
        case
        for head_dim in both
        for case in (
            *(ours(at(2048, head_dim, bias=bias)) for bias in ("none", "alibi", "t5")),
            *(by_cudnn(at(2048, head_dim, bias=bias)) for bias in ("none", "alibi")),
        )
    ]
    backward = [
        case
        for head_dim in both
        for case in (
            ours(at(8192, head_dim), True),
            *(ours(at(8192, head_dim, bias=bias, learns=True), True) for bias in ("alibi", "t5")),
            by_cudnn(at(8192, head_dim), True),
            by_cudnn(at(8192, head_dim, bias="alibi", learns=True), True),
            ours(at(8192, head_dim, bias="t5"), True),
        )
    ]
    backward += [
        xla(at(8192, 128, bias="alibi", learns=True), 512, backward=True),
        by_cudnn(at(8192, 128, bias="alibi"), True),
        ours(at(8192, 128, causal=False), True),
        timed("attention_mgpu", mosaic(128, True, **JAX_BACKWARD), at(8192, 128, causal=False, dtype="float16"), True),
        *(ours(at(8192, 128, bias=bias, learns=True), True) for bias in ("kerple_log", "own")),
        ours(at(8192, 128, bias="alibi", positions="documents", learns=True), True),
        ours(at(8192, 128, kv_heads=2, bias="alibi", learns=True), True),
        *(ours(at(32768, 128, bias=bias, learns=bias != "none"), True) for bias in ("none", "alibi", "t5")),
        by_cudnn(at(32768, 128), True),
        *(ours(at(2048, 128, bias=bias, learns=bias != "none"), True) for bias in ("none", "alibi", "t5")),
        by_cudnn(at(2048, 128), True),
        by_cudnn(at(2048, 128, bias="alibi"), True),
        ours(at(65536, 128, bias="t5", learns=True), True),
    ]
    tiles = [xla(at(8192, 128, bias="alibi"), n) for n in (512, 2048)]
    torch = [Case("FlexAttention", 120 if find_spec("torch") else 1, None, run=flex)]
    return [*checks, *main, *backward, *options, *long, *short, *tiles, *torch]


def compiled_alone() -> list[Case]:
    """What `compiled.py` compiles besides: gradients that take no time of a device."""
    more = [
        *(at(65536, head_dim, bias=bias) for head_dim in (128, 64) for bias in ("none", "alibi", "t5")),
        at(65536, 128, bias="fire"),
        at(8192, 128, window=1024, bias="alibi"),
        at(8192, 128, window=1024, bias="t5"),
        at(8192, 128, soft_cap=30.0, sinks=True),
        at(8192, 128, kv_heads=2, bias="t5"),
        at(8192, 64, kv_heads=2, bias="alibi"),
        at(8192, 64, causal=False),
        at(8192, 64, bias="own"),
        at(8192, 64, bias="fire"),
        at(8192, 128, bias="fire"),
        at(8192, 256, bias="alibi"),
    ]
    named = {case.name for case in cases()}
    found = [ours(problem._replace(learns=problem.bias != "none"), True) for problem in more]
    return [case for case in found if case.name not in named]


def _title(problem: Problem) -> str:
    mask = "causal" if problem.causal else "not causal"
    options = {"window": problem.window, "soft cap": problem.soft_cap, "positions": problem.positions}
    where = "".join(f", {name} {x}" for name, x in options.items() if x is not None)
    where += ", sinks" * problem.sinks + ", gradients of the bias" * problem.learns
    where += f", {problem.kv_heads} key heads" if problem.kv_heads != problem.heads else ""
    size = f"{problem.batch}×{problem.queries}×{problem.heads}×{problem.head_dim}"
    return f"{size}, {problem.dtype}, {mask}, {problem.bias}{where}"


def small(problem: Problem) -> Problem:
    """A problem that the interpreter finishes in seconds."""
    most = 256 if problem.learns else 512
    lengths = {"queries": min(problem.queries, most), "keys": min(problem.keys, most)}
    rows = problem.mapped or problem.positions == "segments by row" or not problem.learns
    return problem._replace(**lengths, heads=2, kv_heads=1, batch=min(problem.batch, 2) if rows else 1)
