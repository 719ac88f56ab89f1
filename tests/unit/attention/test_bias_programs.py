"""How a kernel computes a bias of positions: `bias_programs.plan` chooses the program.

- The kind "linear" is a number times |i − j|; "table" and "near" look up i − j, "near" in a table of differences that
  are small; "steps" are elementwise operations.
- A program has the values of its bias. Its pullback has the derivatives of its bias, or the program has no pullback.
- A bias that a kernel cannot compute raises; the error says what to use instead.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.slow import slow
from posenc_jax._attention.hopper import bias_programs
from posenc_jax._attention.hopper.bias_programs import Constant

HEADS, COUNTS, PADDED = 3, (6, 9), (8, 12)  # numbers of queries and keys, and with padding
QUERY_AT, KEY_AT = (np.arange(n, dtype=np.int32) for n in COUNTS)
FAR = (QUERY_AT * 400 - 900).astype(np.int32), (KEY_AT * 300 - 1200).astype(np.int32)
RNG = np.random.default_rng(0)
NUMBERS, TABLE = np.float32([0.5, 1.0, 2.0]), RNG.normal(size=(32, HEADS)).astype(np.float32)
PER_HEAD, ROW = NUMBERS[:, None, None], jnp.asarray(TABLE[:6, 0])
MLP = tuple(RNG.normal(size=s).astype(np.float32) for s in ((2,), (2,), (2, HEADS), (HEADS,)))


def distance(i, j):
    return jnp.abs(i[:, None] - j[None])[None]


def difference(i, j):
    return i[:, None] - j[None]


def total(i, j):
    return (i[:, None] + j[None]).astype(jnp.float32)[None]


def selected(i, j):
    """The distance |i − j|, written as a selection."""
    return jnp.where(i[:, None] < j[None], j[None] - i[:, None], difference(i, j))[None]


def of_numbers(count):
    """A bias that reads this many numbers for each head."""
    numbers = [jnp.asarray(PER_HEAD) + n for n in range(count)]
    return lambda i, j: sum(jnp.tanh(x * total(i, j)) for x in numbers)


# A bias; the kind of its program if positions are counted from 0; and for positions that the caller gives, the number
# of the program's steps, or its kind.
BIASES = {
    "ALiBi": (lambda i, j: pe.alibi(i, j, HEADS), "linear", 8),
    "ALiBi by selection": (lambda i, j: -PER_HEAD * selected(i, j).astype(jnp.float32), "linear", 6),
    "for all heads, twice": (
        jax.checkpoint(lambda i, j: -(np.float32(2) * (distance(i, j)[0].astype(jnp.float32) * 2))),
        "linear",
        6,
    ),
    "plus one": (lambda i, j: PER_HEAD * distance(i, j).astype(jnp.float32) + 1, "steps", 5),
    "T5": (lambda i, j: pe.t5(i, j, TABLE), "table", "near"),
    "KERPLE, logarithm": (lambda i, j: pe.kerple_log(i, j, NUMBERS, NUMBERS), "table", 10),
    "signed clip": (lambda i, j: ROW[jnp.clip(difference(i, j), -3, 2) + 3], "table", "near"),
    "clipped at 126": (lambda i, j: jnp.minimum(distance(i, j), 126).astype(jnp.float32) ** 2, "table", "near"),
    "clipped too far": (lambda i, j: jnp.minimum(distance(i, j), 127).astype(jnp.float32), "table", 4),
    "FIRE": (lambda i, j: pe.fire(i, j, MLP, c=0.5, threshold=4.0), "steps", 24),
    "of keys": (lambda i, j: PER_HEAD * (j & 1).astype(jnp.float32)[None, None], "steps", 3),
    "of sixteen numbers": (of_numbers(16), "steps", "steps"),
    "of no position": (lambda i, j: jnp.asarray(PER_HEAD) * 2, "steps", 0),
    "nothing": (lambda i, j: jnp.zeros((1, 1)), "steps", 0),
}


def evaluated(steps, values):
    """The values of all steps, behind the given values, which begin with the positions of queries and keys."""
    values, apart = list(values), (values[0] - values[1]).astype(jnp.float32)
    for operation, inputs, parameters in steps:
        read = [jnp.full(apart.shape, x.value, x.dtype) if isinstance(x, Constant) else values[x] for x in inputs]
        special = {"|i-j|": abs(apart), "i-j": apart}
        values.append(special[operation] if operation in special else operation.bind(*read, **dict(parameters)))
    return values


def planned(evaluate, bias):
    """The operands and the program of a bias; `evaluate` traces the function that plans, and returns the operands."""
    programs = []

    def plan():
        program, operands = bias_programs.plan(bias, HEADS, 1, COUNTS, PADDED)
        programs.append(program)
        return operands

    return evaluate(plan), *programs


def computed(program, operands, i, j, head):
    """The bias of one head as its program computes it, for i and j of one shape."""
    if program.kind == "table":
        return operands[0][head][i - j + PADDED[1]]
    if program.kind == "near":
        reach = program.constant_from
        return operands[0][head][jnp.clip(i - j, -reach, reach) + bias_programs.NEAR]
    numbers = [x[n, head] for x in operands for n in range(len(x))]
    if program.kind == "linear":
        return numbers[0] * abs((i - j).astype(jnp.float32))
    return evaluated(program.steps, [i, j, *(jnp.full(i.shape, x) for x in numbers)])[-1]


@pytest.mark.parametrize("name", BIASES)
def test_a_program_has_the_values_of_its_bias(name):
    """For positions that are counted from 0 (`counts`), and for positions that the caller gives (no counts)."""
    bias, kind, steps = BIASES[name]
    programs, cases = [], [(COUNTS, (QUERY_AT, KEY_AT)), (None, (QUERY_AT, KEY_AT)), (None, FAR)]

    def both():
        for counts, (i, j) in cases:
            program, operands = bias_programs.plan(bias, HEADS, 1, counts, PADDED)
            programs.append(program)
            tile = jnp.broadcast_arrays(jnp.asarray(i)[:, None], jnp.asarray(j)[None])
            got = jnp.stack([computed(program, operands, *tile, head) for head in range(HEADS)])
            yield got, jnp.broadcast_to(bias(i, j), (HEADS, *COUNTS))

    results = jax.jit(lambda: [*both()])()
    for program, (counts, _), (got, want) in zip(programs, cases, results, strict=True):
        assert hash(program) is not None
        if counts is None:
            assert steps in (program.kind, len(program.steps))
        else:
            assert program.kind == kind
        bound = 0 if program.kind in ("table", "near") else 1e-6 * np.maximum(1, np.abs(want))
        assert_within(got, want, bound, against=f"the bias, counts {counts}")


# Derivatives


def curved(i, j, size, rate, power):
    """Steps whose derivatives are other steps: a selection, a hyperbolic tangent, a root, a power, a product twice."""
    x = distance(i, j).astype(jnp.float32) + 1
    near = size * jnp.tanh(rate * x) / jnp.sqrt(1 + rate)
    return jnp.where(difference(i, j) > 0, near, rate * x**power) - jnp.maximum(size, x) * jnp.exp(-rate * x)


PULLBACKS = {  # a bias of positions and learned arrays, and the number of these arrays
    "ALiBi": (pe.alibi, 1),
    "KERPLE, logarithm": (pe.kerple_log, 2),
    "curved": (lambda i, j, *x: curved(i, j, *(a[:, None, None] for a in x)), 3),
    "functions of parameters": (lambda i, j, x: pe.alibi(i, j, jax.nn.softplus(x) + jax.nn.relu(x - 0.5)), 1),
    "of no position": (lambda i, j, x: x[:, None, None], 1),
}


@pytest.mark.parametrize(
    ("name", "counted"),
    [*[(name, name != "curved") for name in PULLBACKS], ("KERPLE, logarithm", False), slow("ALiBi", False)],
)
def test_a_pullback_is_that_of_the_bias(name, counted):
    """From ds, the cotangents of scores: the cotangents of the learned arrays."""
    function, count = PULLBACKS[name]
    learned = [NUMBERS / (n + 2) for n in range(count)]
    ds, programs = RNG.normal(size=(HEADS, *COUNTS)).astype(np.float32), []

    def wanted(*learned):
        """The cotangents by JAX's derivative of the bias itself."""
        bias = lambda *learned: jnp.broadcast_to(function(QUERY_AT, KEY_AT, *learned), ds.shape)  # noqa: E731
        return jax.vjp(bias, *learned)[1](ds)

    def operands(*learned):
        bias = lambda i, j: function(i, j, *learned)  # noqa: E731
        program, operands = bias_programs.plan(bias, HEADS, 1, COUNTS if counted else None, PADDED)
        programs.append(program)
        return operands

    @jax.jit
    def both(*learned):
        (numbers,), pull = jax.vjp(operands, *learned)
        tile, program = [jnp.asarray(x) for x in np.broadcast_arrays(QUERY_AT[:, None], KEY_AT[None])], programs[0]
        if program.kind == "table":  # the cotangent of an entry is the sum of ds along a diagonal
            index = tile[0] - tile[1] + PADDED[1]
            of_table = jnp.stack([jnp.zeros(sum(PADDED), jnp.float32).at[index].add(x) for x in ds])
            return pull((of_table,)), wanted(*learned)
        cotangents = []  # for each head, of each number that the program reads
        for head in range(HEADS):
            if program.kind == "linear":
                per_score = [ds[head] * abs(tile[0] - tile[1]).astype(np.float32)]
            else:
                steps, indices = program.pullback
                values = evaluated(steps, [*tile, *(jnp.full(COUNTS, x) for x in numbers[:, head]), ds[head]])
                per_score = [values[index] for index in indices]
            cotangents.append(jnp.stack([jnp.sum(x) for x in per_score]))
        return pull((jnp.stack(cotangents, 1),)), wanted(*learned)

    got, want = both(*learned)
    assert_within(got, want, 1e-5 * np.maximum(1, np.abs(want)), against="the bias")


