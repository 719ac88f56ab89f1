"""Attention by the kernel for NVIDIA GPUs: what it computes in interpret mode, what it lowers to, what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.tiers import thorough, tiered
from oracles.attention import dense, may_see
from posenc_jax import _flash

RNG = np.random.default_rng(0)
HAS_KERNEL = jax.__version_info__ >= (0, 11)
needs_kernel = pytest.mark.skipif(not HAS_KERNEL, reason="the kernel needs JAX 0.11")
BFLOAT16 = jnp.bfloat16
SIDES = "query", "key"


def own(i, j):
    """A bias that is not in the library, and no function of i − j."""
    i, j = (x.astype(jnp.float32) for x in (i[..., None, :, None], j[..., None, None, :]))
    return jnp.where(i > j, np.float32(0.5), np.float32(-0.25)) * jnp.tanh(np.float32(0.01) * i)


MLP = tuple(RNG.normal(size=shape).astype(np.float32) for shape in ((2,), (2,), (2, 2), (2,)))
TABLE = RNG.normal(size=(32, 2)).astype(np.float32)
ONES, RATES = np.ones(2, np.float32), np.float32([0.5, 1.0])
BIASES = {
    "ALiBi": lambda i, j: pe.alibi(i, j, 2),
    "T5": lambda i, j: pe.t5(i, j, TABLE),
    "KERPLE, logarithm": lambda i, j: pe.kerple_log(i, j, ONES, RATES),
    "KERPLE, power": lambda i, j: pe.kerple_power(i, j, ONES, RATES),
    "FIRE": lambda i, j: pe.fire(i, j, MLP, c=0.1, threshold=30.0),
    "own": own,
    "tiny": lambda i, j: pe.alibi(i, j, np.float32([1e-9, 1e-3])),
}


def pair(what, queries, keys):
    return {f"query_{what}": np.asarray(queries, np.int32), f"key_{what}": np.asarray(keys, np.int32)}


COUNT = np.arange(256)
SHUFFLED = pair("positions", RNG.permutation(256), RNG.permutation(256))
FAR = pair("positions", 2**31 - 1 - COUNT, np.where(COUNT < 200, 2**31 - 1 - 2 * COUNT, COUNT - 2**31))
ROWS = pair("positions", np.stack([COUNT + 5, COUNT]), np.stack([COUNT, COUNT]))
DOCUMENTS = pair("segments", COUNT // 100, np.where(COUNT < 50, 7, COUNT // 100))  # some queries see no key
CASES = {  # queries, keys, head_dim, value_dim, bias, options
    "no bias": (200, 333, 64, 64, None, {}),
    "every option": (
        *(256, 256, 64, 64, "own"),
        {"causal": True, "window": (90, None), "logits_soft_cap": 5.0, "sinks": np.float32([0.5, -1]), **DOCUMENTS},
    ),
    "causal ALiBi": (384, 384, 64, 64, "ALiBi", {"causal": True}),
    "ALiBi, heads of 128": (256, 256, 128, 128, "ALiBi", {}),
    "ALiBi, shuffled": (256, 256, 64, 64, "ALiBi", {"causal": True, **SHUFFLED}),
    "both windows, far": (256, 256, 64, 64, "tiny", {"window": (40, 40), **FAR}),
    "T5": (300, 300, 64, 64, "T5", {"causal": True}),
    "T5, shuffled": (256, 256, 64, 64, "T5", SHUFFLED),
    "KERPLE": (256, 256, 64, 64, "KERPLE, logarithm", {"window": (100, 0)}),
    "KERPLE by order": (
        *(256, 256, 64, 64, "KERPLE, logarithm"),
        {"causal": True, **pair("positions", COUNT // 3, COUNT // 3), **pair("order", COUNT, COUNT)},
    ),
    "rows apart": (256, 256, 64, 64, "KERPLE, power", {"causal": True, **ROWS}),
    "FIRE": (256, 256, 64, 64, "FIRE", {"causal": True}),
    "heads of 80, values of 96": (256, 256, 80, 96, None, {"causal": True}),
    "heads of 256": (256, 256, 256, 256, None, {"causal": True}),
    "segments alone": (256, 256, 64, 64, None, DOCUMENTS),
}


def operands(queries, keys, width=64, value_width=64, batch=2, dtype=BFLOAT16):
    shapes = (batch, queries, 2, width), (batch, keys, 1, width), (batch, keys, 1, value_width)
    return tuple(RNG.normal(size=shape).astype(np.float32).astype(dtype) for shape in shapes)


@needs_kernel
@pytest.mark.parametrize("name", tiered(CASES, ["every option"]))
def test_against_the_dense_formula(name, monkeypatch):
    """Within 1.5 times the error of rounding weights and outputs to bfloat16."""
    from helpers.flash import interpreted

    interpreted(monkeypatch.setattr)
    queries, keys, *widths, bias, options = CASES[name]
    x, f = operands(queries, keys, *widths), BIASES.get(bias)
    attend = functools.partial(pe.attention, bias=f, implementation="mosaic_gpu", return_residual=True, **options)
    got, residual = map(np.asarray, jax.jit(attend)(*x))
    i, j = options.get("query_positions", np.arange(queries)), options.get("key_positions", np.arange(keys))
    masks = {k: options[k] for k in ("causal", "window") if k in options}
    masks |= {k: sides for k in ("segments", "order") if (sides := [options.get(f"{s}_{k}") for s in SIDES])[0] is not None}
    table = 0.0 if f is None else f(jnp.asarray(i, jnp.int32), jnp.asarray(j, jnp.int32))
    capped = {"cap": options.get("logits_soft_cap"), "sinks": options.get("sinks")}
    want = dense(*x, table, may_see(i, j, **masks), **capped)
    rounded = want.y.astype(BFLOAT16).astype(np.float64)
    error, least = (np.sqrt(np.mean((y - want.y) ** 2)) for y in (got.astype(np.float64), rounded))
    assert error <= 1.5 * least
    bound = 1e-6 * np.maximum(1, np.abs(want.residual))
    assert_within(residual, want.residual, np.where(np.isinf(bound), 1, bound), against="float64")
