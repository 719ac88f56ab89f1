"""What attention by tiles costs.

- Memory grows linearly with the length. A mask of keys takes almost none; a full mask takes about a bit per entry.
- A program has a conditional, which skips tiles in which nothing is seen, only if something hides keys. Which tiles it
  skips: test_tiles.py.
- Blocks are even, and profiles name `attention`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.slow import slow


def loss(q, k, v, table, sinks, scale):
    """The sum of squares of attention with a learned bias, sinks, and a scale for each query."""
    bias = lambda i, j: pe.t5(i, j, table)  # noqa: E731
    y = pe.attention(q, k, v, bias=bias, sinks=sinks, scale=scale, causal=True)
    return jnp.sum(y.astype(jnp.float32) ** 2)


def second_derivatives(*x):
    """The gradient of the sum of all elements of the gradient."""

    def total(*x):
        return sum(jnp.sum(y.astype(jnp.float32)) for y in jax.grad(loss, range(6))(*x))

    return jax.grad(total, range(6))(*x)


def temporaries(f, *arguments):
    """The bytes of temporary arrays. XLA assigns them before LLVM, which need not optimize code that does not run."""
    program = jax.jit(f, compiler_options={"xla_backend_optimization_level": 0})
    return program.lower(*arguments).compile().memory_analysis().temp_size_in_bytes


def types(length):
    """The types of the arguments of `loss`."""
    x = jax.ShapeDtypeStruct((1, length, 8, 64), jnp.bfloat16)
    return x, x, x, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((32, 8), (8,), (length, 1)))


@pytest.mark.parametrize(("program", "share"), [(jax.grad(loss, range(6)), 0.025), slow(second_derivatives, 0.05)])
def test_memory_grows_linearly_with_the_length(program, share):
    """At 32,768 tokens, memory is at most this share of a dense float32 bias of eight heads (34 GB)."""
    short, long = (temporaries(program, *types(length)) for length in (16_384, 32_768))
    assert long <= share * 8 * 32_768**2 * 4 and long <= 2.001 * short


def test_a_mask_is_read_in_tiles():
    """A mask of keys takes below 64 bytes per key. One of heads, queries and keys takes below 1.2 bits per entry.

    The length is no multiple of a block, so that the full mask is padded.
    """
    n, x = 2000, jax.ShapeDtypeStruct((1, 2000, 2, 32), jnp.float32)
    f = lambda mask, *x: pe.attention(*x, mask=mask, block_size=256)  # noqa: E731
    masks = ((1, 1, 1, 1), (1, 1, 1, n), (1, 2, n, n))
    least, of_keys, full = (temporaries(f, jax.ShapeDtypeStruct(shape, bool), x, x, x) for shape in masks)
    assert of_keys - least < 64 * n and full - least < 2 * n**2 * 0.15  # 0.15 bytes are 1.2 bits


def lowered(**options):
    x = jax.ShapeDtypeStruct((1, 520, 1, 8), jnp.float32)
    return jax.jit(functools.partial(pe.attention, **options)).lower(x, x, x)


APART = np.arange(520, dtype=np.int32) // 16


@pytest.mark.parametrize(
    ("options", "conditions"),
    [
        ({}, 0),
        ({"causal": True}, 1),
        ({"window": (None, 9)}, 1),
        ({"query_segments": APART, "key_segments": APART}, 1),
        ({"query_order": APART, "key_order": APART, "causal": True}, 1),
        ({"mask": np.ones((1, 1, 1, 520), bool)}, 1),
    ],
    ids=str,
)
def test_one_conditional_skips_tiles_where_something_hides_keys(options, conditions):
    assert lowered(**options).as_text().count("stablehlo.case") == conditions


def test_blocks_are_even_and_profiles_name_attention():
    """520 tokens make two blocks of 260, not one of 512 and one of 8."""
    program = lowered()
    assert "260x260xf32" in program.as_text() and "512" not in program.as_text()
    assert "posenc_jax.attention/" in program.as_text(debug_info=True)
