"""Code that pages hand to a reader and do not prove themselves, run at other settings than the page's.

Expected values are float64 NumPy's (oracles), or what the authors' own code computed (oracles/recorded).
"""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
from helpers import pages
from helpers.closeness import assert_within
from oracles import attention, cameras, encodings, recorded, rotations, spectra
from posenc_jax import hf
from posenc_jax.nnx import RotaryEncoding, positional_attention

RNG = np.random.default_rng(0)
BATCH, SEQ, HEADS, WIDTH, BASE = 2, 12, 3, 8, 500.0
SPECTRUM = pe.geometric(WIDTH, BASE)
COUNTED = np.arange(SEQ)
PLACES = RNG.integers(0, 800, (BATCH, SEQ)).astype(np.int32)
Q, K, V = RNG.normal(size=(3, BATCH, SEQ, HEADS, WIDTH)).astype(np.float32)
X = Q[:, :, 0]  # (batch, seq, features)
TABLE = RNG.normal(size=(800, WIDTH)).astype(np.float32)
NAMES = {"pe": pe, "jax": jax, "jnp": jnp, "np": np, "nnx": nnx, "functools": functools}
NAMES |= {"RotaryEncoding": RotaryEncoding, "positional_attention": positional_attention}


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def of_page(page, name, changes=(), **names):
    """A function of a page; `changes` are pairs of a text in its code and another, `names` what it finds around it."""
    code = pages.definition(page, name)
    for old, new in changes:
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return pages.run(code, NAMES | names)[name.partition("(")[0]]


recipe = functools.partial(of_page, "docs/recipes.md")


def rotate(x, positions=None):
    """The recipes' short name, of another spectrum."""
    return pe.rotary(x, positions, SPECTRUM, head_axis=-2)


def omega(width, base):
    return float(base) ** (-np.arange(0, width, 2) / width)


def rotated(x, positions, layout="half"):
    return rotations.rotate_by(x, positions[..., None, None] * omega(WIDTH, BASE), layout)


def sinusoids(positions, layout="interleaved"):
    phases = positions[..., None] * omega(WIDTH, 1e4)
    return rotations.features(np.sin(phases), np.cos(phases), layout)


def causal(q, k, v, **options):
    return attention.dense(q, k, v, seen=attention.may_see(COUNTED, COUNTED, causal=True), **options).y


def float32s(*shape):
    return RNG.normal(size=shape).astype(np.float32)


# recipes.md: what replaces a line of other code

