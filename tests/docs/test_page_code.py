"""Code that pages hand to a reader, run at settings that are not its defaults, beside float64."""

import ast
import functools
import textwrap
import types
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
from helpers.quick import quick
from helpers.tiers import slow
from oracles import attention, cameras, encodings, recorded, rotations, spectra
from posenc_jax import hf
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
    x, want, ours = X[:, :, 0], turned(X, COUNTED)[:, :, 0], call()
    ropes = (nnx.RoPE(THETA), nnx.RoPE(THETA, WIDTH, 100)) if hasattr(nnx, "RoPE") else ()
    with warnings.catch_warnings(action="ignore"):  # Flax's table is read in a way that Flax deprecates
        got, *theirs = quick(lambda x: [rope(x) for rope in (ours, *ropes)])(x)
    assert_within(got, want, 2e-6)
    for each in theirs:
        assert_within(each, want, 2e-6)


def called(call):
    assert_within(quick(lambda x: call(x=x))(X[:, :, 0]), turned(X, PLACES)[:, :, 0], 3e-5)


def attending(call):
    attend, causal = call(), np.tri(SEQ, dtype=bool)
    theirs = [functools.partial(nnx.dot_product_attention_with_rope, rope=rope) for rope in ropes()]
    got, *others = quick(lambda *x: [f(*x, mask=causal) for f in (attend, *theirs)])(Q, K, V)
    seen = attention.may_see(COUNTED, COUNTED, causal=True)
    assert_within(got, attention.dense(turned(Q, COUNTED), turned(K, COUNTED), V, seen=seen).y, 2e-6)
    for other in others:
        assert_within(other, np.asarray(got), 5e-6, against="ours")


def attending_at(call):
    attend = call()
    both = quick(lambda *x: [attend(*x, input_positions=places) for places in (PLACES, PLACES[0])])(Q, K, V)
    for places, got in zip((PLACES, PLACES[0]), both, strict=True):
        assert_within(got, attention.dense(turned(Q, places), turned(K, places), V).y, 3e-5)
        for rope in ropes() if flax.__version__ == "0.12.12" else ():
            with pytest.raises((ValueError, IndexError)):
                nnx.dot_product_attention_with_rope(Q, K, V, rope=rope, input_positions=jnp.asarray(places))

    def step_without_positions():
        settings = {"qkv_features": HEADS * WIDTH, "decode": False, "rngs": nnx.Rngs(0)}
        layer = nnx.MultiHeadAttention(HEADS, WIDTH, attention_fn=attend, **settings)
        layer.init_cache((BATCH, SEQ, WIDTH))
        return layer(X[:, :1, 0], decode=True)

    with pytest.raises(ValueError, match="input_positions must be given"):
        jax.eval_shape(step_without_positions)


def of_hugging_face(call):
    got = quick(lambda x: call(x=x))(X.swapaxes(1, 2))
    assert_within(np.asarray(got).swapaxes(1, 2), turned(X, PLACES), 3e-5)


def by_tables(call):
    angles = PLACES[..., None] * THETA ** (-np.arange(0, WIDTH, 2) / WIDTH)
    cos, sin = (np.concatenate([f(angles)] * 2, axis=-1).astype(np.float32) for f in (np.cos, np.sin))
    got = quick(lambda x, cos, sin: call(x=x, cos=cos, sin=sin))(X.swapaxes(1, 2), cos, sin)
    assert_within(np.asarray(got).swapaxes(1, 2), turned(X, PLACES), 3e-5)


def of_meta(call):
    assert_within(quick(lambda x: call(x=x))(X), turned(X, PLACES, "interleaved"), 3e-5)


def adding(call):
    x = X[:, :, 0]
    got, halves = quick(lambda x: (call(x=x), pe.add_sinusoidal(x, layout="half")))(x)
    assert_within(got, x + sinusoids(COUNTED), 1e-6)
    assert_within(halves, x + sinusoids(COUNTED, "half"), 1e-6)


