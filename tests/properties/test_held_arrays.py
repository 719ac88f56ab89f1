"""Objects with `__jax_array__`, such as `nnx.Param`, wherever a function takes an array."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
import posenc_jax.nnx
import posenc_jax.plot
from helpers.biases import BIASES
from helpers.quick import quick
from helpers.tiers import slow, tiered
from posenc_jax.hf import QueryScale

AT, X = np.arange(6, dtype=np.int32), np.random.default_rng(0).normal(size=(6, 2, 8)).astype(np.float32)
W = np.geomspace(1, 0.1, 4).astype(np.float32)
ONES = np.ones(2, np.float32)
TABLE = np.arange(24, dtype=np.float32).reshape(6, 4)
rotary = partial(pe.rotary, head_axis=-2)
# Every public function that takes arrays, and arrays for them.
CALLS = (
    {name: (call, AT, AT, *arrays) for name, bias in BIASES.items() for call, arrays in [bias.of(2)]}
    | {
        "cos of a spectrum": (pe.sinusoidal, AT, W),
        "add_sinusoidal": (pe.add_sinusoidal, X[:, 0], AT, W),
        "scale": (lambda x, s: pe.add_sinusoidal(x, scale=s), X[:, 0], np.float32(2)),
        "rotation_matrix": (pe.rotation_matrix, AT, W),
        "shift": (pe.shift, X[:, 0], AT, W),
        "offset_similarity": (pe.offset_similarity, AT, W),
        "rotary": (rotary, X, AT, W),
        "pope": (lambda x, p, w, d: pe.pope(x, p, w, phase=d, head_axis=-2), X[..., :4], AT, W, W),
        "xpos": (lambda q, k, p, w, o: pe.xpos(q, k, p, w, origin=o, head_axis=-2), X, X, AT, W, np.int32(3)),
        "prope": (
            lambda x, e, k: pe.prope(x, e, k, role="key", head_axis=-2, image_size=(1, 1)),
            X,
            np.eye(4, dtype=np.float32),
            np.eye(3, dtype=np.float32),
        ),  # fmt: skip
        "convert_layout": (
            lambda w: pe.convert_layout(w, 8, source="half", target="interleaved", axis=-1, num_heads=1),
            X[0],
        ),
        "sandwich": (lambda q, k, w: pe.sandwich(q, k, 2, w), AT, AT, W),
        "relative_position_bias": (
            lambda q, k, t, p: pe.relative_position_bias(q, k, t, prefix=p),
            AT,
            AT,
            np.arange(22, dtype=np.float32).reshape(11, 2),
            np.ones((3, 2), np.float32),
        ),  # fmt: skip
        "content_bias": (
            lambda q, k, t, x: pe.content_bias(q, k, t, query=x),
            AT,
            AT,
            np.arange(22, dtype=np.float32).reshape(11, 2),
            np.ones((len(AT), 3, 2), np.float32),
        ),
        "fire": (
            lambda q, k, a, b, c, d, e, f: pe.fire(q, k, (a, b, c, d), c=e, threshold=f),
            AT,
            AT,
            ONES,
            ONES,
            np.ones((2, 3), np.float32),
            np.ones(3, np.float32),
            np.float32(0.1),
            np.float32(4),
        ),  # fmt: skip
        "attention": (
            lambda q, k, v, p, s: pe.attention(
                q, k, v, query_positions=p, key_positions=p, query_segments=s, key_segments=s, causal=True
            ),
            X,
            X,
            X,
            AT,
            AT // 3,
        ),  # fmt: skip
        "learned": (partial(pe.learned, out_of_range="nan"), AT, TABLE),
        "add_learned": (lambda x, t, p, s: pe.add_learned(x, t, p, scale=s), X[:, 0, :4], TABLE, AT, np.float32(2)),
        "resize_table": (lambda t: pe.resize_table(t, 9), TABLE),
        "resize_table, torch": (lambda t: pe.resize_table(t, 9, method="torch_cubic", antialias=False), TABLE),
        "fourier_features": (pe.fourier_features, X[:, 0], np.ones((8, 3), np.float32)),
        "timestep_embedding": (lambda t: pe.timestep_embedding(t, 8), np.float32([1, 2])),
        "dynamic_ntk": (lambda n: pe.dynamic_ntk(8, 1e4, 2, 2048, n), jnp.int32(4096)),
        "positions_from_segments": (pe.positions_from_segments, np.int32([0, 0, 1, 1])),
        "positions_from_lengths": (partial(pe.positions_from_lengths, total=9), np.int32([2, 0, 3])),
        "positions_from_tokens": (pe.positions_from_tokens, AT),
        "shard_positions": (lambda n: pe.shard_positions(16, 2, lengths=n), np.int32([2, 0, 6])),
        "positions_from_mask": (pe.positions_from_mask, np.array([False, True, True])),
        "query scale": (QueryScale(0.1, 2), AT),
    }
)


class Held:
    """Holds an array as other libraries do."""

    def __init__(self, x):
        self.x = x

    def __jax_array__(self):
        return jnp.asarray(self.x)


def with_held(arrays, hold):
    """The arguments with each array held alone, and with all."""
    held = [hold(jax.device_put(x)) for x in arrays]
    return [[*(arrays[:i]), held[i], *arrays[i + 1 :]] for i in range(len(arrays))] + [held]


@pytest.mark.parametrize("name", CALLS)
def test_an_object_may_stand_for_its_array(name):
    """In the result's shape and dtype; nothing is compiled."""
    f, *arrays = CALLS[name]
    want = jax.eval_shape(lambda: f(*arrays))
    for arguments in with_held(arrays, Held):
        assert jax.eval_shape(partial(f, *arguments)) == want


