"""Biases as the kernel for NVIDIA GPUs computes them: the kind of a bias's program, and that it has the bias's values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.tiers import slow, tiered
from posenc_jax._attention.hopper import bias_programs
from posenc_jax._attention.hopper.bias_programs import Constant

HEADS, COUNTS, PADDED = 3, (6, 9), (8, 12)
NUMBERS = np.float32([0.5, 1.0, 2.0])
TABLE = np.random.default_rng(0).normal(size=(32, HEADS)).astype(np.float32)
ROW = jnp.asarray(TABLE[:6, 0])
MLP = tuple(np.random.default_rng(1).normal(size=s).astype(np.float32) for s in ((2,), (2,), (2, HEADS), (HEADS,)))


def distance(i, j):
    return jnp.abs(i[:, None] - j[None])[None]


# name → the bias, the kind of its program if positions are counted, and if they are given, the kind or the number of steps
BIASES = {
    "ALiBi": (lambda i, j: pe.alibi(i, j, HEADS), "linear", 8),
    "ALiBi by hand": (lambda i, j: -NUMBERS[:, None, None] * distance(i, j).astype(jnp.float32), "linear", 4),
    "no head, checkpointed": (
        jax.checkpoint(lambda i, j: np.float32(-0.25) * distance(i, j)[0].astype(jnp.float32)),
        "linear",
        4,
    ),
    "twice negative": (lambda i, j: -(NUMBERS[:, None, None] * (distance(i, j).astype(jnp.float32) * 2)), "linear", 6),
    "T5": (lambda i, j: pe.t5(i, j, TABLE), "table", "near"),
    "KERPLE, logarithm": (lambda i, j: pe.kerple_log(i, j, NUMBERS, NUMBERS), "table", 10),
    "KERPLE, power": (lambda i, j: pe.kerple_power(i, j, NUMBERS, 1 / NUMBERS), "table", 12),
    "T5, one side": (lambda i, j: pe.t5(i, j, TABLE, bidirectional=False, max_distance=120), "table", "near"),
    "of later keys": (
        lambda i, j: -jnp.minimum(jnp.maximum(j[None] - i[:, None], 0), 3).astype(jnp.float32),
        "table",
        "near",
    ),
    "Swin": (lambda i, j: pe.relative_position_bias(i, j, np.resize(TABLE, (19, HEADS))), "table", "near"),
    "signed clip": (lambda i, j: ROW[jnp.clip(i[:, None] - j[None], -3, 2) + 3], "table", "near"),
    "signed clip, each bound": (
        lambda i, j: ROW[3 - jnp.maximum(jnp.minimum(j[None] - i[:, None], 3), -2)],
        "table",
        "near",
    ),
    "FIRE": (lambda i, j: pe.fire(i, j, MLP, c=0.5, threshold=4.0), "steps", 24),
    "of keys": (lambda i, j: NUMBERS[:, None, None] * (j & 1).astype(jnp.float32)[None, None], "steps", 3),
    "of no position": (lambda i, j: jnp.asarray(NUMBERS)[:, None, None] * 2, "steps", 0),
    "nothing": (lambda i, j: jnp.zeros((1, 1)), "steps", 0),
    "clipped": (lambda i, j: -jnp.minimum(distance(i, j), 4).astype(jnp.float32), "table", "near"),
}


def evaluated(steps, values):
    """The values that are given, and those of the steps; the positions are the first two."""
    values, difference = list(values), (values[0] - values[1]).astype(jnp.float32)
    for operation, inputs, parameters in steps:
        read = [jnp.full(difference.shape, x.value, x.dtype) if isinstance(x, Constant) else values[x] for x in inputs]
        special = {"|i-j|": abs(difference), "i-j": difference}
        values.append(special[operation] if operation in special else operation.bind(*read, **dict(parameters)))
    return values


def computed(program, operands, i, j, head):
    """The bias of one head by its program, for positions of one shape."""
    if program.kind in ("table", "near"):
        near = program.kind == "near"
        difference = jnp.clip(i - j, -program.constant_from, program.constant_from) if near else i - j
        return operands[0][head][difference + (bias_programs.NEAR if near else PADDED[1])]
    numbers = [x[n, head] for x in operands for n in range(len(x))]
    if program.kind == "linear":
        return numbers[0] * abs((i - j).astype(jnp.float32))
    return evaluated(program.steps, [i, j, *(jnp.full(i.shape, x) for x in numbers)])[-1]


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("counted", [True, False])
def test_the_kind_of_a_program(name, counted):
    bias, kind, steps = BIASES[name]
    programs = []

    def operands():
        program, operands = bias_programs.plan(bias, HEADS, 1, COUNTS if counted else None, PADDED)
        programs.append(program)
        return operands

    jax.eval_shape(operands)
    (program,) = programs
    assert hash(program) is not None
    assert (program.kind == kind) if counted else (steps in (program.kind, len(program.steps)))


@pytest.mark.parametrize("name", tiered(BIASES, ["ALiBi", "Swin", "FIRE"]))
@pytest.mark.parametrize("counted", [True, slow(False)])
def test_a_program_has_the_values_of_its_bias(name, counted):
    bias, kind, steps = BIASES[name]
    i, j = (np.arange(n, dtype=np.int32) for n in COUNTS)

    @jax.jit
    def both():
        program, operands = bias_programs.plan(bias, HEADS, 1, COUNTS if counted else None, PADDED)
        positions = jnp.broadcast_arrays(jnp.asarray(i)[:, None], jnp.asarray(j)[None])
        by_head = [computed(program, operands, *positions, head) for head in range(HEADS)]
        return jnp.stack(by_head), jnp.broadcast_to(bias(jnp.asarray(i), jnp.asarray(j)), (HEADS, *COUNTS))

    got, want = both()
    if (kind if counted else steps) in ("table", "near"):
        np.testing.assert_array_equal(got, want)
    assert_within(got, want, 1e-6 * np.maximum(1, np.abs(want)), against="the bias")


def curved(i, j, size, rate, power):
    """Where derivatives have steps of their own: a selection, a hyperbolic tangent, a root, a power, a product twice."""
    x = jnp.abs(i[:, None] - j[None]).astype(jnp.float32)[None] + 1
    near = size * jnp.tanh(rate * x) / jnp.sqrt(1 + rate)
    return jnp.where(i[:, None] > j[None], near, rate * x**power) - jnp.maximum(size, x) * jnp.exp(-rate * x)


def other(i, j, size):
    """Its derivative is not that of its operations."""
    twice = jax.custom_jvp(lambda x: 2 * x)
    twice.defjvp(lambda primals, tangents: (2 * primals[0], 5 * tangents[0]))
    return twice(size[:, None, None] * (i[:, None] + j[None]).astype(jnp.float32)[None])


PULLBACKS = {
    "ALiBi": (pe.alibi, 1),
    "KERPLE, logarithm": (pe.kerple_log, 2),
    "KERPLE, power": (pe.kerple_power, 2),
    "custom": (lambda i, j, *x: curved(i, j, *(a[:, None, None] for a in x)), 3),
    "of functions of parameters": (lambda i, j, x: pe.alibi(i, j, jax.nn.softplus(x) + jax.nn.relu(x - 0.5)), 1),
    "of no position": (lambda i, j, x: x[:, None, None], 1),
}


@pytest.mark.parametrize("name", tiered(PULLBACKS, ["KERPLE, logarithm"]))
@pytest.mark.parametrize("counted", [slow(True), False])
def test_a_pullback_is_that_of_the_bias(name, counted):
    of, count = PULLBACKS[name]
    i, j = (np.arange(n, dtype=np.int32) for n in COUNTS)
    learned = [NUMBERS / (n + 2) for n in range(count)]
    ds = np.random.default_rng(2).normal(size=(HEADS, *COUNTS)).astype(np.float32)

    @jax.jit
    def both(*learned):
        def operands(*learned):
            program, operands = bias_programs.plan(lambda i, j: of(i, j, *learned), HEADS, 1, counts, PADDED)
            programs.append(program)
            return operands

        programs, counts = [], COUNTS if counted else None
        (numbers,), pull = jax.vjp(operands, *learned)
        tile, rows = [jnp.asarray(x) for x in np.broadcast_arrays(i[:, None], j[None])], []
        for head in range(HEADS):
            if programs[0].kind in ("linear", "table"):
                per_score = [ds[head] * abs(i[:, None] - j[None]).astype(np.float32)]
            else:
                steps, indices = programs[0].pullback
                values = evaluated(steps, [*tile, *(jnp.full(COUNTS, x) for x in numbers[:, head]), ds[head]])
                per_score = [values[index] for index in indices]
            rows.append(jnp.stack([jnp.sum(x) for x in per_score]))
        if programs[0].kind == "table":  # its cotangent is a sum along diagonals
            index = i[:, None] - j[None] + PADDED[1]
            rows = [jnp.zeros(sum(PADDED), jnp.float32).at[index].add(x) for x in ds]
        want = jax.vjp(lambda *learned: jnp.broadcast_to(of(i, j, *learned), ds.shape), *learned)[1](ds)
        return pull((jnp.stack(rows, programs[0].kind != "table"),)), want

    got, want = both(*learned)
    assert_within(got, want, 1e-5 * np.maximum(1, np.abs(want)), against="the bias")


def test_no_pullback_where_a_derivative_is_not_that_of_the_operations():
    for bias in (lambda i, j: other(i, j, NUMBERS), lambda i, j: pe.fire(i, j, MLP, c=0.5, threshold=4.0)):
        program, numbers = bias_programs.plan(bias, HEADS, 1, COUNTS, PADDED)
        assert program.kind == "steps" and numbers and program.pullback is None
