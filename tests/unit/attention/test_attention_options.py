"""Windows, soft caps, sinks, scales by position and values of another width, against the dense formula in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.attention import check
from helpers.closeness import assert_within
from helpers.quick import quick
from helpers.tiers import slow, tiered
from oracles.attention import dense, may_see

RNG = np.random.default_rng(0)
BATCH, QUERIES, KEYS, HEADS, KV_HEADS, WIDTH, VALUE_WIDTH = 2, 11, 13, 4, 2, 8, 6
INT = np.iinfo(np.int32)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


Q, K, V = normal(BATCH, QUERIES, HEADS, WIDTH), normal(BATCH, KEYS, KV_HEADS, WIDTH), normal(BATCH, KEYS, KV_HEADS, VALUE_WIDTH)  # fmt: skip
SLOPES, SINKS = RNG.uniform(0.1, 0.5, HEADS).astype(np.float32), np.float32([-1.0, 0.5, 2.0, 0.0])
DY, DL = normal(BATCH, QUERIES, HEADS, VALUE_WIDTH), normal(BATCH, QUERIES, HEADS)
AT, THERE = np.arange(2, 2 + QUERIES, dtype=np.int32), np.arange(KEYS, dtype=np.int32)
BATCHED = np.stack([RNG.permutation(QUERIES), 3 + RNG.permutation(QUERIES)]).astype(np.int32)
PARTS = np.int32([[3] * 4 + [1] * 7, [0] * 9 + [-5] * 2]), np.int32([[3] * 5 + [1] * 8, [0] * 9 + [7] * 4])
# Three tokens share a position, as the patches of an image share their time; and when they came, in each batch.
SHARED = AT // 3, THERE // 3
MASK = RNG.random((BATCH, HEADS, QUERIES, KEYS)) < 0.7
SPARSE = RNG.random((BATCH, 1, QUERIES, KEYS)) < 0.1  # some tiles have one query that sees a key
ORDER = np.stack([AT, RNG.permutation(AT)]), np.stack([THERE, RNG.permutation(THERE)])
SCALES = {
    "()": np.float32(0.6) * np.ones((), np.float32),
    "(heads,)": np.float32([0.2, 0.5, -0.3, 0.0]),
    "(queries, 1)": (0.1 + 0.05 * np.arange(QUERIES, dtype=np.float32))[:, None],
    "(batch, queries, heads)": RNG.uniform(-0.5, 0.5, (BATCH, QUERIES, HEADS)).astype(np.float32),
}

# What differs from attention without a mask; "bias" and "sinks" say whether there are any.
CASES = {
    "window": {"window": (3, 2)},
    "window, of itself": {"window": (0, 0)},
    "window, before": {"window": (4, None), "bias": True},
    "window, after": {"window": (None, 1)},
    "window, none after": {"window": (None, 0), "block_size": 1},
    "window, causal": {"window": (4, 3), "causal": True, "sinks": True},
    "window of each batch": {"window": (2, 3), "i": BATCHED, "bias": True},
    "window, and one for none": {"window": (2**40, 3)},
    "cap": {"cap": 0.7, "bias": True},
    "cap of far scores": {"cap": 2.0, "scale": 30.0, "sinks": True},
    "sinks": {"sinks": True, "block_size": 512},
    "sinks, bias": {"sinks": True, "bias": True, "causal": True},
    "sinks where nothing is seen": {"sinks": True, "segments": PARTS, "causal": True},
    "nothing is seen": {"segments": PARTS, "window": (5, 1)},
    "everything": {"window": (5, 1), "cap": 1.5, "sinks": True, "bias": True, "segments": PARTS, "i": BATCHED, "scale": "(heads,)"},
    "everything, causal": {"window": (6, None), "causal": True, "cap": 1.5, "sinks": True, "bias": True, "segments": PARTS, "block_size": 4},
    "order": {"causal": True, "order": ORDER, "i": SHARED[0], "j": SHARED[1], "window": (2, 1), "bias": True, "sinks": True},
    "mask": {"mask": MASK, "block_size": 512},
    "mask of keys": {"mask": MASK[:, :1, :1], "causal": True, "segments": PARTS},
    "mask, everything": {"mask": MASK[:1] & SPARSE, "window": (5, 1), "cap": 1.5, "sinks": True, "bias": True, "segments": PARTS, "i": BATCHED, "scale": "(heads,)", "block_size": 4},
    "order of all, without a window": {"causal": True, "order": (AT, THERE), "i": SHARED[0], "j": SHARED[1], "segments": PARTS},
} | {f"scale {name}": {"scale": name, "window": (6, 2)} for name in SCALES}  # fmt: skip
FEW = ["mask, everything", "order"]


def slope_and_side(i, j, slopes):
    """A bias that differs on both sides of a query, (batch or none, heads, queries, keys)."""
    ahead = (j[..., None, None, :] - i[..., None, :, None]).astype(slopes.dtype)
    shape = ahead - 2 * abs(ahead)
    return slopes.reshape((-1, 1, 1) if shape.ndim == 3 else (1, -1, 1, 1)) * shape


def ours(case, q, k, v, slopes, sinks, scale, **more):
    case = case | more
    options = {name: case[name] for name in ("window", "causal", "mask") if name in case}
    if case.get("segments") is not None:
        options |= dict(zip(("query_segments", "key_segments"), case["segments"], strict=True))
    if case.get("order") is not None:
        options |= dict(zip(("query_order", "key_order"), case["order"], strict=True))
    if case.get("bias"):
        options["bias"] = lambda i, j: slope_and_side(i, j, slopes)
    return pe.attention(
        q, k, v, query_positions=case.get("i", AT), key_positions=case.get("j", THERE), scale=scale, return_residual=True,
        sinks=sinks if case.get("sinks") else None, logits_soft_cap=case.get("cap"), block_size=case.get("block_size", 3), **options,
    )  # fmt: skip


def scale_of(case):
    scale = case.get("scale")
    return SCALES[scale] if isinstance(scale, str) else scale


def exact(case, q=Q, k=K, v=V, slopes=SLOPES, sinks=SINKS, scale=None, dy=DY, dl=DL, seen=None):
    """Results, residuals and all cotangents in float64."""
    i, j = (case.get(name, default) for name, default in (("i", AT), ("j", THERE)))
    ahead = np.float64(j)[..., None, None, :] - np.float64(i)[..., None, :, None]
    shape = ahead - 2 * abs(ahead)
    bias = np.float64(slopes)[:, None, None] * shape if case.get("bias") else 0.0
    if seen is None:
        masks = (case.get(name) for name in ("causal", "segments"))
        seen = may_see(i, j, *masks, case.get("window", (None, None)), case.get("order")) & case.get("mask", True)
    given = sinks if case.get("sinks") else None
    c = scale_of(case) if scale is None else scale
    y, residual, back = dense(q, k, v, bias, seen, c, cap=case.get("cap"), sinks=given)
    dq, dk, dv, ds, *d_sinks = back(dy, dl)
    by_slopes = (ds * shape).sum((0, 2, 3)) if case.get("bias") else np.zeros(HEADS)
    by_scale = np.zeros(0)
    if isinstance(c, np.ndarray):
        along = np.sum(np.float64(q) * dq, -1) / np.where(c == 0, 1, np.float64(c))
        if not np.all(c):  # of which dq says nothing
            along = np.sum(
                np.float64(q) * dense(q, k, v, bias, seen, c, cap=case.get("cap"), sinks=given).back(dy, dl)[0], -1
            )
            h = 1e-6
            ahead, behind = (
                dense(q, k, v, bias, seen, c + e * (c == 0), cap=case.get("cap"), sinks=given) for e in (h, -h)
            )
            wide = lambda x: np.where(np.isfinite(x.residual), x.residual, 0)  # noqa: E731
            slope = (np.sum(dy * (ahead.y - behind.y), -1) + dl * (wide(ahead) - wide(behind))) / (2 * h)
            along = np.where(np.broadcast_to(c, along.shape) == 0, slope, along / np.where(c == 0, 1, c))
        extra = along.ndim - c.ndim
        along = along.sum(tuple(range(extra)))
        by_scale = along.sum(tuple(a for a, n in enumerate(c.shape) if n == 1), keepdims=True)
    return (y, residual), (dq, dk, dv, by_slopes, *(d_sinks or [np.zeros(HEADS)]), by_scale)


def found(name, block_size=None):
    """Results and cotangents of the library, as one program."""
    case = CASES[name] | ({} if block_size is None else {"block_size": block_size})
    return jax.device_get(quick(functools.partial(with_cotangents, case))(*operands(case)))


def operands(case, k=K, v=V):
    scale = scale_of(case)
    return Q, k, v, SLOPES, SINKS, scale if isinstance(scale, np.ndarray) else np.zeros(0, np.float32)


def with_cotangents(case, *arrays):
    scale = scale_of(case)
    f = lambda *x: ours(case, *x[:5], x[5] if isinstance(scale, np.ndarray) else scale)  # noqa: E731
    y, pull = jax.vjp(f, *arrays)
    return y, pull((DY, jnp.where(jnp.isfinite(y[1]), DL, 0)))


def errors(got, want):
    """Of each array, the largest error relative to its largest element, of at least 1."""
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        with np.errstate(invalid="ignore"):
            apart = np.where(x == y, 0, abs(np.float64(x) - y))
        yield np.max(apart, initial=0) / max(1, np.max(np.abs(y[np.isfinite(y)]), initial=1))


def drawn(rng):
    """A case of any masks, biases, caps, sinks, scales and sizes of tiles, with keys and values."""
    given = {
        "window": tuple(rng.choice([None, 0, 2, 5], 2).tolist()),
        "cap": float(rng.choice([0.7, 2.0])),
        "bias": True,
        "sinks": True,
        "segments": PARTS,
        "i": BATCHED,
        "scale": list(SCALES)[rng.integers(4)],
        "mask": MASK[tuple(slice(rng.choice([1, None])) for _ in range(4))],
    }
    case = {name: x for name, x in given.items() if rng.random() < (0.8 if name == "mask" else 0.4)}
    case |= {"block_size": int(rng.choice([1, 2, 3, 5, 8, 512])), "causal": bool(rng.random() < 0.5)}
    if case["causal"] and rng.random() < 0.5:
        case["order"] = ORDER
    group = rng.choice([1, 2, 4])  # the heads of queries that share keys
    return case, *(np.repeat(x, 2, 2)[:, :, ::group] for x in (K, V))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_drawn_combinations(seed):
    """Twenty of each seed."""
    cases = [drawn(np.random.default_rng([seed, n])) for n in range(20)]
    compute = quick(lambda operands: [with_cotangents(case, *x) for (case, *_), x in zip(cases, operands, strict=True)])
    for got, (case, k, v) in zip(compute([operands(*each) for each in cases]), cases, strict=True):
        check(got, exact(case, k=k, v=v), 2e-5, against=str(case.keys()))


@pytest.mark.parametrize("name", tiered(CASES, FEW))
def test_results_residuals_and_gradients(name):
    (y, residual), gradients = found(name)
    assert y.shape == (BATCH, QUERIES, HEADS, VALUE_WIDTH) and residual.shape == y.shape[:-1]
    check(((y, residual), gradients), exact(CASES[name]), 2e-5)


def test_leading_axes_of_a_mask():
    """A mask that some of several leading axes share."""
    q, k, v = (np.stack([x, x[::-1], 2 * x]) for x in (Q, K, V))
    masks = [
        MASK[None],
        np.stack([MASK[:1, :1, :1]] * 3) & (np.arange(KEYS) != np.arange(3)[:, None, None, None, None]),
    ]
    found = quick(lambda *qkv: [pe.attention(*qkv, mask=mask) for mask in masks])(q, k, v)
    for got, mask in zip(found, masks, strict=True):
        assert_within(got, dense(q, k, v, seen=mask).y, 2e-6)


def test_a_mask_of_more_queries_than_a_word_has_bits():
    """Tiles of 35 queries, of which in some the first 32 see nothing, or one sequence."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(2, n, 1, 8)).astype(np.float32) for n in (70, 50, 50))
    i, j = np.arange(70)[:, None] % 35, np.arange(50)
    seen = (rng.random((2, 1, 70, 50)) < 0.3) & (i >= np.where(j < 25, 32, 0))
    seen[0, ..., :25] = False

    @quick
    def program(q, k, v):
        loss = lambda *x: (pe.attention(*x, mask=seen, block_size=40) ** 2).sum()  # noqa: E731
        return jax.value_and_grad(loss, (0, 1, 2))(q, k, v)

    got, by = program(q, k, v)
    y, _, back = dense(q, k, v, seen=seen)
    assert_within(got, (y**2).sum(), 2e-6 * (y**2).sum())
    check(by, back(2 * y)[:3], 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 5, 512])
