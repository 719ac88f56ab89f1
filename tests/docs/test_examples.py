"""The models of `examples/`, each in one file: what they compute, and that they learn. `nox -s parity` loads T5's weights."""

import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import biases, rotations

EXAMPLES = Path(__file__).parents[2] / "examples"
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def examples():
    """Imports an example by its name."""
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module
    sys.path.remove(str(EXAMPLES))


PROGRAMS = [path for path in sorted(EXAMPLES.glob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_each_says_how_to_run_it(path):
    assert f"\n    python examples/{path.name}" in path.read_text(encoding="utf-8").split('"""')[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "t5", "dit"])
def test_they_run_from_the_command_line(examples, name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--steps", "25"])
    examples(name).main()
    assert len(capsys.readouterr().out.splitlines()) >= 3


# The vision transformer


def test_made_images_are_labelled_by_the_side_of_the_second_mark(examples):
    images, labels = examples("vit").made_images(RNG, 50, (5, 8))
    assert images.shape == (50, 20, 32, 1) and set(labels) == {0, 1, 2, 3}
    patches = images.reshape(50, 5, 4, 8, 4).swapaxes(2, 3)
    for image, label in zip(patches, labels, strict=True):
        score = [np.einsum("rcij,ij->rc", image, mark) for mark in (np.eye(4), np.eye(4)[::-1])]
        first, second = (np.array(np.unravel_index(s.argmax(), s.shape)) for s in score)
        assert np.sign(second - first).tolist() == [[0, -1], [0, 1], [-1, 0], [1, 0]][label]


def block_of(vit):
    """A block whose kernels are drawn by NumPy."""
    graph, state = nnx.split(nnx.eval_shape(lambda: vit.Block(32, 2, pe.axial(16, 2, 100.0), rngs=nnx.Rngs(0))))

    def draw(path, w):
        drawn = RNG.normal(size=w.shape) * w.shape[0] ** -0.5 if w.ndim > 1 else np.full(w.shape, "scale" in str(path))
        return drawn.astype(w.dtype)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(draw, state))


def test_rope_in_a_block_sees_differences_of_positions_alone(examples):
    block = block_of(examples("vit"))
    x, grid = RNG.normal(size=(2, 15, 32)).astype(np.float32), np.indices((3, 5)).reshape(2, 15).T.astype(np.int32)
    here, there, other = (np.asarray(nnx.jit(block)(x, p)) for p in (grid, grid + np.int32([100, -30]), grid[:, ::-1]))
    assert_within(there, here, 1e-5, against="the same grid elsewhere")
    assert np.abs(other - here).max() > 1e-3


def test_a_block_is_its_formula(examples):
    block = block_of(examples("vit"))
    x, grid = RNG.normal(size=(15, 32)), np.indices((3, 5)).reshape(2, -1).T
    w = {name: np.asarray(v[...], np.float64) for (*_, name), v in nnx.to_flat_state(nnx.state(block.qkv))}
    norm = lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)  # noqa: E731
    q, k, v = np.einsum("nf,fahd->anhd", norm(x), w["kernel"]) + w["bias"][:, None]
    angles = (grid[:, :, None] * 100.0 ** (-np.arange(4) / 4)).reshape(15, 1, 8)  # of the row, then of the column
    q, k = (rotations.rotate_by(y, angles, "half") for y in (q, k))
    weights = np.exp(np.einsum("qhd,khd->hqk", q, k) / 4)
    y = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
    w = {p: np.asarray(v[...], np.float64) for p, v in nnx.to_flat_state(nnx.state(block))}
    y = x + np.einsum("qhd,hdf->qf", y, w["out", "kernel"]) + w["out", "bias"]
    hidden = norm(y) @ w["up", "kernel"] + w["up", "bias"]
    hidden *= (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))) / 2
    want = y + hidden @ w["down", "kernel"] + w["down", "bias"]
    got = np.asarray(nnx.jit(block)(x[None].astype(np.float32), grid.astype(np.int32)))[0]
    assert_within(got, want, 1e-5, against="float64")


