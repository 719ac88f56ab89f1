"""What attention by tiles costs: memory that grows with the length, and nothing where nothing is seen."""

import functools

import jax
import jax.numpy as jnp
import pytest

import posenc_jax as pe
from helpers.tiers import tiered


def temporaries(length, backward):
    x = jax.ShapeDtypeStruct((1, length, 8, 64), jnp.bfloat16)
    f = functools.partial(pe.attention, bias=functools.partial(pe.alibi, heads=8), causal=True)
    g = (lambda q, k, v, dy: jax.vjp(f, q, k, v)[1](dy)) if backward else (lambda q, k, v, dy: f(q, k, v))
    # Buffers are assigned before LLVM generates code, which need not be fast: it does not run.
    options = {"xla_backend_optimization_level": 0}
    return jax.jit(g).lower(x, x, x, x).compile(options).memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("backward", tiered([False, True], [True]))
def test_memory_grows_with_the_length(backward):
    lengths = 4096, 32_768, 65_536
    found = [temporaries(n, backward) for n in lengths]
    assert found[1] <= 0.05 * 8 * 32_768**2 * 2  # of the bytes of a dense bias
    assert found[1] <= 8.001 * found[0] and found[2] <= 2.001 * found[1]


def test_a_tile_in_which_nothing_is_seen_costs_nothing():
    x = jax.ShapeDtypeStruct((1, 64, 1, 8), jnp.float32)
    count = lambda **options: str(jax.make_jaxpr(functools.partial(pe.attention, block_size=8, **options))(x, x, x)).count("cond[")  # noqa: E731  # fmt: skip
    assert count(causal=True) == 1 and count() == 0
    apart = jnp.arange(64, dtype=jnp.int32) // 16
    assert count(query_segments=apart, key_segments=apart) == 1


def test_blocks_are_even():
    x = jax.ShapeDtypeStruct((1, 520, 1, 8), jnp.float32)
    text = str(jax.make_jaxpr(pe.attention)(x, x, x))
    assert "260,260]" in text and "512" not in text