def padded(call):
    x = np.pad(X[:, :, 0], [(0, 0), (0, 0), (0, 1)])
    phases = COUNTED[:, None] * 1e4 ** (-np.arange(WIDTH // 2) / (WIDTH // 2 - 1))
    signal = np.concatenate([np.sin(phases), np.cos(phases), np.zeros((SEQ, 1))], axis=-1)
    assert_within(quick(lambda x: call(x=x, d=WIDTH + 1))(x), x + signal, 1e-6)


def adding_at(call):
    x = X[:, :, 0]
    assert_within(quick(lambda x: call(x=x))(x), x * WIDTH**0.5 + sinusoids(PLACES), 2e-6)


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
    "`x * cos + rotate_half(x) * sin`, with tables at hand": by_tables,
    "`x * freqs_cis`, complex (Meta)": of_meta,
    "`x + table[:x.shape[1]]`, sinusoids": adding,
    "`x * d**0.5 + table[positions]`": adding_at,
    "`x + signal`, where an odd width ends in a zero (Tensor2Tensor)": padded,
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


# Caches of recipes.md, at another spectrum than the page's


def of_page(page, name):
    return pages.run(pages.definition(page, name), NAMES | {"rotate": rotate})[name.partition("(")[0]]


def rotate(x, positions=None):
    return pe.rotary(x, positions, F, head_axis=-2)


def whole(window=SEQ):
    """Causal attention to a window of keys, in float64."""
    seen = attention.may_see(COUNTED, COUNTED, causal=True, window=(window - 1, None))
    return attention.dense(turned(Q, COUNTED), turned(K, COUNTED), V, seen=seen).y


def token(n):
    return (x[:, n : n + 1] for x in (Q, K, V))


def test_a_kv_cache():
    step, cache = quick(of_page("docs/recipes.md", "decode")), (np.zeros((BATCH, SEQ, HEADS, WIDTH), np.float32),) * 2
    for n in range(SEQ):
        cache, out = step(cache, *token(n), n)
        assert_within(np.asarray(out)[:, 0], whole()[:, n], 3e-6, against=f"float64, token {n}")


@pytest.mark.parametrize(("window", "tokens"), [(3, 1), (2, 2), (2, 4)])
def test_a_ring_cache(window, tokens):
    """The first calls are whole chunks of a prompt; after that all tokens of a call but its first are rejected drafts."""
    code = pages.block("docs/recipes.md", "def ring_step").replace(
        "window, tokens = 6, 3", f"window, tokens = {window}, {tokens}"
    )
    names = pages.run(code, NAMES | {"rotate": rotate})
    assert (names["window"], names["tokens"]) == (window, tokens)
    step, slots, n = quick(names["ring_step"]), names["slots"], 0
    empty = np.zeros((BATCH, slots, HEADS, WIDTH), np.float32)
    ring = empty, empty, np.full(slots, 2**31 - 1, np.int32)
    while n < SEQ:
        kept = tokens if n + tokens < SEQ else 1
        drafts = np.full((BATCH, tokens - kept, HEADS, WIDTH), 9, np.float32)
        call = [np.concatenate([x[:, n : n + kept], drafts], axis=1) for x in (Q, K, V)]
        ring, out = step(ring, (*call, n + np.arange(tokens, dtype=np.int32)))
        assert_within(np.asarray(out)[:, :kept], whole(window)[:, n : n + kept], 3e-6, against=f"float64, token {n}")
        n += kept


def test_a_paged_cache():
    step, pages_ = quick(of_page("docs/recipes.md", "paged_step")), (np.zeros((6, 2, HEADS, WIDTH), np.float32),) * 2
    rows = np.arange(BATCH)
    for n in range(SEQ):
        at = np.array([n, max(n - 1, 0)])  # the second row is a token behind
        tokens = (x[rows, at][:, None] for x in (Q, K, V))
        pages_, out = step(pages_, np.array([[5, 0, 3], [2, 4, 1]]), *tokens, at)
        assert_within(np.asarray(out)[:, 0], whole()[rows, at], 3e-6, against=f"float64, token {n}")


def calls(page):
    """Calls of `pe.rotary` in the page's functions, which a reader copies."""
    for _, code in pages.CODE.findall(pages.text_of(page)):
        for node in ast.walk(ast.parse(textwrap.dedent(code))):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield from (n for n in ast.walk(node) if isinstance(n, ast.Call) and ast.unparse(n.func) == "pe.rotary")


@pytest.mark.parametrize("page", ["README.md", "docs/recipes.md", "docs/contexts.md"])
def test_functions_rotate_by_frequencies_that_are_given(page):
    found = [*calls(page)]
    assert found
    for call in found:
        named = len(call.args) > 2 or {"frequencies", "cos_sin"} & {keyword.arg for keyword in call.keywords}
        assert named, f"{page}: {ast.unparse(call)} is right for the base 10,000 alone"


# recipes.md: a cache that slides behind sinks


@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, 1e-6), slow(jnp.bfloat16, 2.0**-8)])
def test_a_thousand_steps_of_a_sliding_cache(dtype, unit):
    code = pages.block("docs/recipes.md", "def streaming_step").replace("recent = 2, 4", "recent = 3, 5")
    names, steps = pages.run(code, NAMES | {"rotate": rotate}), 1000
    sinks, recent = names["sinks"], names["recent"]
    assert (sinks, recent) == (3, 5)
    q, k, v = RNG.normal(size=(3, steps, 1, 1, 2, WIDTH)).astype(dtype)
    cache = (np.zeros((1, sinks + recent, 2, WIDTH), dtype),) * 2
    tokens = q, k, v, np.arange(steps, dtype=np.int32)
    _, got = quick(lambda *x: jax.lax.scan(lambda c, token: names["streaming_step"](c, *token), *x))(cache, tokens)
    got = np.asarray(got)
    for n in (0, 1, 2, 3, 6, 7, 8, 9, 500, steps - 1):
        kept = [*range(min(sinks, n + 1)), *range(max(sinks, n + 1 - recent), n + 1)]
        places = np.arange(len(kept))
        # Rotated once and rounded once, by hand.
        query, keys = turned(q[n, 0], places[-1:]).astype(dtype), turned(k[kept, 0, 0], places).astype(dtype)
        want = attention.dense(query, keys, v[kept, 0, 0]).y
        largest = np.abs(v[kept].astype(np.float64)).max()
        assert_within(got[n, 0], want, 3 * unit * largest, against=f"float64, step {n}")


