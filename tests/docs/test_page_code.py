"""Functions of pages that no assertion on the page checks give the right values, here at other settings.

The truth is float64 NumPy (oracles), or what the authors' own code computed (oracles/recorded). `nox -s docs` runs each
block at the page's settings with its assertions, and `nox -f maintenance.py -s package` runs the blocks of README.
"""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
from helpers import pages
from helpers.closeness import assert_within
from oracles import attention, cameras, encodings, recorded, rotations
from posenc_jax import hf
from posenc_jax.nnx import RotaryEncoding, positional_attention

RNG = np.random.default_rng(0)
BATCH, SEQ, HEADS, WIDTH, BASE = 2, 12, 3, 8, 500.0
SPECTRUM = pe.geometric(WIDTH, BASE)
# Positions that count from 0, positions of each row, and (batch, seq, heads, features)
COUNTED = np.arange(SEQ)
PLACES = RNG.integers(0, 800, (BATCH, SEQ)).astype(np.int32)
Q, K, V = RNG.normal(size=(3, BATCH, SEQ, HEADS, WIDTH)).astype(np.float32)
# The imports that the pages begin with
NAMES = {"pe": pe, "jax": jax, "jnp": jnp, "np": np, "nnx": nnx, "functools": functools}


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def compiled(function):
    """The function by jit, where every argument is a constant."""
    return lambda *arguments: jax.jit(lambda: function(*arguments))()


def of_page(page, name, **names):
    """A function of a page, by jit; `names` are the globals that it uses besides NAMES."""
    return compiled(pages.run(pages.definition(page, name), NAMES | names)[name.partition("(")[0]])


of_rope = functools.partial(of_page, "docs/rope.md")
vision = functools.partial(of_page, "docs/vision.md")
inference = functools.partial(of_page, "docs/inference.md")


def rotate(x, positions=None):
    """Stands for `rotate` of the pages, with SPECTRUM in place of their frequencies."""
    return pe.rotary(x, positions, SPECTRUM, head_axis=-2)


def omega(width, base):
    """Angular frequencies of the pairs, in float64."""
    return float(base) ** (-np.arange(0, width, 2) / width)


def rotated(x, positions, layout="half"):
    """RoPE by SPECTRUM in float64."""
    return rotations.rotate_by(x, positions[..., None, None] * omega(WIDTH, BASE), layout)


def sinusoids(positions, width=WIDTH):
    phases = positions[..., None] * omega(width, 1e4)
    return rotations.features(np.sin(phases), np.cos(phases), "interleaved")


def causal(q, k, v, **options):
    """Causal attention in float64."""
    return attention.dense(q, k, v, seen=attention.may_see(COUNTED, COUNTED, causal=True), **options).y


# What decoding must give token by token
WHOLE = causal(rotated(Q, COUNTED), rotated(K, COUNTED), V)


def float32s(*shape):
    return RNG.normal(size=shape).astype(np.float32)


# rope.md: what replaces a line of other code

X = Q[:, :, 0]  # batch, seq, features
ANGLES = PLACES[..., None] * omega(WIDTH, BASE)
COS, SIN = (np.float32(np.tile(wave, 2)) for wave in (np.cos(ANGLES), np.sin(ANGLES)))
HEADS_FIRST = Q.swapaxes(1, 2), rotated(Q, PLACES).swapaxes(1, 2)
# For each row of the table, in its order: x, the result, and, if the row's code makes a function, a call of it
REPLACED = [
    (X, rotated(Q, COUNTED)[:, :, 0], lambda rope: rope(X)),
    (X, rotated(Q, PLACES)[:, :, 0]),
    (X, attention.dense(rotated(Q, COUNTED), rotated(K, COUNTED), V).y, lambda attend: attend(Q, K, V)),
    (
        X,
        attention.dense(rotated(Q, PLACES), rotated(K, PLACES), V).y,
        lambda attend: attend(Q, K, V, input_positions=PLACES),
    ),
    HEADS_FIRST,
    HEADS_FIRST,
    (Q, rotated(Q, PLACES, "interleaved")),
]
ROWS = [here for _, here in pages.rows("docs/rope.md", "there")]


@pytest.mark.parametrize(("here", "replaced"), [*zip(ROWS, REPLACED, strict=True)])
def test_what_replaces_a_line(here, replaced):
    """The first piece of code in the row, evaluated with x and the other names of the row."""
    x, want, *call = replaced
    names = {"x": x, "f": SPECTRUM, "theta": BASE, "head_dim": WIDTH, "positions": PLACES}
    names |= {"pe": pe, "RotaryEncoding": RotaryEncoding, "positional_attention": positional_attention}
    names |= {"cos": COS, "sin": SIN}

    def result():
        value = eval(pages.code_in(here)[0], names)
        return call[0](value) if call else value

    assert_within(jax.jit(result)(), want, 1e-6)


