"""Counts the operations of every public function: `python tests/tools/operations.py [--write] [--seconds]`.

Of one call and of 64 equal ones, and of their gradients, in the StableHLO that JAX hands to a compiler, beside the
plain formula in JAX. `--write` writes them to tests/operations.json, which tests/properties/test_operations.py holds,
and to the page How fast.
`--seconds` prints instead how long 64 calls take to trace, lower and compile, and a call outside `jax.jit`, beside a
jitted identity; and the same of layers of attention and of a decode step.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("tests", "benchmarks"))

import formulas

import posenc_jax as pe
from helpers.functions import Row, table

ROOT = Path(__file__).parents[2]
PATH, PAGE = ROOT / "tests/operations.json", ROOT / "benchmarks/results/operations.md"
MANY = 64
_OPERATION = re.compile(r" = \"?(?:stablehlo|chlo|func\.call|call)\b")


def rotated(x: Any, positions: Any) -> Any:
    angles = formulas.phases(positions, x.shape[-1])[..., None, :]
    return formulas.halves(x, jnp.cos(angles), jnp.sin(angles))


# The formulas as people write them, of the arguments of the same rows
FORMULAS: dict[str, Callable[..., Any]] = {
    "sinusoidal": lambda positions, **_: formulas.textbook(positions, 8),
    "add_sinusoidal": lambda x, positions, **_: 2 * x + formulas.textbook(positions, 8),
    "cos_sin": lambda positions, **_: (jnp.cos(positions[..., None] * 0.1), jnp.sin(positions[..., None] * 0.1)),
    "learned": lambda positions, table, **_: table[positions],
    "fourier_features": lambda x, matrix, **_: jnp.concatenate(
        [jnp.sin(2 * jnp.pi * x @ matrix), jnp.cos(2 * jnp.pi * x @ matrix)], -1
    ),
    "timestep_embedding": lambda timesteps, **_: formulas.textbook(timesteps, 8),
    "rotary": lambda x, positions, **_: rotated(x, positions),
    "xpos": lambda query, key, positions, **_: (rotated(query, positions), rotated(key, positions)),
    "alibi": lambda query_positions, key_positions, **_: (
        -np.float32(0.25 ** np.arange(1, 5)).reshape(4, 1, 1)
        * abs(query_positions[:, None, :, None] - key_positions[:, None, None, :])
    ),
    "attention": lambda query, key, value, **_: jax.nn.dot_product_attention(query, key, value, is_causal=True),
}


def programs(row: Row, function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The program of one call and of many, of all arrays, and those of their gradients by the float32 arrays."""

    def forward(count: int, *arrays: Any) -> list[Any]:
        return [function(**row.filled(arrays)) for _ in range(count)]

    def gradient(count: int, *arrays: Any) -> Any:
        def loss(floats: Any) -> Any:
            remaining = iter(floats)
            given = [next(remaining) if x.dtype == np.float32 else x for x in arrays]
            results = [x for x in jax.tree.leaves(forward(count, *given)) if jnp.issubdtype(x.dtype, jnp.floating)]
            return sum(jnp.sum(x.astype(jnp.float32)) for x in results)

        return jax.grad(loss)([x for x in arrays if x.dtype == np.float32])

    kinds = {"forward": forward} | ({"gradient": gradient} if row.floats else {})
    return {
        f"{name} of {count}": lambda *arrays, f=f, count=count: f(count, *arrays)
        for name, f in kinds.items()
        for count in (1, MANY)
    }


def counted(program: Callable[..., Any], arrays: Any) -> int:
    """The operations of a program, in all its functions."""
    return len(_OPERATION.findall(jax.jit(program).lower(*arrays).as_text()))


def functions() -> dict[str, tuple[Row, Callable[..., Any]]]:
    """The rows of functions of arrays, but not their variants, and the formulas under names of their own."""
    rows = {name: row for name, row in table(heads=4).items() if row.arrays and "," not in name}
    found = {name: (row, row.function) for name, row in rows.items()}
    return found | {f"{name}, the formula": (rows[name], formula) for name, formula in FORMULAS.items()}


def counts(row: Row, function: Callable[..., Any]) -> dict[str, int]:
    """The operations of each of the programs."""
    return {name: counted(program, row.arrays) for name, program in programs(row, function).items()}


