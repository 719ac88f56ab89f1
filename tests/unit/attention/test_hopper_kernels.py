"""The kernels for NVIDIA GPUs in interpret mode, beside a formula in float64.

- The root mean square error of results is at most 1.5 times the error of rounding them to the dtype of the query. That
  of gradients is at most 1.5 times the error of gradients whose weights and products are rounded.
- Relative errors are at most 1e-6 for residuals, and 1e-5 for the cotangents of sinks and of arrays that a bias learns.
- The cases have each kind of bias, at counted and at given positions, each mask, and heads of several widths up to 256.
- Reads of shared memory are fenced before a load replaces what they read.
- Tangents and second derivatives are those of `implementation="xla"`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.attention import derivative_along
from helpers.closeness import assert_within
from helpers.slow import slow
from oracles import biases as oracle
from oracles.attention import dense, may_see

pytestmark = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernels need JAX 0.11")
RNG = np.random.default_rng(0)
BFLOAT16, KERNEL, SIDES = jnp.bfloat16, {"implementation": "mosaic_gpu"}, ("query", "key")
PAIRS = "positions", "segments", "order"  # options of a case that are pairs, of queries and of keys


@pytest.fixture(autouse=True)
def interpret(monkeypatch):
    from helpers.hopper import interpreted

    interpreted(monkeypatch.setattr)


class Bias(NamedTuple):
    """A bias: a function of positions and learned arrays, its formula in float64, and the learned arrays."""

    function: Callable[..., Any]
    formula: Callable[..., Callable[..., np.ndarray]]  # takes positions that broadcast; returns a function of arrays
    learned: tuple[np.ndarray, ...] = ()


def custom(i, j, size, rate, xp=jnp):
    """A bias that depends on more than i − j, and is finite only at positions below 200: padding would show."""
    i, j = (x.astype(xp.float32 if xp is jnp else float) for x in (i, j))
    size, rate = size[:, None, None], rate[:, None, None]
    return xp.where(i > j, size, -0.25) * xp.tanh(rate * i) * xp.log(200 - xp.maximum(i, j))


def bias_of_distance(function, formula, *learned):
    return Bias(function, lambda i, j: functools.partial(formula, np.abs(i - j)), learned)


def t5(i, j):
    rows = oracle.t5_rows(np.abs(i - j), i < j, 32)[..., 0, :, :]
    return lambda table: np.moveaxis(table[rows], -1, -3)


def t5_in_a_window(i, j, table):
    """Finite where a window of 150 keys before a query and 20 after it shows them."""
    apart = i[..., None, :, None] - j[..., None, None, :]
    return jnp.where((apart > 150) | (apart < -20), jnp.nan, pe.t5(i, j, table))


HALVES, ONES = np.float32([0.5, 1.0]), np.ones(2, np.float32)
TABLE = RNG.normal(size=(32, 2)).astype(np.float32)
BIASES = {
    "ALiBi": bias_of_distance(pe.alibi, oracle.alibi, np.float32([1 / 16, 1 / 256])),
    "KERPLE": bias_of_distance(pe.kerple_log, oracle.kerple_log, ONES, HALVES),
    "T5": Bias(pe.t5, t5, (TABLE,)),
    "custom": Bias(
        lambda i, j, *x: custom(i[..., None, :, None], j[..., None, None, :], *x),
        lambda i, j: functools.partial(custom, i, j, xp=np),
        (np.float32([0.5, -1]), np.float32([0.01, 0.02])),
    ),
    "T5 in a window": Bias(t5_in_a_window, t5, (TABLE,)),
}
COUNT = np.arange(256)
# Positions at the ends of int32, of queries and of keys.
FAR = 2**31 - 1 - COUNT, np.where(COUNT < 200, 2**31 - 1 - 2 * COUNT, COUNT - 2**31)
ROWS = {"positions": tuple(np.stack([far, RNG.permutation(COUNT)]) for far in FAR)}
DOCUMENTS = {"segments": (COUNT // 70, np.where(COUNT < 50, 7, COUNT // 70))}  # some queries see no key
ORDER = {"positions": (COUNT // 3, COUNT // 3), "order": (COUNT, COUNT)}
CAP, MASK = {"logits_soft_cap": 5.0}, RNG.random((2, 1, 1, 256)) < 0.8
# The shape of queries (batch, length, heads, head_dim), the number of keys, value_dim, the name of a bias, options.
CASES = {
    "no bias": ((1, 70, 4, 64), 290, 64, None, {"scale": 0.25}),
    "linear": ((1, 256, 2, 64), 256, 64, "ALiBi", {"causal": True}),
    "steps": ((1, 200, 2, 64), 200, 64, "custom", {"causal": True, "window": (90, None), **CAP, **DOCUMENTS}),
    "table": ((1, 200, 2, 64), 200, 64, "T5 in a window", {"window": (150, 20), "sinks": np.float32([0.5, -1]), **CAP}),
    "near, in two rows": ((2, 256, 2, 64), 256, 64, "T5", {"window": (40, 40), "mask": MASK, **ROWS}),
    "heads of 80, values of 96": ((1, 140, 2, 80), 140, 96, "ALiBi", {"causal": True}),
    "heads of 256": ((1, 192, 2, 256), 192, 256, None, {"causal": True}),
    "steps, by order": ((1, 256, 2, 64), 256, 64, "KERPLE", {"causal": True, **ORDER}),
    "table of documents": ((2, 256, 2, 64), 256, 64, "T5", {"causal": True, **DOCUMENTS}),
}
DEFAULT = [*CASES][:5]  # the other cases are slow


def random_qkv(shape, keys, value_width=64, dtype=BFLOAT16):
    """Query, key and value; two heads of queries share one of keys."""
    batch, _, heads, width = shape
    shapes = shape, (batch, keys, heads // 2, width), (batch, keys, heads // 2, value_width)
    return tuple(RNG.normal(size=shape).astype(np.float32).astype(dtype) for shape in shapes)


def rms(x):
    """The root mean square."""
    return np.sqrt(np.mean(np.asarray(x, np.float64) ** 2))


def prepared(name):
    """Of a case: query, key and value, bias, options, sinks, the formula of its bias, and the float64 results."""
    shape, keys, value_width, bias, options = CASES[name]
    x = random_qkv(shape, keys, value_width, np.float16 if bias == "ALiBi" else BFLOAT16)
    bias = BIASES[bias] if bias else Bias(None, lambda i, j: lambda: 0.0)
    counts = shape[1], keys
    pairs = {
        name: [x[..., :n] for x, n in zip(pair, counts, strict=True)] for name, pair in options.items() if name in PAIRS
    }
    sides = {f"{side}_{name}": np.int32(pair[n]) for name, pair in pairs.items() for n, side in enumerate(SIDES)}
    i, j = pairs.pop("positions", map(np.arange, counts))
    formula = bias.formula(np.int64(i)[..., None, :, None], np.int64(j)[..., None, None, :])
    seen = may_see(i, j, **{name: options[name] for name in ("causal", "window") if name in options}, **pairs)
    seen = seen & options.get("mask", True)
    biases, sinks = formula(*map(np.float64, bias.learned)), options.get("sinks")
    want = dense(*x, biases, seen, options.get("scale"), cap=options.get("logits_soft_cap"), sinks=sinks)
    others = {name: value for name, value in options.items() if name not in ("sinks", *PAIRS)}
    return x, bias, others | sides, sinks, formula, want


@pytest.mark.parametrize("name", [name if name in DEFAULT else slow(name) for name in CASES])
def test_results_and_gradients_are_as_near_as_rounding_allows(name):
    x, bias, options, sinks, formula, want = prepared(name)
    dtype = x[0].dtype
    dy = RNG.normal(size=want.y.shape).astype(np.float32).astype(dtype)
    dl = np.where(np.isinf(want.residual), 0, RNG.normal(size=want.residual.shape)).astype(np.float32)

    @jax.jit
    def run(x, sinks, learned):
        def attend(x, sinks, learned):
            function = None if bias.function is None else lambda i, j: bias.function(i, j, *learned)
            return pe.attention(*x, bias=function, sinks=sinks, return_residual=True, **KERNEL, **options)

        y, pull = jax.vjp(attend, x, sinks, learned)
        return y, pull((dy, dl))

    (y, residual), (gradients, d_sinks, d_learned) = jax.device_get(run(x, sinks, bias.learned))
    rounded = want.y.astype(dtype)
    assert y.dtype == dtype and rms(y - want.y) <= 1.5 * rms(rounded - want.y)
    bound = 1e-6 * np.maximum(1, np.abs(want.residual))
    assert_within(residual, want.residual, np.where(np.isinf(bound), 1, bound), against="float64")
    of_rounded = want.back(dy, dl, y=rounded, dtype=dtype)
    for got, exact, rounded_gradient in zip(gradients, want.back(dy, dl)[:3], of_rounded[:3], strict=True):
        assert rms(got - exact) <= 1.5 * rms(rounded_gradient - exact)
    # The other cotangents follow from the rounded output y, and are exact beside it.
    _, _, _, ds, *of_sinks = want.back(dy, dl, y=y)
    if sinks is not None:
        assert_within(d_sinks, *of_sinks, 1e-5 * np.sqrt(ds[..., 0].size), against="float64")
    learned = dict(enumerate(bias.learned))
    for n, a in learned.items():
        for index in np.ndindex(a.shape):  # v: the direction of one element
            v = {m: 0 * b for m, b in learned.items()}
            v[n][index] = 1
            terms = ds * derivative_along(lambda x: formula(*x.values()), learned, v)
            bound = 1e-5 * np.abs(terms).sum() + 1e-30
            assert_within(d_learned[n][index], terms.sum(), bound, against=f"the formula, by {n}{index}")


@pytest.mark.slow
def test_weights_of_gradients_sum_to_one_under_a_large_bias():
    """If the maximum of scores were rounded twice between the passes, these weights would be 1.1 % too large.

    With cotangents of ones, the gradient of a value is the sum of its weights.
    """
    bias = lambda i, j: jnp.full((1, 1, 1), 6e5, jnp.float32)  # noqa: E731
    attend = functools.partial(pe.attention, bias=bias, scale=0.11, **KERNEL)
    x = random_qkv((1, 256, 2, 64), 256)
    d_value = jax.jit(lambda *x: jax.vjp(attend, *x)[1](jnp.ones_like(x[0]))[2])(*x)
    sums = np.sum(np.asarray(d_value, np.float64), 1) / (2 * 256)  # two heads of 256 queries share a key head
    assert_within(sums, np.ones_like(sums), 1e-3, against="one")


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="before JAX 0.12 the interpreter raises at the first race")
def test_reads_are_fenced_before_a_load_replaces_what_they_read(monkeypatch, caplog):
    """384 tokens make three tiles, and the load of the third replaces the first in shared memory.

    Races in `add_products` do not count. The interpreter cannot add matrix products to a sum, so `add_products` has
    other code for it; the instruction of a device, wgmma, needs no fence.
    """
    from posenc_jax._attention.hopper.blocks import plgpu

    detecting = functools.partial(plgpu.InterpretGPUParams, detect_races=True, on_race="warn")
    monkeypatch.setattr(plgpu, "InterpretGPUParams", detecting)
    segments = np.arange(384, dtype=np.int32) // 100

    def total(x, learned):
        options = {"query_segments": segments, "key_segments": segments, **KERNEL}
        return jnp.sum(pe.attention(*x, bias=lambda i, j: pe.t5(i, j, learned), **options).astype(jnp.float32) ** 2)

    jax.block_until_ready(jax.jit(jax.grad(total, (0, 1)))(random_qkv((1, 384, 2, 64), 384), TABLE))
    races = [record.getMessage() for record in caplog.records if "RACE" in record.getMessage()]
    assert not [race for race in races if "add_products" not in race]


@pytest.mark.slow
def test_tangents_and_second_derivatives_are_those_by_xla():
    """The bound is one unit in the last place of bfloat16, 2⁻⁷, of the largest element."""
    x, slopes, direction = random_qkv((1, 64, 2, 64), 64), np.float32([0.25, 0.5]), np.float32([1, -2])

    def derivatives(implementation):
        def loss(slopes):
            bias = lambda i, j: pe.kerple_power(i, j, slopes, slopes + 0.5)  # noqa: E731
            where = {f"{side}_positions": jnp.arange(64, dtype=np.int32)[None] for side in SIDES}
            y = pe.attention(*x, bias=bias, causal=True, block_size=64, implementation=implementation, **where)
            return jnp.sum(y.astype(jnp.float32) ** 2)

        return jax.jit(lambda slopes: jax.jvp(jax.value_and_grad(loss), [slopes], [direction]))(slopes)

    for got, want in zip(*map(jax.tree.leaves, map(derivatives, ("mosaic_gpu", "xla"))), strict=True):
        assert_within(got, want, 2.0**-7 * np.max(np.abs(want)), against="XLA")
