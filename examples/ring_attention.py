r"""Ring attention: a sequence over many devices, with any bias of positions.

Each device keeps the queries of its part of the sequence. The keys and values go round: at each of n steps a device
attends to those that it has, and hands them on to its neighbour with their positions. For part $s$ of the keys,
`pe.attention` gives each query a result $o^s$ and the logarithm $\ell^s$ of its sum of weights. With
$\ell = \ln \sum_s e^{\ell^s}$, the parts merge as

$$o = \sum_s e^{\ell^s - \ell} o^s, \qquad \dot o^s = e^{\ell^s - \ell} \dot o, \qquad
  \dot\ell^s = \dot o^s \cdot (o^s - o).$$

For the derivative the keys go round once more, and their cotangents with them. No device ever has all keys or a row of
scores, so its memory grows with its part alone. The positions say which token stands where; nothing else depends on the
order. In "zigzag" order a device holds a chunk from the beginning and one from the end: `pe.attention` skips tiles that
the causal mask hides, and in this order every device has the same work.

    python examples/ring_attention.py

It prints the largest difference from attention on one device, the bytes that a device holds, those of one device alone
and those of the scores alone, after nine seconds on two cores.

Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe

Bias = Callable[..., jax.Array]  # (query positions, key positions, *parameters) → (heads, queries, keys)
Tokens = tuple[Any, ...]  # a device's queries and their data, or its keys, values and their data
Where = tuple[jax.Array, jax.Array]  # positions and segments of a device's tokens
Part = Callable[..., tuple[jax.Array, jax.Array]]  # `_part` with its first two arguments
Implementation = Literal["xla", "mosaic_gpu"] | None


def ring_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    *parameters: Any,
    axis: str,
    bias: Bias | None = None,
    query_data: Any = None,
    key_data: Any = None,
    implementation: Implementation = None,
) -> jax.Array:
    """Causal attention inside `jax.shard_map` over the mesh axis that shards the sequence.

    q is a device's (batch, length, heads, head_dim); k and v may have fewer heads, each for as many consecutive ones of
    q; positions and segments are (length,) integers: a query sees keys of its own segment at its own position and
    before. bias(i, j, *parameters) gives (heads, queries, keys) for positions of both; parameters are trees of floats,
    the same on all devices, and differentiable. It must not close over traced arrays. A bias that sees the tokens is
    bias(i, j, query_data, key_data, *parameters), as in `pe.attention`, with floats that belong to the device's tokens;
    those of keys go round with them. implementation is that of `pe.attention`; "mosaic_gpu" needs 16-bit floats, int32
    positions, no data, and `jax.shard_map` over all axes of the mesh.
    """
    tiles = [positions[:1]] * 2
    if query_data is not None or key_data is not None:
        tiles += [jax.tree.map(lambda x: x[:, :1], data) for data in (query_data, key_data)]
    for x in jax.make_jaxpr(bias)(*tiles, *parameters).consts if bias else ():
        if isinstance(x, jax.core.Tracer):
            raise ValueError(f"ring_attention: bias must have traced arrays as parameters, got {x.aval} closed over")
    varying = lambda x: jax.typeof(x).manual_axis_type.varying  # noqa: E731
    # Varying along the axis, so that their cotangents are summed over devices once, at the end, and not in every tile.
    own = lambda x: lax.pcast(x, tuple(varying(q) - varying(x)), to="varying")  # noqa: E731
    attend = functools.partial(_part, bias, implementation)
    return _ring(axis, attend, (q, query_data), (k, v, key_data), jax.tree.map(own, parameters), (positions, segments))


def _part(
    bias: Bias | None,
    implementation: Implementation,
    here: Where,
    there: Where,
    queries: Tokens,
    keys: Tokens,
    parameters: tuple,
) -> tuple[jax.Array, jax.Array]:
    """The results of a part of the keys, and the logarithms of the sums of their weights."""
    (q, query_data), (k, v, key_data) = queries, keys
    where = {"query_positions": here[0], "key_positions": there[0]}
    packed = {"query_segments": here[1], "key_segments": there[1]}
    data = {"query_data": query_data, "key_data": key_data}
    tile = bias and (lambda *tile: bias(*tile, *parameters))
    size = min(512, -(-q.shape[1] // 2))  # a tile is no longer than a chunk of a zigzag
    options = {"bias": tile, "causal": True, "block_size": size, "implementation": implementation}
    out, total = pe.attention(q, k, v, return_residual=True, **options, **where, **packed, **data)
    return out.astype(total.dtype), total


def _hand_on(axis: str, x: Any) -> Any:
    """Sends x to the next device of the ring."""
    devices = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + 1) % devices) for i in range(devices)])


def _zeros(tree: Any) -> Any:
    """Accumulators for the arrays of the tree, in float32 at least."""
    return jax.tree.map(lambda x: jnp.zeros_like(x, np.promote_types(x.dtype, np.float32)), tree)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _ring(*arguments: Any) -> jax.Array:
    return _forward(*arguments)[0]


def _forward(
    axis: str, attend: Part, queries: Tokens, keys: Tokens, parameters: tuple, here: Where
) -> tuple[jax.Array, tuple]:
    q, _ = queries

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        (out, total), (theirs, there) = carry
        arriving = _hand_on(
            axis, (theirs, there)
        )  # while this device computes; the last time in vain, for one trace of a step
        part, of_part = attend(here, there, queries, theirs, parameters)
        both = jnp.logaddexp(total, of_part)  # finite: a device's own keys come first, and a query sees itself
        out = out * jnp.exp(total - both)[..., None] + part * jnp.exp(of_part - both)[..., None]
        return ((out, both), arriving), None

    nothing = _zeros(q), _zeros(q[..., 0]) - jnp.inf
    ((out, total), _), _ = lax.scan(step, (nothing, (keys, here)), length=lax.axis_size(axis))
    return out.astype(q.dtype), (queries, keys, parameters, here, out, total)


def _backward(axis: str, attend: Part, saved: tuple, d_out: jax.Array) -> tuple:
    queries, keys, parameters, here, out, total = saved
    add = functools.partial(jax.tree.map, lambda total, x: total + x.astype(total.dtype))

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        d_here, (theirs, there), d_theirs = carry
        arriving = _hand_on(axis, (theirs, there))
        (part, of_part), pull = jax.vjp(functools.partial(attend, here, there), queries, theirs, parameters)
        d_part = d_out.astype(out.dtype) * jnp.exp(of_part - total)[..., None]
        d_queries, d_part_keys, d_parameters = pull((d_part, jnp.sum(d_part * (part - out), -1)))
        d_theirs = _hand_on(axis, add(d_theirs, d_part_keys))  # after the last step they are where their keys came from
        return (add(d_here, (d_queries, d_parameters)), arriving, d_theirs), None

    start = _zeros((queries, parameters)), (keys, here), _zeros(keys)
    ((d_queries, d_parameters), _, d_keys), _ = lax.scan(step, start, length=lax.axis_size(axis))
    given = queries, keys, parameters
    return *jax.tree.map(lambda x, like: x.astype(like.dtype), (d_queries, d_keys, d_parameters), given), None


_ring.defvjp(_forward, _backward)


def sharded(
    mesh: jax.sharding.Mesh, bias: Bias | None = None, axis: str = "sequence", implementation: Implementation = None
) -> Callable[..., jax.Array]:
    """RoPE and ring attention as one function of whole arrays, in the order of the shards.

    Its arguments are q, k, v, positions, segments, and then the parameters of the bias.
    """

    def local(
        q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array, parameters: tuple
    ) -> jax.Array:
        q, k = pe.rotary(q, positions, head_axis=-2), pe.rotary(k, positions, head_axis=-2)
        options = {"axis": axis, "bias": bias, "implementation": implementation}
        return ring_attention(q, k, v, positions, segments, *parameters, **options)

    x, row = P(None, axis), P(axis)
    split = jax.shard_map(local, mesh=mesh, in_specs=(x, x, x, row, row, P()), out_specs=x)
    return jax.jit(lambda q, k, v, positions, segments, *of_bias: split(q, k, v, positions, segments, of_bias))


def alone(bias: Bias | None = None) -> Callable[..., jax.Array]:
    """The same on one device, by `pe.attention`."""

    @jax.jit
    def attend(
        q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array, *parameters: Any
    ) -> jax.Array:
        q, k = pe.rotary(q, positions, head_axis=-2), pe.rotary(k, positions, head_axis=-2)
        where = {"query_positions": positions, "key_positions": positions}
        packed = {"query_segments": segments, "key_segments": segments}
        tile = bias and (lambda i, j: bias(i, j, *parameters))
        return pe.attention(q, k, v, bias=tile, causal=True, **where, **packed)

    return attend


def main(length: int = 2048, heads: int = 4, head_dim: int = 32) -> None:
    """A packed sequence in zigzag order, under ALiBi, beside one device: the difference, and each one's memory."""
    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("sequence",), axis_types=(AxisType.Auto,))
    order = pe.shard_positions(length, devices, order="zigzag").reshape(-1)
    segments = jnp.where(jnp.arange(length) < length // 3, 1, 2).astype(jnp.int32)
    positions = pe.positions_from_segments(segments)
    qkv = jax.random.normal(jax.random.key(0), (3, 1, length, heads, head_dim))
    bias = functools.partial(pe.alibi, heads=heads)

    whole = (*qkv, positions, segments)
    split = [jax.device_put(x[:, order], NamedSharding(mesh, P(None, "sequence"))) for x in qkv]
    split += [jax.device_put(x[order], NamedSharding(mesh, P("sequence"))) for x in (positions, segments)]
    ring = sharded(mesh, bias).lower(*split).compile()
    difference = jnp.max(jnp.abs(ring(*split) - alone(bias)(*whole)[:, order]))
    print(f"{length} positions on {devices} devices: largest difference from pe.attention on one {difference:.1e}")
    for name, compiled in (("one of them", ring), ("one device alone", alone(bias).lower(*whole).compile())):
        held = compiled.memory_analysis()
        size = held.argument_size_in_bytes + held.output_size_in_bytes + held.temp_size_in_bytes
        print(f"{name} holds {size:,} bytes, {held.temp_size_in_bytes:,} of them temporaries")
    print(f"the scores alone are {4 * heads * length**2:,} bytes")


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    main()