# Encodings, biases and caches


def test_tables_of_big_vision_and_moco_v3():
    assert_within(vision("sincos2d")(4, 6, 64), encodings.big_vision(64, 4, 6), 1e-6)
    phases = np.mgrid[:4, :4].reshape(2, 16, 1) * omega(32, 1e4)  # its "w" is the row
    want = np.hstack([wave(phase) for phase in phases for wave in (np.sin, np.cos)])
    assert_within(vision("moco_v3")(4, 64), want, 1e-6)


def test_relative_keys_beyond_their_table():
    offsets = float32s(5, WIDTH)
    clipped = offsets[np.clip(COUNTED - COUNTED[:, None], -2, 2) + 2]
    want = attention.dense(Q, K, V, np.einsum("bihd,ijd->bhij", Q, clipped) * WIDTH**-0.5).y
    assert_within(of_page("docs/biases.md", "relative_keys")(Q, K, V, offsets), want, 5e-6)


def test_calls_of_biases_that_read_tokens():
    """Rows of the table of methods, where a table has 23 rows for each head: of offsets from −11 to 11."""
    t, (a, b) = float32s(23, HEADS, WIDTH), float32s(2, BATCH, SEQ, HEADS)
    offset, product = COUNTED[:, None] - COUNTED, "bihd,ijhd->bhij"
    want = {
        "Shaw": 0.3 * np.einsum(product, Q, t[-offset + 11]),
        "Transformer-XL": 0.3 * np.einsum(product, Q + V, t[offset + 11]),
        "Inkling": np.einsum(product, K, t[abs(offset)]) * (offset >= 0),
        "Forgetting Transformer": np.moveaxis(a[:, :, None] - b[:, None], -1, 1),
    }
    names = {"c": 0.3, "t": t, "q": Q, "v": V, "x": K, "a": jnp.array(a), "b": jnp.array(b)}
    names["content_bias"] = functools.partial(pe.content_bias, COUNTED, COUNTED)
    for method, _, code in pages.rows("docs/biases.md", "method"):
        if (name := re.findall(r"\[(.*?)\]", method)[0]) in want:
            got = jax.jit(lambda code: eval(code, names), static_argnums=0)(pages.code_in(code)[0])
            assert_within(got, want.pop(name), 5e-6, against=name)
    assert not want


def test_attention_of_sam_over_three_rows_of_four_patches():
    of_rows, of_columns = float32s(5, WIDTH), float32s(7, WIDTH)
    row, column = divmod(COUNTED, 4)
    both = of_rows[row[:, None] - row + 2] + of_columns[column[:, None] - column + 3]
    want = attention.dense(Q, K, V, np.einsum("bihd,ijd->bhij", Q, both)).y
    assert_within(vision("sam_attention")(Q, K, V, of_rows, of_columns), want, 5e-6)


def test_attention_in_plain_jax():
    table = float32s(32, HEADS)  # of T5, 32 buckets
    bias = np.moveaxis(table[np.maximum(COUNTED[:, None] - COUNTED, 0)], -1, 0)  # each distance below 16 has a bucket
    got = jax.jit(of_page("docs/flax.md", "attention_layer"), static_argnums=4)(table, Q, K, V, SPECTRUM)
    assert_within(got, causal(rotated(Q, COUNTED), rotated(K, COUNTED), V, bias=bias), 3e-6)


def test_layers_of_a_scan_share_a_bias():
    """As in a loop over the layers."""

    def scanned_and_looped(x):
        page = pages.run(pages.block("docs/flax.md", "class Block"), NAMES | {"x": x})
        bias = page["t5"](page["i"], page["i"])
        for n in range(3):
            x = jax.tree.map(lambda leaf: leaf[n], page["blocks"])(x, bias)  # noqa: B023
        return page["y"], x

    assert_within(*jax.jit(scanned_and_looped)(float32s(1, 20, 64)), 1e-5)


def test_a_sliding_cache_behind_sinks():
    """StreamingLLM: two sinks and the last three tokens, at positions in the cache."""
    sinks, recent = 2, 3
    step = jax.jit(inference("streaming_step", rotate=rotate, sinks=sinks, recent=recent))
    cache = pe.kv_cache(BATCH, sinks + recent, HEADS, WIDTH)
    for n in range(SEQ):
        cache, out = step(cache, *(x[:, n : n + 1] for x in (Q, K, V)), np.int32(n))
        kept = [*range(min(sinks, n + 1)), *range(max(sinks, n + 1 - recent), n + 1)]
        places = np.arange(len(kept))
        want = attention.dense(rotated(Q[:, n : n + 1], places[-1:]), rotated(K[:, kept], places), V[:, kept]).y
        assert_within(out, want, 3e-6, against=f"float64, step {n}")


