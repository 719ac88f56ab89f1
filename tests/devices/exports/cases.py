"""The cases of test_exports.py: what one version of JAX exports or stores, and another loads."""

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
    """A function and its arguments. The first axis of each is exported for any size, unless its index is in `fixed`.

    Another version may round a result otherwise if it contains a CPU's library function or a sum in any order: then
    `rounded` names the result.
    """

    function: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    fixed: tuple[int, ...] = ()
    derivative: bool = False  # whether the derivative by the last argument is exported too
    rounded: tuple[str, ...] = ()  # among "y" and "dx"
    sharded: bool = False  # over eight devices

    @property
    def shapes(self):
        """The types to export for; first axes of equal size share a symbol."""
        sizes = dict(zip((64, 12, 112), export.symbolic_shape("n, m, k"), strict=True))
        first = [len(x) if i in self.fixed else sizes[len(x)] for i, x in enumerate(self.arguments)]
        pairs = zip(first, self.arguments, strict=True)
        return [jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for size, x in pairs]


def sharding():
    """A sequence over eight devices."""
    return NamedSharding(jax.make_mesh((8,), ("sequence",), axis_types=(AxisType.Auto,)), P("sequence"))


def sharded(p, x):
    """`rotate` where positions and x are split over eight devices."""
    return rotate(*(jax.lax.with_sharding_constraint(a, sharding()) for a in (p, x)))


def rotate(p, x, frequencies=None, **settings):
    return pe.rotary(x, p, frequencies, head_axis=None, **settings)


def attend(p, x):
    """Attention with its own derivative rule, tiles that are passed over, and a bias."""
    bias = partial(pe.alibi, heads=4)
    return pe.attention(x, x, x, bias=bias, query_positions=p, key_positions=p, causal=True, block_size=5)


def cases():
    """Cases by name, one for each primitive, derivative rule and sharding of the library."""
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
    """The value "y" of f, the case's function or a loaded one, and its derivative "dx" by the last argument."""
    *first, last = [jax.device_put(x, sharding()) for x in case.arguments] if case.sharded else case.arguments

    def derivative(last):  # the cotangent differs at every element
        y, pull = jax.vjp(lambda last: f(*first, last), last)
        return pull(jnp.linspace(-1, 1, y.size, dtype=y.dtype).reshape(y.shape))[0]

    found = {"y": jax.jit(f)(*first, last)} | ({"dx": jax.jit(derivative)(last)} if case.derivative else {})
    return {name: np.asarray(x) for name, x in found.items()}


CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "head_dim": 64, "max_position_embeddings": 8192}
ROPE = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5, "original_max_position_embeddings": 2048}


def objects():
    """Objects that users pickle, to carry them from one process to another."""
    plan, spectrum = rotary_from_config(CONFIG | {"rope_parameters": ROPE}), pe.yarn(64, 5e5, 4.0, original_max=2048)
    return {"spectrum": spectrum, "plan": plan, "function": pe.rotary}


# Modules of biases, whose states are checkpoints.
MODULES = {
    "T5Bias": lambda: modules.T5Bias(4, rngs=nnx.Rngs(0)),
    "FIRE": lambda: modules.FIRE(4, rngs=nnx.Rngs(0)),
}


def bias_of(graph, state):
    """The bias of a module at QUERIES and KEYS."""
    return np.asarray(jax.jit(lambda state: nnx.merge(graph, state)(QUERIES, KEYS))(state))


def flat(state):
    """The arrays of a state by dotted names, as a checkpoint stores them."""
    return {".".join(map(str, path)): np.asarray(x[...]) for path, x in nnx.to_flat_state(state)}
