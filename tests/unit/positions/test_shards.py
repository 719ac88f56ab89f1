"""`shard_positions` gives the positions of each shard of a sequence or of a pack, in three orders, as plain loops do.

- Every shard has its chunks of the sequence, or of each document of a pack and of its padding.
- With "zigzag", every shard has the same work in causal attention.
- A pack whose traced lengths do not fit is shared out as one document.
- One shard of a pack is computed in memory for that shard alone.
"""

import re

import jax
import numpy as np
import pytest

import posenc_jax as pe
from oracles import positions as loops

RNG = np.random.default_rng(0)
ORDERS = "contiguous", "zigzag", "striped"


def in_each_order(*arguments, **settings):
    return {order: pe.shard_positions(*arguments, order=order, **settings) for order in ORDERS}


@pytest.mark.parametrize(("length", "shards"), [(24, 3), (8, 1), (8, 4)])
def test_each_shard_has_its_chunks_of_a_sequence(length, shards):
    tried = [{}, {"lengths": np.array([length])}]  # a sequence, and a pack of one document
    for by_order in jax.jit(lambda: [in_each_order(length, shards, **settings) for settings in tried])():
        for order, got in by_order.items():
            assert got.dtype == np.int32
            np.testing.assert_array_equal(got, loops.shards(length, shards, order), order)


def test_zigzag_shares_out_causal_attention_equally():
    shards = jax.device_get(jax.jit(lambda: in_each_order(48, 4))())
    visible_keys = {order: np.sum(positions + 1, 1) for order, positions in shards.items()}
    assert len(set(visible_keys["zigzag"])) == 1 and len(set(visible_keys["striped"])) == 4  # striped for contrast


@pytest.mark.parametrize(
    ("lengths", "length", "shards"), [([4, 12, 8], 32, 2), ([0, 24, 0], 24, 3), ([16, 0, 32, 16], 80, 8), ([], 8, 2)]
)
def test_each_shard_has_its_chunks_of_each_document(lengths, length, shards):
    concrete = np.array(lengths, np.int32)
    both = jax.jit(lambda traced: [in_each_order(length, shards, lengths=n) for n in (concrete, traced)])
    for by_order in both(concrete):
        for order, got in by_order.items():
            assert got.dtype == np.int32
            np.testing.assert_array_equal(got, loops.shards_of_pack(lengths, length, shards, order), order)


def test_packs_may_have_a_batch():
    lengths = 6 * RNG.multinomial(6, [0.4, 0.2, 0.2, 0.1, 0.1], (8, 3)).astype(np.int32)
    for order, got in jax.jit(lambda: in_each_order(42, 3, lengths=lengths))().items():
        want = [[loops.shards_of_pack(row, 42, 3, order) for row in rows] for rows in lengths]
        np.testing.assert_array_equal(got, want, order)


# No multiples, negative, too long, a sum that wraps in int32, a single length that is too long.
@pytest.mark.parametrize("lengths", [[5, 3], [-4, 8], [8, 8, 8], [2**31 - 4] * 5, [4, 2**31 - 8]])
def test_a_pack_whose_traced_lengths_do_not_fit_is_shared_out_as_one_document(lengths):
    """The batch's second row, whose lengths fit, keeps its document."""
    rows = np.int32([lengths + [0] * (5 - len(lengths)), [8, 0, 0, 0, 0]])
    got = jax.jit(lambda lengths: pe.shard_positions(16, 2, order="zigzag", lengths=lengths))(rows)
    want = loops.shards(16, 2, "zigzag"), loops.shards_of_pack([8], 16, 2, "zigzag")
    np.testing.assert_array_equal(got, want)


@pytest.mark.usefixtures("compiled_anew")
def test_one_shard_of_a_pack_takes_memory_for_that_shard_alone():
    f = jax.jit(lambda lengths, i: pe.shard_positions(2**18, 16, order="zigzag", lengths=lengths)[i])
    compiled = f.lower(*(jax.ShapeDtypeStruct(shape, np.int32) for shape in ((64,), ()))).compile()
    # three int32 arrays of the 2¹⁴ tokens of a shard
    assert compiled.memory_analysis().temp_size_in_bytes <= 3 * 4 * 2**14


@pytest.mark.parametrize(
    ("length", "shards", "settings", "error", "match"),
    [
        (10, 4, {}, ValueError, "length must be a multiple of shards = 4, got 10"),
        (12, 4, {"order": "zigzag"}, ValueError, "length must be a multiple of 2·shards = 8 for order='zigzag'"),
        (0, 4, {}, ValueError, "length must be at least 1"),
        (2**31, 2, {}, ValueError, "length must be below 2³¹"),
        (8, 0, {}, ValueError, "shards must be at least 1"),
        (8, 2, {"order": "ring"}, ValueError, "order must be one of"),
        (
            32,
            4,
            {"lengths": np.array([8, 12]), "order": "zigzag"},
            ValueError,
            "lengths must be multiples of 2·shards = 8",
        ),
        (32, 4, {"lengths": np.array([8, 2])}, ValueError, "lengths must be multiples of shards = 4, got 2"),
        (32, 4, {"lengths": np.array([8, 28])}, ValueError, "lengths must sum to at most length = 32, got 36"),
        (32, 4, {"lengths": np.array([8.0])}, TypeError, "lengths must be an integer array"),
    ],
)
def test_invalid_arguments_raise(length, shards, settings, error, match):
    with pytest.raises(error, match=f"^shard_positions: {re.escape(match)}"):
        pe.shard_positions(length, shards, **settings)
