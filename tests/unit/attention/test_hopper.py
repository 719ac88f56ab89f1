"""`attention(implementation="mosaic_gpu")` without a GPU: its programs for CUDA, what it rejects, its ranges of tiles.

- It compiles one kernel for results, and for a gradient one for queries, one for keys and values, and one for a table.
- Each barrier expects as many loads as arrive at it, and only the fastest axis of a grid is long.
- What it does not support raises with its reason, and names the implementation that supports it.
- A tile that is skipped shows no pair, and one that counts as unmasked shows all; see also test_hopper_kernels.py.
"""

import contextlib
import functools
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.slow import slow
from oracles.attention import may_see
from posenc_jax._attention.hopper import attend as hopper
from posenc_jax._attention.hopper import blocks, scores
from posenc_jax._jax import workarounds

needs_kernel = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernel needs JAX 0.11")
RNG = np.random.default_rng(0)
KERNEL = {"implementation": "mosaic_gpu"}


def typed(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


X, FEW = typed(4, 300, 2, 64), typed(1, 8, 2, 64)
COUNT = np.arange(300, dtype=np.int32)
GIVEN = {name: COUNT[::-1].copy() for name in ("query_positions", "key_positions")}
NUMBERS = {pe.alibi: typed(2, dtype=np.float32), pe.t5: typed(32, 2, dtype=np.float32)}  # learned by the bias


def attend(q, k, v, of=None, learned=None, **options):
    bias = None if of is None else lambda i, j: of(i, j, learned)
    return pe.attention(q, k, v, bias=bias, **{"causal": True} | KERNEL | options)


def lowered(f, *x, platform="cuda"):
    return jax.jit(lambda *x: f(*x)).trace(*x).lower(lowering_platforms=(platform,)).as_text()  # traced anew


# The queries, a bias, options, and how many kernels a gradient has: one of results alone if XLA computes all else
PROGRAMS = {
    "a table": (X, pe.t5, {}, 4),
    "ALiBi, heads of 128": (typed(1, 200, 2, 128), pe.alibi, {}, 3),
    "heads of 256": (typed(1, 200, 2, 256), pe.alibi, {}, 1),
    "near differences": (X, pe.t5, {"causal": False} | GIVEN, 1),
    "steps": (X, pe.alibi, GIVEN, 3),
}


@needs_kernel
@pytest.mark.parametrize("name", [slow(name) if name == "steps" else name for name in PROGRAMS])
def test_it_lowers_for_cuda(name, monkeypatch):
    loads, load = {}, blocks.plgpu.copy_gmem_to_smem

    def counted(source, ref, barrier):
        barrier_of_slots = getattr(barrier, "ref", barrier)
        loads.setdefault(id(barrier_of_slots), []).append(barrier_of_slots)
        load(source, ref, barrier)

    monkeypatch.setattr(blocks.plgpu, "copy_gmem_to_smem", counted)
    x, of, options, kernels = PROGRAMS[name]

    def loss(learned, *qkv):
        return jnp.sum(attend(*qkv, of, learned, **options).astype(jnp.float32) ** 2)

    assert lowered(jax.grad(loss, (0, 1, 2, 3)), NUMBERS[of], x, x, x).count("@mosaic_gpu") == kernels
    assert loads and [*map(len, loads.values())] == [found[0].dtype.num_arrivals for found in loads.values()]


@needs_kernel
def test_only_the_fastest_axis_of_a_grid_is_long(monkeypatch):
    """The others may have 65,535 blocks."""
    grids, kernel = [], blocks.plgpu.kernel

    def recorded(*x, grid, **more):
        grids.append(grid)
        return kernel(*x, grid=grid, **more)

    monkeypatch.setattr(blocks.plgpu, "kernel", recorded)
    key = typed(1, 128, 1, 64)
    lowered(functools.partial(attend, causal=False), typed(1, 70_000 * 128, 1, 64), key, key)
    assert grids == [(1, 70_000)]


@needs_kernel
@pytest.mark.parametrize("transposed", [False, True])
def test_a_thread_has_one_difference(transposed, monkeypatch):
    """Interpret mode cannot see it: a thread of wgmma has rows 8 apart, and pairs of columns 8 apart."""
    iota = lambda dtype, shape, axis, layout: np.indices(shape)[axis].astype(dtype)  # noqa: E731
    monkeypatch.setattr(blocks.plgpu, "broadcasted_iota", iota)
    static = blocks.StaticSettings(128, 128, 2, 1.0, None, (None, 0), (), None, unbounded=False, interpret=True)
    near, far = scores._difference_within(static, (64, 128), scores.TileOrigin(0, 0, 0, transposed))
    row, column = np.indices((64, 128))
    np.testing.assert_array_equal(near + far, column - row if transposed else row - column)
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    assert all(np.ptp(near[thread == t]) == 0 for t in range(128))


# Where it runs


def on_a_mesh(axis_types=AxisType.Auto):
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(axis_types,) * 2, devices=jax.devices("cpu"))