# contexts.md


def test_self_extend():
    q, k = RNG.normal(size=(2, 30, HEADS, WIDTH)).astype(np.float32)
    got = quick(functools.partial(of_page("docs/contexts.md", "self_extend"), f=F, window=7, group=3))(q, k)
    want = np.empty((HEADS, 30, 30))
    for i, j in np.ndindex(30, 30):
        offset = i - j if i - j < 7 else i // 3 - j // 3 + 7 - 7 // 3
        want[:, i, j] = np.sum(turned(q[i : i + 1], np.array([offset]))[0] * k[j], axis=-1)
    assert_within(got, want, 2e-5)


# offset_tables.md, attention_models.md


def swin_v2(window, pretrained, w1, b1, w2):
    """The formula of its code, in float64."""
    offsets = np.stack(np.meshgrid(*(np.arange(1 - n, n) for n in window), indexing="ij"), axis=-1)
    x = 8 * offsets / (np.array(pretrained) - 1)
    hidden = np.maximum(np.sign(x) * np.log2(1 + abs(x)) / np.log2(8) @ w1 + b1, 0)
    return 16 / (1 + np.exp(-hidden @ w2))


@pytest.mark.parametrize(
    ("window", "pretrained"),
    [((16, 16), (0, 0)), slow((16, 16), (8, 8)), slow((6, 9), (4, 7)), ((6, 9), (0, 7))],
)
def test_the_table_of_swin_v2(window, pretrained):
    w1, b1, w2 = RNG.normal(size=(2, 64)), RNG.normal(size=64), RNG.normal(size=(64, 3)) / 8
    table = of_page("docs/offset_tables.md", "continuous_table")
    # A layer that learns these weights computes its table inside of jit.
    in_layer = quick(lambda *weights: table(window, *weights, pretrained))
    got = in_layer(*(np.float32(x) for x in (w1, b1, w2)))
    assert_within(got, swin_v2(window, [p or n for p, n in zip(pretrained, window, strict=True)], w1, b1, w2), 1e-4)


