"""Context parallelism by examples/ring_attention.py: any bias, any order of the tokens, packed, with derivatives.

Keys go to the neighbour and nothing else does; values are those of one device.
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
DOCUMENTS = [5, 20, 32, 7]
RNG = np.random.default_rng(0)
Q, K, V = RNG.normal(size=(3, 2, 64, 4, 8)).astype(np.float32)
POSITIONS = np.concatenate([np.arange(n, dtype=np.int32) for n in DOCUMENTS])
PACKED = Q, K, V, POSITIONS, np.repeat(np.arange(4, dtype=np.int32), DOCUMENTS)
SLOPES = np.linspace(0.1, 0.9, 4, dtype=np.float32)
WITH_BIAS = {"none": None} | {name: bias.beside(4)[0] for name, bias in BIASES.items()}


@functools.cache
def example():
    spec = importlib.util.spec_from_file_location("ring_attention", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ring_of(devices):
    return jax.make_mesh((devices,), (S,), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:devices])


def in_order(length, devices, order):
    """The indices of a sequence in the order of the shards."""
    at = np.arange(length, dtype=np.int32)
    if order == "contiguous":
        return at
    if order == "striped":
        return at.reshape(-1, devices).T.reshape(-1)
    chunks = at.reshape(2 * devices, -1)
    return np.stack([chunks[:devices], chunks[: devices - 1 : -1]], 1).reshape(-1)


def sharded(arrays, devices, order="zigzag"):
    """Queries, keys, values and rows in the order of the shards, and that order."""
    order = in_order(arrays[-1].size, devices, order)
    return [x[:, order] if x.ndim > 1 else x[order] for x in arrays], order


@pytest.mark.parametrize("order", ORDERS)
def test_positions_of_a_shard_are_its_own(order):
    """By its number in shard_map: no array of the global length for a row of it."""
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
        there = [lax.all_gather(x, S, tiled=True) for x in (positions, segments)]
        sides = {"query_positions": positions, "query_segments": segments}
        sides |= {"key_positions": there[0], "key_segments": there[1]}
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
    inside, outside = Compiled(ring.as_text(), 0, 0).collectives
    assert set(inside) == {"collective-permute"} and not outside
    want = np.asarray(jax.jit(example().alone(WITH_BIAS[name]))(*PACKED))
    for kind in ORDERS:
        parts, order = sharded(PACKED, 8, kind)
        assert_within(ring(*parts), want[:, order], 2e-6, against=f"one device, in {kind} order")


def relative(i, j, q, gates, table):
    """Relative keys of far more rows than a device has tokens, and a number for each key."""
    bias = pe.content_bias(i, j, table, query=q, first=-200, out_of_range="nearest")
    return bias + jnp.swapaxes(gates, 1, 2)[:, :, None]


@pytest.mark.slow
def test_derivatives_of_a_ring_with_a_bias_that_sees_the_tokens():
    """The data of keys go round with them, and their cotangents come home; by the table they are summed once."""
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
    run = lambda f: lambda *x: (f(*x), *jax.grad(lambda *x: jnp.sum(f(*x) ** 2), (0, 1, 2, 3, 6))(*x))  # noqa: E731
    compiled = jax.jit(run(ring)).lower(*parts, table).compile()
    got, want = compiled(*parts, table), jax.jit(run(alone))(*arrays, table)
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        b = np.asarray(b) if n == 5 else np.asarray(b)[:, order]
        assert_within(a, b, 1e-5 * np.abs(b).max() if n else 2e-6, against=f"one device: number {n}")
    inside, once = Compiled(compiled.as_text(), 0, 0).collectives
    assert once and once == [name for name in inside if name != "collective-permute"]


@pytest.mark.slow
def test_rings_over_batch_and_heads():
    mesh = jax.make_mesh((2, 2, 2), ("data", S, "heads"), (AxisType.Explicit,) * 3, devices=jax.devices("cpu"))
    rows, every = P(S), P("data", S, "heads")

    def local(q, k, v, positions, segments, slopes):
        q, k = pe.rotary(q, positions, head_axis=-2), pe.rotary(k, positions, head_axis=-2)
        return example().ring_attention(q, k, v, positions, segments, slopes, axis=S, bias=pe.alibi)

    specs, (parts, order) = (every, every, every, rows, rows, P("heads")), sharded(PACKED, 2)
    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, NamedSharding(mesh, p)) for x, p in zip([*parts, SLOPES], specs, strict=True)]
        compiled = jax.jit(jax.shard_map(local, in_specs=specs, out_specs=every)).lower(*placed).compile()
        got = compiled(*placed)
    assert set(Compiled(compiled.as_text(), 0, 0).collectives[0]) == {"collective-permute"}
    want = np.asarray(jax.jit(example().alone(pe.alibi))(*PACKED, SLOPES))
    assert_within(got, want[:, order], 2e-6, against="one device")


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs JAX 0.11")
def test_a_ring_by_the_kernel_for_gpus_and_its_gradients(monkeypatch):
    """In interpret mode: parts, weights and outputs are rounded to bfloat16."""
    interpreted(monkeypatch.setattr)
    whole = *(x[:1, :, :heads].astype(jnp.bfloat16) for x, heads in ((Q, 2), (K, 1), (V, 1))), *PACKED[3:]
    parts, order = sharded(whole, 2)
    dy = np.asarray(Q[:1, :, 2:4], np.float32)

    def value_and_gradients(attend, arrays, dy):
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
    wanted = [x if n == 4 else x[:, order] for n, x in enumerate(want)]
    rounded = wanted[0].astype(jnp.bfloat16).astype(np.float32)
    assert np.linalg.norm(got[0] - wanted[0]) <= 2 * np.linalg.norm(rounded - wanted[0])
    for a, b in zip(got[1:], wanted[1:], strict=True):
        assert np.linalg.norm(a - b) < 0.01 * np.linalg.norm(b)


def test_a_ring_passes_over_what_is_not_seen():
    f = jax.grad(lambda slopes: jnp.sum(example().sharded(ring_of(4), pe.alibi)(*PACKED, slopes)))
    # There, and for the derivative again and back.
    assert jax.jit(f).lower(SLOPES).as_text().count("stablehlo.case") == 3


@pytest.mark.parametrize("by", [0, 1], ids=["queries", "slopes"])
def test_what_a_ring_cannot_differentiate_it_refuses(by):
    ring = lambda q, slopes: example().sharded(ring_of(4), lambda i, j: pe.alibi(i, j, slopes))(q, *PACKED[1:])  # noqa: E731
    with pytest.raises(ValueError, match=r"ring_attention: bias must have traced .* got float32\[4\] closed over"):
        jax.jit(jax.grad(lambda *x: jnp.sum(ring(*x)), by)).trace(Q, SLOPES)


@pytest.mark.slow
def test_memory_of_a_ring_grows_with_a_part_of_the_sequence():
    def held(devices, local):
        n = devices * local
        x, row = jax.ShapeDtypeStruct((1, n, 1, 64), np.float32), jax.ShapeDtypeStruct((n,), np.int32)
        f = example().sharded(ring_of(devices), None)
        back = lambda q, k, v, dy, *rows: jax.vjp(lambda *qkv: f(*qkv, *rows), q, k, v)[1](dy)  # noqa: E731
        return jax.jit(back).lower(x, x, x, x, row, row).compile().memory_analysis().temp_size_in_bytes

    assert held(8, 4096) <= 2 * held(2, 2048)


@pytest.mark.slow
def test_the_example_runs():
    out = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True, timeout=300).stdout
    (difference,) = re.findall(r"on 8 devices: largest difference from pe.attention on one (\S+)\n", out)
    one, alone, scores = (int(size.replace(",", "")) for size in re.findall(r"(?:holds|alone are) ([\d,]+) bytes", out))
    assert float(difference) <= 2e-6 and 4 * one < alone < scores
