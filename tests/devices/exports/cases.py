"""What is exported on one version of JAX and loaded on another: what computes with positions and tables."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from posenc_jax import nnx as modules
from posenc_jax.hf import rotary_from_config

RNG, DIM = np.random.default_rng(0), 12
POSITIONS = RNG.integers(-(2**31), 2**31, 64).astype(np.int32)
X = RNG.normal(size=(64, DIM)).astype(np.float32)
TABLE = RNG.normal(size=(32, DIM)).astype(np.float32)
ROWS, QUERIES, KEYS = (np.arange(*of, dtype=np.int32) for of in ((64,), (100, 112), (112,)))


class Case(NamedTuple):
    """A function and its arguments, whose first axes are of any size, but for those whose indices are in `fixed`.

    Where a library function of the CPU's or a sum in an order of its own is in a result, another version may round it
    otherwise.
    """

    function: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    fixed: tuple[int, ...] = ()
    derivative: bool = False  # by the last argument too
    rounded: tuple[str, ...] = ()  # names of results
    sharded: bool = False  # over eight devices

    @property
    def shapes(self):
        """Those that are exported; equal sizes stay equal."""
        sizes = dict(zip((64, 12, 112), export.symbolic_shape("n, m, k"), strict=True))
        first = [len(x) if i in self.fixed else sizes[len(x)] for i, x in enumerate(self.arguments)]
        pairs = zip(first, self.arguments, strict=True)
        return [jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for size, x in pairs]


def sharding():
    """A sequence over eight devices."""
    return NamedSharding(jax.make_mesh((8,), ("sequence",), axis_types=(AxisType.Auto,)), P("sequence"))


def sharded(p, x):
    """Exported for eight devices."""
    return rotate(*(jax.lax.with_sharding_constraint(a, sharding()) for a in (p, x)))


def rotate(p, x, frequencies=None, **settings):
    return pe.rotary(x, p, frequencies, head_axis=None, **settings)


def attend(p, x):
    """Its own derivative, tiles that are passed over, and a bias."""
    bias = partial(pe.alibi, heads=4)
    return pe.attention(x, x, x, bias=bias, query_positions=p, key_positions=p, causal=True, block_size=5)


def cases():
    """Cases by name: each of another primitive, derivative or sharding; the rest of the library is made of these."""
    mixed, floats = (POSITIONS, X), POSITIONS.astype(np.float32) / 2**17
    triples = np.stack([POSITIONS, ROWS, ROWS // 2], -1)
    rounded = {"derivative": True, "rounded": ("y", "dx")}
    return {
        "sinusoidal": Case(lambda p: pe.sinusoidal(p, DIM), (POSITIONS,)),
        "add_sinusoidal": Case(lambda p, x: pe.add_sinusoidal(x, p, scale=1.7), mixed, derivative=True),
        "fourier_features": Case(pe.fourier_features, (X[:, :2], TABLE[:2]), fixed=(1,), **rounded),
        "rotary": Case(rotate, mixed, derivative=True),
        "rotary, float positions": Case(partial(rotate, layout="interleaved"), (floats, X), derivative=True),
        "rotary, sections": Case(partial(rotate, frequencies=pe.multi_section(DIM, (2, 2, 2))), (triples, X)),
        "pope": Case(lambda p, x: pe.pope(x, p, head_axis=None), mixed),
        "learned": Case(pe.learned, (ROWS % 32, TABLE), fixed=(1,), derivative=True),
        "attention": Case(attend, (QUERIES, X[:48].reshape(3, 12, 4, 4)), fixed=(0, 1), **rounded),
        "t5": Case(pe.t5, (QUERIES, KEYS, TABLE[:, :4]), fixed=(1, 2), derivative=True, rounded=("dx",)),
        "sharded": Case(sharded, mixed, fixed=(0, 1), sharded=True),
    }


def results(f, case):
    """The value of f, which is the case's function or was loaded, and the derivative by the last argument."""
    *first, last = [jax.device_put(x, sharding()) for x in case.arguments] if case.sharded else case.arguments

    def derivative(last):  # of a cotangent that tells the elements apart
        y, pull = jax.vjp(lambda last: f(*first, last), last)
        return pull(jnp.linspace(-1, 1, y.size, dtype=y.dtype).reshape(y.shape))[0]

    found = {"y": jax.jit(f)(*first, last)} | ({"dx": jax.jit(derivative)(last)} if case.derivative else {})
    return {name: np.asarray(x) for name, x in found.items()}


CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "head_dim": 64, "max_position_embeddings": 8192}
ROPE = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5, "original_max_position_embeddings": 2048}


def objects():
    """What is pickled to carry it from one process to another."""
    plan, spectrum = rotary_from_config(CONFIG | {"rope_parameters": ROPE}), pe.yarn(64, 5e5, 4.0, original_max=2048)
    return {"spectrum": spectrum, "plan": plan, "function": pe.rotary}


# Modules of biases, whose states are checkpoints.
MODULES = {
    "T5Bias": lambda: modules.T5Bias(4, rngs=nnx.Rngs(0)),
    "FIRE": lambda: modules.FIRE(4, rngs=nnx.Rngs(0)),
}


def bias_of(graph, state):
    return np.asarray(jax.jit(lambda state: nnx.merge(graph, state)(QUERIES, KEYS))(state))


def flat(state):
    """Its arrays by their names, as a checkpoint has them."""
    return {".".join(map(str, path)): np.asarray(x[...]) for path, x in nnx.to_flat_state(state)}