@pytest.mark.parametrize("name", ["everything", "everything, causal", "sinks", "window", "scale ()"])
def test_every_block_size(name, block_size):
    check(found(name, block_size), exact(CASES[name]), 2e-5)


# a case, and what it would be with a mistake in it
MISTAKES = {
    "a window too wide before": ("window", lambda c: exact(c | {"window": (4, 2)})),
    "a window too narrow before": ("window", lambda c: exact(c | {"window": (2, 2)})),
    "a window too wide after": ("window", lambda c: exact(c | {"window": (3, 3)})),
    "a window too narrow after": ("window", lambda c: exact(c | {"window": (3, 1)})),
    "a window mirrored": ("window", lambda c: exact(c | {"window": (2, 3)})),
    "a window before, mirrored": ("window, before", lambda c: exact(c | {"window": (None, 4)})),
    "a cap behind the bias": ("cap", lambda c: capped_behind(c)),
    "no cap": ("cap", lambda c: exact(c | {"cap": None})),
    "a sink whose value is that of the first key": ("sinks where nothing is seen", lambda c: sink_with_a_value(c)),
    "a mask moved by a key": ("mask", lambda c: exact(c | {"mask": np.roll(MASK, 1, -1)})),
    "a mask of another head": ("mask", lambda c: exact(c | {"mask": MASK[:, ::-1]})),
    "a mask of keys of another sequence": ("mask of keys", lambda c: exact(c | {"mask": c["mask"][::-1]})),
    "a sink in every tile": ("sinks where nothing is seen", lambda c: exact(c, sinks=SINKS + np.log(5))),
    "no sink": ("sinks where nothing is seen", lambda c: exact(c | {"sinks": False})),
    "sinks of another order": ("sinks where nothing is seen", lambda c: exact(c, sinks=SINKS.reshape(2, 2).T.ravel())),
    "a scale twice": ("scale (queries, 1)", lambda c: exact(c, scale=SCALES["(queries, 1)"] ** 2)),
    "the usual scale as well": ("scale (queries, 1)", lambda c: exact(c, scale=SCALES["(queries, 1)"] / np.sqrt(WIDTH))),
    "causal by position": ("order", lambda c: exact(c | {"order": None})),
    "causal by both": ("order", lambda c: exact(c, seen=seen_by(c) & seen_by(c | {"order": None}))),
    "an order backward": ("order", lambda c: exact(c | {"order": [-x for x in c["order"]]})),
    "an order that hides itself": ("order", lambda c: exact(c | {"order": (c["order"][0] - 1, c["order"][1])})),
    "a window by order": ("order", lambda c: exact(c, seen=seen_by(c | {"i": ORDER[0], "j": ORDER[1]}))),
    "segments unseen": ("everything", lambda c: exact(c | {"segments": None})),
}  # fmt: skip


