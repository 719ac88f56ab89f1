"""Positions of packed, padded, multimodal and sharded sequences and of grids, against loops and recorded values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.tiers import tiered
from oracles import encodings, recorded
from oracles import positions as loops

RNG = np.random.default_rng(0)
QWEN, TIMM = recorded.cases("qwen_positions"), recorded.cases("timm_grids")


PADDINGS = [None, 0, 2, -5, 99]


@functools.cache
def segments_of_every_padding(shape):
    """Ids, and their positions by each padding, traced and mapped over rows, in one program."""
    ids = np.repeat(np.random.default_rng(0).integers(-2, 3, shape), 3, axis=-1).astype(np.int32)
    ids[ids == -2] = -5

    def each(ids, padding):
        f = functools.partial(pe.positions_from_segments, padding=padding)
        return [f(ids), *([jax.vmap(f)(ids)] if len(shape) == 2 and shape[1] else [])]

    return ids, jax.jit(lambda ids: [each(ids, padding) for padding in PADDINGS])(ids)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("shape", tiered([(1,), (40,), (3, 50), (2, 2, 17), (2, 0), (0,)], [(1,), (2, 2, 17), (2, 0)]))
def test_segments(shape, padding):
    ids, traced = segments_of_every_padding(shape)
    rows = ids.reshape(int(np.prod(shape[:-1])), ids.shape[-1])
    want = np.array([loops.segments(row.tolist(), padding) for row in rows], np.int32).reshape(ids.shape)
    for got in (pe.positions_from_segments(ids, padding=padding), *traced[PADDINGS.index(padding)]):
        assert got.dtype == jnp.int32
        np.testing.assert_array_equal(got, want)


def test_a_segment_that_comes_back_starts_again_and_an_id_is_not_a_count():
    ids = np.array([5, 5, 0, 0, 5, 5, 5, 9])
    np.testing.assert_array_equal(pe.positions_from_segments(ids), [0, 1, 0, 1, 0, 1, 2, 0])
    np.testing.assert_array_equal(pe.positions_from_segments(ids, padding=0), [0, 1, 0, 0, 0, 1, 2, 0])


@pytest.mark.parametrize("padding", [2**31 - 1, -(2**31)])
def test_the_largest_ids(padding):
    ids = np.array([padding, 1, 1, padding, padding], np.int32)
    np.testing.assert_array_equal(pe.positions_from_segments(ids, padding=padding), [0, 0, 1, 0, 0])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32, np.int64])
def test_segments_of_any_integer_dtype(dtype):
    ids = np.array([1, 1, 3, 3, 3, 0], dtype)
    paddings = (0, None, -1, 3)
    traced = jax.jit(lambda ids: [pe.positions_from_segments(ids, padding=padding) for padding in paddings])(ids)
    for padding, of_traced in zip(paddings, traced, strict=True):
        want = loops.segments(ids.tolist(), padding)
        assert want[-1] == 0
        np.testing.assert_array_equal(pe.positions_from_segments(ids, padding=padding), want, f"padding {padding}")
        np.testing.assert_array_equal(of_traced, want, f"padding {padding}, traced")


@pytest.mark.parametrize("dtype", [bool, np.int32, np.uint8, np.int64])
def test_mask(dtype):
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).astype(dtype)
    want = [[0, 0, 0, 1, 2], [0, 1, 2, 0, 0], [0, 0, 1, 0, 2], [0, 0, 0, 0, 0], [0, 1, 2, 3, 4]]
    for f in (pe.positions_from_mask, jax.jit(pe.positions_from_mask), jax.vmap(pe.positions_from_mask)):
        got = f(mask)
        assert got.dtype == jnp.int32
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(pe.positions_from_mask(mask.reshape(5, 1, 5))[:, 0], want)
    assert pe.positions_from_mask(mask[:0]).shape == (0, 5) and pe.positions_from_mask(mask[:, :0]).shape == (5, 0)
    traced = jax.jit(pe.positions_from_mask)(np.array([0, 7, -1, 0], np.int32))
    np.testing.assert_array_equal(traced, [0, 0, 1, 0])


@pytest.mark.parametrize("f", [pe.positions_from_segments, pe.positions_from_mask])
def test_memory_grows_with_the_length(f):
    for length in (2**14, 2**18):
        compiled = jax.jit(f).lower(jax.ShapeDtypeStruct((length,), np.int32)).compile()
        assert compiled.memory_analysis().temp_size_in_bytes <= 40 * length
        assert not {"gather", "scatter", "sort"} & set(compiled.as_text().replace("(", " ").split())


def test_padding_does_not_shift_a_rotation():
    q = RNG.normal(size=(1, 6, 2, 8)).astype(np.float32)
    whole = pe.rotary(q, head_axis=-2)
    mask = np.array([[0, 0, 1, 1, 1, 1]])
    padded = np.concatenate([np.zeros((1, 2, 2, 8), np.float32), q[:, :4]], 1)
    got = pe.rotary(padded, pe.positions_from_mask(mask), head_axis=-2)
    np.testing.assert_array_equal(got[:, 2:], whole[:, :4])


@pytest.mark.parametrize("case", QWEN, ids=lambda c: f"{c['model']} {c['parts']}")
def test_multimodal_positions_are_those_of_transformers(case):
    got = pe.multimodal_positions(case["parts"], following="side")
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, case["positions"])
    assert int(got.max()) + 1 - len(got) == case["delta"]
    higher = pe.multimodal_positions(case["parts"])
    # The two rules differ after a video that is longer than its sides, and nowhere else.
    longer = any(isinstance(p, list) and (p[0] - 1) * (p[3:] or [1])[0] >= max(p[1:3]) for p in case["parts"])
    assert np.array_equal(higher, got) == (not longer)


@pytest.mark.parametrize(
    "parts",
    [
        [3],
        [(1, 2, 5)],
        [2, (1, 4, 3), 3, (1, 2, 2), (1, 1, 3), 1],
        [1, (7, 2, 3), 2],
        [(4, 2, 2, 2.5), 3, (3, 3, 1, 0.3), 2],
        [np.int64(2), np.array([2, 3, 2]), 1],
    ],
)
def test_multimodal_positions_after_the_maximum(parts):
    plain = [p if isinstance(p, tuple) else p.tolist() if isinstance(p, np.ndarray) else int(p) for p in parts]
    np.testing.assert_array_equal(pe.multimodal_positions(parts), loops.multimodal(plain))
    np.testing.assert_array_equal(jax.jit(lambda: pe.multimodal_positions(parts))(), loops.multimodal(plain))


def test_multimodal_positions_of_nothing_and_of_time_in_float32():
    assert pe.multimodal_positions([]).shape == (0, 3)
    assert pe.multimodal_positions([(4, 1, 1, 4 / 3)])[:, 0].tolist() == [0, 1, 2, 4]
    # 25 positions a second and 2/7 of a second a frame: 35 frames make 250, but 249 in float64.
    step = 25 * (2 / 7)
    assert int(35 * step) == 249
    assert pe.multimodal_positions([(36, 1, 1, step)])[35].tolist() == [250, 0, 0]


ORDERS = ["contiguous", "zigzag", "striped"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("length", "shards"), [(24, 3), (8, 1), (8, 4), (48, 8), (2, 1)])
def test_shards(length, shards, order):
    got = pe.shard_positions(length, shards, order=order)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, loops.shards(length, shards, order))
    assert sorted(np.asarray(got).reshape(-1).tolist()) == list(range(length))


def test_zigzag_shares_out_causal_attention_equally():
    pairs = lambda order: np.asarray(pe.shard_positions(48, 4, order=order) + 1).sum(1)  # noqa: E731
    assert len(set(pairs("zigzag"))) == 1 and len(set(pairs("contiguous"))) == 4


@pytest.mark.parametrize("order", ORDERS)
def test_a_sharded_sequence_has_the_bits_of_the_whole(order, on_cpu):
    length, n = 32, 4
    q = RNG.normal(size=(length, 2, 8)).astype(np.float32)
    positions = pe.shard_positions(length, n, order=order)
    place = positions.reshape(-1)
    back = jnp.argsort(place)
    mesh = Mesh(np.array(jax.devices("cpu")[:n]), ("context",))

    def local(q, x):
        mine = positions[jax.lax.axis_index("context")]
        return pe.rotary(q, mine, head_axis=-2), pe.add_sinusoidal(x, mine)

    sharded = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("context"), out_specs=P("context")))
    rotated, added = sharded(q[place], q[place, 0])
    np.testing.assert_array_equal(np.asarray(rotated)[back], jax.jit(functools.partial(pe.rotary, head_axis=-2))(q))
    np.testing.assert_array_equal(np.asarray(added)[back], jax.jit(pe.add_sinusoidal)(q[:, 0]))


# Grids that are not square, against the tables of vision transformers

SHAPES = [(3, 5), (5, 3), (1, 4), (4, 1), (14, 24)]


@pytest.mark.parametrize("leading", [0, 1, 5])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (5, 3), (1, 1), (2, 3, 4), (4, 1, 3), (2, 3, 2, 2)])
def test_grids(shape, leading):
    want = loops.grid(shape, leading=leading)
    got = pe.grid_positions(shape, leading=leading)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(jax.jit(lambda: pe.grid_positions(np.array(shape), leading=leading))(), want)
    if len(shape) > 1:
        want = loops.grid(shape, "column", leading)
        np.testing.assert_array_equal(pe.grid_positions(shape, order="column", leading=leading), want)


def test_leading_tokens_are_not_turned():
    x = np.random.default_rng(0).normal(size=(2 + 15, 3, 16)).astype(np.float32)
    got = pe.rotary(x, pe.grid_positions((3, 5), leading=2), pe.axial(16, 2), head_axis=-2)
    np.testing.assert_array_equal(got[:2], x[:2])
    np.testing.assert_array_equal(got[2:], pe.rotary(x[2:], pe.grid_positions((3, 5)), pe.axial(16, 2), head_axis=-2))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [8, 36, 384])
def test_tables_of_mae_and_big_vision(shape, width):
    positions = pe.grid_positions(shape, order="column")  # each coordinate is encoded by itself, and they are joined
    got = np.asarray(pe.sinusoidal(positions, width // 2, layout="half")).reshape(-1, width)
    np.testing.assert_allclose(got, encodings.mae(width, *shape), rtol=0, atol=1e-7)
    ends = pe.sinusoidal(positions, pe.geometric(width // 2, endpoint=True), layout="half")
    np.testing.assert_allclose(
        np.asarray(ends).reshape(-1, width), encodings.big_vision(width, *shape), rtol=0, atol=1e-7
    )
    rows_first = np.asarray(pe.sinusoidal(pe.grid_positions(shape), width // 2, layout="half")).reshape(-1, width)
    np.testing.assert_array_equal(rows_first, np.roll(got, width // 2, axis=1))
    with_class = np.pad(got, ((1, 0), (0, 0)))  # MAE's class token
    assert not with_class[0].any() and with_class.shape == (shape[0] * shape[1] + 1, width)


@pytest.mark.parametrize("case", TIMM, ids=lambda c: f"{c['shape']} {c['arguments']}")
def test_tables_of_timm(case):
    shape, keywords = case["shape"], case["arguments"]
    if keywords.get("reverse_coord"):  # which walks the grid column by column as well
        shape = shape[::-1]
    positions, base = pe.grid_positions(shape), keywords.get("temperature", 10_000.0)
    if keywords.get("interleave_sin_cos"):
        got = pe.sinusoidal(positions, pe.geometric(6, base), layout="half").reshape(-1, 12)
    else:  # the sines of both coordinates, then the cosines
        got = pe.sinusoidal(positions, pe.axial(12, 2, base), layout="half")
    np.testing.assert_allclose(got, np.reshape(case["values"], (-1, 12)), rtol=0, atol=5e-7)


def test_three_coordinates():
    shape, width = (2, 3, 4), 24
    got = pe.sinusoidal(pe.grid_positions(shape), pe.axial(width, 3))
    assert got.shape == (24, width)
    want = np.concatenate([encodings.encode(p, width // 3) for p in loops.grid(shape).T], 1)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-7)


IDS = np.array([1, 1, 2], np.int32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: pe.positions_from_segments(IDS.astype(np.float32)), TypeError, r"positions_from_segments: ids must be an integer array, got float32 of shape \(3,\)"),
        (lambda: pe.positions_from_segments(IDS > 1), TypeError, "positions_from_segments: ids must be an integer array, got bool"),
        (lambda: pe.positions_from_segments([1, 1, 2]), TypeError, r"positions_from_segments: ids must be an integer array, got list \[1, 1, 2\]"),
        (lambda: pe.positions_from_segments(3), ValueError, r"positions_from_segments: ids must have shape \(..., length\), got \(\)"),
        (lambda: pe.positions_from_segments(np.array([1, 2**32 + 1])), ValueError, "positions_from_segments: ids must fit into int32, got int64 values from 1 to 4294967297"),
        (lambda: pe.positions_from_segments(IDS, padding=0.0), TypeError, "positions_from_segments: padding must be an integer, got float 0.0"),  # type: ignore
        (lambda: pe.positions_from_segments(IDS, padding=False), TypeError, "positions_from_segments: padding must be an integer, got bool False"),
        (lambda: pe.positions_from_segments(IDS, padding=2**31), ValueError, "positions_from_segments: padding must fit into int32, got 2147483648"),
        (lambda: pe.positions_from_mask(IDS), ValueError, "positions_from_mask: mask must hold 0 and 1, got 1 to 2"),
        (lambda: pe.positions_from_mask(-IDS), ValueError, "positions_from_mask: mask must hold 0 and 1, got -2 to -1"),
        (lambda: pe.positions_from_mask(np.zeros(3, np.float32)), TypeError, "positions_from_mask: mask must be a boolean or integer array, got float32"),
        (lambda: jax.jit(pe.positions_from_mask)(np.zeros(3, np.float32)), TypeError, "positions_from_mask: mask must be a boolean or integer array, got float32"),
        (lambda: pe.positions_from_mask([True, False]), TypeError, "positions_from_mask: mask must be a boolean or integer array, got list"),
        (lambda: pe.positions_from_mask(np.array(True)), ValueError, r"positions_from_mask: mask must have shape \(..., length\), got \(\)"),
        (lambda: pe.multimodal_positions(7), TypeError, "multimodal_positions: parts must be a sequence of integers and grids, got int 7"),  # type: ignore
        (lambda: pe.multimodal_positions(b"\1\2"), TypeError, "multimodal_positions: parts must be a sequence of integers and grids, got bytes"),  # type: ignore
        (lambda: pe.multimodal_positions([0]), ValueError, r"multimodal_positions: parts\[0\] must be at least 1, got 0"),
        (lambda: pe.multimodal_positions([1, (1, 2)]), ValueError, r"multimodal_positions: parts\[1\] must be a length, \(time, height, width\) or these and Δ, got \(1, 2\)"),
        (lambda: pe.multimodal_positions([(1, 0, 2)]), ValueError, r"multimodal_positions: parts\[0\]\[1\] must be at least 1, got 0"),
        (lambda: pe.multimodal_positions([(1, 2.0, 2)]), TypeError, r"multimodal_positions: parts\[0\]\[1\] must be an integer, got float 2.0"),
        (lambda: pe.multimodal_positions([(1, 2, 2, 0)]), ValueError, r"multimodal_positions: parts\[0\]\[3\] must be positive, got 0.0"),
        (lambda: pe.multimodal_positions([1.5]), TypeError, r"multimodal_positions: parts\[0\] must be a sequence of numbers, or an integer, got float 1.5"),  # type: ignore
        (lambda: pe.multimodal_positions([True]), TypeError, r"multimodal_positions: parts\[0\] must be an integer, got bool True"),
        (lambda: pe.multimodal_positions([(3, 1, 1, 2e9)]), ValueError, "multimodal_positions: positions must fit into int32, got up to 4000000000"),
        (lambda: pe.multimodal_positions([(3, 1, 1, 1e30)]), ValueError, r"multimodal_positions: positions must fit into int32, got up to 2e\+30"),
        (lambda: pe.multimodal_positions([1, (2, 1, 1, 2.0**31 - 1)]), ValueError, "multimodal_positions: positions must fit into int32, got up to 2147483649"),
        (lambda: pe.multimodal_positions([(1, 1, 1, 1e300)]), ValueError, r"multimodal_positions: parts\[0\]\[3\] must be from .* for float32, got 1e\+300"),
        (lambda: pe.multimodal_positions([1], following="grid"), ValueError, "multimodal_positions: following must be one of .* got 'grid'"),  # type: ignore
        (lambda: pe.shard_positions(10, 4), ValueError, "shard_positions: length must be a multiple of shards = 4, got 10"),
        (lambda: pe.shard_positions(12, 4, order="zigzag"), ValueError, "shard_positions: length must be a multiple of 2·shards = 8 for order='zigzag', got 12"),
        (lambda: pe.shard_positions(0, 4), ValueError, "shard_positions: length must be at least 1, got 0"),
        (lambda: pe.shard_positions(8, 0), ValueError, "shard_positions: shards must be at least 1, got 0"),
        (lambda: pe.shard_positions(8.0, 2), TypeError, "shard_positions: length must be an integer, got float 8.0"),  # type: ignore
        (lambda: pe.shard_positions(2**31, 2), ValueError, "shard_positions: length must be below 2³¹, got 2147483648"),
        (lambda: pe.shard_positions(8, 2, order="ring"), ValueError, "shard_positions: order must be one of .* got 'ring'"),  # type: ignore
        (lambda: pe.grid_positions((3, 0)), ValueError, r"grid_positions: shape\[1\] must be at least 1, got 0"),
        (lambda: pe.grid_positions((-1, 3)), ValueError, r"grid_positions: shape\[0\] must be at least 1, got -1"),
        (lambda: pe.grid_positions(()), ValueError, r"grid_positions: shape must have more sides for order='row', got \(\)"),
        (lambda: pe.grid_positions((3,), order="column"), ValueError, r"grid_positions: shape must have more sides for order='column', got \(3,\)"),
        (lambda: pe.grid_positions((2**16, 2**15)), ValueError, r"grid_positions: shape must have fewer than 2³¹ tokens, got \(65536, 32768\) after leading=0"),
        (lambda: pe.grid_positions(4), TypeError, "grid_positions: shape must be a sequence of integers, got int 4"),  # type: ignore
        (lambda: pe.grid_positions((2.0, 3)), TypeError, r"grid_positions: shape\[0\] must be an integer, got float 2.0"),  # type: ignore
        (lambda: pe.grid_positions((2, 3), leading=-1), ValueError, "grid_positions: leading must be at least 0, got -1"),
        (lambda: pe.grid_positions((2, 3), leading=True), TypeError, "grid_positions: leading must be an integer, got bool True"),
        (lambda: pe.grid_positions((2, 3), order="xy"), ValueError, "grid_positions: order must be one of .* got 'xy'"),  # type: ignore
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
