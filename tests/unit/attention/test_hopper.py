"""Attention by the kernel for NVIDIA GPUs: its values in interpret mode, its programs for CUDA, and its errors."""

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
from helpers.closeness import assert_within
from helpers.hopper_cases import BFLOAT16, BIASES, CASES, FAR, MLP, RNG, SHUFFLED, SIDES, TABLE, operands, truth
from helpers.tiers import tiered
from oracles.attention import may_see
from posenc_jax._attention.hopper import attend as hopper
from posenc_jax._attention.hopper import blocks, scores, table_kernel
from posenc_jax._attention.tiles import Operands, TokenAttributes
from posenc_jax._jax import workarounds

HAS_KERNEL = jax.__version_info__ >= (0, 11)
needs_kernel = pytest.mark.skipif(not HAS_KERNEL, reason="the kernel needs JAX 0.11")


@needs_kernel
@pytest.mark.parametrize("name", tiered(CASES, ["few tokens"]))
def test_against_the_dense_formula(name, monkeypatch):
    """Within 1.5 times the error of rounding weights and outputs to bfloat16."""
    from helpers.hopper import interpreted

    interpreted(monkeypatch.setattr)
    *sizes, bias, options = CASES[name]
    x, f = operands(*sizes, heads=4 if name == "four heads" else 2), bias and BIASES[bias].closed
    attend = functools.partial(pe.attention, bias=f, implementation="mosaic_gpu", return_residual=True, **options)
    got, residual = map(np.asarray, jax.jit(attend)(*x))
    want = truth(name, x).dense
    rounded = want.y.astype(BFLOAT16).astype(np.float64)
    error, least = (np.sqrt(np.mean((y - want.y) ** 2)) for y in (got.astype(np.float64), rounded))
    assert error <= 1.5 * least
    bound = 1e-6 * np.maximum(1, np.abs(want.residual))
    assert_within(residual, want.residual, np.where(np.isinf(bound), 1, bound), against="float64")


@needs_kernel
@pytest.mark.slow
@pytest.mark.parametrize("bias", ["ALiBi", "T5"])
def test_a_model_trains_as_by_xla(bias, monkeypatch):
    """Five steps; the losses differ by no more than bfloat16 rounds."""
    from helpers.hopper import interpreted

    interpreted(monkeypatch.setattr)
    tokens = RNG.integers(0, 7, (2, 129))
    start = [RNG.normal(size=shape).astype(np.float32) / 8 for shape in ((7, 128), (3, 128, 2, 64), (2, 64, 7))]
    learned = np.ones(2, np.float32) if bias == "ALiBi" else TABLE

    def loss(parameters, implementation):
        embedding, projections, out, learned = parameters
        q, k, v = jnp.einsum("btd,pdhw->pbthw", embedding[tokens[:, :-1]], projections).astype(BFLOAT16)
        of = pe.alibi if bias == "ALiBi" else pe.t5
        options = {"bias": lambda i, j: of(i, j, learned), "causal": True, "block_size": 64}
        y = pe.attention(q, k, v, **options, implementation=implementation)
        logits = jnp.einsum("bthw,hwn->btn", y.astype(jnp.float32), out)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1))

    losses = {}
    for implementation in ("xla", "mosaic_gpu"):
        step, parameters = (
            jax.jit(jax.value_and_grad(functools.partial(loss, implementation=implementation))),
            (*start, learned),
        )
        losses[implementation] = []
        for _ in range(5):
            value, gradients = step(parameters)
            assert all(jnp.any(g) for g in gradients)
            parameters = jax.tree.map(lambda x, g: x - g, parameters, gradients)
            losses[implementation].append(float(value))
    assert losses["xla"][-1] < losses["xla"][0] - 0.005
    assert_within(losses["mosaic_gpu"], losses["xla"], 2.0**-9 * losses["xla"][0], against="XLA")


# Lowering, without a GPU


def lowered(f, *x, platform="cuda"):
    return jax.jit(f).trace(*x).lower(lowering_platforms=(platform,)).as_text()


def attend(q, k, v, bias="ALiBi", **options):
    return pe.attention(q, k, v, bias=BIASES[bias].closed, causal=True, implementation="mosaic_gpu", **options)


def of_rows(q, k, v, learned, of=pe.alibi):
    bias = lambda i, j: of(i, j, learned)  # noqa: E731
    return pe.attention(q, k, v, bias=bias, causal=True, implementation="mosaic_gpu")