ANGLES = PLACES[..., None] * omega(WIDTH, BASE)
COS, SIN = (np.float32(np.tile(wave, 2)) for wave in (np.cos(ANGLES), np.sin(ANGLES)))
HEADS_FIRST, OF_HEADS_FIRST = (x.swapaxes(1, 2) for x in (Q, rotated(Q, PLACES)))
ODD, PHASES = np.pad(X, [(0, 0), (0, 0), (0, 1)]), COUNTED[:, None] * 1e4 ** -np.linspace(0, 1, WIDTH // 2)
SIGNAL = np.hstack([np.sin(PHASES), np.cos(PHASES), np.zeros((SEQ, 1))])
# For each row of the table: x, what comes out, and what is called with the value of the row's code.
COMING_FROM = {
    "`nnx.RoPE(theta)`": (X, rotated(Q, COUNTED)[:, :, 0], lambda rope: rope(X)),
    "`rope(x, positions)`, x (…, seq, head_dim)": (X, rotated(Q, PLACES)[:, :, 0]),
    "`partial(nnx.dot_product_attention_with_rope, rope=rope)`": (
        X,
        attention.dense(rotated(Q, COUNTED), rotated(K, COUNTED), V).y,
        lambda attend: attend(Q, K, V),
    ),
    "the same, with `input_positions`": (
        X,
        attention.dense(rotated(Q, PLACES), rotated(K, PLACES), V).y,
        lambda attend: attend(Q, K, V, input_positions=PLACES),
    ),
    "`x * cos + rotate_half(x) * sin` (Hugging Face)": (HEADS_FIRST, OF_HEADS_FIRST),
    "`x * cos + rotate_half(x) * sin`, with tables at hand": (HEADS_FIRST, OF_HEADS_FIRST),
    "`x * freqs_cis`, complex (Meta)": (Q, rotated(Q, PLACES, "interleaved")),
    "`x + table[:x.shape[1]]`, sinusoids": (X, X + sinusoids(COUNTED)),
    "`x * d**0.5 + table[positions]`": (X, X * WIDTH**0.5 + sinusoids(PLACES)),
    "`x + signal`, where an odd width ends in a zero (Tensor2Tensor)": (ODD, ODD + SIGNAL),
    "`table[positions]`, learned": (X, TABLE[PLACES]),
}
ROWS = dict(pages.rows("docs/recipes.md", "there"))


def test_every_line_that_is_replaced_is_tested():
    assert {there for there, here in ROWS.items() if not here.startswith("the same:")} == set(COMING_FROM)


@pytest.mark.parametrize("there", COMING_FROM)
def test_what_replaces_a_line(there):
    x, want, *call = COMING_FROM[there]
    (code, *_) = pages.code_in(ROWS[there])
    names = {"x": x, "d": x.shape[-1], "f": SPECTRUM, "theta": BASE, "head_dim": WIDTH, "positions": PLACES}
    names |= NAMES | {"cos": COS, "sin": SIN, "table": TABLE}
    got = jax.jit(lambda: call[0](eval(code, names)) if call else eval(code, names))()
    assert_within(got, want, 3e-5, against="float64")


# recipes.md: encodings, biases and caches


def test_tables_of_big_vision_and_moco_v3():
    big_vision, moco_v3 = jax.jit(lambda: (recipe("sincos2d")(4, 6, 64), recipe("moco_v3")(4, 64)))()
    assert_within(big_vision, encodings.big_vision(64, 4, 6), 1e-6)
    phases = np.mgrid[:4, :4].reshape(2, 16, 1) * omega(32, 1e4)  # its "w" is the row
    want = np.hstack([wave(phase) for phase in phases for wave in (np.sin, np.cos)])
    assert_within(moco_v3, want, 1e-6)


def test_relative_keys_beyond_their_table():
    offsets = float32s(5, WIDTH)
    clipped = offsets[np.clip(COUNTED - COUNTED[:, None], -2, 2) + 2]
    want = attention.dense(Q, K, V, np.einsum("bihd,ijd->bhij", Q, clipped) * WIDTH**-0.5).y
    assert_within(recipe("relative_keys")(Q, K, V, offsets), want, 5e-6)


def test_attention_of_a_conformer():
    projection, (u, w) = float32s(WIDTH, HEADS * WIDTH), float32s(2, HEADS, WIDTH)
    waves = (sinusoids(COUNTED[:, None] - COUNTED) @ projection).reshape(SEQ, SEQ, HEADS, WIDTH)
    want = attention.dense(Q + u, K, V, np.einsum("bihd,ijhd->bhij", Q + w, waves) * WIDTH**-0.5).y
    assert_within(recipe("conformer")(Q, K, V, projection, u, w), want, 5e-6)


def test_attention_of_sam_over_three_rows_of_four_patches():
    of_rows, of_columns = float32s(5, WIDTH), float32s(7, WIDTH)
    row, column = divmod(COUNTED, 4)
    both = of_rows[row[:, None] - row + 2] + of_columns[column[:, None] - column + 3]
    want = attention.dense(Q, K, V, np.einsum("bihd,ijd->bhij", Q, both)).y
    assert_within(recipe("sam_attention")(Q, K, V, of_rows, of_columns), want, 5e-6)


def test_forgetting_attention():
    logits = float32s(BATCH, SEQ, HEADS)
    i, j = COUNTED[:, None, None], COUNTED[:, None]
    between = (i >= COUNTED) & (COUNTED > j)  # [i, j, k]: gate k stands after key j, up to query i
    bias = np.einsum("bkh,ijk->bhij", -np.log1p(np.exp(-np.float64(logits))), between)
    forgetting = recipe("forgetting", of_gates=recipe("of_gates"))
    assert_within(forgetting(Q, K, V, logits), causal(Q, K, V, bias=bias), 5e-6)


def test_attention_in_plain_jax():
    table = float32s(32, HEADS)
    bias = np.moveaxis(table[np.maximum(COUNTED[:, None] - COUNTED, 0)], -1, 0)  # each distance below 16 has a bucket
    got = jax.jit(recipe("attention_layer"), static_argnums=4)(table, Q, K, V, SPECTRUM)
    assert_within(got, causal(rotated(Q, COUNTED), rotated(K, COUNTED), V, bias=bias), 3e-6)


def test_a_sliding_cache_behind_sinks():
    sinks, recent, steps = 3, 5, 40
    step = recipe("streaming_step", rotate=rotate, sinks=sinks, recent=recent)
    q, k, v = float32s(3, steps, 1, 1, 2, WIDTH)
    cache = (np.zeros((1, sinks + recent, 2, WIDTH), np.float32),) * 2
    tokens = q, k, v, np.arange(steps, dtype=np.int32)
    _, outputs = jax.lax.scan(lambda cache, token: step(cache, *token), cache, tokens)
    got = np.asarray(outputs)
    for n in range(steps):
        kept = [*range(min(sinks, n + 1)), *range(max(sinks, n + 1 - recent), n + 1)]
        places = np.arange(len(kept))
        want = attention.dense(rotated(q[n, 0], places[-1:]), rotated(k[kept, 0, 0], places), v[kept, 0, 0]).y
        assert_within(got[n, 0], want, 1e-5, against=f"float64, step {n}")


def test_a_paged_cache_of_rows_at_different_positions():
    step, cache = (
        jax.jit(recipe("paged_step", rotate=rotate)),
        (np.zeros((8, 4, HEADS, WIDTH)),) * 2,
    )
    want, rows = causal(rotated(Q, COUNTED), rotated(K, COUNTED), V), np.arange(BATCH)
    for n in range(SEQ):
        at = np.array([n, max(n - 1, 0)])  # the second row is a token behind
        token = (x[rows, at][:, None] for x in (Q, K, V))
        cache, out = step(cache, np.array([[5, 0, 3], [2, 4, 1]]), *token, at)
        assert_within(np.asarray(out)[:, 0], want[rows, at], 3e-6, against=f"float64, token {n}")


def test_decoding_with_m_rope():
    image = [[1, r, c] for r in (1, 2) for c in (1, 2, 3, 4)]
    coordinates = np.array([[0, 0, 0], *image, [5, 5, 5], [6, 6, 6], [7, 7, 7]])  # of twelve slots
    extend = recipe("extend", f=pe.multi_section(SPECTRUM, (1, 2, 1)))
    caches, outputs = (jnp.zeros((BATCH, 16, HEADS, WIDTH)),) * 2, []
    for slots in (COUNTED[:11], COUNTED[11:]):
        out, caches = extend(*(x[:, slots] for x in (Q, K, V)), caches, slots, coordinates[slots])
        outputs.append(out)
    angles = coordinates[:, None, [0, 1, 1, 2]] * omega(WIDTH, BASE)
    want = causal(*(rotations.rotate_by(x, angles, "half") for x in (Q, K)), V)
    assert_within(np.concatenate(outputs, axis=1), want, 3e-6)


def test_cameras_of_a_layer():
    rng, shape = np.random.default_rng(1), (2, 4)
    poses, patches = cameras.poses(rng, 3), np.indices(shape).reshape(2, -1).T
    images, places = np.repeat(poses, len(patches), axis=0), np.tile(patches, (3, 1))
    q, k, v = rng.normal(size=(3, 2, len(places), HEADS, 16)).astype(np.float32)
    changes = [("2, 6,", "3, 8,"), ("width=8", "width=12"), ("pe.axial(8, 2, 100.0)", "pe.axial(4, 2, 30.0)")]
    transform = recipe("transform", changes, patches=patches)
    got = jax.jit(recipe("attend(cameras", transform=transform))(np.float32(poses), q, k, v)

    def transformed(x, role):
        first = cameras.transformed(x[..., :12], cameras.matrix(role, images))
        sign = 1 if role == "output" else -1
        last = rotations.rotate_by(x[..., 12:], sign * places[:, None], "half")  # two pairs of frequency 1
        return np.concatenate([first, last], axis=-1)

    inside = attention.dense(*(transformed(x, role) for x, role in ((q, "query"), (k, "key"), (v, "value")))).y
    assert_within(got, transformed(inside, "output"), 2e-5)


# recipes.md, dimensions.md: beside the authors' code


def recorded_cases(file, key, name):
    found = [case for case in recorded.cases(file) if case[key] == name]
    assert found, name
    return [{key: np.array(x) if isinstance(x, list) else x for key, x in case.items()} for case in found]


FOPE = [*recorded_cases("authors", "name", "FoPE's authors"), *recorded_cases("authors", "name", "Intern-S1-Pro")]


@pytest.mark.parametrize("case", FOPE, ids=lambda case: f"{case['name']}, {case['length']}")
def test_fope(case):
    f, x = pe.geometric(16, case["base"]), np.float32(np.moveaxis(case["x"], 1, 2))  # batch, seq, heads, head_dim
    trained = int((f.wavelengths < case["length"]).sum())
    mixed = recipe("mixed", f=f)
    waves = zip(pe.cos_sin(np.arange(5), f[:trained]), (case["cosines"], case["sines"]), strict=True)

    @jax.jit
    def rotated():
        cos_sin = pe.CosSin(*(mixed(wave, np.float32(matrix)) for wave, matrix in waves), columns="pair")
        group = jnp.stack([x, x], 3)  # of two query heads for each key head
        return pe.rotary(x, cos_sin=cos_sin, head_axis=None), pe.rotary(group, cos_sin=cos_sin, head_axis=-2)[
            :, :, :, 1
        ]

    for got in rotated():
        assert_within(got, np.moveaxis(case["rotated"], 1, 2), 3e-6)


def test_selective_rope():
    (case,) = recorded_cases("authors", "name", "Selective RoPE")
    selective = recipe("selective(", [("pe.geometric(16, 500_000.0)", "pe.geometric(8, 100.0)")])
    got = selective(*(np.float32(case[name]) for name in ("query", "key", "phases")))
    for x, name in zip(got, ("query_turned", "key_turned"), strict=True):
        assert_within(x, case[name], 5e-6)


@pytest.mark.parametrize("case", recorded_cases("turns", "model", "dinov3_vit"), ids=lambda case: len(case))
def test_jittered_coordinates(case):
    """With the numbers that torch drew in place of JAX's."""
    random = types.SimpleNamespace(uniform=lambda *_, **__: np.float32(case["draws"]))
    drawn = recipe("drawn", jax=types.SimpleNamespace(random=random))
    limits = case.get("shift", 0), case.get("jitter", 1), case["rescale"]
    got = jax.jit(lambda centres: drawn(None, centres, *limits))(np.float32(case["positions"]))
    assert_within(got, case["moved"], 1e-6)


def test_turns_of_models_that_do_not_rotate():
    page = pages.run(pages.block("docs/dimensions.md", "def of_halves"), NAMES)
    ((ernie,), (vjepa,), (hunyuan,)) = (
        recorded_cases("turns", "model", name) for name in ("ernie_image", "vjepa2", "hunyuan_vl")
    )

    @jax.jit
    def turned(of_ernie, of_vjepa, of_hunyuan):
        f = pe.axial(tuple(ernie["widths"].tolist()), base=float(ernie["base"]))
        places = vjepa["positions"]  # six features of each coordinate, and some that rest
        parts = [page["v_jepa_2"](of_vjepa[:, 6 * i : 6 * i + 6], places[:, i]) for i in range(3)]
        return (
            page["ernie_image"](of_ernie, ernie["positions"], f),
            jnp.concatenate([*parts, of_vjepa[:, 18:]], axis=-1),
            page["hunyuan_vl"](of_hunyuan, hunyuan["positions"], pe.geometric(16), hunyuan["sections"].tolist()),
        )

    models = ernie, vjepa, hunyuan
    for got, model in zip(turned(*(np.float32(model["x"]) for model in models)), models, strict=True):
        assert_within(got, model["turned"], 2e-6, against=model["model"])


# Other pages

LATENT = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 8,
    "rope_theta": 500,
    "max_position_embeddings": 640,
}
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}
LATENT["rope_scaling"] = YARN | {"mscale": 0.9, "mscale_all_dim": 0.7}