@pytest.mark.slow
def test_each_patch_is_at_its_row_and_column(examples, monkeypatch):
    vit, seen = examples("vit"), []
    monkeypatch.setattr(vit.Block, "__call__", lambda self, x, positions: seen.append((x, positions)) or x)
    images = vit.made_images(RNG, 2, (3, 5))[0]
    for positions in ("rope", "sincos"):
        model = vit.ViT(positions, layers=1, rngs=nnx.Rngs(0))
        assert model(images).shape == (2, 4)
    (turned, at), (added, _) = seen
    assert at.tolist() == [[0, 0]] + [[r, c] for r in range(3) for c in range(5)]
    omega = 100.0 ** (-np.arange(16) / 16)
    angles = np.array(at[1:], np.float64)[:, :, None] * omega  # of the row, then of the column
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(15, 64)
    want = np.concatenate([np.zeros((1, 64)), table])  # nothing for the class token
    assert_within(added - turned, np.broadcast_to(want, added.shape), 1e-6, against="float64")


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["rope", "sincos"])
def test_a_vit_learns_sides_and_keeps_them_at_another_resolution(examples, positions):
    vit = examples("vit")
    model, _ = vit.train(positions, 150)
    share = {g: float(vit.correct(model, *vit.made_images(RNG, 400, g))) for g in ((5, 5), (5, 8), (8, 5))}
    assert share[5, 5] > 0.9 and min(share.values()) > 0.65, share


# T5's encoder


def made_weights(width, heads, head_dim, hidden, gated, layers=2, buckets=12):
    """Names and shapes of transformers' T5."""
    inner, attention = heads * head_dim, "layer.0.SelfAttention."
    shapes = {"shared": (20, width), "encoder.final_layer_norm": (width,)}
    shapes["encoder.block.0.layer.0.SelfAttention.relative_attention_bias"] = (buckets, heads)
    for i in range(layers):
        at = f"encoder.block.{i}."
        shapes |= {f"{at}{attention}{name}": (inner, width) for name in "qkv"}
        shapes |= {f"{at}{attention}o": (width, inner)} | {f"{at}layer.{n}.layer_norm": (width,) for n in (0, 1)}
        shapes |= {f"{at}layer.1.DenseReluDense.{n}": (hidden, width) for n in (("wi_0", "wi_1") if gated else ("wi",))}
        shapes[f"{at}layer.1.DenseReluDense.wo"] = (width, hidden)
    return {f"{name}.weight": 0.4 * RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def t5_in_float64(w, tokens, heads, gated, max_distance):
    """The encoder of transformers, for one sequence."""
    w = {name.removeprefix("encoder.").removesuffix(".weight"): x.astype(np.float64) for name, x in w.items()}
    norm = lambda x, name: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w[name]  # noqa: E731
    gelu = lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))  # noqa: E731
    place = np.arange(len(tokens))
    distance, after = abs(place[:, None] - place), place[:, None] < place
    table = w["block.0.layer.0.SelfAttention.relative_attention_bias"]
    bias, x = biases.t5(distance, after, table, max_distance=max_distance), w["shared"][tokens]
    for i in range(2):
        at, y = f"block.{i}.layer.", norm(x, f"block.{i}.layer.0.layer_norm")
        q, k, v = ((y @ w[f"{at}0.SelfAttention.{n}"].T).reshape(len(x), heads, -1) for n in "qkv")
        weights = np.exp(np.einsum("qhd,khd->hqk", q, k) + bias)
        y = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v).reshape(len(x), -1)
        x = x + y @ w[f"{at}0.SelfAttention.o"].T
        y, part = norm(x, f"{at}1.layer_norm"), lambda name: w[f"{at}1.DenseReluDense.{name}"].T  # noqa: B023
        y = gelu(y @ part("wi_0")) * (y @ part("wi_1")) if gated else np.maximum(y @ part("wi"), 0)
        x = x + y @ part("wo")
    return norm(x, "final_layer_norm")