@pytest.mark.parametrize("hold", [Held, slow(nnx.Param)])
@pytest.mark.parametrize("name", tiered(CALLS, ["alibi", "add_learned", "positions_from_lengths"]))
def test_the_array_that_an_object_holds(name, hold):
    f, *arrays = CALLS[name]
    want = f(*arrays)
    for arguments in with_held(arrays, hold):
        jax.tree.map(np.testing.assert_array_equal, f(*arguments), want)


@pytest.mark.parametrize("program", [quick, slow(lambda f: f)], ids=["jit", "eager"])
@pytest.mark.parametrize("hold", [Held, nnx.Param])
def test_attention_of_flax(hold, program):
    attend = pe.nnx.positional_attention(rotation=8, bias=partial(pe.alibi, heads=2))
    arrays = [x[None] for x in (X, X[::-1], X)]
    held, at = [hold(jax.device_put(x)) for x in arrays], hold(jax.device_put(AT))
    want, got = program(lambda: (attend(*arrays, input_positions=AT), attend(*held, input_positions=at)))()
    np.testing.assert_array_equal(got, want)


def test_figures():
    table = pe.plot.heatmap(nnx.Param(jax.device_put(TABLE)))
    assert table.axes


def test_what_they_hold_is_checked():
    with pytest.raises(TypeError, match="rotary: x must be a float array .* got int32"):
        rotary(nnx.Param(jax.device_put(AT)), AT)
    with pytest.raises(TypeError, match="frequencies must be Frequencies or an integer width, got an array"):
        pe.nnx.RotaryEncoding(nnx.Param(jax.device_put(W)), head_axis=-2)  # type: ignore


@pytest.mark.parametrize("program", [nnx.jit, slow(lambda f: f)], ids=["jit", "eager"])
def test_a_gradient_by_what_a_parameter_holds(program):
    loss = lambda w: jnp.sum(rotary(X, AT, w) ** 3)  # noqa: E731
    got, want = program(nnx.grad(loss))(nnx.Param(jax.device_put(W))), program(jax.grad(loss))(jax.device_put(W))
    np.testing.assert_array_equal(got[...], want)
