r"""Trains a small Transformer five times, with its positions given in different ways, and reports what came out.

The text is the source code of Python's standard library, byte by byte, so that nothing is downloaded. The models
differ in nothing but their positions: none, the sinusoidal encoding, a learned table, rotary, or ALiBi's bias of
attention; with `--all` also the biases of T5, KERPLE and FIRE, and PoPE. Each is then asked to predict the same
held-out bytes in windows of its training length, of twice that and of four times that; the rotary one also with its
spectrum stretched to those lengths by YaRN. The results go to `index.html` (which needs no network) and
`results.json`. Both are there before the first model is trained and grow until the last; Ctrl-C keeps what is there.

    python demo/train_text.py [--all] [--steps N] [--seed N] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import checks
import corpus
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import report
from flax import nnx
from models import STORY, VARIANTS, Decoder, Setup, Variant
from tqdm import tqdm

import posenc_jax as pe
from posenc_jax.nnx import LearnedEncoding

LENGTHS = (1, 2, 4)  # of the windows to predict, in training lengths
EVERY = 5.0  # seconds between two pages while a model trains
AT_ONCE = 10  # training steps in one call: they share its temporaries, which are slow to allocate
TOGETHER = 2  # segments of held-out text in one call: few, to keep its temporaries small
interrupted = threading.Event()  # by Ctrl-C


def interrupt(*_: Any) -> None:
    """Has the next `pause` end the run, and another Ctrl-C end it at once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupted.set()
    print("\nEnding after this step. Ctrl-C again ends at once.", file=sys.stderr, flush=True)


def pause() -> None:
    """Where Ctrl-C is heard: while JAX traces, a KeyboardInterrupt may be lost, or Python may crash as it ends."""
    if interrupted.is_set():
        raise KeyboardInterrupt


def bits(graph: nnx.GraphDef, weights: nnx.State, windows: jax.Array) -> jax.Array:
    """The bits that each byte but the first of each window costs, given those before it in the window."""
    logits = nnx.merge(graph, weights)(windows[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]) / math.log(2)


def train(
    setup: Setup,
    variant: Variant,
    text: np.ndarray,
    steps: int,
    seed: int,
    tell: Callable[[int], None] = lambda steps: None,
) -> tuple[Decoder, list[float]]:
    """A trained model, and its bits per byte of each batch; calls `tell` with the steps done, every few steps."""
    graph, weights = nnx.split(Decoder(setup, variant, seed, setup.length))
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, setup.learning_rate, min(100, 1 + steps // 10), steps + 2, setup.learning_rate / 20
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.98, weight_decay=0.05))

    def step(before: tuple[nnx.State, Any], windows: jax.Array) -> tuple[tuple[nnx.State, Any], jax.Array]:
        weights, state = before
        loss, gradient = jax.value_and_grad(lambda w: bits(graph, w, windows).mean())(weights)
        change, state = optimizer.update(gradient, state, weights)
        return (optax.apply_updates(weights, change), state), loss

    update = jax.jit(functools.partial(jax.lax.scan, step), donate_argnums=0)
    trained, losses = (weights, optimizer.init(weights)), []
    source = np.random.default_rng(seed)
    with tqdm(total=steps, desc=f"{variant.label:>20}", unit="step", mininterval=0.5) as progress:
        while len(losses) < steps:
            pause()
            count = min(AT_ONCE, steps - len(losses))
            starts = source.integers(0, len(text) - setup.length, (count, setup.batch, 1))
            windows = text[starts + np.arange(setup.length + 1)].astype(np.int32)
            trained, found = update(trained, windows)
            losses += np.asarray(found).tolist()
            progress.set_postfix_str(f"{losses[-1]:.2f} bits per byte", refresh=False)
            progress.update(count)
            tell(len(losses))
    return nnx.merge(graph, trained[0]), losses


