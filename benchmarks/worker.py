"""One process that measures one peer: `python worker.py PEER`, asked by `run.py` line by line, in JSON.

Requests, each answered by one line, {"answer": …} or {"error": …}:

    {"ask": "versions"}                  what is installed here, and the device
    {"ask": "load", "case": {…}}         make the arguments and call once; null if the peer does not have the case
    {"ask": "time"}                      seconds for each call of what is loaded; in a loop, for each turn
    {"ask": "memory"}                    bytes that one call takes beside its arguments and results; null on a GPU
    {"ask": "first", "case": {…}}        seconds of the import on top of the framework, and of the first call
    {"ask": "waves", "positions": […]}   of each, cosines and then sines as the peer has them; null out of its reach
"""

import ast
import gc
import importlib
import importlib.metadata
import json
import os
import pathlib
import sys
import time

import numpy as np
from cases import PROGRAMS, case_of

PEERS = pathlib.Path(__file__).parent / "peers"
NAMES = ("NAME", "PACKAGES", "FRAMEWORK", "IMPORT", "HEAD_AXIS", "LAYOUTS", "EAGER", "ENDPOINT")
LEAST, LEAST_ON_DEVICE = 5e-3, 20e-3  # seconds of a measurement: shorter calls are repeated


def settings(name):
    """The constants of a peer's module, and the functions it has, without importing it."""
    found = {"functions": []}
    for line in ast.parse((PEERS / f"{name}.py").read_text()).body:
        if isinstance(line, ast.Assign):
            names, value = line.targets[0], line.value
            pairs = zip(names.elts, value.elts, strict=True) if isinstance(names, ast.Tuple) else [(names, value)]
            found |= {n.id: ast.literal_eval(v) for n, v in pairs if isinstance(n, ast.Name) and n.id in NAMES}
        if isinstance(line, ast.FunctionDef):
            found["functions"].append(line.name)
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Name):  # rotary = add
            found["functions"] += [n.id for n in line.targets if isinstance(n, ast.Name)]
    return found


def has(name, case):
    """Whether a peer has a case."""
    of, wanted = settings(name), case.kind
    if case.kind in PROGRAMS:
        if of["FRAMEWORK"] != "jax" or of.get("HEAD_AXIS") != -2 or name == "plain" != case.unit:
            return False
        wanted = "turn" if "turn" in of["functions"] else "decode" if case.shape[1] == 1 else "rotary"
    return wanted in of["functions"] and (not case.layout or case.layout in of["LAYOUTS"])


class Jax:
    """Arrays and calls of JAX."""

    def __init__(self):
        import jax

        self.jax = jax
        jax.block_until_ready(jax.numpy.arange(3) + 1)  # the device is there
        self.platform, self.device = jax.devices()[0].platform, jax.devices()[0].device_kind

    def array(self, x, dtype=None):
        return self.jax.numpy.asarray(x, dtype)

    def call(self, function, inputs, cotangent, eager):
        def both(x, dy):
            y, back = self.jax.vjp(function, x)
            return y, back(dy)[0]

        if cotangent is not None:
            called, inputs = self.jax.jit(both), (*inputs, cotangent)
        else:
            called = function if eager else self.jax.jit(function)
        return lambda: called(*inputs)

    def wait(self, result):
        self.jax.block_until_ready(result)

    def size(self, result):
        return sum(x.nbytes for x in self.jax.tree.leaves(result))


class Torch:
    """Arrays and calls of PyTorch, on a GPU if there is one."""

    def __init__(self):
        import torch

        self.torch = torch
        torch.set_num_threads(os.cpu_count() or 1)
        self.platform = "cuda" if torch.cuda.is_available() else "cpu"
        if self.platform == "cuda":  # for the peers' modules too; on a CPU it would cost each call a little
            torch.set_default_device("cuda")
        self.device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"

    def array(self, x, dtype=None):
        return self.torch.as_tensor(x).to(self.platform, getattr(self.torch, dtype) if dtype else None)

    def call(self, function, inputs, cotangent, eager):
        def both():
            y = function(x)
            return y.detach(), self.torch.autograd.grad(y, x, cotangent)[0]

        if cotangent is None:
            return lambda: function(*inputs)
        x = inputs[0].requires_grad_()
        return both

    def wait(self, result):
        if self.platform == "cuda":
            self.torch.cuda.synchronize()

    def size(self, result):
        return sum(x.numel() * x.element_size() for x in (result if isinstance(result, tuple) else (result,)))