def seconds(row: Row, function: Callable[..., Any]) -> list[float]:
    """Seconds to trace, to lower and to compile 64 calls, and microseconds of an eager call."""
    jax.clear_caches()
    times = [time.perf_counter()]
    traced = jax.jit(programs(row, function)[f"forward of {MANY}"]).trace(*row.arrays)
    times.append(time.perf_counter())
    lowered = traced.lower()
    times.append(time.perf_counter())
    lowered.compile()
    times.append(time.perf_counter())
    arrays = jax.device_put(row.arrays)
    return [*np.diff(times), eager(lambda: function(**row.filled(arrays)))]


def layers(attend: Callable[..., Any], length: int) -> list[float]:
    """Seconds to trace, lower and compile 24 layers of causal attention, and those with their gradients."""

    def forward(q: Any, k: Any, v: Any) -> Any:
        for _ in range(24):
            q = attend(q, k, v)
        return q

    backward, x = jax.grad(lambda *x: jnp.sum(forward(*x)), argnums=(0, 1, 2)), jnp.ones((1, length, 4, 64))
    times = []
    for program in (forward, backward):
        jax.clear_caches()
        began = time.perf_counter()
        jax.jit(program).lower(x, x, x).compile()
        times.append(time.perf_counter() - began)
    return times


def in_models() -> None:
    """Prints how long 24 layers of attention compile, beside dense ones, and how long a decode step takes eagerly."""
    for length in (512, 2048):
        ours = layers(lambda *x: pe.attention(*x, causal=True), length)
        dense = layers(lambda *x: jax.nn.dot_product_attention(*x, is_causal=True), length)
        texts = (f"{a:.2f} s ({a / b:.2f} of dense)" for a, b in zip(ours, dense, strict=True))
        print(f"24 layers of attention, {length} tokens: forward {', with gradients '.join(texts)}", flush=True)
    q, k, at = jnp.ones((1, 1, 1, 8)), jnp.ones((1, 4096, 1, 8)), jnp.arange(4096)[None]
    places = {"query_positions": at[:, -1:], "key_positions": at, "causal": True}
    print(f"a decode step of attention, 4,096 slots: eager {eager(lambda: pe.attention(q, k, k, **places)):.0f} µs")


def eager(call: Callable[[], Any], count: int = 30) -> float:
    """The least microseconds of a call, of several rounds."""
    rounds = []
    jax.block_until_ready(call())
    for _ in range(9):
        began = time.perf_counter()
        for _ in range(count):
            result = call()
        rounds.append((time.perf_counter() - began) / count)
        jax.block_until_ready(result)
    return 1e6 * min(rounds)


def markdown(found: dict[str, dict[str, int]]) -> str:
    """A table of the functions that have a formula here."""
    kinds = [f"{kind} of {count}" for kind in ("forward", "gradient") for count in (1, MANY)]
    lines = [f"| | {' | '.join(kinds)} |", "| --- |" + " --- |" * len(kinds)]
    for name in FORMULAS:
        ours, formula = found[name], found[f"{name}, the formula"]
        cells = [f"{ours[kind]:,} ({formula[kind]:,})" if kind in ours else "" for kind in kinds]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prints the counts or the seconds of all functions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seconds", action="store_true")
    options = parser.parse_args()
    if options.seconds:
        x, identity = jnp.ones(8), jax.jit(lambda x: x)
        print(f"jitted identity: {eager(lambda: identity(x)):.1f} µs")
        in_models()
    found = {}
    for name, (row, function) in functions().items():
        if options.seconds:
            trace, lower, compilation, call = seconds(row, function)
            text = f"trace {trace:.3f} s, lower {lower:.3f} s, compile {compilation:.2f} s, eager {call:.0f} µs"
        else:
            found[name] = counts(row, function)
            text = ", ".join(f"{key} {count}" for key, count in found[name].items())
        print(f"{name}: {text}", flush=True)
    if options.write:
        rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
        PATH.write_text(f'{{\n "jax": "{".".join(jax.__version__.split(".")[:2])}",\n{rows}\n}}\n', encoding="utf-8")
        PAGE.write_text(markdown(found), encoding="utf-8")


if __name__ == "__main__":
    main()
