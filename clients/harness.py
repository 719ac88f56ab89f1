"""Small random models of a codebase beside the same models with this library in it.

A client, a file of this folder, says in `REPLACED` which of its functions are replaced, and in `trials` which models
are tried. Each is run forward and backward four times: as it is; as it is with parameters jittered by 6e-8, which is
its own noise; with the replacement; and with the rotation deleted, which must be seen. Where theirs is wrong, it is run
once more with the formula in float64, and the replacement is compared with that.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

TOLERANCE, NOISE = 1e-5, 4  # of the largest value; times a program's own noise
DEVICES = 8


class Replaced(NamedTuple):
    """A function or method of theirs, `name` of `owner`.

    `deleted` returns what is not rotated; `truth` computes what theirs should in float64, None where theirs is right.
    """

    owner: Any
    name: str
    ours: Callable[..., Any]
    deleted: Callable[..., Any] = lambda x, *_, **__: x
    truth: Callable[..., Any] | None = None


class Trial(NamedTuple):
    """A small random model.

    Args:
      name: of the model.
      forward: its outputs, from parameters and inputs (batch, …).
      params: a tree of arrays.
      inputs: arrays (batch, …).
      far: inputs with positions moved by 10⁶, which should change nothing; None where positions are absolute.
      wrong: what theirs gets wrong, at its version: ours is then compared with the truth, and the trial fails once
        theirs agrees with it.
    """

    name: str
    forward: Callable[..., Any]
    params: Any
    inputs: tuple[Any, ...]
    far: tuple[Any, ...] | None = None
    wrong: str = ""


class Timed(NamedTuple):
    """One function of theirs by itself."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]


class Far(NamedTuple):
    """Their RoPE of a head of 64 with base 500,000, as Llama 3.2 1B has it: x (1, seq, 1, 64) at positions (1, seq)."""

    call: Callable[..., Any]
    layout: str = "half"


OCTAVES = [2**i for i in range(24)] + [10_485_761]


def errors(far: Far) -> list[float]:
    """The largest error of cosines and sines in each octave of positions, at 128 of them and at both of its ends."""
    rng = np.random.default_rng(0)
    spans = zip(OCTAVES[:-1], OCTAVES[1:], strict=True)
    at = np.array([[a, b - 1, *rng.integers(a, b, 128)] for a, b in spans], np.int32)
    angle = at[..., None] * 500_000.0 ** (-np.arange(32) / 32)
    want = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    is_half, pair = far.layout == "half", np.float32([1, 0])
    x = np.repeat(pair, 32) if is_half else np.tile(pair, 32)  # (1, 0) in each pair becomes its cosine and sine
    y = np.asarray(far.call(jnp.broadcast_to(x, (1, at.size, 1, 64)), jnp.asarray(at.reshape(1, -1))), np.float64)
    got = y.reshape(*at.shape, 2, 32).swapaxes(-1, -2) if is_half else y.reshape(*at.shape, 32, 2)
    return np.abs(got - want).max(axis=(1, 2, 3)).tolist()


@contextlib.contextmanager
def put_in(replaced: Sequence[Replaced], kind: str = "ours") -> Iterator[None]:
    """Their functions are replaced by ours, by none ("deleted"), or by the "truth"."""
    before = [(each, vars(each.owner).get(each.name)) for each in replaced if getattr(each, kind)]
    jax.clear_caches()
    try:
        for each, _ in before:
            setattr(each.owner, each.name, getattr(each, kind))
        yield
    finally:
        for each, theirs in before:
            if theirs is None:  # inherited
                delattr(each.owner, each.name)
            else:
                setattr(each.owner, each.name, theirs)
        jax.clear_caches()


def compiled(trial: Trial, replaced: Sequence[Replaced], rounds: int) -> list[tuple[Any, float]]:
    """The program of outputs and gradients without and with this library, and the least CPU seconds to compile each.

    Both are compiled in each round. CPU seconds depend less than seconds on what else the machine does.
    """
    found: list[list[tuple[Any, float]]] = [[], []]
    for _ in range(rounds):
        for results, parts in zip(found, ((), replaced), strict=True):
            with put_in(parts):
                began = time.process_time()
                program = _program(trial, trial.params, trial.inputs)
                results.append((program, time.process_time() - began))
    return [(results[-1][0], min(seconds for _, seconds in results)) for results in found]


