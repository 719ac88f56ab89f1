"""A bias of positions as a kernel computes it: operations on single scores, or a table of differences.

The bias is traced for one query and one key. Values that depend on no position are computed outside the kernel, which
reads them as numbers per head. All other operations must be elementwise. A bias that depends on the difference of
counted positions alone may instead be computed outside the kernel, once per difference. The kernel then looks it up,
with the bits that XLA computes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._jax import checks
from posenc_jax._jax.errors import callback, invalid, require
from posenc_jax._jax.primitives import evaluated
from posenc_jax._jax.workarounds import is_product

FALLBACK_HINT = "use implementation='xla'"
MOST_STEPS, MOST_NUMBERS = 3, 16  # more steps take longer than a lookup; more numbers do not fit in registers
MANY_STEPS = 8  # a program with more steps needs registers that kernels otherwise use
NEAR = 128  # a table of near differences has those from −128 to 127
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
ELEMENTWISE = {
    *("add", "sub", "mul", "div", "max", "min", "neg", "abs", "sign", "select_n", "square", "integer_pow"),
    *(*COMPARISONS, "and", "or", "xor", "not", "convert_element_type", "bitcast_convert_type"),
    *("exp", "exp2", "log", "log1p", "pow", "sqrt", "rsqrt", "tanh", "add_any", "one_minus_square"),
}
IN_TABLES = ELEMENTWISE | {"gather", "floor", "ceil", "round", "rem", "clamp", "sin", "cos", "erf", "logistic"}
# Operations that rearrange axes: all axes but that of the heads have size 1, so these change nothing.
REARRANGEMENTS = {"reshape", "squeeze", "broadcast_in_dim", "expand_dims", "transpose", "copy", "pvary", "pcast"}
CALLS = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"}
# (operation, patterns of its operands) → the pattern of its result
PATTERNS = {
    ("sub", "i", "j"): "i-j",
    ("sub", "j", "i"): "j-i",
    ("lt", "i", "j"): "i<j",
    ("gt", "j", "i"): "i<j",
    ("select_n", "i<j", "i-j", "j-i"): "|i-j|",
    ("abs", "i-j"): "|i-j|",
    ("abs", "j-i"): "|i-j|",
}


class Constant(NamedTuple):
    """A number that is the same for all heads, with a value when the kernel is traced."""

    value: Any
    dtype: str


class Step(NamedTuple):
    """An operation on values, which are the positions, the numbers of a head, and the results of earlier steps."""

    operation: Any  # a primitive, or "i-j" or "|i-j|", in float32
    inputs: tuple[Any, ...] = ()  # indices of values, or constants
    parameters: tuple[tuple[str, Any], ...] = ()


class BiasProgram(NamedTuple):
    """How a kernel computes a bias; hashable."""

    kind: str  # "steps", whose last value is the bias; "linear", a number times |i − j|; "table"; or "near"
    steps: tuple[Step, ...] = ()
    # The cotangents of the numbers, from the positions, the numbers and the cotangent of the bias: steps, and the
    # indices of the results among all values. None if a kernel cannot compute them.
    pullback: tuple[tuple[Step, ...], tuple[int, ...]] | None = None
    constant_from: int = 0  # of a table of near differences: from this distance on, the bias is constant on each side


class _Tails(NamedTuple):
    """How a value depends on the difference d = i − j, from a distance on."""

    trends: frozenset[int]  # 0: constant, 1: rises with |d|, −1: falls; if there are several, each side of 0 has one
    start: Any  # the distance


CONSTANT_TRENDS = frozenset({0})


@dataclasses.dataclass(eq=False)
class _Value:
    """A value that depends on positions, or that a kernel is given."""

    pattern: str  # "i", "j", a result in `PATTERNS`, of any dtype, or "" for any other function of positions
    step: Step | None = None  # what computes it, with values and arrays as inputs; None for a value that is given
    index: int = 0  # of a value that is given, among these
    by_difference: bool = False  # whether it depends on i − j alone
    tails: _Tails | None = None
    slope: Any = None  # the number m of a value m · |i − j|
    unsupported: str = ""  # an operation that a kernel cannot compute, of this value or of one that it depends on
    custom_derivative: bool = False  # whether its derivative is another than that of its steps


def plan(
    bias: Callable[..., Any], heads: int, axes: int, counts: tuple[int, int] | None, padded: tuple[int, int]
) -> tuple[BiasProgram, tuple[jax.Array, ...]]:
    """A program and its operands: float32 numbers (numbers, heads), or a table (heads, differences).

    Args:
      bias: a function of positions.
      heads: the number of heads.
      axes: the number of axes of positions: 1, or 2 with a batch axis.
      counts: the numbers of queries and keys if positions are counted from 0, else None.
      padded: the numbers of queries and keys with padding. A table begins at the difference −keys, and has one entry
        for each of queries + keys differences.
    """
    with callback():
        traced = jax.make_jaxpr(bias)(*[jax.ShapeDtypeStruct((1,) * axes, jnp.int32)] * 2)
    checks.one_float_array("bias", traced.out_avals)
    out: Any = traced.out_avals[0]
    shape = (1, 1, 1, *out.shape)
    fits = shape[-3] in (1, heads) and math.prod(shape) == shape[-3]
    require(fits, "bias must be one number for each head and score, or " + FALLBACK_HINT + "; got shape {}", shape[3:])
    interpreter = _Interpreter(heads, counted=counts is not None)
    (result,) = interpreter.run(traced.jaxpr, traced.consts, _given_values("i", "j"))
    if not isinstance(result, _Value):
        return BiasProgram("steps", pullback=((), (3,))), (_per_head(result, heads)[None],)
    if result.slope is not None:
        pullback = None if result.custom_derivative else ((), ())
        return BiasProgram("linear", pullback=pullback), (_per_head(jnp.asarray(result.slope), heads)[None],)
    steps, numbers, _ = _steps_to([result], 2)
    lookup_is_better = bool(result.unsupported) or len(steps) > MOST_STEPS
    if counts is not None and result.by_difference and lookup_is_better:
        differences = np.arange(-padded[1], padded[0]).clip(1 - counts[1], counts[0] - 1)
        return BiasProgram("table", pullback=((), ())), (_table(bias, differences, axes, heads),)
    tails, constant_from = result.tails, NEAR
    if tails is not None and tails.trends == CONSTANT_TRENDS and result.by_difference:
        constant_from = tails.start
    if counts is None and constant_from < NEAR and lookup_is_better:
        differences = np.arange(-NEAR, NEAR).clip(-constant_from, constant_from)
        return BiasProgram("near", constant_from=constant_from), (_table(bias, differences, axes, heads),)
    if result.unsupported:
        raise _unsupported(result.unsupported)
    fit = len(numbers) <= MOST_NUMBERS
    require(
        fit, "bias must have at most {} numbers for each head, or {}; got {}", MOST_NUMBERS, FALLBACK_HINT, len(numbers)
    )
    other_dtype = next((str(x.dtype) for x in numbers if x.dtype != np.float32 or x.size not in (1, heads)), "")
    require(
        not other_dtype,
        "bias must compute scores from float32 numbers of heads, or {}; got {}",
        FALLBACK_HINT,
        other_dtype,
    )
    if not numbers:
        return BiasProgram("steps", steps), ()
    pullback = None if result.custom_derivative else _pullback(steps, len(numbers), interpreter.counted)
    return BiasProgram("steps", steps, pullback), (jnp.stack([_per_head(x, heads) for x in numbers]),)


def _pullback(steps: tuple[Step, ...], count: int, counted: bool) -> tuple[tuple[Step, ...], tuple[int, ...]] | None:
    """The pullback of a program of steps that reads `count` numbers; see `BiasProgram`."""

    def bias(numbers: Any, i: Any, j: Any) -> Any:
        values = [i, j, *numbers]
        for operation, inputs, parameters in steps:
            if isinstance(operation, str):
                difference = (i - j).astype(jnp.float32)
                values.append(jnp.abs(difference) if operation == "|i-j|" else difference)
            else:
                operands = (jnp.asarray(x.value, x.dtype) if isinstance(x, Constant) else values[x] for x in inputs)
                values.append(operation.bind(*operands, **dict(parameters)))
        return values[-1]

    def cotangents(i: Any, j: Any, *numbers_and_ds: Any) -> Any:
        *numbers, ds = numbers_and_ds
        return jax.vjp(lambda numbers: bias(numbers, i, j), numbers)[1](ds)[0]

    integer, number = (jax.ShapeDtypeStruct((), dtype) for dtype in (np.int32, np.float32))
    traced = jax.make_jaxpr(cotangents)(integer, integer, *[number] * (count + 1))
    given = _given_values("i", "j", *[""] * (count + 1))
    try:
        results = _Interpreter(1, counted).run(traced.jaxpr, traced.consts, given)
    except ValueError:  # an operation that a kernel cannot compute
        return None
    zero = _Value("", Step(lax.mul_p, (given[-1], Constant(0.0, "float32"))))
    steps, numbers, indices = _steps_to([x if isinstance(x, _Value) else zero for x in results], len(given))
    return None if numbers else (steps, indices)


def _given_values(*patterns: str) -> list[_Value]:
    return [_Value(pattern, index=index) for index, pattern in enumerate(patterns)]


def _table(bias: Callable[..., Any], differences: np.ndarray, axes: int, heads: int) -> jax.Array:
    """The bias at these differences, float32 (heads, differences)."""
    shape = (1,) * (axes - 1)
    positions = jnp.asarray(differences, jnp.int32).reshape(*shape, -1), jnp.zeros((*shape, 1), jnp.int32)
    with callback():
        table = bias(*positions).reshape(-1, len(differences)).astype(jnp.float32)
    return jnp.broadcast_to(table, (heads, len(differences)))


def _unsupported(operation: str) -> ValueError:
    return invalid(f"implementation='mosaic_gpu' cannot compute {operation!r} in a bias; {FALLBACK_HINT}")


def _per_head(x: Any, heads: int) -> jax.Array:
    """A number, or one number per head, as float32 (heads,)."""
    if isinstance(x, Constant):
        return jnp.full(heads, x.value, jnp.float32)
    return jnp.broadcast_to(x.reshape(-1), heads).astype(jnp.float32)


def _constant(x: Any) -> Any:
    """A number of NumPy or Python as a constant; any other array as it is."""
    plain = not isinstance(x, jax.Array) and np.size(x) == 1
    return Constant(np.asarray(x).item(), str(jnp.result_type(x))) if plain else x


class _Interpreter(NamedTuple):
    """Interprets a jaxpr: computes what depends on no position, and makes values of all else."""

    heads: int
    counted: bool

    def run(self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        environment = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*map(_constant, constants), *inputs), strict=True))

        def read(atom: Any) -> Any:
            return _constant(atom.val) if hasattr(atom, "val") else environment[atom]

        for eqn in jaxpr.eqns:
            environment |= zip(eqn.outvars, self._results(eqn, [*map(read, eqn.invars)]), strict=True)
        return [*map(read, jaxpr.outvars)]

    def _results(self, eqn: Any, inputs: list[Any]) -> Sequence[Any]:
        """The results of an equation."""
        name, parameters = eqn.primitive.name, eqn.params
        if platforms := parameters.get("branches_platforms"):
            index = next(i for i, names in enumerate(platforms) if names is None or {"cuda", "gpu"} & {*names})
            return self._run_call(parameters["branches"][index], inputs[1:])
        varies = any(isinstance(x, _Value) for x in inputs)
        if varies and is_product(eqn):  # in a kernel it may be contracted, and its derivative is that of `lax.mul`
            out = eqn.outvars[0].aval
            return self._run_call(jax.make_jaxpr(lax.mul)(*[jax.ShapeDtypeStruct(out.shape, out.dtype)] * 2), inputs)
        if name in CALLS and (varies or not name.startswith("custom")):
            results = self._run_call(next(p for k, p in parameters.items() if k in ("jaxpr", "call_jaxpr")), inputs)
            for x in results:
                if name.startswith("custom") and isinstance(x, _Value):
                    x.custom_derivative = True
            return results
        if name in REARRANGEMENTS and isinstance(inputs[0], Constant):  # of any shape
            return inputs
        if name == "convert_element_type" and isinstance(inputs[0], Constant):
            return [_constant(np.asarray(inputs[0].value).astype(parameters["new_dtype"]))]
        if name in REARRANGEMENTS and isinstance(inputs[0], _Value) and eqn.outvars[0].aval.size in (1, self.heads):
            return inputs
        if varies:
            return [self._value(eqn, inputs)]
        arrays = (
            jnp.full(atom.aval.shape, x.value, x.dtype) if isinstance(x, Constant) else jnp.asarray(x)
            for atom, x in zip(eqn.invars, inputs, strict=True)
        )
        return evaluated(eqn, [*arrays])

    def _run_call(self, jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
        """The results of a call of a jaxpr, which may be closed."""
        return self.run(getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ()), inputs)

    def _value(self, eqn: Any, inputs: Sequence[Any]) -> _Value:
        """The result of an operation of which an input depends on positions."""
        name, out = eqn.primitive.name, eqn.outvars[0].aval
        values, dtype = [x for x in inputs if isinstance(x, _Value)], str(out.dtype)
        patterns = tuple(x.pattern if isinstance(x, _Value) else "" for x in inputs)
        pattern = patterns[0] if name == "convert_element_type" else PATTERNS.get((name, *patterns), "")
        compares_positions = name in ("sub", *COMPARISONS) and {*patterns} == {"i", "j"}
        by_difference = all(x.by_difference for x in values) or compares_positions
        unsupported = next((x.unsupported for x in values if x.unsupported), "")
        if name not in ELEMENTWISE:
            unsupported = name
        elif dtype not in ("float32", "int32", "uint32", "bool") or out.size not in (1, self.heads):
            unsupported = f"{name} to {out.str_short()}"
        if unsupported and not (by_difference and name in IN_TABLES):
            raise _unsupported(unsupported)
        step: Any = Step(eqn.primitive, tuple(inputs), tuple(eqn.params.items()))
        if self.counted and pattern in ("i-j", "|i-j|") and dtype == "float32":
            step = Step(pattern)
        return _Value(
            pattern,
            step,
            by_difference=by_difference,
            tails=_tails(name, pattern, dtype, inputs),
            slope=_slope(name, inputs, step),
            unsupported=unsupported,
            custom_derivative=any(x.custom_derivative for x in values),
        )


def _tails(name: str, pattern: str, dtype: str, inputs: Sequence[Any]) -> _Tails | None:
    """The tails of the result of an operation; None if there are none of one trend on each side."""
    values = [x for x in inputs if isinstance(x, _Value)]
    integer = dtype in ("int32", "uint32")
    if pattern in ("i-j", "j-i", "|i-j|") and integer:
        return _Tails(frozenset({1} if pattern == "|i-j|" else {-1, 1}), 0)
    if name in COMPARISONS and {x.pattern for x in values} == {"i", "j"}:
        return _Tails(CONSTANT_TRENDS, 1)
    tails = [x.tails for x in values if x.tails is not None]
    if len(tails) < len(values):
        return None
    trends: frozenset[int] = frozenset().union(*(x.trends for x in tails))
    if trends == CONSTANT_TRENDS:
        return _Tails(CONSTANT_TRENDS, max(x.start for x in tails))
    bounds = [x.value for x in inputs if isinstance(x, Constant)]
    start = max([x.start for x in tails] + [abs(x) + 1 for x in bounds])
    plain = all(isinstance(x, (_Value, Constant)) for x in inputs)
    if bounds and plain and name in (*COMPARISONS, "clamp"):
        return _Tails(CONSTANT_TRENDS, start)
    if bounds and plain and name in ("min", "max"):
        return _Tails(CONSTANT_TRENDS | (trends - {1 if name == "min" else -1}), start)
    if name == "convert_element_type" and (dtype == "int32" or -1 not in trends):
        return _Tails(trends, start) if integer else None
    if name == "select_n" and plain and inputs[0] is values[0] and tails[0].trends == CONSTANT_TRENDS:
        return _Tails(trends | CONSTANT_TRENDS, start)
    return None


def _slope(name: str, inputs: Sequence[Any], step: Step) -> Any:
    """The number m of a result m · |i − j|, else None."""
    if name == "neg" and inputs[0].slope is not None:
        return -inputs[0].slope
    values, numbers = ([x for x in inputs if isinstance(x, _Value) == varies] for varies in (True, False))
    if name == "mul" and len(values) == 1 and values[0].slope is not None:
        (number,) = numbers
        number = jnp.asarray(number.value, jnp.float32) if isinstance(number, Constant) else number
        return jnp.reshape(number, -1) * values[0].slope
    return 1 if step.operation == "|i-j|" else None


def _steps_to(results: list[_Value], given: int) -> tuple[tuple[Step, ...], list[jax.Array], tuple[int, ...]]:
    """The steps that compute results, in order, the numbers that they read, and the indices of the results."""
    ordered: dict[int, Step] = {}  # by the identity of a value
    numbers: dict[int, jax.Array] = {}

    def visit(x: Any) -> None:
        if isinstance(x, _Value) and x.step is not None:
            if id(x) not in ordered:
                for each in x.step.inputs:
                    visit(each)
                ordered[id(x)] = x.step
        elif not isinstance(x, (_Value, Constant)):
            numbers[id(x)] = x

    for result in results:
        visit(result)
    first = given + len(numbers)
    indices = {i: given + n for n, i in enumerate(numbers)} | {i: first + n for n, i in enumerate(ordered)}

    def index_of(x: Any) -> Any:
        if isinstance(x, _Value) and x.step is None:
            return x.index
        return x if isinstance(x, Constant) else indices[id(x)]

    steps = tuple(step._replace(inputs=tuple(map(index_of, step.inputs))) for step in ordered.values())
    return steps, [*numbers.values()], tuple(map(index_of, results))