def arguments(case, head_axis, framework):
    """What the functions of a kind take: standard normal numbers; positions counted, or drawn for decode steps.

    Each gets a contiguous array in the order of axes that it wants, which in a model may be a transposed view.
    """
    random, shape = np.random.default_rng(0), case.shape
    if case.kind == "table":
        return (framework.array(np.arange(shape[0], dtype=np.int32)),)
    if case.kind in ("rotary", "decode") and head_axis == -3:
        shape = (shape[0], shape[2], shape[1], shape[3])
    count = 3 if case.kind == "attention" else 1
    given = [framework.array(random.standard_normal(shape, np.float32), case.dtype) for _ in range(count)]
    if case.kind == "decode":
        given.append(framework.array(random.integers(0, 4000, (shape[0], 1)).astype(np.int32)))
    return tuple(given)


def resident(field):
    """Bytes of this process in memory, now (VmRSS) or at most (VmHWM)."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


class Worker:
    """The answers."""

    def __init__(self, name):
        self.name, self.settings = name, settings(name)
        self.framework = {"jax": Jax, "torch": Torch}[self.settings["FRAMEWORK"]]()
        self.run, self.repeat, self.turns = lambda: None, 1, 1

    @property
    def peer(self):
        return importlib.import_module(f"peers.{self.name}")

    def function_of(self, case):
        """The peer's function with its arguments, or None."""
        if not has(self.name, case):
            return None
        given = arguments(case, self.settings.get("HEAD_AXIS"), self.framework)
        if case.kind in PROGRAMS:
            return lambda: self.program(case, given)
        cotangent = given[0] + 0 if case.backward else None
        eager = case.kind in self.settings.get("EAGER", ())
        self.framework.wait((given, cotangent))
        return lambda: self.framework.call(getattr(self.peer, case.kind)(case), given, cotangent, eager)

    def program(self, case, given):
        """A call of one of `loops.py`."""
        import loops

        given = *given, *loops.arguments(case)
        self.turns = loops.TURNS if case.kind == "loop" else 1
        function = getattr(loops, case.kind)(case, loops.turn_of(self.peer, case))
        return self.framework.call(function, given, None, eager=case.kind == "compile")

    def versions(self):
        self.peer  # noqa: B018  # may fail
        names = {*self.settings["PACKAGES"], self.settings["FRAMEWORK"], "numpy"}
        return {
            "versions": {name: importlib.metadata.version(name) for name in sorted(names)},
            "platform": self.framework.platform,
            "device": self.framework.device,
        }

    def load(self, case):
        self.run = lambda: None
        gc.collect()  # of the case before
        self.turns = 1
        if (made := self.function_of(case_of(case))) is None:
            return None
        self.run, self.repeat = made(), 1
        if case["kind"] == "compile":  # every call does all of it again
            return self.repeat
        self.framework.wait(self.run())
        if self.on_cpu:
            self.repeat = max(1, min(100, int(LEAST / self.seconds(1))))
        else:
            self.seconds(10)
            self.repeat = max(10, min(1000, int(LEAST_ON_DEVICE / self.seconds(10) * 10)))
        return self.repeat

    @property
    def on_cpu(self):
        return self.framework.platform == "cpu"

    def seconds(self, calls):
        start = time.perf_counter()
        for _ in range(calls):
            result = self.run()
            if self.on_cpu:  # another device works while the next call is on its way to it
                self.framework.wait(result)
        self.framework.wait(result)
        return time.perf_counter() - start

    def time(self):
        if not self.on_cpu:  # it worked for another process before, or has been idle and slowed down
            self.seconds(self.repeat)
        return self.seconds(self.repeat) / (self.repeat * self.turns)

    def memory(self):
        if self.framework.platform != "cpu":
            return None
        gc.collect()
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the most so far
        before = resident("VmRSS")
        result = self.run()
        self.framework.wait(result)
        return max(0, resident("VmHWM") - before - self.framework.size(result))

    def first(self, case):
        start = time.perf_counter()
        exec(self.settings["IMPORT"], {})
        imported = time.perf_counter() - start
        made = self.function_of(case_of(case))
        if made is None:
            return imported, None
        start = time.perf_counter()
        self.framework.wait(made()())
        return imported, time.perf_counter() - start

    def waves(self, positions):
        found = [self.peer.waves(position) for position in positions] if hasattr(self.peer, "waves") else []
        return [None if w is None else [*w.real.tolist(), *w.imag.tolist()] for w in found]


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    worker = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            worker = worker or Worker(sys.argv[1])
            answer = {"answer": getattr(worker, request.pop("ask"))(**request)}
        except Exception as error:  # noqa: BLE001
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
