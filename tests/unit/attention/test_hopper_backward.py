"""Gradients of attention by the kernels for NVIDIA GPUs, in interpret mode."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.hopper_cases import BFLOAT16, BIASES, CASES, RNG, operands, truth
from helpers.tiers import tiered

pytestmark = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernels need JAX 0.11")
DTYPES = {"ALiBi, heads of 128": np.float16}


@pytest.fixture(autouse=True)
def interpret(monkeypatch):
    from helpers.hopper import interpreted

    interpreted(monkeypatch.setattr)


def rms(x):
    return np.sqrt(np.mean(np.asarray(x, np.float64) ** 2))


def differences(formula, learned, ds):
    """The derivative of Σ ds · bias by each learned number, by central differences, and of Σ |ds · bias| its bound."""
    learned, h = [a.astype(np.float64) for a in learned], 1e-5
    for n, a in enumerate(learned):
        result, size = np.zeros((2, *a.shape))
        for place in np.ndindex(a.shape):
            each = [a.copy(), a.copy()]
            each[0][place] += h
            each[1][place] -= h
            up, down = (formula(*learned[:n], b, *learned[n + 1 :]) for b in each)
            parts = ds * (up - down) / (2 * h)
            result[place], size[place] = parts.sum(), np.abs(parts).sum()
        yield result, size


@pytest.mark.parametrize("name", tiered(CASES, ["few tokens"]))
def test_gradients_against_the_dense_formula(name):
    """Within 1.5 times the error of rounding weights, their cotangents and results; those of a bias within 1e-5.

    Those of a bias are compared with what follows from the output that was rounded.
    """
    *sizes, bias, options = CASES[name]
    dtype = DTYPES.get(name, BFLOAT16)
    batch, heads = 2 if name in ("rows apart", "T5, documents") else 1, 4 if name == "four heads" else 2
    x, found = operands(*sizes, batch=batch, heads=heads, dtype=dtype), BIASES.get(bias)
    learned = () if found is None else found.learned
    options, sinks = dict(options), [options["sinks"]] if "sinks" in options else []
    want = truth(name, x)
    dy = RNG.normal(size=want.dense.y.shape).astype(np.float32).astype(dtype)
    dl = np.where(np.isinf(want.dense.residual), 0, RNG.normal(size=want.dense.residual.shape)).astype(np.float32)

    @jax.jit
    def run(x, sinks, learned):
        def attend(x, sinks, learned):
            more = options | ({"sinks": sinks[0]} if sinks else {})
            f = None if found is None else lambda i, j: found.of(i, j, *learned)
            return pe.attention(*x, bias=f, implementation="mosaic_gpu", return_residual=True, **more)

        (y, _), pull = jax.vjp(attend, x, sinks, learned)
        return y, pull((dy, dl))

    y, (got, d_sinks, d_learned) = jax.tree.map(np.asarray, run(x, sinks, learned))
    back = want.dense.back
    rounded = want.dense.y.astype(dtype)
    for each, exact, least in zip(got, back(dy, dl)[:3], back(dy, dl, y=rounded, dtype=dtype)[:3], strict=True):
        assert rms(each - exact) <= 1.5 * rms(least - exact)
    *_, ds = back(dy, dl, y=y)[:4]
    for each in sinks and [(d_sinks[0], back(dy, dl, y=y)[4])]:
        assert_within(*each, 1e-5 * np.sqrt(ds[..., 0].size), against="float64")
    for each, (exact, size) in zip(d_learned, differences(want.bias, learned, ds), strict=True):
        # float32 and differences may be on two sides of a kink of FIRE's network
        assert_within(each, exact, (1e-4 if bias == "FIRE" else 1e-5) * size + 1e-30, against="differences")


@pytest.mark.slow
def test_weights_of_gradients_sum_to_one_under_a_large_bias():
    """A maximum that is rounded twice between the passes makes them 1.1 % too large at this scale."""
    of = lambda i, j: jnp.full((1, 1, 1), 6e5, jnp.float32)  # noqa: E731
    attend = functools.partial(pe.attention, bias=of, scale=0.11, implementation="mosaic_gpu")
    x = operands(256, 256, batch=1)
    gradient = jax.jit(lambda *x: jax.vjp(attend, *x)[1](jnp.ones_like(x[0]))[2])
    sums = np.sum(np.asarray(gradient(*x), np.float64), 1) / (2 * 256)  # by two heads of 256 queries each
    assert_within(sums, np.ones_like(sums), 1e-3, against="one")


# Races


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="before JAX 0.12 the interpreter raises at the first race")
@pytest.mark.parametrize("name", ["no bias", "segments alone", "T5", "T5, shuffled"])
def test_what_is_read_is_fenced_before_a_load_replaces_it(name, monkeypatch, caplog):
    """JAX's interpreter finds no race, where the third tile replaces the first.

    It has no matrix products with a start: what `add_products` reads instead needs no fence on a device.
    """
    from posenc_jax._attention.hopper.blocks import plgpu

    detecting = functools.partial(plgpu.InterpretGPUParams, detect_races=True, on_race="warn")
    monkeypatch.setattr(plgpu, "InterpretGPUParams", detecting)
    *_, bias, options = CASES[name]
    options = options | {side: np.resize(n, 384) for side, n in options.items() if np.ndim(n)}
    x, found = operands(384, 384, batch=1), BIASES.get(bias)

    def total(x, learned):
        f = None if found is None else lambda i, j: found.of(i, j, *learned)
        return jnp.sum(pe.attention(*x, bias=f, implementation="mosaic_gpu", **options).astype(jnp.float32) ** 2)

    jax.block_until_ready(jax.jit(jax.grad(total, (0, 1)))(x, () if found is None else found.learned))
    races = [record.getMessage() for record in caplog.records if "RACE" in record.getMessage()]
    assert not [race for race in races if "add_products" not in race]


# Beside XLA's


def loss(implementation, slopes, *x):
    bias = lambda i, j: pe.kerple_power(i, j, slopes, slopes + 0.5)  # noqa: E731
    where = {f"{side}_positions": jnp.arange(64, dtype=np.int32)[None] for side in ("query", "key")}
    options = {"bias": bias, "causal": True, "block_size": 64, "implementation": implementation}
    return jnp.sum(pe.attention(*x, **options, **where).astype(jnp.float32) ** 2)


SLOPES = np.float32([0.25, 0.5])


@pytest.mark.slow
def test_second_derivatives_are_those_by_xla():
    x, direction = operands(64, 64, batch=1), np.float32([1, -2])
    both = []
    for implementation in ("xla", "mosaic_gpu"):
        gradient = jax.grad(functools.partial(loss, implementation))
        both.append(jax.jit(lambda s: jax.jvp(lambda s: gradient(s, *x), [s], [direction]))(SLOPES))  # noqa: B023
    for got, want in zip(both[1], both[0], strict=True):
        assert_within(got, want, 2.0**-7 * np.max(np.abs(want)), against="XLA")


@pytest.mark.slow
def test_gradients_of_what_vmap_does_not_map_are_summed():
    rows = [RNG.normal(size=(3, 1, 64, 2, 64)).astype(BFLOAT16) for _ in range(3)]
    of_rows = lambda s, *x: jnp.sum(jax.vmap(functools.partial(loss, "mosaic_gpu"), (None, 0, 0, 0))(s, *x))  # noqa: E731
    got = jax.jit(jax.grad(of_rows))(SLOPES, *rows)
    want = jax.jit(jax.vmap(jax.grad(functools.partial(loss, "mosaic_gpu")), (None, 0, 0, 0)))(SLOPES, *rows)
    assert want.shape == (3, 2)
    assert_within(got, np.sum(want, 0), 1e-5 * np.sum(np.abs(want)), against="each row's")


@pytest.mark.slow
def test_shard_map_sums_gradients_of_replicated_parameters():
    axis_types = (jax.sharding.AxisType.Auto,)
    mesh, spec = jax.make_mesh((2,), ("a",), axis_types=axis_types, devices=jax.devices("cpu")[:2]), jax.P
    rows = [RNG.normal(size=(2, 64, 2, 64)).astype(BFLOAT16) for _ in range(3)]
    of = functools.partial(loss, "mosaic_gpu")
    each = lambda *x: jax.lax.psum(of(*x), "a")  # noqa: E731
    of_all = jax.shard_map(each, mesh=mesh, in_specs=(spec(), *[spec("a")] * 3), out_specs=spec())
    want = jax.jit(jax.grad(of))(SLOPES, *rows)
    assert_within(jax.jit(jax.grad(of_all))(SLOPES, *rows), want, 1e-5 * np.abs(want), against="one device")
