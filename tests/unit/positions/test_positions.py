"""Positions of packed, padded and sharded sequences and of grids, against loops and recorded values."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles import encodings, recorded
from oracles import positions as loops

RNG = np.random.default_rng(0)
TIMM = recorded.cases("timm_grids")


PADDINGS = [None, 0, 2, -5, 99]


@pytest.mark.parametrize("shape", tiered([(1,), (40,), (3, 50), (2, 2, 17), (2, 0), (0,)], [(1,), (2, 2, 17), (2, 0)]))
def test_segments(shape):
    ids = np.repeat(RNG.integers(-2, 3, shape), 3, axis=-1).astype(np.int32)
    ids[ids == -2] = -5
    rows = ids.reshape(int(np.prod(shape[:-1])), ids.shape[-1])

    def each(x, padding):
        f = functools.partial(pe.positions_from_segments, padding=padding)
        return [f(ids), f(x), *([jax.vmap(f)(x)] if ids.ndim == 2 and ids.size else [])]  # known ids, and traced

    for padding, found in zip(PADDINGS, quick(lambda x: [each(x, p) for p in PADDINGS])(ids), strict=True):
        want = np.array([loops.segments(row.tolist(), padding) for row in rows], np.int32).reshape(ids.shape)
        for got in found:
            assert got.dtype == jnp.int32
            np.testing.assert_array_equal(got, want, f"padding {padding}")


def test_a_segment_that_comes_back_starts_again_and_an_id_is_not_a_count():
    ids = np.array([5, 5, 0, 0, 5, 5, 5, 9])
    np.testing.assert_array_equal(pe.positions_from_segments(ids), [0, 1, 0, 1, 0, 1, 2, 0])
    np.testing.assert_array_equal(pe.positions_from_segments(ids, padding=0), [0, 1, 0, 0, 0, 1, 2, 0])


@pytest.mark.parametrize("padding", [2**31 - 1, -(2**31)])
def test_the_largest_ids(padding):
    ids = np.array([padding, 1, 1, padding, padding], np.int32)
    np.testing.assert_array_equal(pe.positions_from_segments(ids, padding=padding), [0, 0, 1, 0, 0])


@pytest.mark.parametrize("dtype", tiered([np.int8, np.uint8, np.uint32, np.int64], [np.uint8, np.int64]))
def test_segments_of_any_integer_dtype(dtype):
    ids = np.array([1, 1, 3, 3, 3, 0], dtype)
    paddings = (0, None, -1, 3)
    each = lambda ids: [pe.positions_from_segments(ids, padding=padding) for padding in paddings]  # noqa: E731
    known, traced = quick(lambda traced: (each(ids), each(traced)))(ids)
    for padding, *of_both in zip(paddings, known, traced, strict=True):
        want = loops.segments(ids.tolist(), padding)
        assert want[-1] == 0
        np.testing.assert_array_equal(of_both, [want] * 2, f"padding {padding}, of known and of traced ids")


@pytest.mark.parametrize("dtype", tiered([bool, np.int32, np.uint8, np.int64], [bool, np.int32]))
def test_mask(dtype):
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).astype(dtype)
    want = [[0, 0, 0, 1, 2], [0, 1, 2, 0, 0], [0, 0, 1, 0, 2], [0, 0, 0, 0, 0], [0, 1, 2, 3, 4]]
    f = pe.positions_from_mask
    for got in (f(mask), *quick(lambda mask: (f(mask), jax.vmap(f)(mask), f(mask[:, None])[:, 0]))(mask)):
        assert got.dtype == jnp.int32
        np.testing.assert_array_equal(got, want)
    empty = jax.eval_shape(lambda: (f(mask[:0]), f(mask[:, :0])))
    assert [x.shape for x in empty] == [(0, 5), (5, 0)]


def test_every_nonzero_value_of_a_traced_mask_counts():
    traced = jax.jit(pe.positions_from_mask)(np.array([0, 7, -1, 0], np.int32))
    np.testing.assert_array_equal(traced, [0, 0, 1, 0])


PACKS = [
    ([3, 2], 7), ([3, 2], 5), ([0, 3, 0, 0, 2, 0], 6), ([0], 4), ([], 3), ([5], 5), ([1] * 9, 9), ([0, 0, 1], 1),
    ([7, 1, 4], 12), ([2**20, 3], 2**20 + 5),
]  # fmt: skip


DTYPES = np.int32, np.uint8, np.int64, np.uint32
LENGTHS = [(*pack, dtype) for pack in PACKS for dtype in DTYPES if max(pack[0], default=0) <= np.iinfo(dtype).max]


@pytest.mark.parametrize(
    ("lengths", "total", "dtype"), [x if i in (1, 8, 16) else slow(*x) for i, x in enumerate(LENGTHS)]
)
def test_lengths(lengths, total, dtype):
    lengths, want = np.array(lengths, dtype), loops.lengths(lengths, total)
    f = functools.partial(pe.positions_from_lengths, total=total)
    for got in quick(lambda traced: (f(lengths), f(traced)))(lengths):
        assert got.dtype == jnp.int32
        np.testing.assert_array_equal(got, want)


def test_lengths_of_a_batch():
    lengths = RNG.multinomial(20, [0.4, 0.2, 0.2, 0.1, 0.1], (20, 5)).astype(np.int32)
    want = np.array([[loops.lengths(row, 23) for row in rows] for rows in lengths])
    f = functools.partial(pe.positions_from_lengths, total=23)
    for got in quick(lambda traced: (f(lengths), f(traced), jax.vmap(f)(traced)))(lengths):
        np.testing.assert_array_equal(got, want)
    assert jax.eval_shape(lambda: f(lengths[:0])).shape == (0, 5, 23)


def test_segments_and_cumulative_lengths_of_a_pack():
    lengths = np.array([4, 0, 1, 6, 2], np.int32)
    cu_seqlens = np.cumsum([0, *lengths], dtype=np.int32)
    positions = quick(lambda cu_seqlens: pe.positions_from_lengths(jnp.diff(cu_seqlens), 16))(cu_seqlens)
    np.testing.assert_array_equal(positions, loops.lengths(lengths, 16))
    ids = np.cumsum(np.asarray(positions) == 0)
    assert ids.tolist() == [1] * 4 + [2] + [3] * 6 + [4] * 2 + [5, 6, 7]  # no two documents share an id
    np.testing.assert_array_equal(pe.positions_from_segments(ids), positions)


@pytest.mark.slow
def test_traced_lengths_that_do_not_fit():
    f, most = functools.partial(pe.positions_from_lengths, total=7), 2**31 - 1
    # sums that wrap around in int32 or uint32
    overflowing = [3, most], [3, most, most, most], [3, *[2**30] * 9]
    negative = [[3, -1], [-(2**31), 9], [2, 2]]
    got = quick(lambda each: [f(lengths) for lengths in each])([*map(np.int32, ([3, 9, 4], negative, *overflowing))])
    np.testing.assert_array_equal(got[0], loops.lengths([3, 9, 4], 7))
    np.testing.assert_array_equal(got[1], [[-1] * 7, [-1] * 7, [0, 1, 0, 1, 0, 0, 0]])
    for lengths, of_lengths in zip(overflowing, got[2:], strict=True):
        np.testing.assert_array_equal(of_lengths, [0, 1, 2, 0, 1, 2, 3], f"lengths {lengths}")
    with jax.enable_x64(True):
        wide = quick(f)(np.array([[3, 2**40], [-(2**40), 3]]))
    np.testing.assert_array_equal(wide, [[0, 1, 2, 0, 1, 2, 3], [-1] * 7])


@pytest.mark.slow
def test_memory_of_lengths():
    total, n = 2**18, 2**12
    of_total = functools.partial(pe.positions_from_lengths, total=total)
    compiled = quick(of_total).lower(jax.ShapeDtypeStruct((n,), np.int32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 40 * (total + n)
    assert not {"gather", "sort"} & set(compiled.as_text().replace("(", " ").split())


@pytest.mark.parametrize("f", [pe.positions_from_segments, slow(pe.positions_from_mask)])
def test_memory_grows_with_the_length(f):
    for length in (2**14, 2**18):
        compiled = quick(f).lower(jax.ShapeDtypeStruct((length,), np.int32)).compile()
        assert compiled.memory_analysis().temp_size_in_bytes <= 40 * length
        assert not {"gather", "scatter", "sort"} & set(compiled.as_text().replace("(", " ").split())


def test_padding_does_not_shift_a_rotation():
    q = RNG.normal(size=(1, 6, 2, 8)).astype(np.float32)
    mask = np.array([[0, 0, 1, 1, 1, 1]])
    padded = np.concatenate([np.zeros((1, 2, 2, 8), np.float32), q[:, :4]], 1)

    def both(q, padded):
        return pe.rotary(q, head_axis=-2), pe.rotary(padded, pe.positions_from_mask(mask), head_axis=-2)

    whole, got = map(np.asarray, jax.jit(both)(q, padded))
    np.testing.assert_array_equal(got[:, 2:], whole[:, :4])


ORDERS = ["contiguous", "zigzag", "striped"]


def by_order(*arguments, **keywords):
    """`shard_positions` of each order."""
    return {order: pe.shard_positions(*arguments, order=order, **keywords) for order in ORDERS}


@pytest.mark.parametrize(("length", "shards"), [(24, 3), (8, 1), (8, 4), (48, 8), (2, 1)])
def test_shards(length, shards):
    for order, got in quick(lambda: by_order(length, shards))().items():
        assert got.dtype == jnp.int32
        np.testing.assert_array_equal(got, loops.shards(length, shards, order), order)
        assert sorted(np.asarray(got).reshape(-1).tolist()) == list(range(length)), order


def test_zigzag_shares_out_causal_attention_equally():
    pairs = {order: np.sum(np.asarray(got) + 1, 1) for order, got in quick(lambda: by_order(48, 4))().items()}
    assert len(set(pairs["zigzag"])) == 1 and len(set(pairs["contiguous"])) == 4


@pytest.mark.parametrize("order", ORDERS)
def test_a_sharded_sequence_has_the_bits_of_the_whole(order, on_cpu):
    length, n = 32, 4
    q = RNG.normal(size=(length, 2, 8)).astype(np.float32)
    positions = np.asarray(pe.shard_positions(length, n, order=order))
    place = positions.reshape(-1)
    back = np.argsort(place)
    mesh = Mesh(np.array(jax.devices("cpu")[:n]), ("context",))

    def both(q, x, positions):
        return pe.rotary(q, positions, head_axis=-2), pe.add_sinusoidal(x, positions)

    def local(q, x, positions):
        return both(q, x, positions[jax.lax.axis_index("context")])

    along = P("context")
    sharded = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(along, along, P()), out_specs=along))
    rotated, added = (np.asarray(x)[back] for x in sharded(q[place], q[place, 0], positions))
    whole_rotated, whole_added = jax.jit(functools.partial(both, positions=None))(q, q[:, 0])
    np.testing.assert_array_equal(rotated, whole_rotated)
    np.testing.assert_array_equal(added, whole_added)


SHARDED = [
    ([8, 16], 24, 2),
    ([4, 12, 8], 32, 2),
    ([0, 24, 0], 24, 3),
    ([16, 0, 32, 16], 80, 8),
    ([], 8, 2),
    ([6], 6, 1),
]


@pytest.mark.parametrize(("lengths", "length", "shards"), [x if i == 2 else slow(*x) for i, x in enumerate(SHARDED)])
def test_shards_of_packs(lengths, length, shards):
    lengths = np.array(lengths, np.int32)
    both = np.stack([lengths, lengths[::-1]])[None]
    each = lambda *packs: [by_order(length, shards, lengths=x) for x in (lengths, *packs)]  # noqa: E731
    known, traced, several = quick(each)(lengths, both)
    for order in ORDERS:
        want = loops.shards_of_pack(lengths, length, shards, order)
        for got in (known[order], traced[order]):
            assert got.dtype == jnp.int32
            np.testing.assert_array_equal(got, want, order)
        assert sorted(np.asarray(want).reshape(-1).tolist()) == list(range(length)), order
        backwards = loops.shards_of_pack(lengths[::-1], length, shards, order)
        np.testing.assert_array_equal(several[order], [[want, backwards]], order)


@pytest.mark.parametrize("order", tiered(ORDERS, ["zigzag"]))
def test_shards_of_a_batch_of_packs(order):
    lengths = 6 * RNG.multinomial(6, [0.4, 0.2, 0.2, 0.1, 0.1], 40).astype(np.int32)
    want = np.array([loops.shards_of_pack(row, 42, 3, order) for row in lengths])
    f = lambda lengths: pe.shard_positions(42, 3, order=order, lengths=lengths)  # noqa: E731
    for got in quick(lambda x: (f(x), jax.vmap(f)(x)))(lengths):
        np.testing.assert_array_equal(got, want)
    at = np.asarray(pe.positions_from_lengths(lengths, 42))
    for pack, places, row in zip(at, want, lengths, strict=True):
        np.testing.assert_array_equal(pack[places], np.array(loops.lengths(row, 42))[places], f"lengths {row}")


def test_a_shard_of_a_pack_takes_the_memory_of_a_shard():
    f = jax.jit(lambda lengths, i: pe.shard_positions(2**18, 16, order="zigzag", lengths=lengths)[i])
    compiled = f.lower(*(jax.ShapeDtypeStruct(shape, np.int32) for shape in ((64,), ()))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 3 * 4 * 2**14


def test_a_pack_of_one_document_is_a_sequence():
    of_one, sequence = quick(lambda: (by_order(48, 4, lengths=np.array([48])), by_order(48, 4)))()
    for order in ORDERS:
        np.testing.assert_array_equal(of_one[order], sequence[order], order)


@pytest.mark.parametrize("lengths", [[5, 3], [-4, 8], [8, 8, 8], [2**31 - 4] * 5, [4, 2**31 - 8]])
def test_traced_lengths_that_do_not_fit_share_out_the_whole_pack(lengths):
    f = functools.partial(pe.shard_positions, 16, 2, order="zigzag")
    lengths = np.int32(lengths + [0] * (5 - len(lengths)))
    fits, fills = np.int32([[8, 0, 0, 0, 0], [4, 12, 0, 0, 0]])
    each = lambda *packs: [f(lengths=x) for x in (None, *packs)]  # noqa: E731
    whole, one, rows = quick(each)(lengths, np.stack([lengths, fits, fills]))
    np.testing.assert_array_equal(one, whole)
    of_fitting = (loops.shards_of_pack(x, 16, 2, "zigzag") for x in ([8], [4, 12]))
    np.testing.assert_array_equal(rows, [loops.shards(16, 2, "zigzag"), *of_fitting])


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_a_sharded_pack_has_the_bits_of_the_whole(order, on_cpu):
    length, n = 48, 4
    lengths = np.int32([8, 0, 24, 8])  # and 8 of padding
    q, k, v = RNG.normal(size=(3, 1, length, 2, 8)).astype(np.float32)
    at = np.asarray(pe.positions_from_lengths(lengths, length))
    ids = np.cumsum(at == 0)
    place = np.asarray(pe.shard_positions(length, n, order=order, lengths=lengths)).reshape(-1)
    back = np.argsort(place)
    mesh = Mesh(np.array(jax.devices("cpu")[:n]), ("context",))

    def local(q, k, v, lengths):
        """The scores and the output of this device's queries with all keys, each device making its own positions."""
        mine = pe.shard_positions(length, n, order=order, lengths=lengths)[jax.lax.axis_index("context")]
        at = pe.positions_from_lengths(lengths, length)
        own, segment = at[mine], jnp.cumsum(at == 0)
        q, k = (pe.rotary(x, own, head_axis=-2) for x in (q, k))
        k, v, where, there = (
            jax.lax.all_gather(x, "context", axis=x.ndim - 3 if x.ndim > 1 else 0, tiled=True)
            for x in (k, v, mine, segment[mine])
        )
        back = jnp.argsort(where)
        k, v, there = k[:, back], v[:, back], there[back]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="highest")
        positions = {"query_positions": mine, "key_positions": jnp.arange(length)}
        segments = {"query_segments": segment[mine], "key_segments": there}
        return q, scores, pe.attention(q, k, v, causal=True, **positions, **segments)

    along = P(None, "context")
    specs = (along, P(None, None, "context"), along)
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(along, along, along, P()), out_specs=specs))
    rotated, scores, attended = run(q[:, place], k[:, place], v[:, place], lengths)

    turned, keys = jax.jit(lambda *each: [pe.rotary(x, at, head_axis=-2) for x in each])(q, k)
    np.testing.assert_array_equal(np.asarray(rotated)[:, back], turned)

    @jax.jit
    def whole(q, k, v):
        attended = pe.attention(q, k, v, causal=True, query_segments=ids, key_segments=ids)
        return jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="highest"), attended

    want_scores, want = whole(turned, keys, v)
    np.testing.assert_array_equal(np.asarray(scores)[:, :, back], want_scores)
    np.testing.assert_allclose(np.asarray(attended)[:, back], want, rtol=0, atol=1e-6)