def test_two_caches_merged():
    """The first tokens of a row in one cache, and the others in another, which a row's queries may not reach yet."""
    first = pe.kv_cache(BATCH, 8, HEADS, WIDTH).extend(rotate(K[:, :7]), V[:, :7], COUNTED[:7])
    second = pe.kv_cache(BATCH, 8, HEADS, WIDTH).extend(rotate(K[:, 7:], COUNTED[7:]), V[:, 7:], COUNTED[7:])
    assert_within(inference("attend_both")(rotate(Q), COUNTED, first, second), WHOLE, 3e-6)


def test_a_paged_cache_of_rows_at_different_positions():
    step, cache = jax.jit(inference("paged_step", rotate=rotate)), (np.zeros((8, 4, HEADS, WIDTH), np.float32),) * 2
    rows = np.arange(BATCH)
    for n in range(SEQ):
        at = np.array([n, max(n - 1, 0)])  # the second row is a token behind
        token = (x[rows, at][:, None] for x in (Q, K, V))
        cache, out = step(cache, np.array([[5, 0, 3], [2, 4, 1]]), *token, at)
        assert_within(np.asarray(out)[:, 0], WHOLE[rows, at], 3e-6, against=f"float64, token {n}")


def test_decoding_with_m_rope():
    """A prompt of a token, an image of 2 × 4 patches and two tokens, and then one token more."""
    image = [[1, r, c] for r in (1, 2) for c in (1, 2, 3, 4)]
    coordinates = np.array([[0, 0, 0], *image, [5, 5, 5], [6, 6, 6], [7, 7, 7]])  # of twelve tokens
    step = jax.jit(vision("multimodal_step", sections=pe.multi_section(SPECTRUM, (1, 2, 1))))
    cache = pe.kv_cache(BATCH, 16, HEADS, WIDTH)
    angles = coordinates[:, None, [0, 1, 1, 2]] * omega(WIDTH, BASE)
    want = causal(*(rotations.rotate_by(x, angles, "half") for x in (Q, K)), V)
    for index in (COUNTED[:11], COUNTED[11:]):
        cache, out = step(cache, *(x[:, index] for x in (Q, K, V)), index, coordinates[index])
        assert_within(out, want[:, index], 3e-6)


def test_cameras_of_a_layer():
    poses, patches = cameras.poses(RNG, 2), np.indices((2, 3)).reshape(2, -1).T
    matrices, angles = np.repeat(poses, 6, axis=0), np.tile(np.kron(patches, [1, 0.1]), (2, 1))[:, None]
    q, k, v = float32s(3, 2, 12, HEADS, 16)
    transform = vision("transform", patches=patches)
    got = jax.jit(vision("attend(cameras", transform=transform))(np.float32(poses), q, k, v)

    def transformed(x, role):
        turned = rotations.rotate_by(x[..., 8:], angles if role == "output" else -angles, "half")
        return np.concatenate([cameras.transformed(x[..., :8], cameras.matrix(role, matrices)), turned], axis=-1)

    inside = attention.dense(*(transformed(x, role) for x, role in ((q, "query"), (k, "key"), (v, "value")))).y
    assert_within(got, transformed(inside, "output"), 2e-5)


# Beside what the authors' code computed


def recorded_cases(file, key, name):
    """The recorded cases of a file whose `key` is `name`, with arrays in place of lists."""
    found = [case for case in recorded.cases(file) if case[key] == name]
    return [{key: np.array(x) if isinstance(x, list) else x for key, x in case.items()} for case in found]


@pytest.mark.parametrize("name", ["FoPE's authors", "Intern-S1-Pro"])
def test_fope(name):
    def rotated(group, case):
        f = pe.geometric(16, case["base"])
        waves = pe.cos_sin(np.arange(5), f[: int((f.wavelengths < case["length"]).sum())])
        mixed = map(of_rope("mixed", f=f), waves, (np.float32(case["cosines"]), np.float32(case["sines"])))
        return pe.rotary(group, cos_sin=pe.CosSin(*mixed, columns="pair"), head_axis=-2)

    for case in recorded_cases("authors", "name", name):
        x = np.float32(np.moveaxis(case["x"], 1, 2))  # batch, seq, heads, head_dim
        got = compiled(rotated)(np.stack([x, x], 3), case)  # two query heads for each key head
        assert_within(np.asarray(got)[:, :, :, 1], np.moveaxis(case["rotated"], 1, 2), 3e-6)