def squared(q, k, v, learned, of=pe.alibi):
    return jnp.sum(of_rows(q, k, v, learned, of).astype(jnp.float32) ** 2)


def of_all(*x):
    return jnp.sum(jax.vmap(squared, (0, None, 0, None))(*x))


def typed(*shape, dtype=BFLOAT16):
    return jax.ShapeDtypeStruct(shape, dtype)


X, ROWS_OF_X = (jax.ShapeDtypeStruct((*rows, 4, 300, 2, 64), BFLOAT16) for rows in ((), (3,)))
SLOPES, ROWS_OF_SLOPES = (jax.ShapeDtypeStruct((*rows, 2), jnp.float32) for rows in ((), (3,)))
FEW_LONG = typed(1, 256, 2, 64)


def network(i, j, mlp):
    """FIRE at counted positions, which is no function of i − j alone."""
    return pe.fire(i, j, mlp, c=0.1, threshold=30.0)


def near(table, *x):
    bias = lambda i, j: pe.t5(i, j, table)  # noqa: E731
    y = pe.attention(*x, bias=bias, implementation="mosaic_gpu", **SHUFFLED)
    return jnp.sum(y.astype(jnp.float32) ** 2)


PROGRAMS = {
    "forward": (attend, X, X, X),
    "derivative": (jax.grad(squared, (0, 1, 2, 3)), X, X, X, SLOPES),
    "derivative of a table": (jax.grad(functools.partial(squared, of=pe.t5), (0, 3)), X, X, X, TABLE),
    "derivative of rows": (jax.grad(of_all, (0, 1, 2, 3)), ROWS_OF_X, X, ROWS_OF_X, SLOPES),
    "derivative of a network": (jax.grad(functools.partial(squared, of=network), (0, 3)), X, X, X, MLP),
    "derivative of a table at given positions": (jax.grad(near), TABLE, *[FEW_LONG] * 3),
    "derivative of heads of 128": (jax.grad(squared, (0, 1, 2, 3)), *[typed(1, 200, 2, 128)] * 3, SLOPES),
    "derivative of wide heads": (jax.grad(squared), *[typed(1, 200, 2, 256)] * 3, SLOPES),
    "T5": (functools.partial(attend, bias="T5"), X, X, X),
    "vmap": (jax.vmap(of_rows, (0, None, 0, 0)), ROWS_OF_X, X, ROWS_OF_X, ROWS_OF_SLOPES),
    "heads of 256": (functools.partial(attend, bias="custom"), *[jax.ShapeDtypeStruct((1, 200, 2, 256), BFLOAT16)] * 3),
    "far": (
        functools.partial(attend, bias="KERPLE, logarithm", **FAR),
        *[jax.ShapeDtypeStruct((1, 256, 2, 64), jnp.float16)] * 3,
    ),
}


@needs_kernel
@pytest.mark.parametrize("name", tiered(PROGRAMS, ["forward", "derivative of a table"]))
def test_it_lowers_for_cuda(name, monkeypatch):
    """A derivative runs the kernel that returns its residuals, and one for q, one for k and v, and one for a table.

    By XLA's tiles instead are those of heads wider than 128, of a network, and of a table at given positions. Each
    barrier expects as many loads as arrive at it.
    """
    loads, load = {}, blocks.plgpu.copy_gmem_to_smem

    def counted(source, ref, barrier):
        barrier_of_slots = getattr(barrier, "ref", barrier)
        loads.setdefault(id(barrier_of_slots), []).append(barrier_of_slots)
        load(source, ref, barrier)

    monkeypatch.setattr(blocks.plgpu, "copy_gmem_to_smem", counted)
    kernels = {"derivative": 3, "derivative of heads of 128": 3, "derivative of rows": 3, "derivative of a table": 4}
    f, *x = PROGRAMS[name]
    assert lowered(lambda *x: f(*x), *x).count("@mosaic_gpu") == kernels.get(name, 1)  # a new function is traced anew
    assert loads and [*map(len, loads.values())] == [found[0].dtype.num_arrivals for found in loads.values()]


@needs_kernel
def test_only_the_fastest_axis_of_a_grid_is_long(monkeypatch):
    """The others may have 65,535 blocks."""
    grids, kernel = [], blocks.plgpu.kernel
    monkeypatch.setattr(
        blocks.plgpu, "kernel", lambda *x, grid, **more: grids.append(grid) or kernel(*x, grid=grid, **more)
    )
    key = typed(1, 128, 1, 64)
    lowered(functools.partial(pe.attention, implementation="mosaic_gpu"), typed(1, 70_000 * 128, 1, 64), key, key)
    assert grids == [(1, 70_000)]


