"""One position for a whole sequence is an error, and so is no position for a single token.

- Input without a sequence axis may have one position, and a sequence of symbolic length is accepted.
- A Flax layer rejects positions that return to an earlier one (tests/unit/attention/test_attention_parser.py tests
  `attention` itself).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from jax import export

import posenc_jax as pe
from posenc_jax import linen, nnx
from posenc_jax.hf import RotaryLayer, RotaryPlan

TABLE = np.ones((9, 8), np.float32)
# Layer 0 rotates eight features, layer 1 none.
PLAN = RotaryPlan((RotaryLayer(8, 8), RotaryLayer(0, 8)), "half")
# Name → (module, its inputs besides positions, made of x)
LINEN = {
    "SinusoidalEncoding": (linen.SinusoidalEncoding(8), lambda x: [x[:, :, 0]]),
    "LearnedEncoding": (linen.LearnedEncoding(9, 8), lambda x: [x[:, :, 0]]),
    "RotaryEncoding": (linen.RotaryEncoding(8, head_axis=-2), lambda x: [x]),
    "PoPE": (linen.PoPE(2, 16, head_axis=-2), lambda x: [x, x]),
}


def applied(name):
    """A Linen module as a function of x and positions; its variables were made for a sequence of five."""
    module, inputs = LINEN[name]
    return lambda x, p: module.apply(module.init(jax.random.key(0), *inputs(jnp.zeros((2, 5, 2, 8)))), *inputs(x), p)


# Every call that places x (batch, seq, heads, 8) at positions p
PLACES = {
    "rotary": lambda x, p: pe.rotary(x, p, head_axis=-2),
    "rotary, heads first": lambda x, p: pe.rotary(x.swapaxes(1, 2), p, head_axis=-3),
    "rotary, no heads": lambda x, p: pe.rotary(x[:, :, 0], p, head_axis=None),
    "pope": lambda x, p: pe.pope(x, p, head_axis=-2),
    "xpos": lambda x, p: pe.xpos(x, x, p, head_axis=-2),
    "add_sinusoidal": lambda x, p: pe.add_sinusoidal(x[:, :, 0], p),
    "add_learned": lambda x, p: pe.add_learned(x[:, :, 0], TABLE, p),
    "RotaryPlan.rotate": lambda x, p: PLAN.rotate(x, 0, p, head_axis=-2),
    "SinusoidalEncoding": lambda x, p: nnx.SinusoidalEncoding(8)(x[:, :, 0], p),
    "LearnedEncoding": lambda x, p: nnx.LearnedEncoding(9, 8, rngs=flax_nnx.Rngs(0))(x[:, :, 0], p),
    "RotaryEncoding": lambda x, p: nnx.RotaryEncoding(8, head_axis=-2)(x, p),
    "PoPE": lambda x, p: nnx.PoPE(2, 16, head_axis=-2, rngs=flax_nnx.Rngs(0))(x, x, p),
    **{f"{name} of Linen": applied(name) for name in LINEN},
}
# Types of five tokens and of one; and the shapes in which one position may come, for all rows or for each
FIVE, ONE = (jax.ShapeDtypeStruct((2, n, 2, 8), np.float32) for n in (5, 1))
SHARED = np.int32(7), np.int32([7]), np.int32([[7], [8]])


@pytest.mark.parametrize("name", PLACES)
def test_one_position_for_a_sequence_is_refused(name):
    """Concrete or traced. Broadcast to the sequence, as the error proposes, the positions are accepted."""
    call = PLACES[name]
    message = r"positions must not be one for all 5 vectors of \w+, got shape .*jnp.broadcast_to\(positions, \(2, 5\)\)"
    for p in SHARED:
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda x: call(x, p), FIVE)  # noqa: B023
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(call, FIVE, p)
    each = jax.eval_shape(lambda x, p: call(x, jnp.broadcast_to(p, (2, 5))), FIVE, SHARED[2])
    assert each == jax.eval_shape(call, FIVE, None)


@pytest.mark.parametrize("name", PLACES)
def test_a_token_without_a_position_is_refused(name):
    """One token with one position, in any of its shapes, is accepted."""
    message = r"positions must be given where \w+ holds one token, .* got None: pass the position of a decode"
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda x: PLACES[name](x, None), ONE)
    first, *others = (jax.eval_shape(PLACES[name], ONE, p) for p in SHARED)
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", [name for name in PLACES if "earned" not in name])  # a table must be long enough
def test_a_length_that_is_not_known_is_taken(name):
    (n,) = export.symbolic_shape("n")
    for p in (None, np.int32(7)):
        export.export(jax.jit(lambda x: PLACES[name](x, p)))(jax.ShapeDtypeStruct((2, n, 2, 8), np.float32))  # noqa: B023


def test_a_row_of_coordinates_is_one_position():
    """Two coordinates of axial frequencies are one position: right for one token, rejected for five."""
    rotate = lambda x, p: pe.rotary(x, p, pe.axial(8, 2), head_axis=-2)  # noqa: E731
    for p in (np.int32([3, 4]), np.int32([[3, 4]])):
        with pytest.raises(ValueError, match=r"one for all 5 vectors of x, .*broadcast_to\(positions, \(2, 5, 2\)\)"):
            jax.eval_shape(rotate, FIVE, p)
        jax.eval_shape(rotate, ONE, p)


def test_what_has_no_sequence_has_one_position():
    """A vector, and vectors of a batch each at its own position; nor do layers that do not rotate need positions."""
    batch, vector = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2, 4, 8), (8,)))
    jax.eval_shape(lambda x: pe.rotary(x, np.int32([3, 9]), head_axis=-2), batch)
    jax.eval_shape(lambda x: (pe.add_sinusoidal(x, 7), pe.rotary(x, 7, head_axis=None), pe.shift(x, 7, 8)), vector)
    jax.eval_shape(lambda p: (pe.sinusoidal(p, 8), pe.cos_sin(p, 8), pe.learned(p, TABLE)), np.int32(7))
    for rotate in (lambda x, p: pe.rotary(x, p, 0, head_axis=-2), lambda x, p: PLAN.rotate(x, 1, p, head_axis=-2)):
        jax.eval_shape(lambda one, five: (rotate(one, None), rotate(five, np.int32(7))), ONE, FIVE)  # noqa: B023
    with pytest.raises(ValueError, match="got shape .* if axis -2 holds the heads, pass head_axis=-2; to move"):
        jax.eval_shape(lambda x: pe.rotary(x, np.zeros((2, 5, 1), np.int32), head_axis=None), FIVE)


@pytest.mark.parametrize("name", LINEN)
def test_init_of_linen_takes_one_token_and_still_checks(name):
    module, inputs = LINEN[name]
    init = lambda x: jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs(x)))  # noqa: E731
    assert init(np.ones((2, 1, 2, 8), np.float32)) == init(np.ones((2, 5, 2, 8), np.float32))
    with pytest.raises(TypeError, match="must be a float array"):
        init(np.ones((2, 1, 2, 8), np.int32))


def test_one_query_and_one_key_need_no_position():
    """The query sees that key alone, so the result is its value wherever the two stand."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 1, 2, 8)).astype(np.float32)
    for settings in ({}, {"attention": pe.attention}):
        attend = nnx.positional_attention(rotation=8, **settings)
        np.testing.assert_array_equal(jax.jit(lambda *x: attend(*x))(q, k, v), v)  # noqa: B023


def test_a_flax_layer_rejects_positions_that_return():
    x, packed = jnp.ones((1, 8, 2, 8)), np.int32([0, 1, 2, 3, 0, 1, 2, 3])
    layer = nnx.positional_attention(rotation=8, attention=functools.partial(pe.attention, causal=True))
    message = "^positional_attention: input_positions must not return to a position after .* pass mask=SegmentMask"
    with pytest.raises(ValueError, match=message):
        layer(x, x, x, input_positions=packed)
    segments = nnx.SegmentMask(np.ones(8, np.int32))
    jax.eval_shape(lambda x: layer(x, x, x, input_positions=packed, mask=segments), x)
