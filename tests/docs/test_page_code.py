"""Code that pages hand to a reader, run at settings that are not its defaults, beside float64."""

import functools
import warnings

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
from helpers import pages
from helpers.closeness import assert_within
from oracles import attention, rotations
from posenc_jax.nnx import RotaryEncoding, positional_attention

RNG = np.random.default_rng(0)
FLAX = {"RotaryEncoding": RotaryEncoding, "positional_attention": positional_attention}
NAMES = {"pe": pe, "jax": jax, "jnp": jnp, "np": np, "functools": functools} | FLAX


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


# recipes.md: the table of what others write, row by row

BATCH, SEQ, HEADS, WIDTH, THETA = 2, 5, 3, 8, 500.0
PLACES = np.array([[40, 3, 0, 700, 12], [9, 8, 7, 6, 5]], np.int32)
COUNTED = np.arange(SEQ)
X = RNG.normal(size=(BATCH, SEQ, HEADS, WIDTH)).astype(np.float32)
Q, K, V = RNG.normal(size=(3, BATCH, SEQ, HEADS, WIDTH)).astype(np.float32)
TABLE = RNG.normal(size=(1000, WIDTH)).astype(np.float32)
F = pe.geometric(WIDTH, THETA)
GIVEN = NAMES | {"f": F, "theta": THETA, "head_dim": WIDTH, "d": WIDTH, "positions": PLACES, "table": TABLE}


def turned(x, positions, layout="half"):
    """x (..., seq, heads, head_dim)."""
    return rotations.rotate_by(x, positions[..., None, None] * THETA ** (-np.arange(0, WIDTH, 2) / WIDTH), layout)


def sinusoids(positions, layout="interleaved"):
    phases = positions[..., None] * 1e4 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    return rotations.features(np.sin(phases), np.cos(phases), layout)


def ropes():
    """Ropes for Flax's own attention, where this Flax has it."""
    return (nnx.RoPE(THETA), RotaryEncoding(F, head_axis=None)) if hasattr(nnx, "RoPE") else ()


def new_rope(call):
    x, want = jnp.asarray(X[:, :, 0]), turned(X, COUNTED)[:, :, 0]
    assert_within(call()(x), want, 2e-6)
    if hasattr(nnx, "RoPE"):
        with warnings.catch_warnings(action="ignore"):  # Flax's table is read in a way that Flax deprecates
            for theirs in (nnx.RoPE(THETA), nnx.RoPE(THETA, WIDTH, 100)):
                assert_within(theirs(x), want, 2e-6)


def called(call):
    assert_within(call(x=X[:, :, 0]), turned(X, PLACES)[:, :, 0], 3e-5)


def attending(call):
    got, mask = call()(Q, K, V, mask=np.tri(SEQ, dtype=bool)), attention.may_see(COUNTED, COUNTED, causal=True)
    assert_within(got, attention.dense(turned(Q, COUNTED), turned(K, COUNTED), V, seen=mask).y, 2e-6)
    for rope in ropes():
        theirs = nnx.dot_product_attention_with_rope(Q, K, V, rope=rope, mask=np.tri(SEQ, dtype=bool))
        assert_within(theirs, np.asarray(got), 5e-6, against="ours")


def attending_at(call):
    attend, settings = call(), {"qkv_features": HEADS * WIDTH, "decode": False, "rngs": nnx.Rngs(0)}
    for places in (PLACES, PLACES[0]):
        want = attention.dense(turned(Q, places), turned(K, places), V).y
        assert_within(attend(Q, K, V, input_positions=places), want, 3e-5)
        for rope in ropes() if flax.__version__ == "0.12.12" else ():
            with pytest.raises((ValueError, IndexError)):
                nnx.dot_product_attention_with_rope(Q, K, V, rope=rope, input_positions=jnp.asarray(places))
    layer = nnx.MultiHeadAttention(HEADS, WIDTH, attention_fn=attend, **settings)
    layer.init_cache((BATCH, SEQ, WIDTH))
    with pytest.raises(ValueError, match="input_positions must be given"):  # a step without positions
        layer(X[:, :1, 0], decode=True)