# Grids that are not square, against the tables of vision transformers

SHAPES = [(3, 5), (5, 3), (1, 4), (4, 1), (14, 24)]


@pytest.mark.parametrize(
    "shape", tiered([(7,), (3, 5), (5, 3), (1, 1), (2, 3, 4), (4, 1, 3), (2, 3, 2, 2)], [(7,), (3, 5), (4, 1, 3)])
)
def test_grids(shape):
    leadings, orders = (0, 1, 5), ("row", "column") if len(shape) > 1 else ("row",)
    both = lambda *case: [pe.grid_positions(x, order=case[0], leading=case[1]) for x in (shape, np.array(shape))]  # noqa: E731
    cases = itertools.product(orders, leadings)
    for (order, leading), found in quick(lambda: {case: both(*case) for case in cases})().items():
        for got in found:
            assert got.dtype == jnp.int32
            np.testing.assert_array_equal(got, loops.grid(shape, order, leading), f"{order}, {leading} leading")


def test_leading_tokens_are_not_turned():
    x = np.random.default_rng(0).normal(size=(2 + 15, 3, 16)).astype(np.float32)
    f = functools.partial(pe.rotary, frequencies=pe.axial(16, 2), head_axis=-2)
    with_leading = lambda x: f(x, pe.grid_positions((3, 5), leading=2))  # noqa: E731
    got, want = jax.jit(lambda x: (with_leading(x), f(x[2:], pe.grid_positions((3, 5)))))(x)
    np.testing.assert_array_equal(got, [*x[:2], *np.asarray(want)])


