"""`attention(implementation="mosaic_gpu")` without a GPU: its programs for CUDA, what it rejects, its ranges of tiles.

- A program has one kernel for results. A gradient adds one for queries, one for keys and values, and one for a table.
- Each barrier expects as many loads as arrive at it, and only the fastest axis of a grid is long.
- Unsupported arguments raise; the error has the reason, and names the implementation that supports them.
- A skipped tile shows no pair, and an unmasked tile shows all. test_hopper_kernels.py tests what kernels compute.
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


def abstract(*shape, dtype=jnp.bfloat16):
    """An array without values, for tracing."""
    return jax.ShapeDtypeStruct(shape, dtype)


X, SHORT = abstract(4, 300, 2, 64), abstract(1, 8, 2, 64)
COUNT = np.arange(300, dtype=np.int32)
GIVEN = {name: COUNT[::-1].copy() for name in ("query_positions", "key_positions")}
LEARNED = {
    pe.alibi: abstract(2, dtype=np.float32),
    pe.t5: abstract(32, 2, dtype=np.float32),
}


def attend(q, k, v, function=None, learned=None, **options):
    """Causal attention by the kernel, with a bias by this function of positions and learned arrays."""
    bias = None if function is None else lambda i, j: function(i, j, learned)
    return pe.attention(q, k, v, bias=bias, **{"causal": True} | KERNEL | options)


def lowered(f, *x, platform="cuda"):
    """The StableHLO of f. The lambda is a new function, so JAX traces f again and meets what a test has patched."""
    return jax.jit(lambda *x: f(*x)).trace(*x).lower(lowering_platforms=(platform,)).as_text()


# Query (also key and value), a bias function, options, and the number of kernels in a gradient. One kernel: the kernel
# computes results, XLA the gradient.
PROGRAMS = {
    "a table": (X, pe.t5, {}, 4),
    "ALiBi, heads of 128": (abstract(1, 200, 2, 128), pe.alibi, {}, 3),
    "heads of 256": (abstract(1, 200, 2, 256), pe.alibi, {}, 1),
    "near differences": (X, pe.t5, {"causal": False} | GIVEN, 1),
    "steps": (X, pe.alibi, GIVEN, 3),
}


@needs_kernel
@pytest.mark.parametrize("name", [slow(name) if name == "steps" else name for name in PROGRAMS])
def test_a_gradient_lowers_for_cuda_and_barriers_count_their_loads(name, monkeypatch):
    load, loads = blocks.plgpu.copy_gmem_to_smem, {}  # for each barrier, an entry per load that arrives at it

    def counted(source, ref, barrier):
        barrier_of_slots = getattr(barrier, "ref", barrier)
        loads.setdefault(id(barrier_of_slots), []).append(barrier_of_slots)
        load(source, ref, barrier)

    monkeypatch.setattr(blocks.plgpu, "copy_gmem_to_smem", counted)
    x, function, options, kernels = PROGRAMS[name]

    def loss(learned, *qkv):
        return jnp.sum(attend(*qkv, function, learned, **options).astype(jnp.float32) ** 2)

    assert lowered(jax.grad(loss, (0, 1, 2, 3)), LEARNED[function], x, x, x).count("@mosaic_gpu") == kernels
    assert loads and [*map(len, loads.values())] == [refs[0].dtype.num_arrivals for refs in loads.values()]


@needs_kernel
def test_only_the_fastest_axis_of_a_grid_is_long(monkeypatch):
    """CUDA allows at most 65,535 blocks along the other axes of a grid."""
    grids, kernel = [], blocks.plgpu.kernel

    def recorded(*x, grid, **more):
        grids.append(grid)
        return kernel(*x, grid=grid, **more)

    monkeypatch.setattr(blocks.plgpu, "kernel", recorded)
    key = abstract(1, 128, 1, 64)
    lowered(functools.partial(attend, causal=False), abstract(1, 70_000 * 128, 1, 64), key, key)
    assert grids == [(1, 70_000)]


@needs_kernel
@pytest.mark.parametrize("transposed", [False, True])
def test_a_thread_has_one_difference_of_positions(transposed, monkeypatch):
    """The difference of positions is `per_thread`, one number in each thread, plus `constant`.

    Interpret mode has no threads. On a device, a thread of wgmma has rows that are 8 apart, and pairs of columns that
    are 8 apart.
    """
    iota = lambda dtype, shape, axis, layout: np.indices(shape)[axis].astype(dtype)  # noqa: E731
    monkeypatch.setattr(blocks.plgpu, "broadcasted_iota", iota)
    static = blocks.StaticSettings(128, 128, 2, 1.0, None, (None, 0), (), None, unbounded=False, interpret=True)
    per_thread, constant = scores._difference_within(static, (64, 128), scores.TileOrigin(0, 0, 0, transposed))
    row, column = np.indices((64, 128))
    np.testing.assert_array_equal(per_thread + constant, column - row if transposed else row - column)
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    assert all(np.ptp(per_thread[thread == t]) == 0 for t in range(128))


# Where it runs


def on_a_mesh(axis_types=AxisType.Auto):
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(axis_types,) * 2, devices=jax.devices("cpu"))


@needs_kernel
def test_on_a_mesh_it_needs_shard_map_over_all_axes():
    mesh, spec = on_a_mesh(), P("a", None, "b")
    placed = [jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(mesh, spec))] * 3
    over_one_axis = jax.shard_map(attend, mesh=mesh, in_specs=(P("a"),) * 3, out_specs=P("a"), axis_names={"a"})
    for f in (attend, over_one_axis):
        with pytest.raises(ValueError, match="runs on one device: wrap it in jax.shard_map over all axes"):
            lowered(f, *placed)
    over_all_axes = jax.shard_map(attend, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    assert "@mosaic_gpu" in lowered(over_all_axes, *placed)
    explicit = abstract(8, 8, 2, 64).update(sharding=NamedSharding(on_a_mesh(AxisType.Explicit), P("a")))
    with pytest.raises(ValueError, match="query must not be sharded on Explicit axes of a mesh, but by jax.shard_map"):
        jax.eval_shape(attend, *[explicit] * 3)


@needs_kernel
def test_other_platforms_raise_and_are_not_the_default():
    with pytest.raises(ValueError, match="attention: .* compiles for NVIDIA GPUs alone; elsewhere, use .*'xla'"):
        lowered(attend, X, X, X, platform="cpu")
    assert "mosaic" not in lowered(functools.partial(attend, implementation=None), X, X, X)  # for CUDA


# What it rejects

SEGMENTS = {f"{side}_segments": np.ones(8, np.int32) for side in ("query", "key")}
SHORT_QKV = [SHORT] * 3
REJECTED = {  # query, key and value; options; and how the message goes on behind "attention: "
    "float32": ([abstract(1, 8, 2, 64, dtype=np.float32)] * 3, {}, "query must be bfloat16 or float16 .*got float32"),
    "wide values": ([SHORT, SHORT, abstract(1, 8, 2, 257)], {}, r"head_dim and value_dim .* 256 .*got \(64, 257\)"),
    "wide heads": ([*[abstract(1, 8, 2, 257)] * 2, SHORT], {}, r"head_dim and value_dim .* 256 .*got \(257, 64\)"),
    "no batch": ([abstract(0, 8, 2, 64)] * 3, {}, "query and key must not be empty"),
    "no keys": ([SHORT, *[abstract(1, 0, 2, 64)] * 2], {"causal": False}, "query and key must not be empty"),
    "long": ([abstract(1, 2**24, 1, 64)] * 3, {}, "counted positions must be below 2²⁴"),
    "data": (SHORT_QKV, {"query_data": np.ones((1, 8, 1)), "bias": lambda *x: x[0]}, "bias must be of positions alone"),
    "mask of queries": (SHORT_QKV, {"mask": np.ones((1, 1, 8, 8), bool)}, r"mask must be .*got \(1, 1, 8, 8\)$"),
    "mask of heads": (SHORT_QKV, {"mask": np.ones((1, 2, 1, 8), bool)}, r"mask must be .*got \(1, 2, 1, 8\)$"),
    "mask beside segments": (SHORT_QKV, SEGMENTS | {"mask": np.ones((1, 1, 1, 8), bool)}, "mask .* and segments$"),
    "negative scale": (SHORT_QKV, {"scale": -1.0}, "scale must be from 1e-6 to 1e6"),
    "small scale": (SHORT_QKV, {"scale": 0.9995e-6}, "scale must be from 1e-6 to 1e6"),
    "large scale": (SHORT_QKV, {"scale": 1.0005e6}, "scale must be from 1e-6 to 1e6"),
    "soft cap": (SHORT_QKV, {"logits_soft_cap": 100.5}, "logits_soft_cap must be at most 100 .*got 100.5"),
    "window": (SHORT_QKV, {"window": (2**31, None)}, "window must be below 2³¹"),
    "dense bias": (SHORT_QKV, {"bias": lambda i, j: jnp.ones((2, 8, 8))}, "bias must be one number for each head"),
}
AT_BOUNDS = [
    {"scale": 1e-6},
    {"scale": 1e6, "logits_soft_cap": 100.0},
    {"window": (2**31 - 1, 0)},
    {"mask": np.ones((1, 1, 1, 8), bool)},
    {"bias": lambda i, j: jnp.ones((1, 1, 1))},
]


@needs_kernel
@pytest.mark.parametrize("name", REJECTED)
def test_unsupported_arguments_raise_and_name_what_to_use(name):
    x, options, message = REJECTED[name]
    with pytest.raises(ValueError, match=f"^attention: {message}") as caught:
        jax.eval_shape(functools.partial(pe.attention, **{"causal": "window" not in options} | KERNEL | options), *x)
    assert "use implementation='xla'" in str(caught.value)


@needs_kernel
@pytest.mark.parametrize("options", AT_BOUNDS, ids=lambda options: ", ".join(options))
def test_options_and_sizes_at_their_bounds_are_taken(options):
    x = abstract(1, 8, 2, 256)
    assert jax.eval_shape(functools.partial(pe.attention, **KERNEL, **options), x, x, x) == x
    one = abstract(1, 2**24 - 1, 1, 64)
    assert jax.eval_shape(functools.partial(pe.attention, **KERNEL), one, one, one) == one


@needs_kernel
def test_it_rejects_positions_of_64_bits():
    here = lambda p, *x: attend(*x, query_positions=p, key_positions=p)  # noqa: E731
    with jax.enable_x64(True), pytest.raises(ValueError, match="segments must be int32 with .* got int64, int64"):
        jax.eval_shape(here, abstract(8, dtype=np.int64), *SHORT_QKV)


def test_it_refuses_an_older_jax(monkeypatch):
    monkeypatch.setattr(workarounds, "HAS_MOSAIC_GPU", False)
    with pytest.raises(ValueError, match="attention: implementation='mosaic_gpu' needs JAX 0.11 or later, this is "):
        jax.eval_shape(attend, *SHORT_QKV)


@needs_kernel
@pytest.mark.parametrize("ptxas", [None, "12.6.85", "12.8.61", "12.9.41", "12.9.86"])
def test_it_masks_nothing_where_ptxas_miscompiles_it(ptxas, monkeypatch):
    """CUDA 12.8.0 to before 12.9.1 miscompiles masks. Keys whose number 128 does not divide need a mask too."""

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
            jax.eval_shape(f, *[abstract(1, length, 2, 64)] * 3)


# Tiles

RUN = np.arange(400)
BATCHES = np.stack([RUN // 100, RUN // 64 + 7 * (RUN < 50)])
RULES = {  # what hides keys; pairs are of queries and of keys
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
    """Which pairs are seen; and which tiles (128 queries, 64 keys) may show a pair, and which show all."""
    pairs = {
        name: [np.int32(x[..., :n]) for x, n in zip(rule[name], lengths, strict=True)] for name in {*rule} - {"window"}
    }
    window = rule.get("window", (None, None))
    i, j = pairs.pop("positions", [np.arange(n, dtype=np.int32) for n in lengths])
    seen = may_see(i, j, window=window, **pairs)
    attributes = {name: [np.atleast_2d(x) for x in pair] for name, pair in {"positions": (i, j), **pairs}.items()}
    visible = hopper._visible_tiles(window, attributes, lengths, (128, 64), transposed)
    return seen.reshape(-1, *lengths), visible


@pytest.mark.parametrize(("lengths", "transposed"), [((300, 400), False), ((300, 400), True), ((256, 128), False)])
@pytest.mark.parametrize("name", RULES)
def test_skipped_tiles_show_no_pair_and_unmasked_tiles_show_all(name, transposed, lengths):
    """Each row of tiles visits the tiles from `first` to before `last`, without masks from `start` to before `stop`.

    A row has 128 queries and steps over 64 keys; transposed, it has 64 keys and steps over 128 queries.
    """
    seen, visible = seen_and_visible(RULES[name], lengths, transposed)
    ranges = np.asarray(hopper._tile_ranges(*visible, masked_first=transposed))
    height, width = (64, 128) if transposed else (128, 64)
    seen = np.swapaxes(seen, 1, 2) if transposed else seen
    for batch, of_batch in enumerate(np.broadcast_to(seen, (len(ranges), *seen.shape[1:]))):
        for tile, (first, start, stop, last) in enumerate(ranges[batch]):
            assert 0 <= first <= start <= stop and first <= last
            rows = of_batch[tile * height :][:height]
            assert not rows[:, : first * width].any() and not rows[:, last * width :].any()
            assert rows[:, start * width : stop * width].all()
            assert transposed or min(stop, last) * width <= lengths[1]  # a tile with padding is masked
            if name in ("causal", "window"):  # no tile is visited or masked in vain
                if first != last:
                    assert rows[:, first * width :][:, :width].any() and rows[:, (last - 1) * width :].any()
                shows_all = [rows[:, n * width :][:, :width].all() for n in range(-(-rows.shape[1] // width))]
                assert stop - start == sum(shows_all[: None if transposed else lengths[1] // width])
