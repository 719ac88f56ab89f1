r"""Measures what positions do to the loss, for several seeds, and keeps each model's numbers in one JSON file.

With each seed it trains the models of `train_text.py` and rotary ones of other bases, and reads each at one, two and
four times the training length. The rotary model is also read far out, in windows of the training length at positions
up to 10⁹, with phases that are exact, of float32 and of bfloat16. The file is written anew after every model: a model
that is in it already is not trained again, so Ctrl-C loses one model at most, and the same command goes on.

    python demo/evidence.py [--seeds N …] [--steps N] [--output FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import jax
import jax.numpy as jnp
import numpy as np
import optax
import train_text
from flax import nnx
from models import VARIANTS, Decoder, Setup, Variant

import posenc_jax as pe
from posenc_jax.nnx import positional_attention

BASES = (10, 100, 1_000, 500_000)  # beside the 10,000 of VARIANTS["rotary"]
OFFSETS = (0, *(m * 10**k for k in range(2, 9) for m in (1, 3)), 10**9)
DRAWN = (0, 10**6, 10**7, 10**8)  # the offsets at which attention weights are kept
PHASES = ("exact", "float32", "bfloat16")


def rotary(base: int) -> Variant:
    """The rotary model of the demo with another base."""
    attention: Callable = lambda s, rngs, length: positional_attention(rotation=pe.geometric(s.head_dim, base))  # noqa: E731
    return Variant(f"rotary, base {base:,}", "rotary", attention=attention)


def models() -> dict[str, Variant]:
    """All that are read, by name."""
    return VARIANTS | {f"base {base}": rotary(base) for base in BASES}


def cos_sin(phases: str, positions: np.ndarray, head_dim: int) -> pe.CosSin:
    """The cosines and sines of RoPE, each (length, head_dim / 2), of phases computed in one of the ways of PHASES."""
    frequencies = pe.geometric(head_dim)
    if phases != "bfloat16":
        return pe.cos_sin(positions, frequencies.with_precision(phases))  # type: ignore[arg-type]
    # In NumPy, which rounds every product: XLA may keep more digits than bfloat16 has.
    angle = positions[:, None].astype(jnp.bfloat16) * frequencies.angular.astype(jnp.bfloat16)
    angle = angle.astype(np.float32)
    return pe.CosSin(jnp.cos(angle), jnp.sin(angle), columns="pair")


def far(setup: Setup, weights: nnx.State, text: np.ndarray) -> dict[str, Any]:
    """What a rotary model answers about the same windows of the training length at each of OFFSETS.

    For each of PHASES: the bits per byte, and the share of the bytes for which another next byte is the most likely
    than with exact phases at offset 0. Also the attention weights of one head at DRAWN.
    """
    starts = np.linspace(0, len(text) - setup.length - 1, setup.segments).astype(int)
    windows = text[starts[:, None] + np.arange(setup.length + 1)].astype(np.int32)
    graph = nnx.graphdef(nnx.eval_shape(lambda: Decoder(setup, VARIANTS["none"], 0, setup.length)))

    @jax.jit
    def answer(weights: nnx.State, windows: jax.Array, turned: pe.CosSin) -> tuple[jax.Array, jax.Array, jax.Array]:
        def attend(query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
            query, key = (pe.rotary(x, cos_sin=turned, head_axis=-2) for x in (query, key))
            return nnx.dot_product_attention(query, key, value, **options)

        model = nnx.merge(graph, weights)
        for block in model.blocks:
            block.attention.attention_fn = attend
        logits = model(windows[:, :-1])
        bits = optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]) / np.log(2).astype(np.float32)
        return bits, logits.argmax(-1), last_weights(model, windows[:, :-1], turned)

    found: dict[str, Any] = {"offset": list(OFFSETS)}
    drawn: dict[str, dict[str, np.ndarray]] = {}
    first = None
    for phases in PHASES:
        losses, changed, drawn[phases] = [], [], {}
        for offset in OFFSETS:
            train_text.pause()
            positions = np.arange(offset, offset + setup.length, dtype=np.int32)
            bits, guess, attention = map(
                np.asarray, answer(weights, windows, cos_sin(phases, positions, setup.head_dim))
            )
            first = guess if first is None else first
            losses.append(round(float(bits.mean(dtype=np.float64)), 8))
            changed.append(round(float((guess != first).mean()), 6))
            if offset in DRAWN:
                drawn[phases][str(offset)] = attention
        found[phases] = {"bits_per_byte": losses, "changed": changed}
    head = drawn["exact"]["0"].max(axis=-1).argmax()  # the one that looks most to one place
    return found | {
        "attention": {
            p: {at: w[head].astype(float).round(5).tolist() for at, w in drawn[p].items()} for p in ("exact", "float32")
        }
    }


def last_weights(model: Decoder, tokens: jax.Array, turned: pe.CosSin) -> jax.Array:
    """The first layer's attention weights of the last byte, (heads, 32) for distances 0 to 31, mean of all windows."""
    block = model.blocks[0]
    x = block.norms[0](model.positions(model.embedding(tokens)))
    query, key = (pe.rotary(f(x), cos_sin=turned, head_axis=-2) for f in (block.attention.query, block.attention.key))
    scores = jnp.einsum("bhd,bkhd->bhk", query[:, -1], key) / query.shape[-1] ** 0.5
    return jax.nn.softmax(scores).mean(axis=0)[:, ::-1][:, :32]