def test_a_window_of_one_row():
    weights = (RNG.normal(size=shape).astype(np.float32) for shape in ((2, 8), 8, (8, 3)))
    table = of_page("docs/offset_tables.md", "continuous_table")
    assert np.isfinite(quick(lambda *weights: table((1, 4), *weights))(*weights)).all()


def test_a_layer_of_gpt_oss():
    """At another window, base and width than the page's."""
    config = {"model_type": "gpt_oss", "num_hidden_layers": 2, "num_attention_heads": HEADS, "head_dim": WIDTH}
    config |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3}
    config |= {"rope_parameters": {"rope_type": "default", "rope_theta": THETA}, "max_position_embeddings": 64}
    names = NAMES | {"config": config, "plan": hf.rotary_from_config(config)}
    attend, sinks = (
        pages.run(pages.definition("docs/attention_models.md", "attend(layer"), names)["attend"],
        RNG.normal(size=HEADS),
    )
    for layer, window in ((0, None), (1, 2)):
        seen = attention.may_see(COUNTED, COUNTED, causal=True, window=(window, None))
        want = attention.dense(turned(Q, COUNTED), turned(K, COUNTED), V, seen=seen, sinks=sinks).y
        got = quick(functools.partial(attend, layer))(Q, K, V, np.float32(sinks))
        assert_within(got, want, 3e-6, against=f"float64, layer {layer}")


# Functions that stand for a method or a model


def float32s(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def omega(width, base):
    return float(base) ** (-np.arange(0, width, 2) / width)


LATENT = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 8,
    "rope_theta": 500,
    "max_position_embeddings": 640,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 16}
    | {"beta_fast": 32, "beta_slow": 1, "mscale": 0.9, "mscale_all_dim": 0.7},  # fmt: skip
}


@pytest.mark.parametrize("page", ["README.md", "docs/huggingface.md"])
def test_attention_by_a_plan(page):
    """Of DeepSeek: other pairs, the last features alone, an amplitude and another scale."""
    plan, (q, k, v), places = hf.rotary_from_config(LATENT), float32s(3, 1, 6, 2, 12), np.arange(50, 56)
    if page == "README.md":
        attend = pages.run(pages.definition(page, "attention"), NAMES | {"plan": plan})["attention"]
    else:
        attend_by = pages.run(pages.definition(page, "attend"), NAMES)["attend"]
        attend = lambda q, k, v, layer, places: attend_by(plan, layer, q, k, v, places)  # noqa: E731
    got = quick(lambda q, k, v, places: attend(q, k, v, 1, places))(q, k, v, places)
    angles = places[:, None, None] * spectra.floats(spectra.yarn(8, 500, 40, 16))
    amplitude, all_dim = (float(spectra.temperature(40, m)) for m in (0.9, 0.7))
    stretched = np.float64([1] * 4 + [amplitude / all_dim] * 8)
    q, k = (stretched * rotations.rotate_by(x, angles, "interleaved", "last") for x in (q, k))
    seen = attention.may_see(places, places, causal=True)
    want = attention.dense(q, k, v, seen=seen, scale=all_dim**2 * 12**-0.5).y
    assert_within(got, want, 5e-6, against="float64")


def with_changes(code, changes):
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


# Recipes that need one call, in one program


LAYOUTS = "half", "interleaved"
COORDINATES = np.array([[0, 0, 0], *([1, r, c] for r in (1, 2) for c in (1, 2, 3)), [4, 4, 4], [5, 5, 5]])
SHAW = float32s(5, WIDTH)
CONFORMER = float32s(WIDTH, HEADS * WIDTH), *float32s(2, HEADS, WIDTH)
SAM = float32s(5, WIDTH), float32s(7, WIDTH)
LOGITS, T5, TWELVE = float32s(2, 12, HEADS), float32s(32, HEADS), float32s(3, 2, 12, HEADS, WIDTH)
NINE = float32s(3, 1, 9, HEADS, WIDTH)


