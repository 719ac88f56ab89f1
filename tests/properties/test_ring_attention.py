"""Ring attention, examples/ring_attention.py, gives the values and gradients of one device.

- It takes any bias, packed documents, and each order in which `shard_positions` deals tokens to devices.
- In the forward ring, keys and what belongs to them travel to the neighbour, and nothing else does.
- A tile that no query sees is passed over, and memory grows with the tokens of one device.
"""

import functools
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from devices.aot import Compiled
from helpers.biases import BIASES
from helpers.closeness import assert_within
from helpers.hopper import interpreted
from helpers.slow import slow

pytestmark = pytest.mark.usefixtures("on_cpu")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ring_attention.py"
S = "sequence"
ORDERS = ["contiguous", "zigzag", "striped"]
DOCUMENTS = [5, 20, 32, 7]  # lengths of the packed documents, 64 tokens in all
RNG = np.random.default_rng(0)
Q, K, V = RNG.normal(size=(3, 2, 64, 4, 8)).astype(np.float32)
POSITIONS = np.concatenate([np.arange(n, dtype=np.int32) for n in DOCUMENTS])
PACKED = Q, K, V, POSITIONS, np.repeat(np.arange(4, dtype=np.int32), DOCUMENTS)  # the last are the segments
SLOPES = np.linspace(0.1, 0.9, 4, dtype=np.float32)
# A bias of positions for each name; `beside` also returns its float64 formula, which no test needs here.
WITH_BIAS = {"none": None} | {name: bias.beside(4)[0] for name, bias in BIASES.items()}


@functools.cache
def example():
    spec = importlib.util.spec_from_file_location("ring_attention", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ring_of(devices):
    return jax.make_mesh((devices,), (S,), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:devices])


def in_order(length, devices, kind):
    """The tokens' indices, those of the first device first."""
    at = np.arange(length, dtype=np.int32)
    if kind == "contiguous":
        return at
    if kind == "striped":
        return at.reshape(-1, devices).T.reshape(-1)
    chunks = at.reshape(2 * devices, -1)  # zigzag: a device has a chunk from the start and its mirror from the end
    return np.stack([chunks[:devices], chunks[: devices - 1 : -1]], 1).reshape(-1)


def sharded(arrays, devices, kind="zigzag"):
    """Arrays (batch, seq, …) and rows (seq,) with their tokens in the order of the shards, and the indices."""
    order = in_order(arrays[-1].size, devices, kind)
    return [x[:, order] if x.ndim > 1 else x[order] for x in arrays], order


@pytest.mark.parametrize("order", ORDERS)
def test_positions_of_a_shard_are_its_own(order):
    """A device picks its row in shard_map by its index, and makes no array of the global length for that."""
    length = 2**20
    mine = lambda: pe.shard_positions(length, 8, order=order)[lax.axis_index(S)]  # noqa: E731
    with jax.set_mesh(ring_of(8)):
        compiled = jax.jit(jax.shard_map(mine, in_specs=(), out_specs=P(S))).lower().compile()
    np.testing.assert_array_equal(compiled(), in_order(length, 8, order))
    assert Compiled(compiled.as_text(), 0, 0).collectives == ([], [])
    assert compiled.memory_analysis().temp_size_in_bytes <= 4096


def test_gathered_keys_give_what_one_device_gives():
    def local(q, k, v, positions, segments):
        q, k = pe.rotary(q, positions, head_axis=-2), pe.rotary(k, positions, head_axis=-2)
        k, v = (lax.all_gather(x, S, axis=1, tiled=True) for x in (k, v))
        key_positions, key_segments = (lax.all_gather(x, S, tiled=True) for x in (positions, segments))
        sides = {"query_positions": positions, "query_segments": segments}
        sides |= {"key_positions": key_positions, "key_segments": key_segments}
        return q, pe.attention(q, k, v, bias=WITH_BIAS["alibi"], causal=True, block_size=8, **sides)

    rows = P(None, S)
    f = jax.jit(jax.shard_map(local, mesh=ring_of(4), in_specs=(*[rows] * 3, P(S), P(S)), out_specs=rows))
    rotate = lambda x: pe.rotary(x, POSITIONS, head_axis=-2)  # noqa: E731
    alone = example().alone(WITH_BIAS["alibi"])
    rotated, attended = jax.jit(lambda q, k, *rest: (rotate(q), alone(q, k, *rest)))(*PACKED)
    for name in ORDERS:
        parts, order = sharded(PACKED, 4, name)
        got = f(*parts)
        np.testing.assert_array_equal(got[0], np.asarray(rotated)[:, order])
        assert_within(got[1], np.asarray(attended)[:, order], 2e-6, against=f"one device, in {name} order")


