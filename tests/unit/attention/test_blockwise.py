"""What attention by tiles costs: memory that grows with the length, and nothing where nothing is seen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.quick import compiler_options
from helpers.tiers import tiered


def programs(f):
    """Of queries, keys, values, and what is of the shape of each."""
    loss = lambda *x: jnp.sum(f(*x).astype(jnp.float32) ** 2)  # noqa: E731
    gradient = jax.grad(loss, (0, 1, 2))
    dot = lambda a, b: sum(jnp.vdot(x.astype(jnp.float32), y.astype(jnp.float32)) for x, y in zip(a, b, strict=True))  # noqa: E731
    return {
        "forward": lambda q, k, v, d: f(q, k, v),
        "backward": lambda q, k, v, d: jax.vjp(f, q, k, v)[1](d),
        "tangent": lambda q, k, v, d: jax.jvp(f, (q, k, v), (d, d, d)),
        "forward over reverse": lambda q, k, v, d: jax.jvp(gradient, (q, k, v), (d, d, d))[1],
        "reverse over reverse": lambda q, k, v, d: jax.grad(lambda *x: dot(gradient(*x), (d, d, d)), (0, 1, 2))(q, k, v),
        "reverse over forward": lambda q, k, v, d: jax.grad(lambda *x: jax.jvp(loss, x, (d, d, d))[1], (0, 1, 2))(q, k, v),
    }  # fmt: skip


def temporaries(length, program):
    x = jax.ShapeDtypeStruct((1, length, 8, 64), jnp.bfloat16)
    return compiled(programs(functools.partial(pe.attention, bias=functools.partial(pe.alibi, heads=8), causal=True))[program], x, x, x, x)  # fmt: skip


def compiled(f, *arguments):
    """The bytes of temporaries."""
    # Buffers are assigned before LLVM generates code, which need not be fast: it does not run.
    options = {"xla_backend_optimization_level": 0} | compiler_options()
    return jax.jit(f).lower(*arguments).compile(options).memory_analysis().temp_size_in_bytes


# Program → the most that it takes at 32,768, of the bytes of a dense bias (34 GB). All grow linearly.
SHARES = {
    "forward": 0.025,
    "backward": 0.025,
    "tangent": 0.025,
    "forward over reverse": 0.05,
    "reverse over reverse": 0.05,
    "reverse over forward": 0.05,
}


def test_memory_of_a_gradient():
    assert temporaries(32_768, "backward") <= SHARES["backward"] * 8 * 32_768**2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("program", SHARES)
def test_memory_grows_with_the_length(program):
    lengths = 4096, 32_768, 65_536
    found = [temporaries(n, program) for n in lengths]
    assert found[1] <= SHARES[program] * 8 * 32_768**2 * 4
    assert found[1] <= 8.001 * found[0] and found[2] <= 2.001 * found[1]


@pytest.mark.parametrize("program", tiered(SHARES, ["forward"]))
def test_a_mask_is_read_in_tiles(program):
    """A mask of keys takes nothing, and bits of one of heads, queries and keys an eighth, where tiles divide nothing."""
    x, n = jax.ShapeDtypeStruct((1, 2000, 2, 32), jnp.float32), 2000
    shapes = (1, 1, 1, 1), (1, 1, 1, n), (1, 2, n, n)
    f = lambda mask, *x: programs(functools.partial(pe.attention, mask=mask, block_size=256))[program](*x)  # noqa: E731
    least, of_keys, full = (compiled(f, jax.ShapeDtypeStruct(s, bool), x, x, x, x) for s in shapes)
    assert of_keys - least < 64 * n and full - least < 2 * n**2 * (0.15 if program == "forward" else 0.45)


@pytest.mark.slow
@pytest.mark.parametrize("program", SHARES)
def test_memory_with_learned_parameters(program):
    """A table of T5, sinks, and a scale for each query, which move too."""

    def f(q, k, v, table, sinks, scale):
        return pe.attention(q, k, v, bias=lambda i, j: pe.t5(i, j, table), sinks=sinks, scale=scale[:, None])

    def moving(q, d, *learned):
        return programs(lambda q, k, v: f(q, k, v, *(a * jnp.mean(q).astype(a.dtype) for a in learned)))[program](
            q, q, q, d
        )

    def bytes_of(length):
        x = jax.ShapeDtypeStruct((1, length, 8, 64), jnp.bfloat16)
        return compiled(moving, x, x, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((32, 8), (8,), (length,))))

    found = [bytes_of(n) for n in (4096, 32_768, 65_536)]
    assert found[1] <= SHARES[program] * 8 * 32_768**2 * 4
    assert found[1] <= 8.001 * found[0] and found[2] <= 2.001 * found[1]


def lowered(**options):
    x = jax.ShapeDtypeStruct((1, 520, 1, 8), jnp.float32)
    return jax.jit(functools.partial(pe.attention, **options)).lower(x, x, x).as_text()


def test_a_tile_in_which_nothing_is_seen_costs_nothing():
    count = lambda **options: lowered(**options).count("stablehlo.case")  # noqa: E731
    apart = np.arange(520, dtype=np.int32) // 16
    assert count() == 0 and count(causal=True) == count(window=(None, 9)) == 1
    assert (
        count(query_segments=apart, key_segments=apart) == count(query_order=apart, key_order=apart, causal=True) == 1
    )
    assert count(mask=np.ones((1, 1, 1, 520), bool)) == 1


def test_nothing_is_skipped_where_positions_are_mapped():
    """A condition for each of a batch is none for the program; a batch axis of the positions keeps it one."""
    x, p, row = (jax.ShapeDtypeStruct(s, d) for s, d in (((2, 520, 1, 8), jnp.float32), ((2, 520), jnp.int32), ((520,), jnp.int32)))  # fmt: skip

    def f(x, p):
        return pe.attention(x, x, x, query_positions=p, key_positions=p, causal=True)

    mapped, batched = (jax.jit(g).lower(x, p).as_text().count("stablehlo.case") for g in (jax.vmap(f), f))
    assert mapped == 0 and batched == 1
    assert jax.jit(jax.vmap(f, (0, None))).lower(x, row).as_text().count("stablehlo.case") == 1


def test_blocks_are_even():
    assert "260x260xf32" in lowered() and "512" not in lowered()


def test_profiles_show_attention_by_its_name():
    x = jax.ShapeDtypeStruct((1, 2, 1, 2), jnp.float32)
    assert "posenc_jax.attention/" in jax.jit(pe.attention).lower(x, x, x).as_text(debug_info=True)