def seen_by(case):
    return may_see(case["i"], case["j"], case["causal"], None, case["window"], case["order"])


def capped_behind(case):
    ahead = np.float64(THERE)[None] - np.float64(AT)[:, None]
    bias = np.float64(SLOPES)[:, None, None] * (ahead - 2 * abs(ahead))
    group = HEADS // KV_HEADS
    scores = np.einsum("bqhd,bkhd->bhqk", np.float64(Q), np.repeat(K, group, 2)) / np.sqrt(WIDTH) + bias
    p = np.exp(case["cap"] * np.tanh(scores / case["cap"]))
    total = p.sum(-1, keepdims=True)
    y = np.einsum("bhqk,bkhd->bqhd", p / total, np.repeat(V, group, 2))
    return (y, np.log(total[..., 0]).swapaxes(1, 2)), None


def sink_with_a_value(case):
    (y, residual), by = exact(case)
    weight = np.exp(np.float64(SINKS) - residual)[..., None]
    return (y + weight * np.repeat(np.float64(V[:, :1]), HEADS // KV_HEADS, 2), residual), by


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_would_show(mistake):
    name, wrong = MISTAKES[mistake]
    assert max(errors(exact(CASES[name])[0], wrong(CASES[name])[0])) > 1e-2


def test_the_bounds_of_a_soft_cap_are_caps():
    attend = quick(lambda *x: {cap: pe.attention(*x, logits_soft_cap=cap) for cap in (1e-30, 1e30)})
    for cap, y in attend(K, K, V).items():
        assert np.isfinite(np.asarray(y)).all(), cap


# Positions


NEAR_ENDS = np.int32([INT.min, INT.min + 1, INT.min + 5, -1, 0, 1, INT.max - 5, INT.max - 1, INT.max])
WINDOWS = [(3, None), (None, 3), (2**31, None), (2**31 - 1, 2**31), (2**32 - 2, None), (None, 2**32 - 2), (2**32 - 1, 5), (0, 0), (2**40, 4)]  # fmt: skip


@pytest.mark.parametrize("causal", [False, slow(True)])
@pytest.mark.parametrize("window", tiered(WINDOWS, [WINDOWS[4]]))
def test_windows_do_not_wrap(window, causal):
    n = len(NEAR_ENDS)
    sides = {"query_positions": NEAR_ENDS, "key_positions": NEAR_ENDS[::-1].copy()}
    # The values are one-hot and all scores are 0, so results say which keys are seen.
    values = np.eye(n, dtype=np.float32)[None, :, None]
    attend = quick(functools.partial(pe.attention, window=window, causal=causal, block_size=2, **sides))
    y = np.asarray(attend(0 * Q[:1, :n, :1], 0 * K[:1, :n, :1], values))
    np.testing.assert_array_equal(y[0, :, 0] > 0, may_see(*sides.values(), causal, None, window)[0])


def test_windows_wider_than_any_distance():
    attend = functools.partial(pe.attention, query_positions=AT, key_positions=THERE)
    windows = (2**40, None), (None, 2**32 - 1), (2**32 - 1, 2**70)
    want = dense(Q, K, V).y
    for window, got in zip(windows, quick(lambda *x: [attend(*x, window=w) for w in windows])(Q, K, V), strict=True):
        assert_within(got, want, 1e-5, against=f"no window, not {window}")


@pytest.mark.parametrize("window", [slow((2**33, None)), slow((3, 2**34)), (2**63, 2)])
def test_windows_over_wide_integers(window):
    i, j = np.int64([0, 2**33, 2**40, -(2**62), 2**63 - 1]), np.int64([1, -1, 2**40 + 3, -(2**62) - 2, -(2**63), 2**34])
    values = np.eye(6, dtype=np.float32)[None, :, None]
    with jax.enable_x64(True):
        f = lambda i, j: pe.attention(0 * Q[:1, :5, :1], 0 * K[:1, :6, :1], values, query_positions=i, key_positions=j, window=window, block_size=2)  # noqa: E731  # fmt: skip
        y = np.asarray(quick(f)(i, j))
    np.testing.assert_array_equal(y[0, :, 0] > 0, may_see(i, j, window=window)[0])


def test_a_sliding_window_of_hugging_face():
    """`sliding_window` in `transformers`: a query sees a key if `0 <= query - key < sliding_window`."""
    q, w, i = K[:, :, :1], 4, np.arange(KEYS)
    apart = i[:, None] - i[None]
    got = quick(functools.partial(pe.attention, window=(w - 1, 0), block_size=4))(q, K[:, :, :1], V[:, :, :1])
    assert_within(got, dense(q, K[:, :, :1], V[:, :, :1], seen=(apart >= 0) & (apart < w)).y, 1e-5)


def test_a_step_of_decoding_is_a_row_of_the_whole():
    case = CASES["everything, causal"] | {"segments": None}
    whole = exact(case)[0]
    step = quick(lambda q, i: ours(case | {"i": i}, q, K, V, SLOPES, SINKS, None))
    for t in (0, 5, QUERIES - 1):
        got = step(Q[:, t : t + 1], AT[None, t : t + 1].repeat(BATCH, 0))
        check(got, jax.tree.map(lambda x, t=t: x[:, t : t + 1], whole))


# Sinks


@pytest.mark.slow
def test_parts_of_keys_with_sinks_in_one():
    case = CASES["everything, causal"] | {"segments": None}
    first, rest = case | {"j": THERE[:6], "sinks": True}, case | {"j": THERE[6:], "sinks": False}
    of_parts = quick(lambda q, k, v: (ours(first, q, k[:, :6], v[:, :6], SLOPES, SINKS, None), ours(rest, q, k[:, 6:], v[:, 6:], SLOPES, SINKS, None)))  # fmt: skip
    (y, of_y), (z, of_z) = jax.tree.map(np.float64, jax.device_get(of_parts(Q, K, V)))
    together = np.logaddexp(of_y, of_z)
    merged = y * np.exp(of_y - together)[..., None] + z * np.exp(of_z - together)[..., None]
    check((merged, together), exact(case)[0])


def test_sinks_of_any_size():
    case, lows = CASES["sinks where nothing is seen"], np.float32([-np.inf, 1e4, -1e4, 3e38])

    def of_sinks(s):
        return ours(case, Q, K, V, SLOPES, s, None)

    @quick
    def program(s):
        along = lambda s: jax.jvp(lambda s: of_sinks(s)[0], (s,), (np.ones(HEADS, np.float32),))[1]  # noqa: E731
        (y, residual), pull = jax.vjp(of_sinks, s)
        by_sinks = pull((DY, jnp.zeros_like(residual)))[0]
        return y, residual, by_sinks, along(s), jax.grad(lambda s: jnp.sum(along(s)))(s)

    y, residual, d, *more = map(np.asarray, program(lows))
    (none, of_none), _ = exact(case | {"sinks": False})
    for head, want in ((0, none), (2, none), (1, 0 * none), (3, 0 * none)):
        seen = np.isfinite(of_none[..., head]) | (head == 0)
        assert_within(y[:, :, head][seen], want[:, :, head][seen], 1e-5, against=f"head {head}")
    np.testing.assert_array_equal(np.isneginf(residual), np.isneginf(of_none) & (np.arange(HEADS) == 0))
    np.testing.assert_array_equal(residual[..., 3], lows[3])
    assert np.all(np.isfinite(d)) and d[0] == 0 and d[1] == 0 and d[3] == 0
    for x in more:
        assert np.all(np.isfinite(x))


@pytest.mark.parametrize("empty", [slow("queries"), slow("keys"), "both"])
def test_empty_sequences_with_sinks(empty):
    n, m = 0 if empty != "keys" else QUERIES, 0 if empty != "queries" else KEYS
    case = CASES["everything"] | {"i": AT[:n], "j": THERE[:m], "segments": None, "scale": None}
    arrays = Q[:, :n], K[:, :m], V[:, :m], SINKS

    @quick
    def program(*arrays):
        f = lambda q, k, v, s: ours(case, q, k, v, SLOPES, s, None)  # noqa: E731
        (y, residual), pull = jax.vjp(f, *arrays)
        return y, residual, pull((0 * y, jnp.ones_like(residual)))[3], jax.jvp(f, arrays, arrays)[1][0]

    y, residual, d_sinks, tangent = map(np.asarray, program(*arrays))
    assert y.shape == tangent.shape == (BATCH, n, HEADS, VALUE_WIDTH) and not np.any(y) and not np.any(tangent)
    if n and not m:  # the sinks alone
        np.testing.assert_array_equal(residual, np.broadcast_to(SINKS, residual.shape))
        np.testing.assert_array_equal(d_sinks, np.full(HEADS, BATCH * n))


# Dtypes and scales


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype):
    case, eps = CASES["everything"], float(jnp.finfo(dtype).eps)
    low = [x.astype(dtype) for x in (Q, K, V, SINKS)]

    @quick
    def program(q, k, v, sinks, scale):
        y, pull = jax.vjp(lambda q, k, v, s, c: ours(case, q, k, v, SLOPES, s, c), q, k, v, sinks, scale)
        return y, pull((y[0] * 0 + DY.astype(dtype), 0 * y[1]))

    (y, residual), (dq, dk, dv, d_sinks, d_scale) = program(*low, SCALES["(heads,)"])
    assert y.dtype == dq.dtype == dk.dtype == dv.dtype == d_sinks.dtype == dtype
    assert residual.dtype == d_scale.dtype == jnp.float32
    # An array that scales multiplies the query, which is rounded to its dtype again.
    scaled = (low[0].astype(np.float32) * SCALES["(heads,)"][:, None]).astype(dtype)
    scale_one = np.float64(1)
    want, (_, *by) = exact(case, scaled, *low[1:3], sinks=low[3], scale=scale_one, dl=0 * DL, dy=DY.astype(dtype))
    check((y, residual), want, 3 * eps)
    assert_within(residual, want[1], 2e-5)
    check((dk, dv, d_sinks), (by[0], by[1], by[3]), 4 * eps)


def test_a_scale_that_is_known_or_traced():
    known = {"number": 0.6, "NumPy's": np.float32(0.6), "array": jax.device_put(np.float32(0.6))}
    attend = functools.partial(pe.attention, query_positions=AT, key_positions=THERE)
    scales = lambda traced, one: known | {"traced": traced, "bfloat16": one}  # noqa: E731
    program = quick(lambda *more: {name: attend(Q, K, V, scale=scale) for name, scale in scales(*more).items()})
    y = program(0.6, np.ones((), jnp.bfloat16))
    for name in ("number", "NumPy's", "array", "traced"):
        assert_within(y[name], dense(Q, K, V, scale=np.float32(0.6)).y, 1e-5, against=name)
    assert_within(y["bfloat16"], dense(Q, K, V, scale=1.0).y, 1e-5)


def test_far_scores_under_a_cap():
    case = CASES["cap of far scores"] | {"scale": 1e6, "window": (4, 1)}

    @quick
    def program(q, k):
        (y, _), pull = jax.vjp(lambda q, k: ours(case, q, k, V, SLOPES, SINKS, 1e6), q, k)
        return y, pull((DY, DL))

    y, gradients = jax.device_get(program(Q, K))
    check(y, exact(case)[0][0])
    assert all(np.all(np.isfinite(x)) for x in gradients)


DERIVATIVES = {
    "jvp": lambda f, x: jax.jvp(f, x, x),
    "vjp": lambda f, x: jax.vjp(f, *x)[1]((DY, 0 * DL)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(["everything", "everything, causal"], ["everything, causal"]))
@pytest.mark.parametrize("mode", tiered(DERIVATIVES, ["jvp"]))
def test_eager_and_jit_give_the_same_bits(mode, name, on_cpu):
    # A GPU's compiler chooses the algorithm of a matrix product program by program.
    f = lambda q, k, v, sinks, scale: ours(CASES[name], q, k, v, SLOPES, sinks, scale)  # noqa: E731
    arrays, program = (Q, K, V, SINKS, SCALES["(heads,)"]), functools.partial(DERIVATIVES[mode], f)
    eager, jitted = program(arrays), jax.jit(program)(arrays)
    if mode == "vjp":  # the gradient by scale is a sum over the queries, whose order XLA chooses (JAX 0.10.0)
        *eager, eager_scale = eager
        *jitted, jitted_scale = jitted
        assert_within(eager_scale, np.float64(jitted_scale), 3e-6)
    jax.tree.map(np.testing.assert_array_equal, eager, jitted)


# Bad input

BAD = [
    ({"window": 3}, TypeError, r"window must be a pair \(left, right\) of integers or None, got int 3"),
    ({"window": None}, TypeError, "window must be a pair .* got NoneType None"),
    ({"window": (3, 0, 0)}, TypeError, r"window must be a pair .* got tuple \(3, 0, 0\)"),
    ({"window": (3,)}, TypeError, r"window must be a pair .* got tuple \(3,\)"),
    ({"window": [3, 0]}, TypeError, r"window must be a pair .* got list \[3, 0\]"),
    ({"window": np.arange(2)}, TypeError, r"window must be a pair .* got int64 of shape \(2,\)"),
    ({"window": (-1, None)}, ValueError, r"window\[0\] must be at least 0, got -1"),
    ({"window": (None, -2)}, ValueError, r"window\[1\] must be at least 0, got -2"),
    ({"window": (2.0, 0)}, TypeError, r"window\[0\] must be an integer, got float 2.0"),
    ({"window": (0, True)}, TypeError, r"window\[1\] must be an integer, got bool True"),
    ({"logits_soft_cap": 0}, ValueError, "logits_soft_cap must be positive, got 0"),
    ({"logits_soft_cap": -1.0}, ValueError, "logits_soft_cap must be positive, got -1.0"),
    ({"logits_soft_cap": np.inf}, ValueError, "logits_soft_cap must be finite, got inf"),
    ({"logits_soft_cap": np.nan}, ValueError, "logits_soft_cap must be finite, got nan"),
    ({"logits_soft_cap": 1.0005e30}, ValueError, "logits_soft_cap must be from 1e-30 to 1e30, or None for no bound, got 1.0005e"),
    ({"logits_soft_cap": 9e-31}, ValueError, "logits_soft_cap must be from 1e-30 to 1e30, or None for no bound, got 9e"),
    ({"logits_soft_cap": jnp.float32(3)}, TypeError, r"logits_soft_cap must be a number, got float32 of shape \(\)"),
    ({"logits_soft_cap": True}, TypeError, "logits_soft_cap must be a number, got bool True"),
    ({"sinks": SINKS[:3]}, ValueError, r"sinks must have shape \(heads,\) = \(4,\), got \(3,\)"),
    ({"sinks": SINKS[None]}, ValueError, r"sinks must have shape \(heads,\) = \(4,\), got \(1, 4\)"),
    ({"sinks": np.arange(4)}, TypeError, r"sinks must be a float array of shape \(heads,\), got int64 of shape \(4,\)"),
    ({"sinks": 1.0}, TypeError, "sinks must be a float array of shape .* got float 1.0"),
    ({"sinks": [1.0] * 4}, TypeError, "sinks must be a float array of shape .* got list"),
    ({"value": V[:, 1:]}, ValueError, r"value must have the axes of key but for the last, shape \(2, 13, 2, 8\), got \(2, 12, 2, 6\)"),
    ({"value": V[:, :, :1]}, ValueError, r"value must have the axes of key but for the last, .* got \(2, 13, 1, 6\)"),
    ({"value": V[:1]}, ValueError, r"value must have the axes of key but for the last, .* got \(1, 13, 2, 6\)"),
    ({"value": V[..., :0]}, ValueError, "head_dim and value_dim must be at least 1, got 0"),
    ({"scale": np.ones(3, np.float32)}, ValueError, r"scale of shape \(3,\) must broadcast to query without head_dim, shape \(2, 11, 4\)"),
    ({"scale": np.ones((1, 2, 11, 4), np.float32)}, ValueError, r"scale of shape \(1, 2, 11, 4\) must broadcast to query without"),
    ({"scale": np.ones(4, np.int32)}, TypeError, r"scale must be a float array, got int32 of shape \(4,\)"),
    ({"scale": [1.0] * 4}, TypeError, "scale must be a number, got list"),
    ({"scale": True}, TypeError, "scale must be a number, got bool True"),
    ({"window": (3, 0), "key_positions": None, "query_positions": None}, ValueError, "query_positions and key_positions must be given for 11 queries and 13 keys"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "match"), BAD)
def test_bad_input(change, error, match):
    valid = {"query": Q, "key": K, "value": V, "query_positions": AT, "key_positions": THERE}
    with pytest.raises(error, match=f"^attention: {match}"):
        pe.attention(**valid | change)


def test_a_traced_cap_is_refused():
    with pytest.raises(TypeError, match=r"^attention: logits_soft_cap must be a number, got float32 of shape \(\)"):
        jax.jit(lambda c: pe.attention(Q, Q, Q, logits_soft_cap=c))(3.0)
    with pytest.raises(TypeError, match=r"^attention: scale must be a float array, got int32 of shape \(\)"):
        jax.jit(lambda c: pe.attention(Q, Q, Q, scale=c))(3)