@functools.cache
def of_recipes():
    code = [
        pages.definition("docs/recipes.md", "sincos2d"),
        pages.definition("docs/recipes.md", "moco_v3"),
        pages.definition("docs/recipes.md", "relative_keys"),
        pages.definition("docs/recipes.md", "conformer"),
        pages.definition("docs/recipes.md", "sam_attention"),
        pages.definition("docs/recipes.md", "of_gates"),
        pages.definition("docs/recipes.md", "forgetting"),
        pages.definition("docs/recipes.md", "attention_layer"),
        pages.definition("docs/recipes.md", "extend"),
    ]
    f = pe.multi_section(F, (1, 2, 1))
    page = types.SimpleNamespace(**pages.run("\n".join(code), NAMES | {"rotate": rotate, "f": f}))

    def decoded(q, k, v):
        caches = (jnp.zeros((1, 16, HEADS, WIDTH)),) * 2
        first, caches = page.extend(q[:, :8], k[:, :8], v[:, :8], caches, jnp.arange(8), COORDINATES[:8])
        last, _ = page.extend(q[:, 8:], k[:, 8:], v[:, 8:], caches, jnp.array([8]), COORDINATES[8:])
        return jnp.concatenate([first, last], axis=1)

    @quick
    def outputs(twelve, nine):
        return {
            "sincos2d": page.sincos2d(4, 6, 64),
            "moco_v3": page.moco_v3(4, 64),
            "guesses": [pe.sinusoidal(pe.grid_positions((4, 6)), pe.axial(64, 2), layout=layout) for layout in LAYOUTS],
            "shaw": page.relative_keys(*twelve, SHAW),
            "conformer": page.conformer(*twelve, *CONFORMER),
            "sam": page.sam_attention(*twelve, *SAM),
            "forgetting": page.forgetting(*twelve, LOGITS),
            "plain": page.attention_layer(T5, *twelve, F),
            "m-rope": decoded(*nine),
        }

    return jax.tree.map(np.asarray, outputs(TWELVE, NINE))


def test_tables_of_big_vision_and_moco():
    assert_within(of_recipes()["sincos2d"], encodings.big_vision(64, 4, 6), 1e-6)
    phases = np.mgrid[:4, :4].reshape(2, 16, 1) * omega(32, 1e4)  # its "w" is the row
    assert_within(of_recipes()["moco_v3"], np.hstack([g(x) for x in phases for g in (np.sin, np.cos)]), 1e-6)
    for guess in of_recipes()["guesses"]:
        assert np.abs(guess - of_recipes()["sincos2d"]).max() > 0.5


def test_biases_that_see_the_tokens():
    """Twelve tokens, as 3 rows of 4 patches for SAM, and with offsets beyond Shaw's table."""
    (q, k, v), (projection, u, w), (of_rows, of_columns) = TWELVE, CONFORMER, SAM
    i, scale = np.arange(12), WIDTH**-0.5
    (row, column), after = divmod(i, 4), (i[:, None, None] >= i) & (i > i[:, None])
    clipped = SHAW[np.clip(i - i[:, None], -2, 2) + 2]
    waves = (sinusoids(i[:, None] - i) @ projection).reshape(12, 12, HEADS, WIDTH)
    both = of_rows[row[:, None] - row + 2] + of_columns[column[:, None] - column + 3]
    gates, causal = -np.log1p(np.exp(-np.float64(LOGITS))), attention.may_see(i, i, causal=True)
    want = {
        "shaw": attention.dense(q, k, v, np.einsum("bihd,ijd->bhij", q, clipped) * scale),
        "conformer": attention.dense(q + u, k, v, np.einsum("bihd,ijhd->bhij", q + w, waves) * scale),
        "sam": attention.dense(q, k, v, np.einsum("bihd,ijd->bhij", q, both)),
        "forgetting": attention.dense(q, k, v, np.einsum("bkh,ijk->bhij", gates, after), causal),
    }
    for name, each in want.items():
        assert_within(of_recipes()[name], each.y, 5e-6, against=f"float64, {name}")


def test_attention_in_plain_jax():
    i = np.arange(12)
    bias = np.moveaxis(T5[np.maximum(i[:, None] - i, 0)], -1, 0)  # each distance below 16 has a bucket
    q, k = (turned(x, i) for x in TWELVE[:2])
    want = attention.dense(q, k, TWELVE[2], bias, attention.may_see(i, i, causal=True)).y
    assert_within(of_recipes()["plain"], want, 3e-6, against="float64")