def on_a_mesh(axis_types=None):
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(axis_types or AxisType.Auto,) * 2, devices=jax.devices("cpu"))


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


@needs_kernel
def test_on_a_mesh_it_needs_shard_map():
    mesh, spec = on_a_mesh(), P("a", None, "b")
    placed = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(mesh, spec))
    with pytest.raises(ValueError, match="flash_attention runs on one device: wrap it in jax.shard_map over all axes"):
        lowered(attend, *[placed] * 3)
    one = lambda i, j: pe.alibi(i, j, np.float32([0.5]))  # noqa: E731
    each = functools.partial(pe.attention, bias=one, causal=True, implementation="mosaic_gpu")
    assert "@mosaic_gpu" in lowered(jax.shard_map(each, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec), *[placed] * 3)
    with pytest.raises(ValueError, match="flash_attention runs on one device"):
        part = jax.shard_map(each, mesh=mesh, in_specs=(P("a"),) * 3, out_specs=P("a"), axis_names={"a"})
        lowered(part, *[placed] * 3)


@pytest.mark.slow
@needs_kernel
def test_each_device_may_have_positions_of_its_own():
    """As in a ring. They decide how many tiles a loop of the kernel visits."""
    each = lambda p, *x: attend(*x, query_positions=p, key_positions=p)  # noqa: E731
    spec, row = P(None, ("a", "b")), P(("a", "b"))
    split = jax.shard_map(each, mesh=on_a_mesh(), in_specs=(row, *[spec] * 3), out_specs=spec)
    x = jax.ShapeDtypeStruct((1024,), np.int32), *[jax.ShapeDtypeStruct((1, 1024, 2, 64), BFLOAT16)] * 3
    assert lowered(split, *x).count("@mosaic_gpu") == 1
    gradient = jax.grad(lambda *x: jnp.sum(split(*x).astype(jnp.float32)), (1, 2, 3))
    assert lowered(gradient, *x).count("@mosaic_gpu") == 3


@needs_kernel
def test_elsewhere_it_says_where_it_runs():
    message = (
        "attention: implementation='mosaic_gpu' compiles for NVIDIA GPUs alone; elsewhere, use implementation='xla'; it is "
        "experimental: forward seen on an H200 in an older form, backward compiled only"
    )
    with pytest.raises(ValueError, match=message):
        lowered(attend, X, X, X, platform="cpu")
    assert "mosaic" not in lowered(functools.partial(pe.attention, causal=True), X, X, X)  # by default XLA's


# What it refuses


FEW = typed(1, 8, 2, 64)
REFUSED = {
    "float32": ([typed(1, 8, 2, 64, dtype=jnp.float32)] * 3, {}, "query must be bfloat16 or float16 with"),
    "wide": ([FEW, FEW, typed(1, 8, 2, 257)], {}, r"head_dim and value_dim must be at most 256 .*got \(64, 257\)"),
    "wide heads": ([*[typed(1, 8, 2, 257)] * 2, FEW], {}, r"head_dim and value_dim must be at .*got \(257, 64\)"),
    "empty": ([typed(0, 8, 2, 64)] * 3, {}, "query and key must not be empty"),
    "long": ([typed(1, 2**24, 1, 64)] * 3, {}, "counted positions must be below 2²⁴"),
    "data": (
        [FEW] * 3,
        {"query_data": np.float32([[[0]] * 8]), "bias": lambda *x: x[0]},
        "bias must be of positions alone",
    ),
    "mask of queries": (
        [FEW] * 3,
        {"mask": np.ones((1, 1, 8, 8), bool)},
        r"mask must be the same for all heads and queries, .*got \(1, 1, 8, 8\)$",
    ),
    "mask of keys and segments": (
        [FEW] * 3,
        {"mask": np.ones((1, 1, 1, 8), bool)} | {f"{side}_segments": np.ones(8, np.int32) for side in SIDES},
        r"without segments, .*got \(1, 1, 1, 8\) and segments$",
    ),
    "scale": ([FEW] * 3, {"scale": -1.0}, "scale must be from 1e-6 to 1e6"),
    "soft cap": ([FEW] * 3, {"logits_soft_cap": 1e3}, "logits_soft_cap must be at most 100 with .*got 1000.0"),
    "window": ([FEW] * 3, {"window": (2**31, None)}, "window must be below 2³¹"),
    "dense": ([FEW] * 3, {"bias": lambda i, j: jnp.ones((2, 8, 8))}, "bias must be one number for each head and score"),
    "sum": ([FEW] * 3, {"bias": lambda i, j: jnp.cumsum(pe.alibi(i, j, 2), -1)}, "cannot compute 'cumsum' in a bias"),
    "lookup": (
        [FEW] * 3,
        {"bias": lambda i, j: jnp.ones(9)[i[:, None]] - j[None].astype(jnp.float32)},
        "cannot compute 'gather' in a bias; use implementation='xla'",
    ),
    "integers": (
        [FEW] * 3,
        {"bias": lambda i, j: (jnp.arange(2)[:, None, None] * (i[:, None] + j[None])[None]).astype(jnp.float32)},
        "float32 numbers of heads",
    ),
    "large network": (
        [FEW] * 3,
        {
            "bias": lambda i, j: pe.fire(
                i, j, [np.ones(s, np.float32) for s in ((32,), (32,), (32, 2), (2,))], c=1.0, threshold=2.0
            )
        },
        "bias must have at most",
    ),
}