@pytest.mark.parametrize("page", ["README.md", "docs/huggingface.md"])
def test_attention_by_a_plan_of_deepseek(page):
    """Of neighbouring pairs, the last features alone, an amplitude and a scale that is not 1/√head_dim."""
    plan, (q, k, v), places = hf.rotary_from_config(LATENT), float32s(3, 1, 6, 2, 12), np.arange(50, 56)
    if page == "README.md":
        got = jax.jit(of_page(page, "attention", plan=plan))(q, k, v, 1, places)
    else:
        got = of_page(page, "attend")(plan, 1, q, k, v, places)
    angles = places[:, None, None] * spectra.floats(spectra.yarn(8, 500, 40, 16))
    amplitude, of_all = (float(spectra.temperature(40, m)) for m in (0.9, 0.7))
    stretched = np.float64([1] * 4 + [amplitude / of_all] * 8)
    q, k = (stretched * rotations.rotate_by(x, angles, "interleaved", "last") for x in (q, k))
    seen = attention.may_see(places, places, causal=True)
    assert_within(got, attention.dense(q, k, v, seen=seen, scale=of_all**2 * 12**-0.5).y, 5e-6)


def test_positions_of_eva_02_are_scaled_to_the_grid_of_training():
    got = jax.jit(lambda: of_page("docs/huggingface.md", "eva_positions")((3, 8), (6, 4)))()
    assert_within(got, np.array([[0, 0], *([r * 6 / 3, c * 4 / 8] for r in range(3) for c in range(8))]), 0)


def test_self_extend():
    q, k, window, group = Q[0], K[0], 5, 2
    i, j = COUNTED[:, None], COUNTED
    offsets = np.where(i - j < window, i - j, i // group - j // group + window - window // group)
    turned = rotated(np.repeat(q[:, None], SEQ, 1).reshape(-1, HEADS, WIDTH), offsets.ravel())
    want = np.einsum("qkhd,khd->hqk", turned.reshape(SEQ, SEQ, HEADS, WIDTH), k)
    got = jax.jit(of_page("docs/contexts.md", "self_extend"), static_argnums=(2, 3, 4))(q, k, SPECTRUM, window, group)
    assert_within(got, want, 2e-5)
