"""A bias of positions as a kernel computes it: operations on single scores, or a table of differences.

The bias is traced for one query and one key. What depends on no position is computed outside the kernel, and gives the
kernel numbers for each head. What is left must be elementwise. A bias of the difference of counted positions alone may
also be computed outside, once for each difference. The kernel then looks it up, with the bits that XLA computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posenc_jax._jax import checks, errors
from posenc_jax._jax.errors import invalid, require
from posenc_jax._jax.primitives import evaluated
from posenc_jax._jax.workarounds import largest_kept

OR_XLA = "use implementation='xla'"
MOST_STEPS, MOST_NUMBERS = 3, 16  # more steps take longer than a lookup; more numbers leave registers
LONG = 8  # a program with more steps needs registers that kernels otherwise use
NEAR = 128  # a table of near differences has those from −128 to 127
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
ELEMENTWISE = {
    *("add", "sub", "mul", "div", "max", "min", "neg", "abs", "sign", "select_n", "square", "integer_pow"),
    *(*COMPARISONS, "and", "or", "xor", "not", "convert_element_type", "bitcast_convert_type"),
    *("exp", "exp2", "log", "log1p", "pow", "sqrt", "rsqrt", "tanh", "add_any", "one_minus_square"),
}
IN_TABLES = ELEMENTWISE | {"gather", "floor", "ceil", "round", "rem", "clamp", "sin", "cos", "erf", "logistic"}
# All axes but that of heads have size 1, so these change nothing.
MOVES = {"reshape", "squeeze", "broadcast_in_dim", "expand_dims", "transpose", "copy", "pvary", "pcast"}
CONSTANT = frozenset({0})
CALLS = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"}
# (operation, forms of its operands) → the form of its result
FORMS = {
    ("sub", "i", "j"): "i-j",
    ("sub", "j", "i"): "j-i",
    ("lt", "i", "j"): "i<j",
    ("gt", "j", "i"): "i<j",
    ("select_n", "i<j", "i-j", "j-i"): "|i-j|",
    ("abs", "i-j"): "|i-j|",
    ("abs", "j-i"): "|i-j|",
}


class Constant(NamedTuple):
    """A number that is the same for all heads and known when the kernel is traced."""

    value: Any
    dtype: str


class Step(NamedTuple):
    """An operation on values: the positions, then the numbers of a head, then the results of the steps before."""

    operation: Any  # a primitive, or "i-j" or "|i-j|", in float32
    inputs: tuple[Any, ...] = ()  # indices of values, or constants
    parameters: tuple[tuple[str, Any], ...] = ()


class BiasProgram(NamedTuple):
    """How a kernel computes a bias; hashable."""

    kind: str  # "steps", whose last value is the bias; "linear", a number times |i − j|; "table"; or "near"
    steps: tuple[Step, ...] = ()
    # How the cotangents of numbers depend on the positions, the numbers and the cotangent of the bias: steps, and which
    # values are the results. None: a kernel cannot compute them.
    pullback: tuple[tuple[Step, ...], tuple[int, ...]] | None = None
    end: int = 0  # of a table of near differences: the distance from which the bias is constant on each side


class _Value:
    """What depends on positions: a step whose inputs may be arrays."""

    grows: frozenset[int] = CONSTANT
    end: Any = None  # see `_ends`
    place = 0  # of a value that is given, among these
    ruled = False  # whether it has a derivative other than that of its steps
    rounded = False  # whether it stands for `workarounds.rounded_product`

    def __init__(self, form: str, apart: bool = False, step: Any = None, refused: str = "", slope: Any = None) -> None:
        self.form = form  # "i", "j", or one of `FORMS`, of any dtype, or ""
        self.apart = apart  # whether it depends on i − j alone
        self.step = step  # None for a value that is given
        self.refused = refused  # what a kernel cannot compute, or ""
        self.slope = 1 if slope is None and step is not None and step.operation == "|i-j|" else slope


def plan(
    bias: Callable[..., Any], heads: int, axes: int, counts: tuple[int, int] | None, padded: tuple[int, int]
) -> tuple[BiasProgram, tuple[jax.Array, ...]]:
    """A program and its operands: float32 numbers (numbers, heads), or a table (heads, differences).

    Args:
      bias: a function of positions.
      heads: the number of heads.
      axes: of positions: 1, or 2 if they have a batch axis.
      counts: the numbers of queries and keys if positions are counted from 0, else None.
      padded: these numbers with padding. A table begins at the difference −keys, and has queries + keys entries.
    """
    with errors.callback():
        traced = jax.make_jaxpr(bias)(*[jax.ShapeDtypeStruct((1,) * axes, jnp.int32)] * 2)
    checks.one_float_array("bias", traced.out_avals)
    out: Any = traced.out_avals[0]
    shape = (1, 1, 1, *out.shape)
    fits = shape[-3] in (1, heads) and math.prod(shape) == shape[-3]
    require(fits, "bias must be one number for each head and score, or " + OR_XLA + "; got shape {}", shape[3:])
    walk = _Walk(heads, counted=counts is not None)
    (result,) = walk.run(traced.jaxpr, traced.consts, _given("i", "j"))
    if not isinstance(result, _Value):
        return BiasProgram("steps", pullback=((), (3,))), (_per_head(result, heads)[None],)
    if result.slope is not None:
        return BiasProgram("linear", pullback=None if result.ruled else ((), ())), (
            _per_head(jnp.asarray(result.slope), heads)[None],
        )
    steps, numbers, _ = _needed([result], 2)
    if counts is not None and result.apart and (result.refused or len(steps) > MOST_STEPS):
        differences = np.arange(-padded[1], padded[0]).clip(1 - counts[1], counts[0] - 1)
        return BiasProgram("table", pullback=((), ())), (_table(bias, differences, axes, heads),)
    end = NEAR if result.grows != CONSTANT or not result.apart or result.end is None else result.end
    if counts is None and end < NEAR and (result.refused or len(steps) > MOST_STEPS):
        differences = np.arange(-NEAR, NEAR).clip(-end, end)
        return BiasProgram("near", end=end), (_table(bias, differences, axes, heads),)
    if result.refused:
        raise _refused(result.refused)
    few = len(numbers) <= MOST_NUMBERS
    require(few, "bias must have at most {} numbers for each head, or {}; got {}", MOST_NUMBERS, OR_XLA, len(numbers))
    odd = next((str(x.dtype) for x in numbers if x.dtype != np.float32 or x.size not in (1, heads)), "")
    require(not odd, "bias must compute scores from float32 numbers of heads, or {}; got {}", OR_XLA, odd)
    if not numbers:
        return BiasProgram("steps", steps), ()
    pullback = None if result.ruled else _pullback(steps, len(numbers), walk.counted)
    return BiasProgram("steps", steps, pullback), (jnp.stack([_per_head(x, heads) for x in numbers]),)


def _pullback(steps: tuple[Step, ...], count: int, counted: bool) -> tuple[tuple[Step, ...], tuple[int, ...]] | None:
    """Of a program of steps that reads `count` numbers: see `Program`."""

    def bias(numbers: Any, i: Any, j: Any) -> Any:
        values = [i, j, *numbers]
        for operation, inputs, parameters in steps:
            if isinstance(operation, str):
                difference = (i - j).astype(jnp.float32)
                values.append(jnp.abs(difference) if operation == "|i-j|" else difference)
            else:
                read = (jnp.asarray(x.value, x.dtype) if isinstance(x, Constant) else values[x] for x in inputs)
                values.append(operation.bind(*read, **dict(parameters)))
        return values[-1]

    def back(i: Any, j: Any, *more: Any) -> Any:
        *numbers, ds = more
        return jax.vjp(lambda numbers: bias(numbers, i, j), numbers)[1](ds)[0]

    integer, number = (jax.ShapeDtypeStruct((), dtype) for dtype in (np.int32, np.float32))
    traced = jax.make_jaxpr(back)(integer, integer, *[number] * (count + 1))
    given = _given("i", "j", *[""] * (count + 1))
    try:
        found = _Walk(1, counted).run(traced.jaxpr, traced.consts, given)
    except ValueError:  # an operation that a kernel cannot compute
        return None
    nothing = _Value("", step=Step(lax.mul_p, (given[-1], Constant(0.0, "float32"))))
    steps, numbers, places = _needed([x if isinstance(x, _Value) else nothing for x in found], len(given))
    return None if numbers else (steps, places)


def _given(*forms: str) -> list[_Value]:
    values = [_Value(form) for form in forms]
    for place, value in enumerate(values):
        value.place = place
    return values


def _table(bias: Callable[..., Any], differences: np.ndarray, axes: int, heads: int) -> jax.Array:
    """The bias at these differences, float32 (heads, differences)."""
    shape = (1,) * (axes - 1)
    positions = jnp.asarray(differences, jnp.int32).reshape(*shape, -1), jnp.zeros((*shape, 1), jnp.int32)
    with errors.callback():
        table = bias(*positions).reshape(-1, len(differences)).astype(jnp.float32)
    return jnp.broadcast_to(table, (heads, len(differences)))


def _refused(operation: str) -> ValueError:
    return invalid(f"implementation='mosaic_gpu' cannot compute {operation!r} in a bias; {OR_XLA}")


def _per_head(x: Any, heads: int) -> jax.Array:
    """A number, or a number for each head, as float32 (heads,)."""
    if isinstance(x, Constant):
        return jnp.full(heads, x.value, jnp.float32)
    return jnp.broadcast_to(x.reshape(-1), heads).astype(jnp.float32)


def _constant(x: Any) -> Any:
    """A number of NumPy's or Python's as a constant; any other array as it is."""
    plain = not isinstance(x, jax.Array) and np.size(x) == 1
    return Constant(np.asarray(x).item(), str(jnp.result_type(x))) if plain else x


class _Walk(NamedTuple):
    """Runs a jaxpr: computes what is known, and makes values of what depends on positions."""

    heads: int
    counted: bool

    def run(self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*map(_constant, constants), *inputs), strict=True))

        def read(atom: Any) -> Any:
            return _constant(atom.val) if hasattr(atom, "val") else known[atom]

        for eqn in jaxpr.eqns:
            known |= zip(eqn.outvars, self._results(eqn, [*map(read, eqn.invars)]), strict=True)
        return [*map(read, jaxpr.outvars)]

    def _results(self, eqn: Any, inputs: list[Any]) -> Sequence[Any]:
        name, parameters = eqn.primitive.name, eqn.params
        if platforms := parameters.get("branches_platforms"):
            index = next(i for i, names in enumerate(platforms) if names is None or {"cuda", "gpu"} & {*names})
            return self._inner(parameters["branches"][index], inputs[1:])
        varies = any(isinstance(x, _Value) for x in inputs)
        if name in CALLS and (varies or not name.startswith("custom")):
            results = self._inner(next(p for k, p in parameters.items() if k in ("jaxpr", "call_jaxpr")), inputs)
            for x in results:
                if name.startswith("custom") and isinstance(x, _Value):
                    x.ruled |= not x.rounded
            return results
        if name in MOVES and isinstance(inputs[0], Constant):  # of any shape
            return inputs
        if name == "convert_element_type" and isinstance(inputs[0], Constant):
            return [_constant(np.asarray(inputs[0].value).astype(parameters["new_dtype"]))]
        if name in MOVES and isinstance(inputs[0], _Value) and eqn.outvars[0].aval.size in (1, self.heads):
            return inputs
        if varies:
            return [self._value(eqn, inputs)]
        arrays = (
            jnp.full(atom.aval.shape, x.value, x.dtype) if isinstance(x, Constant) else jnp.asarray(x)
            for atom, x in zip(eqn.invars, inputs, strict=True)
        )
        return evaluated(eqn, [*arrays])

    def _inner(self, jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
        return self.run(getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ()), inputs)

    def _value(self, eqn: Any, inputs: Sequence[Any]) -> _Value:
        name, out = eqn.primitive.name, eqn.outvars[0].aval
        values, dtype = [x for x in inputs if isinstance(x, _Value)], str(out.dtype)
        forms = tuple(x.form if isinstance(x, _Value) else "" for x in inputs)
        form = forms[0] if name == "convert_element_type" else FORMS.get((name, *forms), "")
        apart = all(x.apart for x in values) or (name in ("sub", *COMPARISONS) and {*forms} == {"i", "j"})
        refused = next((x.refused for x in values if x.refused), "")
        if name not in ELEMENTWISE:
            refused = name
        elif dtype not in ("float32", "int32", "uint32", "bool") or out.size not in (1, self.heads):
            refused = f"{name} to {out.str_short()}"
        if refused and not (apart and name in IN_TABLES):
            raise _refused(refused)
        if name == "bitcast_convert_type" and (product := _before_rounding(values[0])) is not None:
            return product
        step: Any = Step(eqn.primitive, tuple(inputs), tuple(eqn.params.items()))
        if self.counted and form in ("i-j", "|i-j|") and dtype == "float32":
            step = Step(form)
        value = _Value(form, apart, step, refused, _slope(name, inputs))
        value.grows, value.end = _ends(name, form, dtype, inputs)
        value.ruled = any(x.ruled for x in values)
        return value


def _before_rounding(bits: _Value) -> _Value | None:
    """The product of a `rounded_product`, of which these are the bits; a kernel may contract it."""
    name = lambda x: getattr(getattr(x.step, "operation", None), "name", "")  # noqa: E731
    if name(bits) != "min" or bits.step.inputs[1:] != (Constant(largest_kept(np.int32), "int32"),):
        return None
    raw = bits.step.inputs[0]
    if name(raw) != "bitcast_convert_type" or name(raw.step.inputs[0]) != "mul":
        return None
    raw.step.inputs[0].rounded = True
    return raw.step.inputs[0]


def _ends(name: str, form: str, dtype: str, inputs: Sequence[Any]) -> tuple[frozenset[int], Any]:
    """How a value may depend on d = i − j from an end on, on either side, and that end.

    It is constant (0), or grows (1) or falls (−1) as |d|; which of these, a side decides. None for no end.
    """
    values = [x for x in inputs if isinstance(x, _Value)]
    integer = dtype in ("int32", "uint32")
    if form in ("i-j", "j-i", "|i-j|") and integer:
        return frozenset({1} if form == "|i-j|" else {-1, 1}), 0
    if name in COMPARISONS and {x.form for x in values} == {"i", "j"}:
        return CONSTANT, 1
    if any(x.end is None for x in values):
        return CONSTANT, None
    grows = frozenset().union(*(x.grows for x in values))
    if grows == CONSTANT:
        return CONSTANT, max(x.end for x in values)
    bounds = [x.value for x in inputs if isinstance(x, Constant)]
    end = max([x.end for x in values] + [abs(x) + 1 for x in bounds])
    plain = all(isinstance(x, (_Value, Constant)) for x in inputs)
    if bounds and plain and name in (*COMPARISONS, "clamp"):
        return CONSTANT, end
    if bounds and plain and name in ("min", "max"):
        return CONSTANT | (grows - {1 if name == "min" else -1}), end
    if name == "convert_element_type" and (dtype == "int32" or -1 not in grows):
        return (grows, end) if integer else (CONSTANT, None)
    if name == "select_n" and plain and inputs[0] is values[0] and values[0].grows == CONSTANT:
        return grows | CONSTANT, end
    return CONSTANT, None


def _slope(name: str, inputs: Sequence[Any]) -> Any:
    """The number m of a product m · |i − j|, else None."""
    if name == "neg" and inputs[0].slope is not None:
        return -inputs[0].slope
    values, numbers = ([x for x in inputs if isinstance(x, _Value) == wanted] for wanted in (True, False))
    if name != "mul" or len(values) != 1:
        return None
    slope, (number,) = values[0].slope, numbers
    number = jnp.asarray(number.value, jnp.float32) if isinstance(number, Constant) else number
    return None if slope is None else jnp.reshape(number, -1) * slope


def _needed(results: list[_Value], given: int) -> tuple[tuple[Step, ...], list[jax.Array], tuple[int, ...]]:
    """The steps to results, in order, the numbers that they read, and where the results are among all values."""
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
    index = {i: given + n for n, i in enumerate(numbers)} | {i: first + n for n, i in enumerate(ordered)}

    def of(x: Any) -> Any:
        if isinstance(x, _Value) and x.step is None:
            return x.place
        return x if isinstance(x, Constant) else index[id(x)]

    steps = tuple(step._replace(inputs=tuple(map(of, step.inputs))) for step in ordered.values())
    return steps, [*numbers.values()], tuple(map(of, results))