@pytest.mark.slow
@pytest.mark.parametrize("gated", [False, True])
def test_t5_with_weights_is_its_formula(examples, gated):
    weights, tokens = made_weights(16, 3, 4, 24, gated), RNG.integers(20, size=(2, 60))
    model = nnx.jit(examples("t5").load(weights, 3, max_distance=30))
    mask = np.ones((2, 60), np.int32)
    mask[1, :9] = mask[1, 50:] = 0
    got = model(tokens, mask)
    for row, part in ((0, slice(None)), (1, slice(9, 50))):  # padding on both sides changes nothing
        want = t5_in_float64(weights, tokens[row, part], 3, gated, 30)
        assert_within(got[row, part], want, 1e-5 * np.abs(want).max(), against="float64")


@pytest.mark.slow
def test_t5_shares_one_table_and_learns_what_stood_before(examples):
    t5 = examples("t5")
    model, losses = t5.train(150)
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param)) if "bias" in path]
    assert paths == [("bias", "embedding")]
    assert losses[0] > 3 and losses[-1] < 0.5
    assert t5.correct(model, RNG.integers(32, size=(16, 16))) > 0.95


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="the kernels need JAX 0.11")
def test_t5_trains_by_the_kernels_for_gpus(examples, monkeypatch):
    """In interpret mode: losses differ from XLA's in float32 by no more than bfloat16 rounds, and the table learns the same."""
    from helpers.hopper import interpreted

    interpreted(monkeypatch.setattr)
    t5, runs = examples("t5"), ((0, "xla"), (3, "xla"), (3, "mosaic_gpu"))
    (start, _), *trained = (t5.train(n, implementation=name, heads=2, layers=1, batch=2) for n, name in runs)
    (_, want), (_, got) = trained
    assert_within(got, want, 2.0**-9 * want[0], against="XLA")
    by_xla, by_kernels = (np.asarray(model.bias.embedding[...] - start.bias.embedding[...]) for model, _ in trained)
    assert np.abs(by_xla).max() > 5e-3  # three steps of Adam at 3e-3
    assert_within(by_kernels, by_xla, 1e-3, against="XLA")


# The diffusion transformer


@pytest.mark.slow
def test_the_derivative_of_a_dit_along_the_flow(examples):
    dit = examples("dit")
    model, errors = dit.train(30)
    assert errors[0] > 1.2 > errors[-1]
    z, v = jnp.asarray(RNG.normal(size=(2, 6, 8, 8)), jnp.float32)
    r, t = jnp.asarray([[0.1, 0.3, 0.0, 0.6, 0.5, 0.2], [0.5, 0.3, 1.0, 0.8, 0.9, 0.4]], jnp.float32)
    u, derivative = nnx.jit(dit.along_flow)(model, z, r, t, v)
    forward = nnx.jit(model)
    assert_within(u, np.asarray(forward(z, r, t)), 1e-5, against="the model")
    ends = [forward(z + h * v, r, t + h) for h in (0.01, -0.01)]
    want = np.asarray(ends[0] - ends[1]) / 0.02
    assert_within(derivative, want, 0.02 * np.abs(want).max(), against="a difference along the flow")


@pytest.mark.slow
def test_a_dit_learns_by_meanflow(examples):
    dit = examples("dit")
    model, errors = dit.train(120)
    assert np.mean(errors[-20:]) < 0.45
    samples = dit.sample(model, jax.random.normal(jax.random.key(0), (64, 8, 8)))
    made = dit.made_images(jax.random.key(1), 64)
    assert abs(samples.mean() - made.mean()) < 0.15 and abs(samples.std() - made.std()) < 0.15
