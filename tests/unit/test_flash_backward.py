"""Gradients of attention by the kernels for NVIDIA GPUs, in interpret mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.flash_cases import BFLOAT16, BIASES, CASES, RNG, operands, truth
from helpers.tiers import tiered

pytestmark = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernels need JAX 0.11")
DTYPES = {"ALiBi, heads of 128": np.float16}


@pytest.fixture(autouse=True)
def interpret(monkeypatch):
    from helpers.flash import interpreted

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


@pytest.mark.parametrize("name", tiered(CASES, ["every option"]))
def test_gradients_against_the_dense_formula(name):
    """Within 1.5 times the error of rounding weights, their cotangents and results; those of a bias within 1e-5.

    Those of a bias are compared with what follows from the output that was rounded.
    """
    *sizes, bias, options = CASES[name]
    dtype = DTYPES.get(name, BFLOAT16)
    x, found = operands(*sizes, batch=2 if name == "rows apart" else 1, dtype=dtype), BIASES.get(bias)
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
        assert_within(each, exact, 1e-5 * size + 1e-30, against="differences")


def of(implementation, *x):
    """A loss of queries, keys, values and slopes."""
    *x, slopes = x
    bias = lambda i, j: pe.alibi(i, j, slopes)  # noqa: E731
    y = pe.attention(*x, bias=bias, causal=True, block_size=64, implementation=implementation)
    return jnp.sum(y.astype(jnp.float32) ** 2)
