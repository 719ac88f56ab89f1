"""Cases for whole TPU pods: functions of up to 2³¹ positions over 256 and 512 chips, given as shapes alone.

`test_pods.py` tests them, and `benchmarks/pods.py` writes a report of them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from devices.aot import Compiled, tpu_topology
from oracles import encodings

AXES = D, S, H = "data", "sequence", "heads"
# Name of a pod → shape of its mesh with three axes
PODS = {"v5e:16x16": (4, 16, 4), "v6e:16x16": (4, 16, 4), "v5p:8x8x8": (8, 8, 8)}
SIZES = {"v5p:4x8x8": (4, 8, 8), "v5p:8x8x8": (8, 8, 8), "v5p:16x16x16": (16, 16, 16)}  # of one kind of chip
LARGEST = {"v5p:64x32x32": (64, 32, 32)}  # the compiler takes it, two minutes a case; no such pod is built
N = 2**30  # positions
SMALL = 2**22  # bytes that count as none: an int32 for a quarter of the positions of one of 256 devices
F32, BF16, I32 = jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Case:
    """A function, its arguments (shape, dtype, PartitionSpec), the PartitionSpec of its results, and what it may keep.

    `kept` bytes of temporaries are allowed for each position that a device has.
    """

    name: str
    function: Callable
    arguments: tuple
    out: P
    kept: int = 0
    mode: str = "jit"  # "jit" on Auto axes, "explicit", or "shard_map", where the function first takes a device's index
    three: bool = False  # whether the mesh has three axes rather than one for the sequence
    length: int = N

    def mesh(self, pod):
        """The shape of the mesh."""
        shape = (PODS | SIZES | LARGEST)[pod]
        return shape if self.three else (1, math.prod(shape), 1)

    def positions(self, pod):
        """How many positions along the sequence one device has."""
        return self.length // self.mesh(pod)[1]

    def share(self, pod):
        """Bytes of the arguments and of the results on one device, by arithmetic."""
        mesh = AbstractMesh(self.mesh(pod), AXES)
        local = lambda shape, spec: NamedSharding(mesh, spec).shard_shape(shape)  # noqa: E731
        size = lambda shape, dtype, spec: math.prod(local(shape, spec)) * dtype.itemsize  # noqa: E731
        results = jax.tree.leaves(self._results(pod))
        return sum(size(*a) for a in self.arguments), sum(size(y.shape, y.dtype, self.out) for y in results)

    def _results(self, pod):
        if self.mode == "shard_map":
            one = jax.eval_shape(partial(self.function, 0), *(jax.ShapeDtypeStruct(*a[:2]) for a in self.arguments))
            return jax.ShapeDtypeStruct((one.shape[0] * self.mesh(pod)[1], *one.shape[1:]), one.dtype)
        return jax.eval_shape(self.function, *(jax.ShapeDtypeStruct(*a[:2]) for a in self.arguments))

    def compile(self, pod):
        """The function compiled for all chips of a pod."""
        mesh = _mesh(pod, self.mesh(pod), AxisType.Explicit if self.mode == "explicit" else AxisType.Auto)
        described = [jax.ShapeDtypeStruct(s, d, sharding=NamedSharding(mesh, spec)) for s, d, spec in self.arguments]
        function, settings = self.function, {}
        if self.mode == "shard_map":
            specs = tuple(spec for _, _, spec in self.arguments)
            local = lambda *x: self.function(lax.axis_index(S), *x)  # noqa: E731
            function = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=self.out)
        elif self.mode == "jit":
            settings = {"out_shardings": NamedSharding(mesh, self.out)}
        with jax.set_mesh(mesh):
            return jax.jit(function, **settings).lower(*described).compile()

    def figures(self, pod):
        """Bytes on one device and the collectives, as the compiler says."""
        compiled = self.compile(pod)
        memory, text = compiled.memory_analysis(), Compiled(compiled.as_text(), 0, 0)
        return {
            "arguments": memory.argument_size_in_bytes,
            "result": memory.output_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "collectives": sorted(set(text.collectives[0])),
        }

    def check(self, pod, figures):
        """Asserts no collective, a share of arguments and result, and no temporaries beyond `kept`."""
        assert not figures["collectives"], figures["collectives"]
        for share, name in zip(self.share(pod), ("arguments", "result"), strict=True):
            assert share <= figures[name] <= share + SMALL, name
        assert figures["temporaries"] <= self.kept * self.positions(pod) + SMALL, "temporaries"


@functools.cache
def _mesh(pod, shape, kind):
    return Mesh(np.array(tpu_topology(pod).devices).reshape(shape), AXES, axis_types=(kind,) * 3)


textbook = partial(encodings.textbook, xp=jnp, dtype=np.float32)
TEXTBOOK = Case("textbook formula, float32 phases", partial(textbook, dim=128), (((N,), I32, P(S)),), P(S))
rotary = partial(pe.rotary, head_axis=-2)


def _back(dy, **settings):
    """The derivative by x, which does not depend on x."""
    return jax.vjp(partial(rotary, **settings), jnp.zeros_like(dy))[1](dy)[0]


def _fire(i, j, *mlp):
    return pe.fire(i, j, mlp, c=0.1, threshold=50.0)


def _array(*shape):
    """A float32 argument that is whole on every device."""
    return shape, F32, P()


def cases(pod):
    """All cases; with a mesh of three axes, arrays have as many batches and heads as it splits."""
    d, s, h = (PODS | SIZES | LARGEST)[pod]
    n, long = d * s * h, 2**21 * s
    row, rows, headed = P(S), P(None, S), P(D, S, H)
    p, keys, slopes = ((N,), I32, row), ((16,), I32, P()), _array(8)
    x, wide = ((1, N, 128), F32, rows), ((1, N, 512), BF16, rows)
    q, few = (((1, N, heads, 128), BF16, rows) for heads in (4, 2))
    x3, q3 = ((d, long, 1024 * h), BF16, headed), ((d, long, 8 * h, 128), BF16, headed)
    patches = (N // 4096, 4096, 2, 128), BF16, row  # of images, each with a camera
    offsets = ((N // 256,), I32, row)
    table, shift = (partial(f, frequencies=128) for f in (pe.sinusoidal, pe.shift))
    interleaved, explicit, three = {"layout": "interleaved"}, {"mode": "explicit"}, {"three": True, "length": long}
    # Bytes that a device keeps for each of its positions. `pairs`: float32 cosines and sines. `distance`: a distance to
    # each of 16 keys, which heads share, and a word of the position. Lookups keep rows before their check, and
    # fourier_features cosines and sines before they are put side by side, as was seen.
    pairs, distance = {"kept": 2 * 128 * 4}, {"kept": 16 * 4 + 4}

    def shards(order):
        return pe.shard_positions(N, n, order=order)

    def own(order):
        return Case(f"sinusoidal, {order}, in shard_map", lambda i: table(shards(order)[i]), (), row, mode="shard_map")

    return [
        Case("sinusoidal", table, (p,), row),
        Case("sinusoidal, bfloat16", partial(table, dtype=BF16), (p,), row),
        Case("sinusoidal, half", partial(table, layout="half"), (p,), row),
        Case("sinusoidal, array frequencies", pe.sinusoidal, (p, _array(64)), row),
        Case("sinusoidal, zigzag", lambda: table(shards("zigzag")), (), row),
        *(own(order) for order in ("contiguous", "zigzag", "striped")),
        Case("add_sinusoidal", pe.add_sinusoidal, (wide, p), rows),
        Case("add_sinusoidal, counted", pe.add_sinusoidal, (wide,), rows),
        Case("add_sinusoidal, counted, Explicit", pe.add_sinusoidal, (wide,), rows, **explicit),
        Case("add_sinusoidal, batch and width", pe.add_sinusoidal, (x3,), headed, **three),
        Case("add_sinusoidal, batch and width, Explicit", pe.add_sinusoidal, (x3,), headed, **explicit, **three),
        Case("add_sinusoidal, 2³¹ positions", pe.add_sinusoidal, (((1, 2 * N, 256), BF16, rows),), rows, length=2 * N),
        Case("rotary, half", rotary, (q, p), rows, **pairs),
        Case("rotary, half, counted", rotary, (q,), rows, **pairs),
        Case("rotary, half, counted, Explicit", rotary, (q,), rows, **pairs, **explicit),
        Case("rotary, half, backward", _back, (q,), rows, **pairs),
        Case("rotary, interleaved", partial(rotary, **interleaved), (q, p), rows, **pairs),
        Case("rotary, interleaved, backward", partial(_back, **interleaved), (q,), rows, **pairs),
        Case("rotary, two heads", rotary, (few,), rows),
        Case("rotary, batch and heads", rotary, (q3, ((d, long), I32, P(D, S))), headed, **pairs, **three),
        Case("rotary, batch and heads, counted, Explicit", rotary, (q3,), headed, **pairs, **explicit, **three),
        # Cosines and sines, and two words of each position for the decay
        Case("xpos", partial(pe.xpos, head_axis=-2), (few, few, p), rows, 2 * 128 * 4 + 2 * 4),
        Case("prope", partial(pe.prope, role="key", head_axis=-2), (patches, ((N // 4096, 1, 4, 4), F32, row)), row),
        Case("shift", shift, (x, ((), I32, P())), rows),
        Case("shift, each by its own", shift, (x, ((1, N), I32, rows)), rows),
        Case("rotation_matrix", partial(pe.rotation_matrix, frequencies=128), (offsets,), row, length=N // 256),
        Case("offset_similarity", partial(pe.offset_similarity, frequencies=128), (p,), row),
        Case("learned", pe.learned, (p, ((8192, 128), BF16, P())), row, 128 * 2),
        Case("add_learned", pe.add_learned, (x, _array(8192, 128), p), rows, 128 * 4),
        Case("fourier_features", pe.fourier_features, (((N, 4), F32, row), _array(4, 64)), row, 1200),
        Case("timestep_embedding", partial(pe.timestep_embedding, dim=128), (((N,), F32, row),), row),
        Case("alibi", pe.alibi, (p, keys, slopes), rows, **distance),
        Case("t5", pe.t5, (p, keys, _array(32, 8)), rows, 16 * 15 + 4),  # fifteen comparisons
        Case("kerple_log", pe.kerple_log, (p, keys, slopes, slopes), rows, **distance),
        Case("kerple_power", pe.kerple_power, (p, keys, slopes, slopes), rows, **distance),
        Case("fire", _fire, (p, keys, _array(32), _array(32), _array(32, 8), _array(8)), rows, 16 * 9 * 4 + 8),
        Case("sandwich", partial(pe.sandwich, heads=8, frequencies=128), (p, keys), rows, **distance),
    ]