@pytest.mark.parametrize("name", [name if name == "t5" else slow(name) for name in WITH_BIAS])
def test_a_ring_with_any_bias_in_any_order(name):
    ring = jax.jit(example().sharded(ring_of(8), WITH_BIAS[name])).lower(*PACKED).compile()
    every, outside_loops = Compiled(ring.as_text(), 0, 0).collectives
    assert set(every) == {"collective-permute"} and not outside_loops
    want = np.asarray(jax.jit(example().alone(WITH_BIAS[name]))(*PACKED))
    for kind in ORDERS:
        parts, order = sharded(PACKED, 8, kind)
        assert_within(ring(*parts), want[:, order], 2e-6, against=f"one device, in {kind} order")


def relative(i, j, q, gates, table):
    """A bias from a table of 400 relative keys, where a device has 16 tokens, plus a learned gate for each key."""
    bias = pe.content_bias(i, j, table, query=q, first=-200, out_of_range="nearest")
    return bias + jnp.swapaxes(gates, 1, 2)[:, :, None]


@pytest.mark.slow
def test_derivatives_of_a_ring_with_a_bias_that_sees_the_tokens():
    """Key data travel with their keys and cotangents return; the table's gradient is summed once, outside the loop."""
    gates, table = np.cos(K[..., :1, 0]), RNG.normal(size=(400, 8)).astype(np.float32) / 8
    x = P(None, S)

    def local(q, k, v, gates, positions, segments, table):
        data = {"query_data": q, "key_data": gates}
        return example().ring_attention(q, k, v, positions, segments, table, axis=S, bias=relative, **data)

    def alone(q, k, v, gates, positions, segments, table):
        sides = {"query_positions": positions, "key_positions": positions, "causal": True}
        sides |= {"query_segments": segments, "key_segments": segments, "query_data": q, "key_data": gates}
        return pe.attention(q, k, v, bias=lambda *tile: relative(*tile, table), **sides)

    ring = jax.shard_map(local, mesh=ring_of(4), in_specs=(x, x, x, x, P(S), P(S), P()), out_specs=x)
    arrays = Q, K, V, gates, *PACKED[3:]
    parts, order = sharded(arrays, 4)

    def with_gradients(f):
        """The output of f and the gradients of its sum of squares by q, k, v, gates and table."""
        return lambda *x: (f(*x), *jax.grad(lambda *x: jnp.sum(f(*x) ** 2), (0, 1, 2, 3, 6))(*x))

    compiled = jax.jit(with_gradients(ring)).lower(*parts, table).compile()
    got, want = compiled(*parts, table), jax.jit(with_gradients(alone))(*arrays, table)
    for name, a, b in zip(("output", *"qkv", "gates", "table"), got, want, strict=True):
        b = np.asarray(b) if name == "table" else np.asarray(b)[:, order]
        assert_within(a, b, 2e-6 if name == "output" else 1e-5 * np.abs(b).max(), against=f"one device: {name}")
    every, outside_loops = Compiled(compiled.as_text(), 0, 0).collectives
    assert outside_loops and outside_loops == [name for name in every if name != "collective-permute"]