def test_selective_rope():
    (case,) = recorded_cases("authors", "name", "Selective RoPE")
    own = types.SimpleNamespace(**vars(pe))
    own.geometric = lambda *_: pe.geometric(8, 100.0)  # the authors' frequencies in place of the page's
    got = of_rope("selective(", pe=own)(*(np.float32(case[name]) for name in ("query", "key", "phases")))
    for x, name in zip(got, ("query_turned", "key_turned"), strict=True):
        assert_within(x, case[name], 5e-6)


def test_jittered_coordinates():
    """With the numbers that torch drew in place of JAX's."""
    for case in recorded_cases("turns", "model", "dinov3_vit"):
        random = types.SimpleNamespace(uniform=lambda *_, **__: np.float32(case["draws"]))  # noqa: B023
        drawn = vision("drawn", jax=types.SimpleNamespace(random=random))
        limits = case.get("shift", 0), case.get("jitter", 1), case["rescale"]
        assert_within(drawn(None, np.float32(case["positions"]), *limits), case["moved"], 1e-6)


def test_formulas_of_models_that_do_not_rotate():
    """ERNIE-Image, V-JEPA 2 and HunyuanVL multiply members of a pair by cosines and sines of different angles."""
    page = pages.run(pages.block("docs/vision.md", "def of_halves"), NAMES)
    names = "ernie_image", "vjepa2", "hunyuan_vl"
    (ernie,), (vjepa,), (hunyuan,) = (recorded_cases("turns", "model", name) for name in names)
    f = pe.axial(tuple(ernie["widths"].tolist()), base=float(ernie["base"]))
    got = compiled(page["ernie_image"])(np.float32(ernie["x"]), ernie["positions"], f)
    assert_within(got, ernie["turned"], 2e-6)
    v_jepa_2, x = jax.jit(page["v_jepa_2"]), np.float32(vjepa["x"])  # six features of each coordinate; the rest stay
    parts = [v_jepa_2(x[:, 6 * i : 6 * i + 6], vjepa["positions"][:, i]) for i in range(3)]
    assert_within(np.concatenate([*parts, x[:, 18:]], axis=-1), vjepa["turned"], 2e-6)
    sections = hunyuan["sections"].tolist()
    got = compiled(page["hunyuan_vl"])(np.float32(hunyuan["x"]), hunyuan["positions"], pe.geometric(16), sections)
    assert_within(got, hunyuan["turned"], 2e-6)


# Other pages

LAYERS = hf.RotaryLayer(pe.geometric(0), head_dim=WIDTH), hf.RotaryLayer(SPECTRUM, head_dim=WIDTH)
PLAN = hf.RotaryPlan(LAYERS, layout="half", softmax_scale=1.5)


def test_attention_by_a_plan_that_scales_its_scores():
    places = PLACES[0]
    got = of_page("docs/huggingface.md", "attend")(PLAN, 1, Q, K, V, places)
    assert_within(got, causal(rotated(Q, places), rotated(K, places), V, scale=1.5 * WIDTH**-0.5), 5e-6)


def scores_at(offsets, q, k):
    """Scores of q and k, (seq, heads, features): each query is rotated by its own offset to each key, (seq, seq)."""
    turned = rotated(np.repeat(q[:, None], SEQ, 1).reshape(-1, HEADS, WIDTH), offsets.ravel())
    return np.einsum("qkhd,khd->hqk", turned.reshape(SEQ, SEQ, HEADS, WIDTH), k)


def test_self_extend():
    """Near offsets stay; beyond the window, positions count in groups."""
    q, k, window, group = Q[0], K[0], 5, 2
    i, j = COUNTED[:, None], COUNTED
    offsets = np.where(i - j < window, i - j, i // group - j // group + window - window // group)
    got = jax.jit(of_page("docs/contexts.md", "self_extend"), static_argnums=(2, 3, 4))(q, k, SPECTRUM, window, group)
    assert_within(got, scores_at(offsets, q, k), 2e-5)


def test_dual_chunk_attention():
    """Chunks of three tokens: offsets stay in a chunk, and to the one before until the query is at four."""
    i, j = COUNTED[:, None], COUNTED
    begin, chunks = j - j % 3, i // 3 - j // 3  # where the key's chunk begins, and how many chunks it is away
    offsets = np.select([chunks == 0, chunks == 1], [i - j, np.minimum(i - begin, 4) - j % 3], 4 - j % 3)
    want = causal(Q[:1], K[:1], V[:1], bias=0.4 * scores_at(offsets, Q[0], K[0]), scale=0.0)
    got = of_page("docs/contexts.md", "dual_chunk", rotate=rotate)(Q[:1], K[:1], V[:1], 4, 1, 0.4)
    assert_within(got, want, 3e-6)