def of_hugging_face(call):
    assert_within(call(x=X.swapaxes(1, 2)).swapaxes(1, 2), turned(X, PLACES), 3e-5)


def of_meta(call):
    assert_within(call(x=X), turned(X, PLACES, "interleaved"), 3e-5)


def adding(call):
    x = X[:, :, 0]
    assert_within(call(x=x), x + sinusoids(COUNTED), 1e-6)
    assert_within(pe.add_sinusoidal(x, layout="half"), x + sinusoids(COUNTED, "half"), 1e-6)


def adding_at(call):
    assert_within(call(x=X[:, :, 0]), X[:, :, 0] * WIDTH**0.5 + sinusoids(PLACES), 2e-6)


def looking_up(call):
    np.testing.assert_array_equal(call(), TABLE[PLACES])
    with pytest.raises(ValueError):
        call(positions=np.array([1000]))


COMING_FROM = {
    "`nnx.RoPE(theta)`": new_rope,
    "`nnx.RoPE(theta, head_dim, max_seq_len)`": new_rope,
    "`rope(x, positions)`, x (…, seq, head_dim)": called,
    "`partial(nnx.dot_product_attention_with_rope, rope=rope)`": attending,
    "the same, with `input_positions`": attending_at,
    "`x * cos + rotate_half(x) * sin` (Hugging Face)": of_hugging_face,
    "`x * freqs_cis`, complex (Meta)": of_meta,
    "`x + table[:x.shape[1]]`, sinusoids": adding,
    "`x * d**0.5 + table[positions]`": adding_at,
    "`table[positions]`, learned": looking_up,
}
ROWS = dict(pages.rows("docs/recipes.md", "there"))


def test_every_row_of_coming_from_is_tested():
    assert list(ROWS) == list(COMING_FROM)
    assert ROWS["`x + table[:x.shape[1]]`, sinusoids"].endswith('`layout="half"` if all sines come first')


@pytest.mark.parametrize("there", COMING_FROM)
def test_coming_from(there):
    here = ROWS[there]
    if here.startswith("the same:"):
        here = ROWS["`nnx.RoPE(theta)`"]
    (code, *_) = pages.code_in(here)
    COMING_FROM[there](lambda **names: eval(code, GIVEN | names))


# recipes.md: a cache that slides behind sinks


@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, 1e-6), (jnp.bfloat16, 2.0**-8)])
def test_a_thousand_steps_of_a_sliding_cache(dtype, unit):
    steps, rotate = 1000, functools.partial(pe.rotary, head_axis=-2)
    code = pages.block("docs/recipes.md", "def streaming_step").replace("recent = 2, 4", "recent = 3, 5")
    names = pages.run(code, NAMES | {"rotate": rotate})
    sinks, recent = names["sinks"], names["recent"]
    q, k, v = RNG.normal(size=(3, steps, 1, 1, 2, 16)).astype(dtype)
    cache = (np.zeros((1, sinks + recent, 2, 16), dtype),) * 2
    tokens = tuple(map(jnp.asarray, (q, k, v, np.arange(steps, dtype=np.int32))))
    _, got = jax.jit(lambda *x: jax.lax.scan(lambda c, token: names["streaming_step"](c, *token), *x))(cache, tokens)
    omega = 1e4 ** (-np.arange(8) / 8)
    assert (sinks, recent) == (3, 5)
    for n in (0, 1, 2, 3, 6, 7, 8, 9, 500, steps - 1):
        kept = [*range(min(sinks, n + 1)), *range(max(sinks, n + 1 - recent), n + 1)]
        places = np.arange(len(kept))
        # Rotated once and rounded once, by hand.
        query = rotations.rotate_by(q[n, 0], places[-1] * omega, "half").astype(dtype)
        keys = rotations.rotate_by(k[kept, 0, 0], places[:, None, None] * omega, "half").astype(dtype)
        want = attention.dense(query, keys, v[kept, 0, 0]).y
        largest = np.abs(v[kept].astype(np.float64)).max()
        assert_within(got[n, 0], want, 3 * unit * largest, against=f"float64, step {n}")
