"""What is exported on one version of JAX and loaded on another: what computes with positions and tables."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers import biases, of_positions
from helpers.modules import drawn
from posenc_jax import nnx as modules
from posenc_jax.hf import rotary_from_config

ROWS, DIM = len(of_positions.X), of_positions.DIM
SLOPES = np.linspace(0.1, 0.9, 4, dtype=np.float32)
BIASES = {name: bias.beside(4)[0] for name, bias in biases.BIASES.items()}
TABLE = np.linspace(-1, 1, 32 * DIM, dtype=np.float32).reshape(32, DIM)
QUERIES, KEYS = np.arange(100, 112, dtype=np.int32), np.arange(112, dtype=np.int32)
# Where a library function of the CPU's or a sum in an order of its own is in it, another version may round otherwise.
ROUNDED = ("kerple_log", "kerple_power", "fire", "sandwich", "alibi, derivative", "t5, derivative", "offset_similarity")
ROUNDED += ("attention", "fourier_features", "resize_table")


def sharding():
    """A sequence over eight devices."""
    return NamedSharding(jax.make_mesh((8,), ("sequence",), axis_types=(AxisType.Auto,)), P("sequence"))


def sharded(p, x):
    """Exported for eight devices."""
    p, x = (jax.lax.with_sharding_constraint(a, sharding()) for a in (p, x))
    return pe.rotary(x, p, head_axis=None)


def attend(p, x):
    """Its own derivative, tiles that are passed over, and a bias."""
    bias = functools.partial(pe.alibi, heads=4)
    return pe.attention(x, x, x, bias=bias, query_positions=p, key_positions=p, causal=True, block_size=5)


def others():
    """name → (function, its arguments, their axes that are n when exported, whether the last has a derivative)."""
    p, rows, x = of_positions.POSITIONS, np.arange(ROWS, dtype=np.int32) % 32, of_positions.X
    pairs, triples = (np.stack([p // 2**k for k in range(count)], -1) for count in (2, 3))
    heads = x[:48].reshape(3, 12, 4, 4)
    sections = pe.multi_section(pe.geometric(DIM), (2, 2, 2))
    return {
        "rotation_matrix": (lambda p: pe.rotation_matrix(p, DIM), (p,), (0,), False),
        "offset_similarity": (lambda p: pe.offset_similarity(p, DIM), (p,), (0,), False),
        "timestep_embedding": (lambda p: pe.timestep_embedding(p, DIM), (of_positions.FLOATS,), (0,), False),
        "fourier_features": (lambda c, b: pe.fourier_features(c, b), (x[:, :2], TABLE[:2]), (0, None), True),
        "learned": (lambda p, table: pe.learned(p, table), (rows, TABLE), (0, None), True),
        "add_learned": (lambda p, x: pe.add_learned(x, TABLE, p), (rows, x), (0, 0), True),
        "resize_table": (lambda table: pe.resize_table(table, (6, 10)), (TABLE.reshape(4, 8, DIM),), (None,), True),
        "positions_from_segments": (pe.positions_from_segments, (rows // 5,), (0,), False),
        "positions_from_lengths": (
            lambda n: pe.positions_from_lengths(n, 64),
            (rows.reshape(-1, 4) // 2,),
            (0,),
            False,
        ),
        "shard_positions": (
            lambda n: pe.shard_positions(64, 2, order="zigzag", lengths=n),
            (rows.reshape(-1, 4) % 4 * 4,),
            (0,),
            False,
        ),
        "positions_from_mask": (pe.positions_from_mask, (rows % 3 > 0,), (0,), False),
        "two axes": (lambda p: pe.sinusoidal(p, pe.axial(DIM, 2)), (pairs,), (0,), False),
        "sections": (lambda p, x: pe.rotary(x, p, sections, head_axis=None), (triples, x), (0, 0), True),
        "attention": (attend, (np.arange(12, dtype=np.int32), heads), (None, 0), True),
        "alibi, derivative": (pe.alibi, (QUERIES, KEYS, SLOPES), (0, None, None), True),
        "t5, derivative": (pe.t5, (QUERIES, KEYS, TABLE[:, :4]), (0, None, None), True),
    }


def cases():
    """name → (function, its arguments, their shapes when exported, whether the last has a derivative)."""
    (n,), (m, k) = export.symbolic_shape("n"), export.symbolic_shape("m, k")
    struct = jax.ShapeDtypeStruct
    in_float32 = lambda f: lambda p, x: f(p, x).astype(jnp.float32)  # noqa: E731 - a file of NumPy has no bfloat16
    every = {
        name: (
            in_float32(f),
            (p, of_positions.X),
            (struct((n,), p.dtype), struct((n, DIM), jnp.float32)),
            not name.startswith(("xpos", "pope")),
        )
        for name, (f, p) in of_positions.CASES.items()
    }
    for name, (f, arguments, axes, derivative) in others().items():
        shapes = [
            tuple(n if i == axis else s for i, s in enumerate(x.shape)) for x, axis in zip(arguments, axes, strict=True)
        ]
        every[name] = f, arguments, [struct(s, x.dtype) for s, x in zip(shapes, arguments, strict=True)], derivative
    tile = struct((m,), jnp.int32), struct((k,), jnp.int32)
    every |= {name: (f, (QUERIES, KEYS), tile, False) for name, f in BIASES.items()}
    arguments = of_positions.POSITIONS, of_positions.X
    whole = tuple(struct(a.shape, a.dtype) for a in arguments)
    return every | {"sharded": (sharded, arguments, whole, False)}


def derivative_of(f, arguments):
    """That by the last argument, of a cotangent that tells the elements apart."""
    *first, last = arguments
    y, pull = jax.vjp(lambda last: f(*first, last), last)
    return pull(jnp.linspace(-1, 1, y.size, dtype=y.dtype).reshape(y.shape))[0]


CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "head_dim": 64, "max_position_embeddings": 8192}
CONFIG["rope_parameters"] = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}
CONFIG["rope_parameters"]["original_max_position_embeddings"] = 2048


def objects():
    """What is pickled to carry it from one process to another."""
    plan, spectrum = rotary_from_config(CONFIG), pe.yarn(64, 5e5, 4.0, original_max=2048)
    return {"spectrum": spectrum, "plan": plan, "function": pe.rotary}


def biases_of_modules():
    """name → a module with drawn parameters, and its bias; their states are checkpoints."""
    rng = np.random.default_rng(0)
    makers = {
        "T5Bias": lambda: modules.T5Bias(4, rngs=nnx.Rngs(0)),
        "KERPLE": lambda: modules.KERPLE(4, rngs=nnx.Rngs(0)),
        "FIRE": lambda: modules.FIRE(4, rngs=nnx.Rngs(0)),
        "RelativePositionBias": lambda: modules.RelativePositionBias((20,), 4, out_of_range="zeros", rngs=nnx.Rngs(0)),
    }
    return {name: drawn(make, rng) for name, make in makers.items()}


def bias_of(module):
    return np.asarray(jax.jit(lambda module: module(QUERIES, KEYS))(module))


def flat(module):
    """The arrays of its state by their names, as a checkpoint has them."""
    return {".".join(map(str, path)): np.asarray(x[...]) for path, x in nnx.to_flat_state(nnx.state(module))}