@needs_kernel
@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(name):
    x, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as caught:
        jax.eval_shape(functools.partial(pe.attention, **options, implementation="mosaic_gpu"), *x)
    assert str(caught.value).startswith("attention: ") and "use implementation='xla'" in str(caught.value)


@needs_kernel
def test_a_mask_of_keys_is_one_of_segments():
    x = jnp.ones(FEW.shape, FEW.dtype)
    seen = np.arange(8)[None] % 3 > 0
    x = Operands(
        x, x, x, None, TokenAttributes(np.arange(8)), TokenAttributes(np.arange(8)), seen[:, None, None], (), (), ()
    )
    given = hopper._mask_as_segments(x)
    assert given.mask is None
    np.testing.assert_array_equal(
        given.query_tokens.segments[..., None] == given.key_tokens.segments[:, None], np.repeat(seen[:, None], 8, 1)
    )


@needs_kernel
@pytest.mark.parametrize("bias", [lambda i, j: None, lambda i, j: (i, j), lambda i, j: i[:, None] - j[None]])
def test_a_bias_is_one_float_array(bias):
    with pytest.raises(TypeError, match="attention: bias must give one float array, got (none|int32)"):
        jax.eval_shape(functools.partial(pe.attention, bias=bias, implementation="mosaic_gpu"), FEW, FEW, FEW)


@needs_kernel
def test_it_refuses_positions_of_64_bits():
    here = lambda p, *x: attend(*x, query_positions=p, key_positions=p)  # noqa: E731
    with jax.enable_x64(True), pytest.raises(ValueError, match="segments must be int32 with .* got int64, int64"):
        jax.eval_shape(here, typed(8, dtype=np.int64), FEW, FEW, FEW)


def test_it_refuses_an_older_jax(monkeypatch):
    monkeypatch.setattr(workarounds, "HAS_MOSAIC_GPU", False)
    with pytest.raises(ValueError, match="attention: implementation='mosaic_gpu' needs JAX 0.11 or later, this is "):
        jax.eval_shape(attend, FEW, FEW, FEW)


@needs_kernel
@pytest.mark.parametrize("ptxas", [None, "12.6.85", "12.8.61", "12.9.41", "12.9.86"])
def test_it_masks_nothing_where_ptxas_miscompiles_it(ptxas, monkeypatch):
    """From CUDA 12.8.0 to before 12.9.1, as JAX's own kernel."""
    installed = {"jax-cuda12-plugin": "0.12.0", "nvidia-cuda-nvcc-cu12": ptxas}

    def version(name):
        if ptxas is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(workarounds, "ptxas", workarounds.ptxas.__wrapped__)
    segments = {f"{side}_segments": np.zeros(128, np.int32) for side in SIDES}
    for options in ({}, {"causal": True}, {"window": (9, None)}, segments, {"length": 130}):
        x = [typed(1, options.pop("length", 128), 2, 64)] * 3
        f = functools.partial(pe.attention, implementation="mosaic_gpu", **options)
        refused = ptxas in ("12.8.61", "12.9.41") and (options or x[0].shape[1] % 128)
        message = f"cannot mask scores with CUDA .* got .* nvidia-cuda-nvcc-cu12 {ptxas}"
        with pytest.raises(ValueError, match=message) if refused else contextlib.nullcontext():
            jax.eval_shape(f, *x)