def evaluate(
    setup: Setup, variant: Variant, weights: nnx.State, text: np.ndarray
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Bits per held-out byte in windows of each length, and what became of them beyond the training length.

    The segments of the text, evenly spaced, are the same for all lengths: cut into windows of one length, their bytes
    are predicted each once, from those before it in its window. So every length predicts the same bytes. For each
    length the model is built anew with the same weights.
    """
    longest = LENGTHS[-1] * setup.length
    starts = np.linspace(0, len(text) - longest - 1, setup.segments).astype(int)
    segments = text[starts[:, None] + np.arange(longest + 1)].astype(np.int32).reshape(-1, TOGETHER, longest + 1)
    result: dict[str, Any] = {}
    costs: dict[int, np.ndarray] = {}  # (segments, longest) for each length
    for length in (multiple * setup.length for multiple in LENGTHS):
        pause()

        def decoder(length: int = length) -> Decoder:
            model = Decoder(setup, variant, 0, length)
            model.positions(jnp.zeros((1, length, setup.width)))
            return model

        try:
            graph = nnx.graphdef(nnx.eval_shape(decoder))
        except ValueError as error:  # the encoding has none at this length
            result[str(length)] = {"bits_per_byte": None, "no_answer": str(error)}
            continue
        measure = jax.jit(functools.partial(bits, graph))
        windows = segments[..., np.arange(0, longest, length)[:, None] + np.arange(length + 1)]
        parts = [measure(weights, group.reshape(-1, length + 1)) for group in windows]
        costs[length] = np.asarray(parts, np.float64).reshape(setup.segments, longest)
        by_position = costs[length].reshape(-1, length).mean(axis=0)
        result[str(length)] = {
            "bits_per_byte": round(float(by_position.mean()), 4),  # NumPy rounds ties otherwise than Python
            "by_position": by_position.reshape(-1, setup.length // 8).mean(axis=1).round(4).tolist(),
        }
    return result, compare(costs[setup.length], costs[longest], setup.length) if longest in costs else None


def compare(near: np.ndarray, far: np.ndarray, length: int) -> dict[str, Any]:
    """The cost of the bytes beyond the training length in the longest windows, and of the same bytes in short ones.

    Both are (segments, longest). A model keeps its loss if the difference is within 1% or two of its standard errors.
    """
    near, far = near[:, length:].mean(axis=1), far[:, length:].mean(axis=1)
    difference, error = (far - near).mean(), (far - near).std(ddof=1) / len(far) ** 0.5
    tolerance = max(near.mean() / 100, 2 * error)
    verdict = "keeps" if abs(difference) <= tolerance else "loses" if difference > 0 else "gains"
    numbers = {"within": near.mean(), "beyond": far.mean(), "difference": difference, "standard_error": error}
    return {name: round(float(value), 4) for name, value in numbers.items()} | {"verdict": verdict}


def bias_of(setup: Setup, model: Decoder) -> dict[str, list]:
    """The bias of each layer and head at distances from the last query of the longest window, less that at 0."""
    last = LENGTHS[-1] * setup.length - 1
    distances = np.unique(np.geomspace(1, last, 80).round().astype(np.int32))
    biases = {id(f.bias): f.bias for f in (block.attention.attention_fn for block in model.blocks)}
    at = functools.partial(np.array, dtype=np.int32)
    curves = [np.asarray(f(at([last]), at([last, *(last - distances)])))[:, 0] for f in biases.values()]
    return {"distance": distances.tolist(), "layers": [(c[:, 1:] - c[:, :1]).round(4).tolist() for c in curves]}


def describe(setup: Setup, steps: int, seed: int, every: bool = False) -> dict[str, Any]:
    """All that the numbers depend on, but for the text."""
    device = jax.devices()[0]
    packages = {"jax": jax, "flax": flax, "optax": optax, "numpy": np, "posenc_jax": pe}
    return {
        "command": f"python demo/train_text.py --steps {steps} --seed {seed}{' --all' * every}",
        "seed": seed,
        "steps": steps,
        "device": f"{device.device_kind}, on a machine of {os.cpu_count()} CPU cores",
        "versions": {"python": platform.python_version()} | {name: p.__version__ for name, p in packages.items()},
        "setup": dataclasses.asdict(setup),
    }


def curve(losses: list[float]) -> dict[str, list[float]]:
    """The mean of each of up to 60 stretches of training, and the step that ends it."""
    parts = np.array_split(np.array(losses), min(60, len(losses)))
    ends = np.cumsum([len(part) for part in parts])
    return {"step": ends.tolist(), "bits_per_byte": [round(part.mean(), 4) for part in parts]}


def run(
    results: dict[str, Any], tables: dict[str, np.ndarray], setup: Setup, output: Path, names: Sequence[str]
) -> None:
    """Fills `results` and `tables`; writes them before the first model, while models train, and after each."""
    began, (steps, seed) = time.perf_counter(), (results["steps"], results["seed"])
    training, held_out, results["data"] = corpus.read()
    report.write(output, results, tables)
    print(f"{(output / 'index.html').resolve()} is there already, and grows.", flush=True)
    results["checks"] = checks.run(setup.width, setup.head_dim, seed)
    for check in results["checks"]:
        print(f"{'ok  ' if check['passed'] else 'FAIL'}  {check['name']}: {check['figure']}", flush=True)
    report.write(output, results, tables)
    models: dict[str, Decoder] = {}
    written = time.perf_counter()

    def tell(step: int) -> None:
        nonlocal written
        if time.perf_counter() - written > EVERY:
            results["coming"][variant.label] = step
            report.write(output, results, tables)
            written = time.perf_counter()

    for name in names:
        variant, started, training_curve = VARIANTS[name], time.perf_counter(), None
        if variant.weights is None:
            models[name], losses = train(setup, variant, training, steps, seed, tell)
            training_curve = curve(losses)
        model, trained = models[variant.weights or name], time.perf_counter()
        windows, beyond = evaluate(setup, variant, nnx.state(model), held_out)
        if isinstance(model.positions, LearnedEncoding):
            tables[name] = np.asarray(model.positions.embedding[...])
        results["seconds"][name] = {
            "training": round(trained - started, 1) if training_curve else None,
            "evaluation": round(time.perf_counter() - trained, 1),
        }
        results["variants"][name] = {
            "label": variant.label,
            "family": variant.family,
            "weights": variant.weights or name,
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))),
            "training": training_curve,
            "windows": windows,
            "beyond": beyond,
            "bias": bias_of(setup, model) if variant.family == "bias" else None,
        }
        del results["coming"][variant.label]
        results["seconds"]["total"] = round(time.perf_counter() - began, 1)
        report.write(output, results, tables)


def main(arguments: list[str] | None = None, setup: Setup = Setup()) -> int:  # noqa: B008 (frozen)
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Train a byte-level Transformer without positions, with the sinusoidal encoding, a learned table, "
        "rotary positions and ALiBi, and write what came out to FOLDER/index.html and FOLDER/results.json.",
        epilog="Ctrl-C keeps the models that are finished. The same seed gives the same numbers on the same machine.",
    )
    parser.add_argument("--all", action="store_true", help="also the biases of T5, KERPLE and FIRE, and PoPE")
    parser.add_argument("--steps", type=whole(1), default=500, metavar="N", help="for each model (default: 500)")
    parser.add_argument(
        "--seed", type=whole(0, 2**31 - 1), default=0, metavar="N", help="of weights and batches (default: 0)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build", "demo"), metavar="FOLDER", help="(default: build/demo)"
    )
    options = parser.parse_args(arguments)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --output: {options.output} cannot be a folder: {error.strerror}")
    names = tuple(VARIANTS) if options.all else STORY
    results: dict[str, Any] = describe(setup, options.steps, options.seed, options.all)
    results |= {"coming": {VARIANTS[name].label: 0 for name in names}, "interrupted": False}
    results |= {"data": {}, "checks": [], "variants": {}, "seconds": {}}
    tables: dict[str, np.ndarray] = {}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
        signal.signal(signal.SIGINT, interrupt)
    try:
        run(results, tables, setup, options.output, names)
    except KeyboardInterrupt:
        results["interrupted"] = True
        report.write(options.output, results, tables)
        finished = ", ".join(result["label"] for result in results["variants"].values()) or "no model"
        print(f"\nInterrupted. Finished and kept in {options.output}: {finished}.")
        return 130
    print("\n" + report.text_table(results))
    print(f"\n{(options.output / 'index.html').resolve()}")
    return 0 if all(check["passed"] for check in results["checks"]) else 1


def whole(low: int, high: float = math.inf) -> Callable[[str], int]:
    """A type for argparse: whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"must be at least {low}" + (f" and at most {high}" if high < math.inf else "") + f", got {value}"
            )
        return value

    return parse


if __name__ == "__main__":
    sys.exit(main())