@pytest.mark.slow
def test_rings_over_batch_and_heads():
    """On a mesh that also splits batch and heads, keys travel along the sequence alone."""
    mesh = jax.make_mesh((2, 2, 2), ("data", S, "heads"), (AxisType.Explicit,) * 3, devices=jax.devices("cpu"))
    rows, operands = P(S), P("data", S, "heads")

    def local(q, k, v, positions, segments, slopes):
        q, k = pe.rotary(q, positions, head_axis=-2), pe.rotary(k, positions, head_axis=-2)
        return example().ring_attention(q, k, v, positions, segments, slopes, axis=S, bias=pe.alibi)

    specs, (parts, order) = (*[operands] * 3, rows, rows, P("heads")), sharded(PACKED, 2)
    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, NamedSharding(mesh, p)) for x, p in zip([*parts, SLOPES], specs, strict=True)]
        compiled = jax.jit(jax.shard_map(local, in_specs=specs, out_specs=operands)).lower(*placed).compile()
        got = compiled(*placed)
    assert set(Compiled(compiled.as_text(), 0, 0).collectives[0]) == {"collective-permute"}
    want = np.asarray(jax.jit(example().alone(pe.alibi))(*PACKED, SLOPES))
    assert_within(got, want[:, order], 2e-6, against="one device")


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs JAX 0.11")
def test_a_ring_by_the_kernel_for_gpus_and_its_gradients(monkeypatch):
    """In interpret mode. The kernel rounds operands, weights and outputs to bfloat16, so errors are by norm."""
    interpreted(monkeypatch.setattr)
    # The kernel's arguments: one sequence, two query heads and one key head
    whole = *(x[:1, :, :heads].astype(jnp.bfloat16) for x, heads in ((Q, 2), (K, 1), (V, 1))), *PACKED[3:]
    parts, order = sharded(whole, 2)
    dy = np.asarray(Q[:1, :, 2:4], np.float32)

    def value_and_gradients(attend, arrays, dy):
        """The output and the gradients of its product with dy by q, k, v and slopes, in float32."""

        def loss(q, k, v, slopes):
            y = attend(q, k, v, *arrays[3:], slopes).astype(jnp.float32)
            return jnp.sum(y * dy), y

        gradients, y = jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(*arrays[:3], SLOPES[:2])
        return [np.asarray(x, np.float32) for x in (y, *gradients)]

    ring = example().sharded(ring_of(2), pe.alibi, implementation="mosaic_gpu")
    exact = *(x.astype(np.float32) for x in whole[:3]), *whole[3:]
    got, want = (
        value_and_gradients(ring, parts, dy[:, order]),
        value_and_gradients(example().alone(pe.alibi), exact, dy),
    )
    *tokens, slopes = want
    wanted = [*(x[:, order] for x in tokens), slopes]
    rounded = wanted[0].astype(jnp.bfloat16).astype(np.float32)  # the least error that an output in bfloat16 can have
    assert np.linalg.norm(got[0] - wanted[0]) <= 2 * np.linalg.norm(rounded - wanted[0])
    for a, b in zip(got[1:], wanted[1:], strict=True):
        assert np.linalg.norm(a - b) < 0.01 * np.linalg.norm(b)


def test_a_ring_passes_over_what_is_not_seen():
    """Each pass of the gradient has a conditional around a step's tile."""
    f = jax.grad(lambda slopes: jnp.sum(example().sharded(ring_of(4), pe.alibi)(*PACKED, slopes)))
    # One conditional in the forward pass, whose function the backward pass calls too, and one in the backward pass.
    assert jax.jit(f).lower(SLOPES).as_text().count("stablehlo.case") == 2


@pytest.mark.parametrize("by", [0, 1], ids=["queries", "slopes"])
def test_what_a_ring_cannot_differentiate_it_refuses(by):
    """A bias that closes over traced slopes is rejected, also where the derivative is by the queries."""
    ring = lambda q, slopes: example().sharded(ring_of(4), lambda i, j: pe.alibi(i, j, slopes))(q, *PACKED[1:])  # noqa: E731
    with pytest.raises(ValueError, match=r"ring_attention: bias must have traced .* got float32\[4\] closed over"):
        jax.jit(jax.grad(lambda *x: jnp.sum(ring(*x)), by)).trace(Q, SLOPES)


@pytest.mark.slow
def test_memory_of_a_ring_grows_with_a_part_of_the_sequence():
    def temporaries(devices, tokens_per_device):
        """The bytes that the gradient of a ring keeps on one device."""
        n = devices * tokens_per_device
        x, row = jax.ShapeDtypeStruct((1, n, 1, 64), np.float32), jax.ShapeDtypeStruct((n,), np.int32)
        f = example().sharded(ring_of(devices), None)
        back = lambda q, k, v, dy, *rows: jax.vjp(lambda *qkv: f(*qkv, *rows), q, k, v)[1](dy)  # noqa: E731
        return jax.jit(back).lower(x, x, x, x, row, row).compile().memory_analysis().temp_size_in_bytes

    # Eight times as many tokens over four times as many devices: each device has twice as many.
    assert temporaries(8, 4096) <= 2 * temporaries(2, 2048)


@pytest.mark.slow
def test_the_example_runs():
    out = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True, timeout=300).stdout
    (difference,) = re.findall(r"on 8 devices: largest difference from pe.attention on one (\S+)\n", out)
    # The printed bytes: what a device of the ring holds, what one device holds alone, and the scores of one device
    one, alone, scores = (int(size.replace(",", "")) for size in re.findall(r"(?:holds|alone are) ([\d,]+) bytes", out))
    assert float(difference) <= 2e-6 and 4 * one < alone < scores
