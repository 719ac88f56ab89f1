"""What is exported on one version of JAX and loaded on another: the functions of test_same_bits, and biases."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import test_same_bits
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe

ROWS, DIM = len(test_same_bits.X), test_same_bits.DIM
SLOPES = np.linspace(0.1, 0.9, 4, dtype=np.float32)
MLP = [np.linspace(-1, 1, n, dtype=np.float32).reshape(shape) for n, shape in ((6, 6), (6, 6), (24, (6, 4)), (4, 4))]
BIASES = {
    "alibi": lambda i, j: pe.alibi(i, j, SLOPES),
    "t5": lambda i, j: pe.t5(i, j, np.linspace(-1, 1, 128, dtype=np.float32).reshape(32, 4)),
    "kerple_log": lambda i, j: pe.kerple_log(i, j, SLOPES, SLOPES[::-1]),
    "kerple_power": lambda i, j: pe.kerple_power(i, j, SLOPES, SLOPES[::-1]),
    "fire": lambda i, j: pe.fire(i, j, MLP, c=0.1, threshold=50.0),
    "sandwich": functools.partial(pe.sandwich, heads=4, frequencies=DIM),
}
QUERIES, KEYS = np.arange(100, 112, dtype=np.int32), np.arange(112, dtype=np.int32)
# Where a library function of the CPU's or a sum in an order of its own is in it, another version may round otherwise.
ROUNDED = ("kerple_log", "kerple_power", "fire", "sandwich")


def sharding():
    """A sequence over eight devices."""
    return NamedSharding(jax.make_mesh((8,), ("sequence",), axis_types=(AxisType.Auto,)), P("sequence"))


def sharded(p, x):
    """Exported for eight devices."""
    p, x = (jax.lax.with_sharding_constraint(a, sharding()) for a in (p, x))
    return pe.rotary(x, p, head_axis=None)


def cases():
    """name → (function, its arguments, their shapes when exported, whether the last has a derivative)."""
    (n,), (m, k) = export.symbolic_shape("n"), export.symbolic_shape("m, k")
    struct = jax.ShapeDtypeStruct
    every = {
        name: (f, (p, test_same_bits.X), (struct((n,), p.dtype), struct((n, DIM), jnp.float32)), "xpos" not in name)
        for name, (f, p) in test_same_bits.CASES.items()
    }
    tile = struct((m,), jnp.int32), struct((k,), jnp.int32)
    every |= {name: (f, (QUERIES, KEYS), tile, False) for name, f in BIASES.items()}
    arguments = test_same_bits.POSITIONS, test_same_bits.X
    whole = tuple(struct(a.shape, a.dtype) for a in arguments)
    return every | {"sharded": (sharded, arguments, whole, False)}
