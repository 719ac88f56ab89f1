r"""Ring attention: a sequence over many devices, with any bias of positions.

Each device keeps the queries of its part of the sequence. The keys and values go round: at each of n steps a device
attends to those that it has, and hands them on to its neighbour with their positions. The softmax is summed online,
under a running maximum, as in `pe.attention`, so that no device ever has all keys or a row of scores. The positions
say what is where; nothing else depends on the order. In "zigzag" order a device holds a chunk from the beginning and
one from the end, so that under a causal mask all have the same work: a tile in which nothing is seen is passed over.

    python examples/ring_attention.py

Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe


def ring_attention(q, k, v, positions, segments, *, axis, bias=None):
    """Causal attention inside `jax.shard_map` over the mesh axis that shards the sequence.

    q, k and v are a device's (batch, length, heads, head_dim), positions and segments its (length,) integers: a query
    sees keys of its own segment at its own position and before. bias gives (heads, queries, keys) for positions of
    both. Each device's part is two chunks.
    """
    chunks = lambda x, axis=0: jnp.stack(jnp.split(x, 2, axis))  # noqa: E731
    queries = chunks(q, 1), chunks(positions), chunks(segments)
    keys = chunks(k, 1), chunks(v, 1), chunks(positions), chunks(segments)
    devices = lax.axis_size(axis)
    ring = [(i, (i + 1) % devices) for i in range(devices)]

    @jax.checkpoint  # a derivative computes the scores anew
    def visit(sums, keys):
        def row(of):
            query, sums = of
            return lax.scan(lambda sums, chunk: (_add(bias, query, sums, chunk), None), sums, keys)[0]

        return lax.map(row, (queries, sums))

    def step(carry, _):
        sums, keys = carry
        arriving = lax.ppermute(keys, axis, ring)  # while this device computes
        return (visit(sums, keys), arriving), None

    out = jnp.zeros_like(queries[0], jnp.float32).swapaxes(2, 3)  # (2, batch, heads, queries, head_dim)
    nothing = jnp.full_like(out[..., 0], -jnp.inf), jnp.zeros_like(out[..., 0]), out
    (sums, keys), _ = lax.scan(step, (nothing, keys), length=devices - 1)
    _, total, out = visit(sums, keys)
    out = out / total[..., None]  # no total is 0: a query sees itself
    return jnp.concatenate(list(out), axis=2).swapaxes(1, 2).astype(q.dtype)


def _add(bias, query, sums, chunk):
    """The maximum, the sum of weights and the weighted sum of values of each query, with a chunk of keys added."""
    (q, i, q_segments), (k, v, j, k_segments) = query, chunk
    seen = (i[:, None] >= j[None, :]) & (q_segments[:, None] == k_segments[None, :])

    def tile():
        top, total, out = sums
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
        if bias is not None:
            scores += bias(i, j)[None]
        scores = jnp.where(seen[None, None], scores, -jnp.inf)
        higher = jnp.maximum(top, jnp.max(scores, -1))
        finite = jnp.where(jnp.isneginf(higher), 0, higher)  # of a query that has seen nothing yet
        weights, shrink = jnp.exp(scores - finite[..., None]), jnp.exp(top - finite)
        values = jnp.einsum("bhqk,bkhd->bhqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return higher, total * shrink + jnp.sum(weights, -1), out * shrink[..., None] + values

    return lax.cond(jnp.any(seen), tile, lambda: sums)


def sharded(mesh, bias=None, axis="sequence"):
    """Rotary and ring attention as a function of whole arrays in the order of the shards."""

    def local(q, k, v, positions, segments):
        return ring_attention(
            pe.rotary(q, positions), pe.rotary(k, positions), v, positions, segments, axis=axis, bias=bias
        )

    x, row = P(None, axis), P(axis)
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(x, x, x, row, row), out_specs=x))


def alone(bias=None):
    """The same on one device, by `pe.attention`."""

    @jax.jit
    def attend(q, k, v, positions, segments):
        q, k = pe.rotary(q, positions), pe.rotary(k, positions)
        where = {"query_positions": positions, "key_positions": positions}
        packed = {"query_segments": segments, "key_segments": segments}
        return pe.attention(q, k, v, bias=bias, causal=True, **where, **packed)

    return attend


def main(length=2048, heads=4, head_dim=32):
    """A packed sequence in zigzag order, under ALiBi: how far from one device's result, and what each device holds."""
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