@needs_kernel
def test_it_refuses_explicit_axes():
    placed = jax.ShapeDtypeStruct((8, 8, 2, 64), BFLOAT16, sharding=NamedSharding(on_a_mesh(AxisType.Explicit), P("a")))
    with pytest.raises(ValueError, match="query must not be sharded on Explicit axes of a mesh, but by jax.shard_map"):
        jax.eval_shape(attend, placed, placed, placed)


def test_an_implementation_has_one_of_two_names():
    with pytest.raises(
        ValueError, match=r"attention: implementation must be one of \('xla', 'mosaic_gpu'\), got 'flash'"
    ):
        jax.eval_shape(functools.partial(pe.attention, implementation="flash"), FEW, FEW, FEW)


# Tiles


@pytest.mark.parametrize("name", [name for name, (*_, options) in CASES.items() if options])
def test_tiles_that_are_skipped_or_seen_whole(name):
    queries, keys, *_, options = CASES[name]
    causal, (left, right) = options.get("causal"), options.get("window", (None, None))
    sides = {"positions": (np.arange(queries, dtype=np.int32), np.arange(keys, dtype=np.int32))}
    sides |= {
        k: tuple(options[f"{s}_{k}"] for s in SIDES)
        for k in ("positions", "segments", "order")
        if f"key_{k}" in options
    }
    by_order, blocks = "order" in sides, (128, 64)
    reach = left, 0 if causal and not by_order else right
    masks = {k: v for k, v in sides.items() if k != "positions"}
    seen = may_see(*sides["positions"], bool(causal), window=(left, right), **masks)
    seen = seen.reshape(-1, queries, keys)
    rows = {k: [np.atleast_2d(x) for x in v] for k, v in sides.items()}
    steps = hopper._tile_ranges(*hopper._visible_tiles(reach, rows, (queries, keys), blocks))
    check_steps(steps, seen, blocks, keys)
    transposed = hopper._tile_ranges(
        *hopper._visible_tiles(reach, rows, (queries, keys), blocks, transposed=True), masked_first=True
    )
    check_steps(transposed, np.swapaxes(seen, -1, -2), blocks[::-1])
    if "key_positions" not in options and HAS_KERNEL:
        check_bands(reach, rows, seen, (queries, keys))


def check_steps(steps, seen, blocks, most=None):
    """What is outside them is not seen, and what they call whole is. `most`: the columns that are no padding."""
    a, b = blocks
    for row, of_row in zip(np.broadcast_to(steps, (len(seen), *steps.shape[1:])), seen, strict=True):
        assert len(row) == -(-len(of_row) // a)
        for tile, (first, whole_from, whole_to, last) in enumerate(row):
            assert 0 <= first <= whole_from <= whole_to <= last
            part = of_row[tile * a :][:a]
            assert not part[:, : first * b].any() and not part[:, last * b :].any()
            assert part[:, whole_from * b : whole_to * b].all()
            assert most is None or whole_to * b <= most


def check_bands(reach, sides, seen, lengths):
    """Each score that is seen is in a tile that one band visits."""

    tiles = hopper._visible_tiles(reach, sides, lengths, (128, 64))
    offsets = table_kernel.band_offsets(reach, tiles[0].shape[1:])
    steps = hopper._tile_ranges(*(table_kernel.along_bands(offsets, x) for x in tiles))
    seen = np.broadcast_to(seen, (len(steps), *lengths))
    visited = np.zeros(seen.shape, int)
    for batch, row in enumerate(steps):
        for band, (first, whole_from, whole_to, last) in zip(offsets, row, strict=True):
            assert 0 <= first <= whole_from <= whole_to <= last
            for step in range(first, last):
                key = (2 * step - band) * 64
                if key >= 0:
                    tile = np.s_[batch, step * 128 : step * 128 + 128, key : key + 64]
                    visited[tile] += 1
                    assert seen[tile].all() or not whole_from <= step < whole_to
    assert visited.max() == 1 and not (seen & (visited == 0)).any()


def test_most_tiles_of_a_causal_mask_are_seen_whole():
    count = np.arange(1024, dtype=np.int32)[None]
    tiles = lambda *reach: hopper._visible_tiles(reach, {"positions": [count, count]}, (1024, 1024), (128, 128))  # noqa: E731
    steps = hopper._tile_ranges(*tiles(None, 0))
    np.testing.assert_array_equal(steps[0], [[0, 0, n, n + 1] for n in range(8)])
    steps = hopper._tile_ranges(*tiles(255, 0))
    np.testing.assert_array_equal(steps[0, 4:], [[n - 2, n - 1, n, n + 1] for n in range(4, 8)])
