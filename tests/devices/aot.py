"""Ahead-of-time compilation for accelerators that this machine lacks, and facts that the compiled text shows.

The compilers are the real ones, so fusions, temporaries and collectives are real; only nothing is run. Tests and
`benchmarks/compiled.py` both use this module.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

COLLECTIVES = {"all-gather", "all-reduce", "reduce-scatter", "collective-permute", "collective-broadcast"}
COLLECTIVES |= {"all-to-all", "ragged-all-to-all"}
# Operations that an exact elementwise function must not have: a matrix product rounds phases to TF32 or bfloat16, and
# the others are separate passes over memory.
SLOW = {"dot", "convolution", "custom-call", "sort", "gather", "scatter", "while"}
FREE = {"parameter", "bitcast", "tuple", "get-tuple-element", "constant"}  # operations that write nothing
BUFFERS = re.compile('"(AllocateBuffer|AssumeGatherIndicesInBound|ConcatBitcast)"')  # custom calls that compute nothing

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.+?) ([a-z][\w\-]*)\((.*)$", re.M)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", re.M | re.S)
_SHAPE = re.compile(r"\b(?:pred|[a-z]+\d+\w*)\[([\d,]*)\]")


@functools.cache
def tpu_topology(name: str) -> Any:
    """The topology of a name such as "v5e:2x2". It needs libtpu, set not to look for a device."""
    return topologies.get_topology_desc(platform="tpu", topology_name=name)


@functools.cache
def h200_topology() -> Any:
    """The topology of one H200. It needs only JAX's CUDA plugin and its compiler."""
    config = (Path(__file__).parent / "h200.txtpb").read_text()
    return topologies.get_topology_desc("h200", platform="cuda", topology="1x1x1", target_config=config)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What a compiler made of a function."""

    text: str
    temporaries: int  # bytes
    elements: int  # of the output, on one device
    size: float = math.inf  # bytes of the output, on one device

    @functools.cached_property
    def cycles(self) -> int:
        """The sum of cycles that the TPU compiler estimates; the CUDA compiler estimates none."""
        cycles = [int(n) for n in re.findall(r'"estimated_cycles":"(\d+)"', self.text)]
        return sum(n for n in cycles if n < 2**62)  # the largest int64 stands for "unknown"

    @property
    def outside(self) -> list[tuple[str, str, str]]:
        """(type of the result, name, operands and attributes) of each operation outside fusions and loops."""
        return _INSTRUCTION.findall(self.text[self.text.index("\nENTRY ") :])

    @functools.cached_property
    def sizes(self) -> set[int]:
        """The sizes of all axes of all arrays in memory, in loops too; arrays inside fusions are not in memory."""
        fused = set(re.findall(r" fusion\([^\n]*?calls=%?([\w.\-]+)", self.text))
        bodies = [body for name, body in _COMPUTATION.findall(self.text) if name not in fused]
        types = (shape for body in bodies for shape, _, _ in _INSTRUCTION.findall(body))
        return {int(n) for shape in types for dims in _SHAPE.findall(shape) for n in dims.split(",") if n}

    @functools.cached_property
    def operations(self) -> set[str]:
        """The names of all operations, inside fusions too; "-start", "-done" and "-update" are left out of names."""
        named = {name for _, name, rest in _INSTRUCTION.findall(self.text) if not BUFFERS.search(rest)}
        return {re.sub(r"-(start|done|update)$", "", name) for name in named}

    @functools.cached_property
    def large(self) -> list[str]:
        """The operations, outside fusions, that write at least as many elements or bytes as the output has."""
        wrote = [(name, shape) for shape, name, rest in self.outside if name not in FREE and not BUFFERS.search(rest)]
        return [
            name
            for name, shape in wrote
            if elements_of(shape) >= self.elements or max(sizes_of(shape), default=0) >= self.size
        ]

    @functools.cached_property
    def collectives(self) -> tuple[list[str], list[str]]:
        """The names of all collectives, and of those that no loop repeats."""
        entry = self.text[self.text.index("\nENTRY ") :]
        called = ([re.sub(r"-(start|done)$", "", n) for _, n, _ in _INSTRUCTION.findall(t)] for t in (self.text, entry))
        return tuple([name for name in names if name in COLLECTIVES] for names in called)

    @property
    def fusions(self) -> int:
        """How many fusions there are."""
        return len(re.findall(r" fusion\(", self.text))

    def check_elementwise(self, temporaries: int) -> None:
        """Asserts one pass over memory: one fusion writes the output, and nothing else of its size exists."""
        assert self.large == ["fusion"]
        assert self.temporaries <= temporaries
        self.check_exact()

    def check_exact(self) -> None:
        """Asserts that no operation rounds a phase, passes over memory separately, or leaves the device."""
        assert not self.operations & (SLOW | COLLECTIVES)
        assert "f64[" not in self.text


def elements_of(shape: str) -> int:
    """How many elements the largest array in an HLO type has."""
    return max((math.prod(int(n) for n in s.split(",") if n) for s in _SHAPE.findall(shape)), default=0)


def sizes_of(shape: str) -> list[int]:
    """The bytes of each array in an HLO type, without scalars."""
    found = re.findall(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]+)\]", shape)
    return [math.prod(int(n) for n in dims.split(",")) * int(bits or 8) // 8 for _, bits, dims in found]


class Target:
    """A chip, or a mesh ("x", "y") of chips, to compile for."""

    def __init__(self, name: str, topology: Any, mesh: tuple[int, int] = (1, 1)) -> None:
        self.name = name
        devices = np.array(topology.devices).reshape(-1)[: math.prod(mesh)]
        self.mesh = Mesh(devices.reshape(mesh), ("x", "y"))

    def _sharding(self, spec: Any) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def compile(self, function: Callable[..., Any], *arguments: Any, out: Any = ()) -> Compiled:
        """Compiles `function` for arguments (shape, dtype, *axes of the mesh); `out` shards its first result."""
        described = [jax.ShapeDtypeStruct(s, d, sharding=self._sharding(spec)) for s, d, *spec in arguments]
        results, sharding = jax.eval_shape(function, *described), self._sharding(out)
        first, structure = jax.tree.leaves(results)[0], jax.tree.structure(results)
        shardings = [sharding] + [self._sharding(())] * (structure.num_leaves - 1)
        compiled = jax.jit(function, out_shardings=structure.unflatten(shardings)).lower(*described).compile()
        elements = math.prod(sharding.shard_shape(first.shape))
        temporaries, size = compiled.memory_analysis().temp_size_in_bytes, elements * first.dtype.itemsize
        return Compiled(compiled.as_text(), temporaries, elements, size)

    @functools.cache  # noqa: B019 - targets live as long as the session
    def copy(self, shape: tuple[int, ...], dtype: Any) -> Compiled:
        """The yardstick for functions of x: one elementwise read and write."""
        return self.compile(lambda x: x + jnp.ones((), dtype), (shape, dtype))

    @functools.cache  # noqa: B019
    def fill(self, shape: tuple[int, ...], dtype: Any) -> Compiled:
        """The yardstick for functions that read little: one write, of a value that is no constant."""
        return self.compile(lambda value: jnp.full(shape, value), ((), dtype))