@needs_kernel
def test_on_a_mesh_it_needs_shard_map_over_all_axes():
    mesh, spec = on_a_mesh(), P("a", None, "b")
    placed = [jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(mesh, spec))] * 3
    part = jax.shard_map(attend, mesh=mesh, in_specs=(P("a"),) * 3, out_specs=P("a"), axis_names={"a"})
    for f in (attend, part):
        with pytest.raises(ValueError, match="runs on one device: wrap it in jax.shard_map over all axes"):
            lowered(f, *placed)
    whole = jax.shard_map(attend, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    assert "@mosaic_gpu" in lowered(whole, *placed)
    explicit = typed(8, 8, 2, 64).update(sharding=NamedSharding(on_a_mesh(AxisType.Explicit), P("a")))
    with pytest.raises(ValueError, match="query must not be sharded on Explicit axes of a mesh, but by jax.shard_map"):
        jax.eval_shape(attend, *[explicit] * 3)


@needs_kernel
def test_elsewhere_it_says_where_it_runs():
    with pytest.raises(ValueError, match="attention: .* compiles for NVIDIA GPUs alone; elsewhere, use .*'xla'"):
        lowered(attend, X, X, X, platform="cpu")
    assert "mosaic" not in lowered(functools.partial(attend, implementation=None), X, X, X)  # by default XLA's


# What it rejects

SEGMENTS = {f"{side}_segments": np.ones(8, np.int32) for side in ("query", "key")}
THREE = [FEW] * 3
REJECTED = {
    "float32": ([typed(1, 8, 2, 64, dtype=np.float32)] * 3, {}, "query must be bfloat16 or float16 .*got float32"),
    "wide values": ([FEW, FEW, typed(1, 8, 2, 257)], {}, r"head_dim and value_dim .* 256 .*got \(64, 257\)"),
    "wide heads": ([*[typed(1, 8, 2, 257)] * 2, FEW], {}, r"head_dim and value_dim .* 256 .*got \(257, 64\)"),
    "no batch": ([typed(0, 8, 2, 64)] * 3, {}, "query and key must not be empty"),
    "no keys": ([FEW, *[typed(1, 0, 2, 64)] * 2], {"causal": False}, "query and key must not be empty"),
    "long": ([typed(1, 2**24, 1, 64)] * 3, {}, "counted positions must be below 2²⁴"),
    "data": (THREE, {"query_data": np.ones((1, 8, 1)), "bias": lambda *x: x[0]}, "bias must be of positions alone"),
    "mask of queries": (THREE, {"mask": np.ones((1, 1, 8, 8), bool)}, r"mask must be .*got \(1, 1, 8, 8\)$"),
    "mask of heads": (THREE, {"mask": np.ones((1, 2, 1, 8), bool)}, r"mask must be .*got \(1, 2, 1, 8\)$"),
    "mask beside segments": (THREE, SEGMENTS | {"mask": np.ones((1, 1, 1, 8), bool)}, "mask .* and segments$"),
    "negative scale": (THREE, {"scale": -1.0}, "scale must be from 1e-6 to 1e6"),
    "small scale": (THREE, {"scale": 0.9995e-6}, "scale must be from 1e-6 to 1e6"),
    "large scale": (THREE, {"scale": 1.0005e6}, "scale must be from 1e-6 to 1e6"),
    "soft cap": (THREE, {"logits_soft_cap": 100.5}, "logits_soft_cap must be at most 100 .*got 100.5"),
    "window": (THREE, {"window": (2**31, None)}, "window must be below 2³¹"),
    "dense bias": (THREE, {"bias": lambda i, j: jnp.ones((2, 8, 8))}, "bias must be one number for each head"),
}
TAKEN = [
    {"scale": 1e-6},
    {"scale": 1e6, "logits_soft_cap": 100.0},
    {"window": (2**31 - 1, 0)},
    {"mask": np.ones((1, 1, 1, 8), bool)},
    {"bias": lambda i, j: jnp.ones((1, 1, 1))},
]


@needs_kernel
@pytest.mark.parametrize("name", REJECTED)
def test_it_rejects(name):
    x, options, message = REJECTED[name]
    with pytest.raises(ValueError, match=f"^attention: {message}") as caught:
        jax.eval_shape(functools.partial(pe.attention, **{"causal": "window" not in options} | KERNEL | options), *x)
    assert "use implementation='xla'" in str(caught.value)


@needs_kernel
@pytest.mark.parametrize("options", TAKEN, ids=lambda options: ", ".join(options))
def test_it_takes_what_is_at_its_bounds(options):
    x = typed(1, 8, 2, 256)
    assert jax.eval_shape(functools.partial(pe.attention, **KERNEL, **options), x, x, x) == x
    one = typed(1, 2**24 - 1, 1, 64)
    assert jax.eval_shape(functools.partial(pe.attention, **KERNEL), one, one, one) == one


@needs_kernel
def test_it_rejects_positions_of_64_bits():
    here = lambda p, *x: attend(*x, query_positions=p, key_positions=p)  # noqa: E731
    with jax.enable_x64(True), pytest.raises(ValueError, match="segments must be int32 with .* got int64, int64"):
        jax.eval_shape(here, typed(8, dtype=np.int64), *THREE)


def test_it_refuses_an_older_jax(monkeypatch):
    monkeypatch.setattr(workarounds, "HAS_MOSAIC_GPU", False)
    with pytest.raises(ValueError, match="attention: implementation='mosaic_gpu' needs JAX 0.11 or later, this is "):
        jax.eval_shape(attend, *THREE)


@needs_kernel
@pytest.mark.parametrize("ptxas", [None, "12.6.85", "12.8.61", "12.9.41", "12.9.86"])
def test_it_masks_nothing_where_ptxas_miscompiles_it(ptxas, monkeypatch):
    """From CUDA 12.8.0 to before 12.9.1; keys that are no multiple of 128 are masked too."""

    def version(name):
        if ptxas is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return {"jax-cuda12-plugin": "0.12.0", "nvidia-cuda-nvcc-cu12": ptxas}[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(workarounds, "ptxas", workarounds.ptxas.__wrapped__)
    segments, order = ({f"{side}_{name}": COUNT[:128] for side in ("query", "key")} for name in ("segments", "order"))
    masks = ({}, {"causal": True}, {"window": (9, None)}, segments, order | {"causal": True})
    for options, length in (({}, 130), *((mask, 128) for mask in masks)):
        f = functools.partial(pe.attention, **KERNEL, **options)
        message = f"cannot mask scores with CUDA .* got .* nvidia-cuda-nvcc-cu12 {ptxas}"
        rejects = ptxas in ("12.8.61", "12.9.41") and (options or length == 130)
        with pytest.raises(ValueError, match=message) if rejects else contextlib.nullcontext():
            jax.eval_shape(f, *[typed(1, length, 2, 64)] * 3)


# Tiles

RUN = np.arange(400)
BATCHES = np.stack([RUN // 100, RUN // 64 + 7 * (RUN < 50)])
RULES = {
    "causal": {"window": (None, 0)},
    "window": {"window": (150, 20)},
    "window, wide": {"window": (2**31 - 1, 3)},
    "at given positions": {"window": (90, 0), "positions": (RUN[::-1], RUN // 2)},
    "far": {"window": (40, 40), "positions": (2**31 - 1 - RUN, np.where(RUN < 200, 2**31 - 1 - 2 * RUN, RUN - 2**31))},
    "segments": {"segments": (BATCHES, BATCHES[:, ::-1])},
    "runs of segments": {"segments": (BATCHES, BATCHES), "window": (None, 0)},
    "order": {"order": (RUN // 3, RUN // 3), "positions": (RUN % 7, RUN % 7), "window": (3, None)},
}


def seen_and_visible(rule, lengths, transposed):
    """Which pairs are seen; and the tiles of 128 and 64 that may show one, and that show all."""
    pairs = {
        name: [np.int32(x[..., :n]) for x, n in zip(rule[name], lengths, strict=True)] for name in {*rule} - {"window"}
    }
    reach = rule.get("window", (None, None))
    i, j = pairs.pop("positions", [np.arange(n, dtype=np.int32) for n in lengths])
    seen = may_see(i, j, window=reach, **pairs)
    attributes = {name: [np.atleast_2d(x) for x in pair] for name, pair in {"positions": (i, j), **pairs}.items()}
    visible = hopper._visible_tiles(reach, attributes, lengths, (128, 64), transposed)
    return seen.reshape(-1, *lengths), visible


@pytest.mark.parametrize(("lengths", "transposed"), [((300, 400), False), ((300, 400), True), ((256, 128), False)])
@pytest.mark.parametrize("name", RULES)
def test_tiles_that_are_skipped_or_unmasked(name, transposed, lengths):
    seen, visible = seen_and_visible(RULES[name], lengths, transposed)
    ranges = np.asarray(hopper._tile_ranges(*visible, masked_first=transposed))
    a, b = (64, 128) if transposed else (128, 64)
    seen = np.swapaxes(seen, 1, 2) if transposed else seen
    for batch, of_batch in enumerate(np.broadcast_to(seen, (len(ranges), *seen.shape[1:]))):
        for tile, (first, start, stop, last) in enumerate(ranges[batch]):
            assert 0 <= first <= start <= stop and first <= last
            rows = of_batch[tile * a :][:a]
            assert not rows[:, : first * b].any() and not rows[:, last * b :].any()
            assert rows[:, start * b : stop * b].all()
            assert transposed or min(stop, last) * b <= lengths[1]  # a tile with padding is masked
            if name in ("causal", "window"):  # no tile is visited or masked in vain
                assert first == last or rows[:, first * b :][:, :b].any() and rows[:, (last - 1) * b :].any()
                whole = [rows[:, n * b :][:, :b].all() for n in range(-(-rows.shape[1] // b))]
                assert stop - start == sum(whole[: None if transposed else lengths[1] // b])