def test_decoding_with_m_rope():
    angles = COORDINATES[:, [0, 1, 1, 2]] * omega(WIDTH, THETA)
    q, k = (rotations.rotate_by(x, angles[:, None], "half") for x in NINE[:2])
    seen = attention.may_see(np.arange(9), np.arange(9), causal=True)
    assert_within(of_recipes()["m-rope"], attention.dense(q, k, NINE[2], seen=seen).y, 3e-6, against="float64")


# masks.md


def test_a_draft_sees_its_path():
    """Each draft of a tree, as its path alone after the prefix."""
    q, k, v = TWELVE
    code, names = pages.block("docs/masks.md", "parents"), NAMES | {"same": lambda *_: True}
    got = quick(lambda q, k, v: pages.run(code, names | {"q": q, "k": k, "v": v})["y"])(q, k, v)
    for draft, path in enumerate([[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4]]):
        at = [*range(7), *(7 + n for n in path)]
        query = rotations.rope(q[:, 7 + draft : 8 + draft], np.array([len(at) - 1]))
        keys = rotations.rope(k[:, at], np.arange(len(at)))
        want = attention.dense(query, keys, v[:, at]).y
        assert_within(got[:, draft : draft + 1], want, 3e-6, against=f"draft {draft} alone")


# huggingface.md


def test_eva_at_a_grid_that_is_not_square():
    got = quick(lambda: of_page("docs/huggingface.md", "eva_positions")((3, 8), (6, 4)))()
    want = [[0, 0], *([r * 6 / 3, c * 4 / 8] for r in range(3) for c in range(8))]
    assert_within(got, np.array(want), 0)


def test_eva_02():
    """timm's RotaryEmbeddingCat: coordinates times the trained grid's sides over the image's, rows first."""
    shape, trained = (3, 5), (4, 7)
    x = float32s(1, 16, 2, 12)
    block = pages.block("docs/huggingface.md", "def eva_positions")
    (call,) = (line for line in block.splitlines() if line.startswith("eva = "))
    call = with_changes(call, {"pe.axial(64, 2)": "pe.axial(12, 2)"})
    names = NAMES | pages.run(pages.definition("docs/huggingface.md", "eva_positions"), NAMES)

    @quick
    def eva(x):
        return pages.run(call, names | {"x": x, "of_448": names["eva_positions"](shape, trained)})["eva"]

    got = np.asarray(eva(x))
    rows, columns = (c.reshape(-1, 1) for c in np.indices(shape) * (np.array(trained) / shape)[:, None, None])
    angles = np.concatenate([rows * omega(6, 10_000), columns * omega(6, 10_000)], axis=1)
    want = rotations.rotate_by(x[:, 1:], angles[:, None], "interleaved")
    assert_within(got[:, 1:], want, 3e-6, against="float64")
    np.testing.assert_array_equal(got[:, 0], x[:, 0])


def test_calls_of_kernels_pass_the_scale():
    q, k, v = float32s(3, 1, 6, 2, 8)
    places, slopes, scale = np.arange(6), np.array([0.5, 0.02], np.float32), 0.6
    bias = -slopes[:, None, None] * np.abs(places[:, None] - places)
    run = {
        name: pages.run(pages.definition("docs/recipes.md", name), NAMES)[name] for name in ("by_cudnn", "by_splash")
    }
    got = quick(lambda *x: run["by_cudnn"](*x, scale, implementation="xla"))(q, k, v, bias[None])
    seen = attention.may_see(places, places, causal=True)
    assert_within(got, attention.dense(q, k, v, bias, seen, scale).y, 2e-6, against="float64")
    np.testing.assert_array_equal(run["by_splash"](lambda q, k, v: q, q, k, v, scale), np.float32(scale) * q)


def test_the_tutorial_form_of_sinusoids():
    page = "docs/notebooks/get_angles.md"
    code = "\n".join(pages.block(page, f"def {name}") for name in ("get_angles", "positional_encoding"))
    got = pages.run(with_changes(code, {"np.power(10_000,": "np.power(500,"}), NAMES)["positional_encoding"](7, 10)
    phases = np.arange(7)[:, None] * omega(10, 500)
    assert_within(got[0], rotations.features(np.sin(phases), np.cos(phases), "interleaved"), 1e-6, against="float64")


