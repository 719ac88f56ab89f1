"""The encodings as libraries write them, in plain JAX, so that the formulas of those without JAX are compared too.

The functions are what several benchmarks compare with. `FORMULAS` are peers with the interface of `peers`, for each
library's own way to write it: whether the waves are computed in the call or kept in a table, in which dtype it rotates,
and where the heads are. What is kept is made here, as at a model's construction.
"""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

BASE, KEPT = 10_000.0, 8192


def frequencies_of(dim, base=BASE):
    return (base ** (-2 * np.arange((dim + 1) // 2) / dim)).astype(np.float32)


def phases(positions, dim, base=BASE):
    """In float32: every product rounded."""
    return jnp.asarray(positions)[..., None].astype(jnp.float32) * frequencies_of(dim, base)


# Tables.


def textbook(positions, dim, base=BASE):
    """The formula as it is usually written, and computed."""
    phase = phases(positions, dim, base)
    waves = jnp.stack([jnp.sin(phase), jnp.cos(phase)], axis=-1)
    return waves.reshape(*positions.shape, -1)[..., :dim]


def scattered(positions, dim, base=BASE):
    """Into zeros, a wave at a time, as implementations translated from PyTorch do."""
    phase = phases(positions, dim, base)
    table = jnp.zeros((*positions.shape, dim))
    return table.at[..., 0::2].set(jnp.sin(phase)).at[..., 1::2].set(jnp.cos(phase))


def concatenated(positions, dim, base=BASE):
    """Sines, then cosines: Tensor2Tensor's, fairseq's, MaxText's."""
    phase = phases(positions, dim, base)
    return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=-1)


def masked(positions, dim, base=BASE):
    """Both waves of every feature, each times a mask: Keras Hub's."""
    phase = positions[..., None].astype(jnp.float32) * np.repeat(frequencies_of(dim, base), 2)[:dim]
    odd = (np.arange(dim) % 2).astype(np.float32)
    return jnp.sin(phase) * (1 - odd) + jnp.cos(phase) * odd


def shifted(positions, dim, base=BASE):
    """One sine, a quarter turn later where a cosine belongs."""
    phase = positions[..., None].astype(jnp.float32) * np.repeat(frequencies_of(dim, base), 2)[:dim]
    return jnp.sin(phase + (np.arange(dim) % 2 * (np.pi / 2)).astype(np.float32))


# Rotations of x by cosines and sines of half its width, which broadcast to it.


def halves(x, cosine, sine):
    """The halves concatenated: most JAX libraries, and vLLM."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def rotate_half(x, cosine, sine):
    """Hugging Face's: both waves concatenated with themselves, and the halves of x exchanged."""
    first, second = jnp.split(x, 2, axis=-1)
    twice = lambda wave: jnp.concatenate([wave, wave], axis=-1)  # noqa: E731
    return x * twice(cosine) + jnp.concatenate([-second, first], axis=-1) * twice(sine)


def roll_half(x, cosine, sine):
    """The halves exchanged by a roll, and the sign in the sine."""
    signed = jnp.concatenate([-sine, sine], axis=-1)
    return x * jnp.concatenate([cosine, cosine], axis=-1) + jnp.roll(x, x.shape[-1] // 2, axis=-1) * signed


def rotate_every_two(x, cosine, sine):
    """GPT-J's and rotary-embedding-torch's: each wave repeated, neighbours exchanged by slices and a stack."""
    twice = lambda wave: jnp.repeat(wave, 2, axis=-1)  # noqa: E731
    other = jnp.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
    return x * twice(cosine) + other * twice(sine)


def roll_pairs(x, cosine, sine):
    """Neighbours exchanged by two rolls and a choice."""
    even = np.arange(x.shape[-1]) % 2 == 0
    other = jnp.where(even, -jnp.roll(x, -1, axis=-1), jnp.roll(x, 1, axis=-1))
    return x * jnp.repeat(cosine, 2, axis=-1) + other * jnp.repeat(sine, 2, axis=-1)


def pairs(x, cosine, sine):
    """A reshape to pairs and a stack: torchtune's."""
    split = x.reshape(*x.shape[:-1], -1, 2)
    first, second = split[..., 0], split[..., 1]
    return jnp.stack([first * cosine - second * sine, second * cosine + first * sine], axis=-1).reshape(x.shape)


def complex_product(x, cosine, sine):
    """Pairs as complex numbers: Meta's Llama, and EasyLM."""
    split = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    turned = jax.lax.complex(split[..., 0], split[..., 1]) * jax.lax.complex(cosine, sine)
    return jnp.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def swapped(x, cosine, sine, layout):
    """Partners exchanged by the matrix unit, with one ±1 in each column; an infinity spoils its whole vector."""
    dim = x.shape[-1]
    if layout == "half":
        swap, twice = np.eye(dim, k=dim // 2) - np.eye(dim, k=-(dim // 2)), lambda w: jnp.concatenate([w, w], axis=-1)
    else:
        swap, twice = np.kron(np.eye(dim // 2), [[0, 1], [-1, 0]]), lambda w: jnp.repeat(w, 2, axis=-1)
    precise = {"precision": "highest", "preferred_element_type": x.dtype}
    return x * twice(cosine) + jnp.einsum("...i,ij->...j", x, jnp.asarray(swap, x.dtype), **precise) * twice(sine)


def made_in_the_call(x, positions):
    """Halves by a table of all positions, made in the call in the dtype of x and gathered: attnax 0.2.0's."""
    count = np.arange(x.shape[-1] // 2)
    omega = 1 / BASE ** (jnp.asarray(count, x.dtype) / len(count))
    phase = jnp.outer(jnp.arange(KEPT, dtype=x.dtype), omega)
    return halves(x, *(wave(phase)[positions][:, None] for wave in (jnp.cos, jnp.sin)))


# Addition and attention.


def add_computed(x, table):
    return x + table(jnp.arange(x.shape[-2]), x.shape[-1]).astype(x.dtype)


def alibi(length, heads):
    """(heads, 1, keys): of the keys' positions alone it is the same under a softmax and a causal mask."""
    slopes = np.exp2(-8 * np.arange(1, heads + 1) / heads).astype(np.float32)
    return slopes[:, None, None] * jnp.arange(length)[None, :].astype(jnp.float32)


def softmax_attention(q, k, v):
    """Scores, bias, mask, softmax, as a model's code has them; the bias of keys as in BLOOM."""
    scores = jnp.einsum("bihd,bjhd->bhij", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    causal = np.tril(np.ones((q.shape[1],) * 2, bool))
    scores = jnp.where(causal, scores + alibi(q.shape[1], q.shape[2]), -jnp.inf)
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores, axis=-1).astype(q.dtype), v)


# As peers.


def _peer(name, **functions):
    return SimpleNamespace(NAME=f"formula: {name}", PACKAGES=(), FRAMEWORK="jax", **functions)


def _table(name, table):
    functions = {
        "table": lambda case: lambda positions: table(positions, case.shape[-1]),
        "add": lambda case: functools.partial(add_computed, table=table),
    }
    return _peer(name, **functions)


def _rotation(name, rotate, layout, head_axis=-2, in_float32=True, kept=False):
    """A way to rotate; the waves of the first `KEPT` positions a constant, or computed in the call."""

    def waves(positions, dim):
        """Cosine and sine (..., dim / 2)."""
        if not kept:
            return jnp.cos(phases(positions, dim)), jnp.sin(phases(positions, dim))
        phase = np.arange(KEPT, dtype=np.float32)[:, None] * frequencies_of(dim)
        return tuple(jnp.asarray(wave)[positions] for wave in (np.cos(phase), np.sin(phase)))

    def turn(x, positions):
        inside = jnp.float32 if in_float32 else x.dtype
        both = [jnp.expand_dims(wave, head_axis).astype(inside) for wave in waves(positions, x.shape[-1])]
        return rotate(x.astype(inside), *both).astype(x.dtype)

    def rotary(case):
        first = slice(case.shape[1]) if kept else np.arange(case.shape[1])
        return lambda x: turn(x, first)

    return _peer(name, HEAD_AXIS=head_axis, LAYOUTS=(layout,), rotary=rotary, decode=lambda case: turn)


FORMULAS = [
    _table("stack", textbook),
    _table("zeros, then scatter", scattered),
    _table("concatenate", concatenated),
    _table("masks", masked),
    _table("one shifted sine", shifted),
    _peer(
        "kept table",
        add=lambda case: functools.partial(
            lambda x, table: x + table.astype(x.dtype),
            table=np.asarray(textbook(np.arange(case.shape[1]), case.shape[2])),
        ),
    ),
    _rotation("halves concatenated, float32", halves, "half"),
    _rotation("halves concatenated, dtype of x, kept waves (vLLM)", halves, "half", in_float32=False, kept=True),
    _peer(
        "halves concatenated, table made in the call (attnax)",
        HEAD_AXIS=-3,
        LAYOUTS=("half",),
        rotary=lambda case: lambda x: made_in_the_call(x, jnp.broadcast_to(jnp.arange(case.shape[1]), case.shape[:2])),
        decode=lambda case: made_in_the_call,
    ),
    _rotation("rotate_half, dtype of x (Hugging Face)", rotate_half, "half", head_axis=-3, in_float32=False),
    _rotation("roll by half", roll_half, "half"),
    _rotation("±1 matrix", functools.partial(swapped, layout="half"), "half"),
    _rotation("slices and stack (rotary-embedding-torch)", rotate_every_two, "interleaved", head_axis=-3),
    _rotation("slices and stack, dtype of x, kept waves (GPT-J)", rotate_every_two, "interleaved", -2, False, True),
    _rotation("pairs, kept waves (torchtune)", pairs, "interleaved", kept=True),
    _rotation("complex product, kept waves (Llama)", complex_product, "interleaved", kept=True),
    _rotation("two rolls", roll_pairs, "interleaved"),
    _rotation("±1 matrix, pairs", functools.partial(swapped, layout="interleaved"), "interleaved"),
    _peer("softmax, bias of keys (BLOOM)", attention=lambda case: softmax_attention),
]
