"""`convert_layout` permutes the outputs of a projection from one layout to the other.

- A layer with converted weights, in the new layout, has the same scores, whether all features of a head rotate or the
  first or last of them. Those that do not rotate stay in place.
- Heads may share an axis with their features, or have an axis of their own.
- The dtype is kept. Errors name the argument.
"""

import jax
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from oracles import rotations

RNG = np.random.default_rng(0)
HEADS, HEAD_DIM = 2, 8
VALID_SETTINGS = {"frequencies": 8, "source": "half", "target": "interleaved", "axis": -1, "num_heads": 1}


@pytest.mark.parametrize(("part", "width"), [("first", 8), ("first", 4), ("last", 6)])
@pytest.mark.parametrize("layouts", [("interleaved", "half"), ("half", "interleaved")], ids=str)
def test_converted_weights_give_the_same_scores(layouts, part, width):
    source, target = layouts
    x, kernels = RNG.normal(size=(5, 6)), RNG.normal(size=(2, 6, HEADS, HEAD_DIM)).astype(np.float32)
    settings = {"source": source, "target": target, "part": part}
    convert = lambda weights, **axes: np.asarray(pe.convert_layout(weights, width, **settings, **axes))  # noqa: E731
    converted = [convert(kernel, axis=-1, num_heads=1) for kernel in kernels]

    def scores(kernels, layout):
        vectors = (np.einsum("si,ihd->shd", x, kernel) for kernel in kernels)
        rotated = (rotations.rope(v, np.arange(5), width, layout=layout, part=part) for v in vectors)
        return np.einsum("qhd,khd->hqk", *rotated)

    assert_within(scores(converted, target), scores(kernels, source), 1e-12, against="scores before")
    rest = np.s_[..., width:] if part == "first" else np.s_[..., :-width]
    np.testing.assert_array_equal(converted[0][rest], kernels[0][rest])
    flat = kernels[0].reshape(6, -1).T  # (outputs, inputs), as in torch
    np.testing.assert_array_equal(convert(flat, axis=0, num_heads=HEADS), converted[0].reshape(6, -1).T)


def test_a_traced_bias_in_int8_keeps_its_dtype():
    weights = np.arange(8, dtype=np.int8)  # halves of pairs: 0 to 3, and 4 to 7
    got = jax.jit(lambda weights: pe.convert_layout(weights, **VALID_SETTINGS))(weights)
    np.testing.assert_array_equal(got, weights[[0, 4, 1, 5, 2, 6, 3, 7]], strict=True)


def test_an_equal_source_and_target_change_nothing():
    weights = RNG.normal(size=(6, HEADS, HEAD_DIM)).astype(np.float32)
    got = pe.convert_layout(weights, **VALID_SETTINGS | {"target": "half"})
    np.testing.assert_array_equal(got, weights)


def test_float64_becomes_float32_and_int64_raises_without_x64():
    with jax.enable_x64(False):
        assert jax.eval_shape(lambda: pe.convert_layout(np.zeros(8), **VALID_SETTINGS)).dtype == np.float32
        with pytest.raises(TypeError, match="^convert_layout: weights are int64, which this"):
            pe.convert_layout(np.zeros(8, np.int64), **VALID_SETTINGS)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (TypeError, "weights must be an array that JAX can hold", {"weights": [1.0] * 8}),
        (TypeError, "weights must be an array that JAX can hold", {"weights": np.full(8, "a")}),
        (ValueError, "axis must be one of weights", {"axis": 2}),
        (ValueError, "axis must be one of weights", {"axis": -3}),
        (TypeError, "axis must be an integer", {"axis": 0.0}),
        (ValueError, "num_heads must divide axis 1 of weights", {"num_heads": 3}),
        (ValueError, "num_heads must be at least 1", {"num_heads": 0}),
        (ValueError, "frequencies must have an even width of at most 4, the head_dim", {"num_heads": 2}),
        (ValueError, "frequencies must have an even width of at most 8, the head_dim", {"frequencies": 3}),
        (ValueError, "part must be one of", {"part": "all"}),
        (ValueError, "target must be one of", {"target": "meta"}),
        (ValueError, "source must be one of", {"source": "meta"}),
    ],
)
def test_invalid_arguments_raise(error, match, change):
    with pytest.raises(error, match=f"^convert_layout: {match}"):
        pe.convert_layout(**{"weights": np.zeros((3, 8), np.float32)} | VALID_SETTINGS | change)