# recipes.md: what came in 2025 and 2026, as its authors' code has it


def by_authors(name):
    (case, *more) = (case for case in recorded.cases("authors") if case["name"] == name)
    return [{key: np.array(x) if isinstance(x, list) else x for key, x in each.items()} for each in (case, *more)]


@pytest.mark.parametrize(
    "case", [*by_authors("FoPE's authors"), *by_authors("Intern-S1-Pro")], ids=lambda case: case["length"]
)
def test_fope(case):
    f, places = pe.geometric(16, case["base"]), np.arange(5)
    matrices, x = (case["cosines"], case["sines"]), np.moveaxis(case["x"], 1, 2)  # batch, seq, heads, head_dim
    trained = int((f.wavelengths < case["length"]).sum())
    assert matrices[0].shape[1] == trained < 8
    mixed = pages.run(pages.definition("docs/recipes.md", "mixed"), NAMES | {"f": f})["mixed"]

    @quick
    def turned(x, *matrices):
        cos_sin = pe.CosSin(*map(mixed, pe.cos_sin(places, f[:trained]), matrices), columns="pair")
        group = jnp.stack([x, x], 3)  # of two query heads for each key head
        return pe.rotary(x, cos_sin=cos_sin, head_axis=None), pe.rotary(group, cos_sin=cos_sin, head_axis=-2)[
            :, :, :, 1
        ]

    for got in turned(*(np.float32(a) for a in (x, *matrices))):
        assert_within(got, np.moveaxis(case["rotated"], 1, 2), 3e-6, against="the authors' code")


def selective_rope(changes):
    code = with_changes(pages.definition("docs/recipes.md", "selective("), changes)
    return quick(pages.run(code, NAMES)["selective"])


def test_selective_rope():
    (case,) = by_authors("Selective RoPE")
    got = selective_rope({"pe.geometric(16, 500_000.0)": "pe.geometric(8, 100.0)"})(
        *(np.float32(case[name]) for name in ("query", "key", "phases"))
    )
    for y, name in zip(got, ("query_turned", "key_turned"), strict=True):
        assert_within(y, case[name], 5e-6, against="the authors' code")


@pytest.mark.slow
def test_selective_rope_of_long_sequences():
    steps = np.random.default_rng(0).uniform(0, 2, (1, 100_000, 1, 8)).astype(np.float32)
    x = np.concatenate([np.ones_like(steps), np.zeros_like(steps)], axis=-1)  # turns into cosines and sines
    turns = np.float64(np.float32(pe.geometric(16, 500_000.0).angular / (2 * np.pi)))
    angles = 2 * np.pi * turns * np.cumsum(np.float64(steps), axis=1)
    assert_within(selective_rope({})(x, x, steps)[0], np.concatenate([np.cos(angles), np.sin(angles)], -1), 6e-5)


def test_drope():
    """The authors' class, of a model with grouped keys, beside a plan whose layers the recipe changes."""
    (case,) = by_authors("DroPE")
    config = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
    plan = hf.rotary_from_config(config | {"num_key_value_heads": 1, "head_dim": 4})
    block = pages.block("docs/recipes.md", "dropped = ")
    code = "import dataclasses\n" + block[block.index("dropped = ") : block.index("queries = ")]
    dropped = pages.run(code, NAMES | {"plan": plan})["dropped"]

    def layer(plan, x, q, k, v, o):
        q, k, v = (x @ w for w in (q, k, v))
        q, k, v = q.reshape(1, 5, 2, 4), k.reshape(1, 5, 1, 4), v.reshape(1, 5, 1, 4)
        q, k = (plan.rotate(z, 0, head_axis=-2, role=role) for z, role in ((q, "query"), (k, "key")))
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(1, 5, 8) @ o

    arrays = [np.float32(case[name]) for name in ("x", "q_proj", "k_proj", "v_proj", "o_proj")]
    without, with_rope = quick(lambda *x: (layer(dropped, *x), layer(plan, *x)))(*arrays)
    assert_within(without, case["output"], 2e-6, against="the authors' code")
    assert np.abs(np.asarray(with_rope) - case["output"]).max() > 0.01


