r"""Trains small Transformers over several processes: batches split over some devices, sequences over others.

Each process has a few CPU devices. All devices form one mesh, ("data", "sequence"), and one of its axes runs across the
processes. Positions count along the whole sequence on every device, so the losses are those of one process, up to the
order of sums. A batch depends on its step alone, so resumed training continues as if it had never stopped. If a process
dies, the launcher ends the others and says which one died, after which step, and how to go on.

    python examples/train_distributed.py [--processes N] [--devices N] [--data N] [--across AXIS] [--variant NAME ...]
        [--steps N] [--checkpoints FOLDER [--every N] [--resume]]

The models predict the next byte of the source code of Python's standard library, so nothing is downloaded. The losses,
in bits per byte, go to standard output as lines of JSON, everything else to standard error. Each process writes to
process-N.log beside the checkpoints, or in a temporary folder, which stays after an error. A hundred steps of the
model with rotary positions, the default, take less than a minute on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from posenc_jax.nnx import FIRE, KERPLE, ALiBi, LearnedEncoding, SinusoidalEncoding, T5Bias, positional_attention

CONNECT = 60  # seconds in which all processes must connect
HEARTBEAT = 10  # seconds of silence after which JAX takes a process for dead
GRACE = 20  # seconds that the others have to report what they saw, once one has ended: about two of HEARTBEAT
LOST = 75  # the exit status of a process that another one left alone

# The models


@dataclasses.dataclass(frozen=True)
class Setup:
    """The sizes of the models and of a batch; they suit a few CPU cores."""

    width: int = 96
    depth: int = 2
    heads: int = 4
    length: int = 128  # of a sequence, in bytes
    batch: int = 8
    learning_rate: float = 4e-3


@dataclasses.dataclass(frozen=True)
class Variant:
    """Where a model gets its positions: from the function of its embeddings, or from each layer's `attention_fn`.

    The function of the embeddings, (batch, length, width), also multiplies them by √width.
    """

    embed: Callable[[Setup, nnx.Rngs], Callable] = lambda s, rngs: lambda x: s.width**0.5 * x
    attention: Callable[[Setup, nnx.Rngs], Callable] = lambda s, rngs: nnx.dot_product_attention


VARIANTS = {
    "none": Variant(),
    "sinusoidal": Variant(embed=lambda s, rngs: SinusoidalEncoding(s.width, scale=s.width**0.5)),
    "learned": Variant(embed=lambda s, rngs: LearnedEncoding(s.length, s.width, scale=s.width**0.5, rngs=rngs)),
    "rotary": Variant(attention=lambda s, rngs: positional_attention(rotation=s.width // s.heads)),
    "alibi": Variant(attention=lambda s, rngs: positional_attention(bias=ALiBi(s.heads))),
    "t5": Variant(
        attention=lambda s, rngs: positional_attention(
            bias=T5Bias(s.heads, num_buckets=s.length // 8, max_distance=s.length // 4, bidirectional=False, rngs=rngs)
        )
    ),
    "kerple": Variant(attention=lambda s, rngs: positional_attention(bias=KERPLE(s.heads, rngs=rngs))),
    "fire": Variant(
        attention=lambda s, rngs: positional_attention(bias=FIRE(s.heads, threshold=s.length / 4, rngs=rngs))
    ),
}


class Block(nnx.Module):
    """Causal self-attention and a feed-forward layer, each normalised before and added to its input."""

    def __init__(self, setup: Setup, attention: Callable, rngs: nnx.Rngs) -> None:
        width = setup.width
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(
            setup.heads, width, attention_fn=attention, use_bias=False, decode=False, rngs=rngs
        )
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The same shape, (batch, length, width)."""
        x = x + self.attention(self.norms[0](x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


class Decoder(nnx.Module):
    """A decoder-only Transformer over bytes; the embeddings also serve as the last layer."""

    def __init__(self, setup: Setup, variant: Variant, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(
            256, setup.width, embedding_init=nnx.initializers.normal(setup.width**-0.5), rngs=rngs
        )
        self.positions = variant.embed(setup, rngs)
        self.blocks = nnx.List([Block(setup, variant.attention(setup, rngs), rngs) for _ in range(setup.depth)])
        self.norm = nnx.LayerNorm(setup.width, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """The logits of the next byte, (batch, length, 256)."""
        x = self.positions(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        return self.embedding.attend(self.norm(x))


# Their training, in each process


def read_text() -> np.ndarray:
    """The source code of Python's standard library, as bytes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in folder.glob("*.py") if path.stem in sys.stdlib_module_names)
    if not files:
        raise SystemExit(f"this Python has no source code of its standard library in {folder}")
    return np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)


def mesh_of(data: int, across: str) -> Mesh:
    """All devices; those of one process are neighbours along the axis that is not `across`."""
    devices = np.array(jax.devices())
    devices = devices.reshape(data, -1) if across == "data" else devices.reshape(-1, data).T
    return Mesh(devices, ("data", "sequence"), axis_types=(AxisType.Auto,) * 2)


def batch(setup: Setup, text: np.ndarray, step: int) -> np.ndarray:
    """The windows of a step. They depend on nothing but the step."""
    starts = np.random.default_rng(step).integers(0, len(text) - setup.length, (setup.batch, 1))
    return text[starts + np.arange(setup.length + 1)].astype(np.int32)


def train(
    setup: Setup, variant: Variant, mesh: Mesh, text: np.ndarray, steps: int, keep: Keep
) -> Iterator[tuple[int, float]]:
    """Yields each step, from 1 or the one after the last checkpoint, and its loss in bits per byte."""
    make = lambda: Decoder(setup, variant, nnx.Rngs(0))  # noqa: E731
    graph = nnx.graphdef(nnx.eval_shape(make))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(setup.learning_rate, b2=0.98))
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data", "sequence"))

    def begin() -> dict[str, Any]:
        weights = nnx.to_pure_dict(nnx.state(make()))
        return {"weights": weights, "optimizer": optimizer.init(weights)}

    @jax.jit
    def update(state: dict[str, Any], tokens: jax.Array, following: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        def loss(weights: Any) -> jax.Array:
            logits = nnx.merge(graph, weights)(tokens)
            return optax.softmax_cross_entropy_with_integer_labels(logits, following).mean() / math.log(2)

        cost, gradient = jax.value_and_grad(loss)(state["weights"])
        change, inner = optimizer.update(gradient, state["optimizer"], state["weights"])
        state = {"weights": optax.apply_updates(state["weights"], change), "optimizer": inner}
        return jax.lax.with_sharding_constraint((state, cost), everywhere)

    def place(x: np.ndarray, sharding: NamedSharding) -> jax.Array:  # every process has all of x
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    if last := keep.last():
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), jax.eval_shape(begin)
        )
        state = keep.restore(last, like)
    else:
        state = jax.tree.map(lambda x: place(np.asarray(x), everywhere), jax.jit(begin)())
    for step in range(last + 1, steps + 1):
        windows = batch(setup, text, step)
        tokens, following = (place(x, split) for x in (windows[:, :-1], windows[:, 1:]))
        if step == last + 1:
            print("holds", [[(s.start or 0, s.stop) for s in x.index] for x in tokens.addressable_shards], flush=True)
        state, loss = update(state, tokens, following)
        yield step, float(loss)
        keep.save(step, state, always=step == steps)


class Keep:
    """The checkpoints of a variant, or none if there is no folder. Every process must call every method."""

    def __init__(self, folder: Path | None, every: int) -> None:
        self.manager = None
        if folder is not None:
            import orbax.checkpoint as ocp

            self.args = ocp.args
            options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
            self.manager, self.every = ocp.CheckpointManager(folder, options=options), every

    def last(self) -> int:
        """The step of the last complete checkpoint, or 0."""
        return (self.manager and self.manager.latest_step()) or 0

    def restore(self, step: int, like: Any) -> Any:
        """The state after that step, sharded as `like`, over however many processes."""
        return self.manager.restore(step, args=self.args.StandardRestore(like))

    def save(self, step: int, state: Any, always: bool) -> None:
        """Saves the state after every `every` steps, or `always`."""
        if self.manager and (always or step % self.every == 0):
            self.manager.save(step, args=self.args.StandardSave(state))

    def close(self) -> None:
        """Ends its threads."""
        if self.manager:
            self.manager.close()


def work(options: argparse.Namespace, setup: Setup) -> None:
    """One process of the training. It prints a line after each step."""
    index, port = options.worker
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(LOST)), daemon=True).start()  # ends with the launcher
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", options.devices)
    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = f"127.0.0.1:{port}"
        jax.distributed.initialize(
            address,
            options.processes,
            index,
            coordinator_bind_address=address,  # by default any machine may connect
            initialization_timeout=CONNECT,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=CONNECT,
        )
    text, mesh = read_text(), mesh_of(options.data, options.across)
    for name in options.variant:
        keep = Keep(options.checkpoints and options.checkpoints / name, options.every)
        for step, loss in train(setup, VARIANTS[name], mesh, text, options.steps, keep):
            print(json.dumps({"variant": name, "step": step, "loss": loss}), flush=True)
        keep.close()
    if options.processes > 1:
        jax.distributed.shutdown()  # waits for the others
    print("finished", flush=True)


# The launcher, which starts the processes and watches them


class Process:
    """A worker as its launcher sees it; it enters the queue `ended` when it has."""

    def __init__(self, index: int, port: int, folder: Path, ended: queue.Queue) -> None:
        self.index, self.log, self.killed = index, folder / f"process-{index}.log", False
        self.before = self.log.stat().st_size if self.log.exists() else 0  # what earlier runs wrote
        command = [sys.executable, *sys.orig_argv[1:], "--worker", str(index), str(port)]
        with self.log.open("ab") as log:  # in a session of its own, so that Ctrl-C reaches the launcher alone
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        threading.Thread(target=lambda: (self.child.wait(), ended.put(self)), daemon=True).start()

    def lines(self) -> list[str]:
        """What it has written so far, in whole lines."""
        with self.log.open("rb") as log:
            log.seek(self.before)
            return log.read().decode(errors="replace").rpartition("\n")[0].splitlines()

    def steps(self) -> list[str]:
        """The lines of its steps."""
        return [line for line in self.lines() if line.startswith('{"variant"')]

    def finished(self) -> bool:
        """Whether it has done all of its work."""
        return self.child.poll() == 0 and "finished" in self.lines()

    def kill(self) -> None:
        """Kills it. JAX takes SIGTERM for a notice of preemption, so SIGTERM would not end it."""
        if self.child.poll() is None:
            self.killed = True
            self.child.kill()
            self.child.wait()

    def end(self) -> str:
        """How it ended and after which step."""
        status = self.child.poll()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        if self.killed:
            how = f"still waited after {GRACE} s, so it was ended"
        last = json.loads((self.steps() or ["null"])[-1])
        where = f"after step {last['step']} of {last['variant']}" if last else "before its first step"
        return f"process {self.index} (pid {self.child.pid}) {how}, {where}"

    def tail(self, count: int = 6) -> str:
        """Its last lines, without the stack traces of XLA."""
        noise = ("    @ ", "***", "===", "external/", "[Gloo]")
        said = [line for line in self.lines() if line.strip() and not line.startswith(noise)]
        return "".join(f"    {line[:500]}\n" for line in said[-count:])


def launch(options: argparse.Namespace, folder: Path) -> bool:
    """Starts the processes and passes on the losses; if one ends early, says so and ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ended, processes, gone, deadline, shown = queue.Queue(), [], [], math.inf, 0
    try:
        for index in range(options.processes):
            processes.append(Process(index, port, folder, ended))
            tell(f"process {index}: pid {processes[-1].child.pid}, {processes[-1].log}")
        while len(gone) < len(processes) and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                gone.append(ended.get(timeout=0.1))
                deadline = min(deadline, time.monotonic() + GRACE)
                if not gone[-1].finished() and len(gone) < len(processes):
                    tell(f"{gone[-1].end()}; the others have {GRACE} s")
            steps = processes[0].steps()
            print(*steps[shown:], sep="\n", end="\n" * (len(steps) > shown), flush=True)
            shown = len(steps)
    finally:
        for process in processes:
            process.kill()
    early = [process for process in [*gone, *(p for p in processes if p not in gone)] if not process.finished()]
    # Last come those that were left alone or that JAX ended for it: they are not the cause, even if they ended first.
    early.sort(key=lambda p: (p.killed, p.child.returncode == LOST, p.child.returncode == -signal.SIGABRT))
    for process, title in zip(early, ["error: ", *[""] * len(early)], strict=False):
        tell(f"{title}{process.end()}. Its last lines in {process.log}:\n{process.tail()}", end="")
    return not early


def tell(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def options_of(setup: Setup) -> argparse.Namespace:
    """The command line, which the processes get too."""
    parser = argparse.ArgumentParser(description="Train small Transformers over several processes with CPU devices.")
    add, names = parser.add_argument, list(VARIANTS)
    add("--processes", type=positive, default=2, metavar="N", help="(default: 2)")
    add("--devices", type=positive, default=4, metavar="N", help="of each process (default: 4)")
    add("--data", type=positive, default=2, metavar="N", help="parts of a batch; the other devices split sequences (2)")
    add("--across", choices=["data", "sequence"], default="data", help="the axis across the processes (default: data)")
    add("--variant", nargs="+", choices=names, default=["rotary"], metavar="NAME", help=f"of {', '.join(names)}")
    add("--steps", type=positive, default=100, metavar="N", help="(default: 100)")
    add("--checkpoints", type=Path, metavar="FOLDER", help="where to keep checkpoints (default: none are kept)")
    add("--every", type=positive, default=10, metavar="N", help="steps from one checkpoint to the next (default: 10)")
    add("--resume", action="store_true", help="go on from the last checkpoints in FOLDER")
    add("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    devices = options.processes * options.devices
    if devices % options.data or setup.batch % options.data:
        parser.error(f"argument --data: must divide {devices} devices and a batch of {setup.batch}, got {options.data}")
    if setup.length % (devices // options.data):
        parser.error(
            f"{devices // options.data} parts of a sequence of {setup.length}: give --devices or --data another number"
        )
    if options.resume and not options.checkpoints:
        parser.error("argument --resume: needs --checkpoints FOLDER")
    if options.checkpoints:
        options.checkpoints = options.checkpoints.resolve()
    if options.checkpoints and options.worker is None:
        steps = {name: (options.checkpoints / name).glob("[0-9]*") for name in options.variant}
        kept = [name for name, found in steps.items() if any(step.name.isdecimal() for step in found)]
        if options.resume and not kept:
            parser.error(f"argument --resume: no checkpoint of {', '.join(options.variant)} in {options.checkpoints}")
        if kept and not options.resume:
            parser.error(
                f"{options.checkpoints} has checkpoints of {', '.join(kept)}: add --resume, or name another folder"
            )
    return options


def main(setup: Setup = Setup()) -> int:  # noqa: B008 (frozen)
    """Launches the processes, or is one of them; returns the exit status."""
    options = options_of(setup)
    if options.worker:
        try:
            work(options, setup)
        except BaseException as error:
            traceback.print_exc()
            alone = isinstance(error, jax.errors.JaxRuntimeError) and re.search("[Gg]loo|coordination", str(error))
            print(f"process {options.worker[0]} lost another one" if alone else "", flush=True)
            os._exit(LOST if alone else 1)  # a regular exit would wait for the others
        return 0
    folder = options.checkpoints or Path(tempfile.mkdtemp(prefix="train_distributed-"))
    folder.mkdir(parents=True, exist_ok=True)
    good, keep = False, True
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        good = launch(options, folder)
        keep = not good
    except KeyboardInterrupt:
        keep = False
        tell("\ninterrupted; all processes are ended")
        return 130
    except SystemExit:
        keep = False
        raise
    finally:
        if not options.checkpoints and not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if not good and options.checkpoints:
        tell("To go on from the last checkpoint, give the same command with --resume.")
    return 0 if good else 1


def positive(text: str) -> int:
    """A type for argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