def measure(results: dict[str, Any], setup: Setup, output: Path) -> None:
    """Adds what is missing of `results`, and writes them after every model."""
    training, held_out, _ = corpus.read()
    for seed in results["seeds"]:
        found = results["seeds"][seed]
        weights: dict[str, nnx.State] = {}
        for name, variant in models().items():
            if name in found:
                continue
            source = variant.weights or name
            if source not in weights:
                print(f"seed {seed}", end=" ", flush=True)
                model, _ = train_text.train(setup, VARIANTS.get(source, variant), training, results["steps"], int(seed))
                weights[source] = nnx.state(model)
            windows, _ = train_text.evaluate(setup, variant, weights[source], held_out)
            entry: dict[str, Any] = {"bits_per_byte": {n: w["bits_per_byte"] for n, w in windows.items()}}
            if name == "rotary":
                entry["far"] = far(setup, weights[source], held_out)
            found[name] = entry
            write(output, results)


def write(output: Path, results: dict[str, Any]) -> None:
    """The file, replaced in one step; lists of numbers on one line."""
    text = json.dumps(results, indent=1, allow_nan=False)
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)
    partial = output.with_name(f".{output.name}.partial")
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, output)


def describe(setup: Setup, steps: int) -> dict[str, Any]:
    """All that the numbers depend on but the seed, with checksums of the text."""
    described = train_text.describe(setup, steps, 0)
    training, held_out, data = corpus.read()
    texts = {"training": training, "held_out": held_out}
    checksums = {f"{name}_sha256": hashlib.sha256(text.tobytes()).hexdigest() for name, text in texts.items()}
    kept = {name: described[name] for name in ("steps", "setup", "versions", "device")}
    return kept | {"bases": list(BASES), "data": data | checksums}


def main(arguments: list[str] | None = None, setup: Setup = Setup()) -> int:  # noqa: B008 (frozen)
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Train the demo's models and rotary ones of other bases with each seed, read them at 1, 2 and 4 "
        "times the training length, and the rotary one far out; write the numbers to FILE.",
        epilog="Ctrl-C keeps the models that are finished; the same command goes on with the others.",
    )
    whole = train_text.whole
    parser.add_argument(
        "--seeds", type=whole(0, 2**31 - 2), nargs="+", default=[0, 1, 2], metavar="N", help="(default: 0 1 2)"
    )
    parser.add_argument("--steps", type=whole(1), default=500, metavar="N", help="for each model (default: 500)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build", "demo", "evidence.json"),
        metavar="FILE",
        help="(default: build/demo/evidence.json)",
    )
    options = parser.parse_args(arguments)
    output = options.output
    described = json.loads(json.dumps(describe(setup, options.steps)))
    results = described | {"seeds": {}}
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.exists():
            results = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"argument --output: {output} cannot be read: {error}")
    for name, value in described.items():
        if results.get(name) != value:
            parser.error(f"argument --output: {output} has results of other {name}; name another file")
    for seed in options.seeds:
        results["seeds"].setdefault(str(seed), {})
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
        signal.signal(signal.SIGINT, train_text.interrupt)
    try:
        measure(results, setup, output)
    except KeyboardInterrupt:
        count = sum(map(len, results["seeds"].values()))
        print(f"\nInterrupted. {count} models are finished and kept in {output}; the same command goes on.")
        return 130
    print(output.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