def turns(model):
    found = [case for case in recorded.cases("turns") if case["model"] == model]
    return [{key: np.array(x) if isinstance(x, list) else x for key, x in case.items()} for case in found]


@pytest.mark.parametrize("case", turns("dinov3_vit"), ids=lambda case: len(case))
def test_jittered_coordinates(case):
    """With the numbers that torch draws in place of JAX's."""
    names = {
        "jax": types.SimpleNamespace(random=types.SimpleNamespace(uniform=lambda *_, **__: np.float32(case["draws"])))
    }
    drawn = pages.run(pages.definition("docs/recipes.md", "drawn"), NAMES | names)["drawn"]
    limits = case.get("shift", 0), case.get("jitter", 1), case["rescale"]
    assert_within(drawn(None, np.float32(case["positions"]), *limits), case["moved"], 1e-6, against="transformers")
    key, ours = jax.random.key(0), pages.run(pages.definition("docs/recipes.md", "drawn"), NAMES)["drawn"]
    many = quick(lambda keys: jax.vmap(lambda key: ours(key, np.zeros((1, 2), np.float32), 0.5, 2.0, 3.0))(keys))
    most = np.abs(many(jax.random.split(key, 4000))).max()
    assert 0.6 * 0.5 * 2 * 3 < most <= 0.5 * 2 * 3 + 1e-5


def test_cameras_of_a_layer():
    """At another grid, base and width than the page's."""
    rng, n = np.random.default_rng(1), 2 * 4
    poses, patches = cameras.poses(rng, 3), np.array([(row, column) for row in range(2) for column in range(4)])
    images, places = np.repeat(poses, n, axis=0), np.tile(patches, (3, 1))
    q, k, v = rng.normal(size=(3, 2, 3 * n, HEADS, 16))
    changes = {"2, 6,": "3, 8,", "width=8": "width=12", "pe.axial(8, 2, 100.0)": "pe.axial(4, 2, 30.0)"}
    names = NAMES | {"patches": patches, "nnx": nnx}
    code = with_changes(pages.definition("docs/recipes.md", "transform"), changes)
    of_page = pages.run(code + "\n" + pages.definition("docs/recipes.md", "attend(cameras"), names)["attend"]
    got = quick(of_page)(*(np.float32(x) for x in (poses, q, k, v)))

    def of(x, role):
        first = cameras.transformed(x[..., :12], cameras.matrix(role, images))
        sign = 1 if role == "output" else -1
        return np.concatenate([first, rotations.rotate_by(x[..., 12:], sign * places[:, None], "half")], axis=-1)

    want = of(attention.dense(of(q, "query"), of(k, "key"), of(v, "value")).y, "output")
    assert_within(got, want, 2e-5, against="float64")


# dimensions.md: turns that are no rotations


def test_turns_of_models_that_do_not_rotate():
    names = NAMES | pages.run(pages.block("docs/dimensions.md", "def of_halves"), NAMES)
    (ernie,), (vjepa,), (hunyuan,) = (turns(name) for name in ("ernie_image", "vjepa2", "hunyuan_vl"))

    @quick
    def turned(ernie_x, vjepa_x, hunyuan_x):
        f = pe.axial(tuple(ernie["widths"].tolist()), base=float(ernie["base"]))
        parts = [names["v_jepa_2"](vjepa_x[:, 6 * i : 6 * i + 6], vjepa["positions"][:, i]) for i in range(3)]
        return (
            names["ernie_image"](ernie_x, ernie["positions"], f),
            jnp.concatenate([*parts, vjepa_x[:, 18:]], axis=-1),
            names["hunyuan_vl"](hunyuan_x, hunyuan["positions"], pe.geometric(16), hunyuan["sections"].tolist()),
        )

    got = turned(*(np.float32(case["x"]) for case in (ernie, vjepa, hunyuan)))
    for y, case in zip(got, (ernie, vjepa, hunyuan), strict=True):
        assert_within(y, case["turned"], 2e-6, against=case["model"])
        assert np.abs(np.linalg.norm(y, axis=-1) - np.linalg.norm(case["x"], axis=-1)).max() > 0.1  # no rotation