def doubled(x):
    """2 · x, with a custom derivative of 5."""
    twice = jax.custom_jvp(lambda x: 2 * x)
    twice.defjvp(lambda primals, tangents: (2 * primals[0], 5 * tangents[0]))
    return twice(x)


@pytest.mark.parametrize(
    ("bias", "kind"),
    [
        (lambda i, j: doubled(PER_HEAD * total(i, j)), "steps"),
        (lambda i, j: doubled(PER_HEAD * distance(i, j).astype(jnp.float32)), "linear"),
        (functools.partial(pe.fire, mlp=MLP, c=0.5, threshold=4.0), "steps"),
    ],
)
def test_no_pullback_where_a_derivative_is_not_that_of_the_operations(bias, kind):
    numbers, program = planned(jax.eval_shape, bias)
    assert program.kind == kind and numbers and program.pullback is None


# What a kernel cannot compute


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (lambda i, j: jnp.ones((HEADS, *COUNTS)), "bias must be one number for each head and score"),
        (lambda i, j: jnp.cumsum(pe.alibi(i, j, HEADS), -1), "cannot compute 'cumsum' in a bias"),
        (lambda i, j: ROW[i[:, None]] - j[None].astype(jnp.float32), "cannot compute 'gather' in a bias"),
        (lambda i, j: jnp.sin(total(i, j)), "cannot compute 'sin' in a bias"),
        (lambda i, j: total(i, j).astype(jnp.float16).astype(jnp.float32), "cannot compute .*type to f.*16"),
        (
            lambda i, j: (np.arange(HEADS, dtype=np.int32)[:, None, None] * i[0]).astype(jnp.float32),
            "float32 numbers.*int32",
        ),
        (of_numbers(17), "bias must have at most 16 numbers for each head.*got 17"),
    ],
)
def test_what_a_kernel_cannot_compute_raises(bias, message):
    with pytest.raises(ValueError, match=message) as caught:
        jax.eval_shape(lambda: bias_programs.plan(bias, HEADS, 1, COUNTS, PADDED)[1])
    assert "use implementation='xla'" in str(caught.value)


def test_of_a_platform_dependent_bias_the_branch_for_cuda_is_taken():
    """`lax.platform_dependent` takes the default if there is no branch for CUDA."""
    once, twice = (functools.partial(jnp.multiply, np.float32(n)) for n in (1, 2))
    for branches in ({"cuda": twice, "default": once}, {"cpu": once, "default": twice}):
        bias = lambda i, j: lax.platform_dependent(distance(i, j).astype(jnp.float32), **branches)  # noqa: B023, E731
        (numbers,), program = planned(lambda plan: jax.jit(plan)(), bias)
        assert program.kind == "linear" and np.all(np.asarray(numbers) == 2)