@pytest.mark.parametrize("shape", tiered(SHAPES, [(3, 5)]))
@pytest.mark.parametrize("width", tiered([8, 36, 384], [8]))
def test_tables_of_mae_and_big_vision(shape, width):
    @jax.jit
    def tables():
        encode = functools.partial(pe.sinusoidal, layout="half")
        # each coordinate is encoded by itself, and they are joined
        positions, half = pe.grid_positions(shape, order="column"), width // 2
        ends = encode(positions, pe.geometric(half, endpoint=True))
        return encode(positions, half), ends, encode(pe.grid_positions(shape), half)

    got, ends, rows_first = (np.asarray(x).reshape(-1, width) for x in tables())
    np.testing.assert_allclose(got, encodings.mae(width, *shape), rtol=0, atol=1e-7)
    np.testing.assert_allclose(ends, encodings.big_vision(width, *shape), rtol=0, atol=1e-7)
    np.testing.assert_array_equal(rows_first, np.roll(got, width // 2, axis=1))
    with_class = np.pad(got, ((1, 0), (0, 0)))  # MAE's class token
    assert not with_class[0].any() and with_class.shape == (shape[0] * shape[1] + 1, width)


@pytest.mark.parametrize(
    "case", [c if n % 2 else slow(c) for n, c in enumerate(TIMM)], ids=lambda c: f"{c['shape']} {c['arguments']}"
)
def test_tables_of_timm(case):
    shape, keywords = case["shape"], case["arguments"]
    if keywords.get("reverse_coord"):  # which walks the grid column by column as well
        shape = shape[::-1]
    base = keywords.get("temperature", 10_000.0)
    # interleaved: coordinate by coordinate; otherwise the sines of both coordinates, then the cosines
    f = pe.geometric(6, base) if keywords.get("interleave_sin_cos") else pe.axial(12, 2, base)
    got = jax.jit(lambda: pe.sinusoidal(pe.grid_positions(shape), f, layout="half"))()
    np.testing.assert_allclose(np.reshape(got, (-1, 12)), np.reshape(case["values"], (-1, 12)), rtol=0, atol=5e-7)


IDS = np.array([1, 1, 2], np.int32)
KNOWN = jax.device_put(np.int32([[1, 2], [3, 1]]))


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
        (lambda: pe.positions_from_lengths(IDS, 3), ValueError, "positions_from_lengths: lengths must sum to at most total = 3, got 4"),
        (lambda: pe.positions_from_lengths(np.full(9, 2**31 - 1), 3), ValueError, "positions_from_lengths: lengths must sum to at most total = 3, got 19327352823"),
        (lambda: pe.positions_from_lengths(KNOWN, 3), ValueError, "positions_from_lengths: lengths must sum to at most total = 3, got 4"),
        (lambda: jax.jit(lambda: pe.positions_from_lengths(KNOWN, 3))(), ValueError, "positions_from_lengths: lengths must sum to at most total = 3, got 4"),
        (lambda: jax.jit(lambda: pe.positions_from_lengths(np.array([3, -1]), 7))(), ValueError, "positions_from_lengths: lengths must be at least 0, got -1"),
        (lambda: pe.positions_from_lengths(np.array([3, -1]), 7), ValueError, "positions_from_lengths: lengths must be at least 0, got -1"),
        (lambda: pe.positions_from_lengths(IDS, 0), ValueError, "positions_from_lengths: total must be at least 1, got 0"),
        (lambda: pe.positions_from_lengths(IDS, 2**31), ValueError, "positions_from_lengths: total must fit into int32, got 2147483648"),
        (lambda: pe.positions_from_lengths(IDS, 7.0), TypeError, "positions_from_lengths: total must be an integer, got float 7.0"),  # type: ignore
        (lambda: pe.positions_from_lengths(3, 7), ValueError, r"positions_from_lengths: lengths must have shape \(..., documents\), got \(\)"),
        (lambda: pe.positions_from_lengths(IDS.astype(np.float32), 7), TypeError, "positions_from_lengths: lengths must be an integer array, got float32"),
        (lambda: pe.positions_from_lengths([3, 2], 7), TypeError, "positions_from_lengths: lengths must be an integer array, got list"),
        (lambda: pe.shard_positions(32, 4, lengths=np.array([8, 12]), order="zigzag"), ValueError, "shard_positions: lengths must be multiples of 2·shards = 8 for order='zigzag', got 12"),
        (lambda: pe.shard_positions(32, 4, lengths=jax.device_put(np.int32([8, 28]))), ValueError, "shard_positions: lengths must sum to at most length = 32, got 36"),
        (lambda: pe.shard_positions(32, 4, lengths=np.array([8, -8])), ValueError, "shard_positions: lengths must be at least 0, got -8"),
        (lambda: pe.shard_positions(32, 4, lengths=np.array([8.0])), TypeError, "shard_positions: lengths must be an integer array, got float64"),
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