def _program(trial: Trial, params: Any, inputs: Any) -> Any:
    return jax.jit(functools.partial(_outputs_and_gradients, trial.forward)).lower(params, inputs).compile()


def _outputs_and_gradients(forward: Callable[..., Any], params: Any, inputs: Any) -> tuple[Any, Any]:
    def loss(params: Any) -> tuple[Any, Any]:
        y = forward(params, *inputs).astype(jnp.float32)
        return jnp.mean(jnp.sin(7 * y)), y  # of which every output is a part

    gradients, y = jax.grad(loss, has_aux=True)(params)
    return y, gradients


def jittered(params: Any, seed: int = 0) -> Any:
    """Parameters that differ by a rounding."""
    rng = np.random.default_rng(seed)

    def jitter(x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return (x * (1 + 6e-8 * np.sign(rng.normal(size=x.shape)))).astype(x.dtype)

    return jax.tree.map(jitter, params)


def apart(a: Any, b: Any) -> float:
    """The largest difference of two trees, beside the largest value of each array, or a thousandth of all of them."""
    a, b = ([np.asarray(x, np.float64) for x in jax.tree.leaves(tree)] for tree in (a, b))
    most = max(np.abs(x).max(initial=0) for x in b)
    found = [
        np.abs(x - y).max(initial=0) / max(np.abs(y).max(initial=0), most / 1000) for x, y in zip(a, b, strict=True)
    ]
    return float(max(found))


def collectives(program: Any) -> dict[str, int]:
    """How many of each collective a program has."""
    names = re.findall(r" (all-to-all|all-[a-z]+|reduce-scatter|collective-permute)(?:-start)?\(", program.as_text())
    return {name: names.count(name) for name in sorted({*names})}


def tiled(x: Any) -> Any:
    """The batch repeated for all devices."""
    return np.concatenate([x] * -(-DEVICES // x.shape[0]))[:DEVICES]


def sharded(trial: Trial) -> Any:
    """The program with the batch split over all devices."""
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("data",))
    put = lambda spec: lambda x: jax.device_put(x, NamedSharding(mesh, spec))  # noqa: E731
    inputs = jax.tree.map(lambda x: put(P("data"))(tiled(x)), trial.inputs)
    params = jax.tree.map(put(P()), trial.params)
    program = _program(trial, params, inputs)
    return program, program(params, inputs)


def seconds(calls: Sequence[Callable[[], Any]], repeats: int = 15) -> list[float]:
    """The least time of each, called in turn."""
    for call in calls:
        jax.block_until_ready(call())
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, found in zip(calls, times, strict=True):
            began = time.perf_counter()
            jax.block_until_ready(call())
            found.append(time.perf_counter() - began)
    return [min(found) for found in times]


def run(trial: Trial, replaced: Sequence[Replaced], timed: Timed | None = None, *, compiles: int = 5) -> dict[str, Any]:
    """What is found of a model; `passed` says whether all is as it should be."""
    (theirs, their_compile), (ours, our_compile) = compiled(trial, replaced, compiles)
    want = theirs(trial.params, trial.inputs)
    noisy = [theirs(jittered(trial.params, seed), trial.inputs) for seed in range(3)]
    moved = lambda program: apart(program(trial.params, trial.far)[0], program(trial.params, trial.inputs)[0])  # noqa: E731
    their_moved = moved(theirs) if trial.far else None
    alone = [jax.jit(timed.call).lower(*timed.arguments).compile()] if timed else []
    many = jax.device_count() >= DEVICES
    their_sharded = sharded(trial) if many else None
    with put_in(replaced):
        got = ours(trial.params, trial.inputs)
        our_moved = moved(ours) if trial.far else None
        our_sharded = sharded(trial) if many else None
        if timed:
            alone.append(jax.jit(lambda *x: timed.call(*x)).lower(*timed.arguments).compile())
    truth, exact = want, None
    with put_in(replaced, "truth"):
        if trial.wrong:
            truth = _program(trial, trial.params, trial.inputs)(trial.params, trial.inputs)
        if timed and any(each.truth for each in replaced):
            exact = jax.jit(lambda *x: timed.call(*x))(*timed.arguments)
    with put_in(replaced, "deleted"):
        deleted = _program(trial, trial.params, trial.inputs)(trial.params, trial.inputs)
    times = seconds([functools.partial(program, trial.params, trial.inputs) for program in (theirs, ours)])
    function = seconds([functools.partial(program, *timed.arguments) for program in alone]) if timed else None
    result: dict[str, Any] = {"model": trial.name}
    allowed = []
    for i, what in enumerate(("outputs", "gradients")):
        difference, control = (apart(x[i], truth[i]) for x in (got, deleted))
        noise = max(apart(x[i], want[i]) for x in noisy)
        allowed.append(max(TOLERANCE, NOISE * noise))
        result |= {what: difference, f"{what} noise": noise, f"{what} deleted": control}
    result |= {"time": times[1] / times[0], "compile": our_compile / their_compile}
    if function:
        result["function"] = function[1] / function[0]
    if exact is not None:
        errors = (apart(program(*timed.arguments), exact) for program in alone)
        result |= dict(zip(("error theirs", "error ours"), errors, strict=True))
    if their_moved is not None:
        result |= {"moved theirs": their_moved, "moved ours": our_moved}
    passed = result["outputs"] <= allowed[0] and result["gradients"] <= allowed[1]
    passed &= result["outputs deleted"] > 100 * allowed[0]
    if trial.wrong:
        result |= {"outputs theirs": apart(want[0], truth[0]), "wrong": trial.wrong}
        passed &= result["outputs theirs"] > allowed[0]  # otherwise they have mended it
    if many:
        (a, (want_sharded, _)), (b, (got_sharded, _)) = their_sharded, our_sharded
        result["collectives"] = collectives(b)
        want_sharded = tiled(truth[0]) if trial.wrong else want_sharded
        passed &= collectives(a) == collectives(b) and apart(got_sharded, want_sharded) <= allowed[0]
    return result | {"passed": bool(passed)}


def drawn(params: Any) -> Any:
    """Random float32 parameters of these shapes: vectors near one, matrices that keep the size of what they take."""
    rng = np.random.default_rng(0)

    def draw(x: Any) -> Any:
        if len(x.shape) < 2:
            return jnp.asarray(1 + 0.1 * rng.normal(size=x.shape), jnp.float32)
        return jnp.asarray(rng.normal(size=x.shape) / (4 * np.prod(x.shape[:-1]) ** 0.25), jnp.float32)

    return jax.tree.map(draw, params)


def parameters(model: Any) -> tuple[Callable[..., Any], Any]:
    """An NNX model as (call(params, *inputs, **settings), params), its parameters drawn anew."""
    from flax import nnx

    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def call(params: Any, *inputs: Any, **settings: Any) -> Any:
        return nnx.merge(graph, params, rest)(*inputs, **settings)

    return call, drawn(params)


def layer(rotate: Callable[..., Any], *, head_dim: int = 32, length: int = 256) -> tuple[Callable[..., Any], Any, Any]:
    """A layer of attention around what rotates (batch, seq, heads, head_dim): its call, its parameters and an input."""

    def call(params: Any, x: Any, *positions: Any) -> Any:
        q, k, v = (jnp.einsum("bld,dnh->blnh", x, params[name]) for name in "qkv")
        return jax.nn.dot_product_attention(rotate(q, *positions), rotate(k, *positions), v)

    params = drawn({name: jax.ShapeDtypeStruct((64, 4, head_dim), jnp.float32) for name in "qkv"})
    return call, params, jnp.asarray(np.random.default_rng(0).normal(size=(2, length, 64)), jnp.float32)


def tokens(vocabulary: int, batch: int = 2, length: int = 128) -> tuple[Any, Any]:
    """Random tokens and their positions, (batch, length)."""
    ids = np.random.default_rng(1).integers(0, vocabulary, (batch, length))
    return jnp.asarray(ids, jnp.int32), jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))


def video(length: int, batch: int = 2) -> Any:
    """Positions (batch, 3, length) of 16 tokens, a video of two frames of 4 by 4 patches, and tokens again."""
    frame, row, column = np.indices((2, 4, 4)).reshape(3, -1)
    parts = [[np.arange(16), 16 + along, 20 + np.arange(length - 48)] for along in (frame, row, column)]
    return jnp.asarray([[np.concatenate(part) for part in parts]] * batch, jnp.int32)


def causal(batch: int = 2, length: int = 128) -> Any:
    """A mask (batch, length, length)."""
    return jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (batch, length, length))
