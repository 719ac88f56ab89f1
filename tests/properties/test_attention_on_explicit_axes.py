"""Attention on Explicit axes of a mesh: operands are split alike or not at all, and values are those of one device.

- Batch and heads may be split. An operand, or a tile of a bias, that is split otherwise is named in an error.
- The forward pass sends nothing, but for one bool if rows have positions of their own.
- Keys that are not split are shared, and their derivatives are summed or gathered.
"""

import re
from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from devices.aot import Compiled
from helpers.closeness import assert_within
from helpers.slow import slow

pytestmark = pytest.mark.usefixtures("on_cpu")
D, H = "data", "heads"
ROWS, OF_HEADS = P(D, None, H), P(None, None, H)  # split along batch and heads, and along heads alone
# X: (batch, seq, heads, head_dim); AT: its positions (batch, seq)
X, AT = np.ones((8, 16, 8, 16), np.float32), np.arange(16, dtype=np.int32)[None].repeat(8, 0)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def mesh():
    with jax.set_mesh(jax.make_mesh((2, 4), (D, H), (AxisType.Explicit,) * 2, devices=jax.devices("cpu"))):
        yield


def place(*arguments):
    """Puts each (array, PartitionSpec) on the mesh."""
    return [jax.device_put(x, NamedSharding(jax.sharding.get_mesh(), spec)) for x, spec in arguments]


def collectives(compiled):
    """The names of all collectives, and of those that no loop repeats."""
    return Compiled(compiled.as_text(), 0, 0).collectives


@pytest.mark.parametrize(
    ("q", "k", "v", "positions", "message"),
    [
        (
            P(D),
            ROWS,
            P(D),
            P(D),
            "key must be sharded on Explicit axes of a mesh as query is, P.*, or not at all, got P",
        ),
        (OF_HEADS, OF_HEADS, ROWS, P(), "value must be sharded on Explicit axes of a mesh as query is"),
        (OF_HEADS, P(), P(), P(D), "key_positions must be sharded on .* as key is, .*, or not at all"),
    ],
)
def test_operands_have_one_sharding(q, k, v, positions, message):
    q, k, v, i, j = place((X, q), (X, k), (X, v), (AT, P()), (AT, positions))
    with pytest.raises(ValueError, match=rf"^attention: {message}"):
        pe.attention(q, k, v, query_positions=i, key_positions=j)


def test_heads_of_keys_are_not_fewer_than_the_parts():
    """Two key heads cannot be shared by four shards of query heads."""
    q, k = place((X, ROWS), (X[:, :, :2], P()))
    message = "the heads of key must be as many as query's are split into on Explicit axes of a mesh, 4, or a multiple"
    with pytest.raises(ValueError, match=rf"^attention: {message}, or one, got 2$"):
        pe.attention(q, k, k)


@pytest.mark.parametrize("slopes", [P(H), P(D)])
def test_a_bias_is_split_as_its_queries(slopes):
    q, m = place((X, P(D)), (np.ones(8, np.float32), slopes))
    with pytest.raises(
        ValueError, match="^attention: a tile of bias must be sharded .* as query is, P.*, or not at all"
    ):
        pe.attention(q, q, q, bias=lambda i, j: pe.alibi(i, j, m))


def test_leading_axes_are_split_one_by_one():
    """Of two leading axes, splitting the second needs jax.vmap; splitting the first does not."""
    f = partial(pe.attention, causal=True, block_size=8, bias=partial(pe.alibi, heads=8))
    x = RNG.normal(size=(4, 8, 17, 8, 4)).astype(np.float32)
    (q,) = place((x, P(None, D, None, H)))
    with pytest.raises(ValueError, match=r"^attention: the leading axes of query must be sharded on .*; use jax.vmap"):
        f(q, q, q)
    y = jax.jit(jax.vmap(f))(q, q, q)
    assert y.sharding.is_equivalent_to(q.sharding, 5)
    (first,) = place((x, P(D, None, None, H)))
    assert_within(jax.jit(f)(first, first, first), np.asarray(y), 1e-6, against="jax.vmap over the first axis")


def attend(q, k, v):
    return pe.attention(q, k, v, causal=True, block_size=8, bias=partial(pe.alibi, heads=8))


def derivatives(q, k, v, dy):
    y, transpose = jax.vjp(attend, q, k, v)
    return y, *transpose(dy)


@pytest.mark.parametrize(
    ("kv_heads", "q_spec", "k_spec", "v_spec", "sent"),  # sent: the collectives of the backward pass
    [
        (1, ROWS, P(D), P(D), {"all-reduce"}),  # sums derivatives over the heads that share a key
        slow(8, ROWS, P(D), P(), {"all-gather"}),  # of the derivatives by keys
        slow(1, P(D), P(D), P(D), set()),
    ],
)
def test_keys_that_are_not_split_along_heads(kv_heads, q_spec, k_spec, v_spec, sent):
    q, dy, k, v = (RNG.normal(size=(8, 17, heads, 4)).astype(np.float32) for heads in (8, 8, kv_heads, kv_heads))
    with jax.set_mesh(None):
        want = jax.jit(derivatives)(q, k, v, dy)
    placed = place((q, q_spec), (k, k_spec), (v, v_spec), (dy, q_spec))
    compiled = jax.jit(derivatives).lower(*placed).compile()
    assert set(collectives(compiled)[0]) == sent
    for name, a, b, like in zip("yqkv", compiled(*placed), want, (placed[0], *placed[:3]), strict=True):
        assert a.sharding.is_equivalent_to(like.sharding, a.ndim)
        assert_within(a, b, 2e-6, against=f"one device: {name}")
    assert collectives(jax.jit(attend).lower(*placed[:3]).compile()) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_rows_with_positions_of_their_own(causal):
    """One bool is sent: whether no row sees a tile, which is then passed over. Nothing else is."""
    q, i = RNG.normal(size=(8, 17, 8, 4)).astype(np.float32), RNG.integers(0, 99, (8, 17)).astype(np.int32)
    f = lambda q, i: pe.attention(q, q, q, causal=causal, block_size=8, query_positions=i, key_positions=i)  # noqa: E731
    placed = place((q, ROWS), (i, P(D)))
    compiled = jax.jit(f).lower(*placed).compile()
    assert {*re.findall(r"= (.+?) all-reduce\(", compiled.as_text())} == ({"pred[]"} if causal else set())
    with jax.set_mesh(None):
        assert_within(compiled(*placed), jax.jit(f)(q, i), 1e-6, against="one device")
