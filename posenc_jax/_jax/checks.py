"""Checks of arguments: Python values, then arrays, then how a mesh shards them.

A check that returns an argument returns it in the form that computations take.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, Literal, NamedTuple, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from posenc_jax._jax.arrays import unwrap_array
from posenc_jax._jax.errors import describe, invalid, require, require_type, wrong_type

S = TypeVar("S", bound=str)
Layout = Literal["interleaved", "half"]
RotatedPart = Literal["first", "last"]
OutOfRange = Literal["error", "nan", "zeros"]
_INT32, _FLOAT32 = np.iinfo(np.int32), np.finfo(np.float32)
_NO_NUMBERS = (bool, np.bool_, np.timedelta64)  # not numbers, though some subclass integers


def one_float_array(name: str, outputs: Any) -> None:
    """Raises unless these, the types of what a function returns, are that of one float array."""
    if len(outputs) != 1 or not jnp.issubdtype(outputs[0].dtype, jnp.floating):
        raise wrong_type(f"{name} must give one float array, got {', '.join(map(str, outputs)) or 'none'}")


# Python values


def is_number(value: Any) -> bool:
    """Whether `value` is a real number; True and False are not."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, _NO_NUMBERS)


def number(name: str, value: Any, *, float32: bool = False) -> float:
    """`value` as a finite Python float; with `float32`, one that does not overflow in float32."""
    require_type(is_number(value), name, "a number", value)
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    require(math.isfinite(result), "{} must be finite, got {}", name, result)
    require(not float32 or abs(result) <= float(_FLOAT32.max), "{} must fit into float32, got {}", name, result)
    return result


def positive(name: str, value: Any) -> float:
    """`value` as a finite Python float above zero."""
    result = number(name, value)
    require(result > 0, "{} must be positive, got {}", name, result)
    return result


def positive_float32(name: str, value: Any) -> float:
    """`value` as a Python float between float32's smallest normal and largest number."""
    result, least, most = positive(name, value), float(_FLOAT32.tiny), float(_FLOAT32.max)
    require(least <= result <= most, "{} must be from {:.1e} to {:.1e} for float32, got {}", name, least, most, result)
    return result


def integer(name: str, value: Any, least: int | None = None, expected: str = "an integer") -> int:
    """`value` as a Python integer, of at least `least`."""
    require_type(isinstance(value, (int, np.integer)) and not isinstance(value, _NO_NUMBERS), name, expected, value)
    require(least is None or value >= least, "{} must be at least {}, got {}", name, least, value)
    return int(value)


def positive_int(name: str, value: Any) -> int:
    """`value` as a Python integer of at least one."""
    return integer(name, value, 1)


def length(name: str, value: Any) -> int:
    """`value` as a number of positions, from 1 to 2³¹ − 1."""
    require(positive_int(name, value) <= _INT32.max, "{} must fit into int32, got {!r:.60}", name, value)
    return int(value)


def size(name: str, value: Any, least: int = 1) -> int:
    """`value` as a number of features or heads, from `least` to 2²⁰: the host computes something for each."""
    require(integer(name, value, least) <= 2**20, "{} must be at most 2²⁰, got {!r:.60}", name, value)
    return int(value)


def flag(name: str, value: Any) -> bool:
    """`value` as a Python bool."""
    require_type(isinstance(value, (bool, np.bool_)), name, "True or False", value)
    return bool(value)


def one_of(name: str, value: Any, options: Sequence[S]) -> S:
    """`value`, which must be one of `options`."""
    for option in options:
        if isinstance(value, str) and value == option:
            return option
    raise invalid(f"{name} must be one of {options}, got {value!r}")


def layout(name: str, value: Any) -> Layout:
    """`value` as a layout of pairs."""
    return one_of(name, value, ("interleaved", "half"))


def part(name: str, value: Any) -> RotatedPart:
    """`value` as the features that rotate if some do not."""
    return one_of(name, value, ("first", "last"))


def out_of_range(name: str, value: Any) -> OutOfRange:
    """`value` as what a lookup outside a table gives."""
    return one_of(name, value, ("error", "nan", "zeros"))


def sequence(name: str, value: Any, items: str) -> tuple[Any, ...]:
    """`value` as a tuple; the caller checks its items."""
    text = isinstance(value, (str, bytes, bytearray, memoryview))
    fits = isinstance(value, (Sequence, np.ndarray)) and not text and getattr(value, "ndim", 1)
    require_type(fits, name, f"a sequence of {items}", value)
    return tuple(value)


def positive_ints(name: str, values: Any) -> tuple[int, ...]:
    """`values` as a tuple of Python integers of at least one."""
    return tuple(positive_int(f"{name}[{i}]", value) for i, value in enumerate(sequence(name, values, "integers")))


# Arrays


class Kind(NamedTuple):
    """Dtypes that an argument may have, and their name in an error."""

    text: str
    integers: bool = True
    floats: bool = True
    narrow: bool = True  # floats of 16 and 8 bits, which skip integers


NUMBERS = Kind("an integer or float array")
POSITIONS = NUMBERS._replace(narrow=False)
INTEGERS = Kind("an integer array", floats=False)
FLOATS = Kind("a float array", integers=False)
FREQUENCIES = FLOATS._replace(narrow=False)


def is_concrete(*arrays: Any) -> bool:
    """Whether all values of the arrays are known on this host: none is traced, or on other hosts."""
    return not any(isinstance(x, Tracer) or not getattr(x, "is_fully_addressable", True) for x in arrays)


def is_array(x: Any) -> TypeGuard[jax.Array | np.ndarray]:
    """Whether JAX can convert x to an array; a masked array would lose its mask."""
    return isinstance(x, (jax.Array, np.ndarray)) and not isinstance(x, np.ma.MaskedArray)


def array(name: str, value: Any, kind: Kind = POSITIONS) -> Any:
    """`value` as an array of a dtype that the kind allows.

    An integral Python number becomes int32. Other Python numbers are rounded as NumPy's float64 is where JAX has none.
    """
    x = value = unwrap_array(value)
    if isinstance(value, int) and not isinstance(value, bool) or type(value) is float and kind.floats:
        if isinstance(value, int) or value.is_integer():  # false for NaN and infinities
            require(_INT32.min <= value <= _INT32.max, "{} must fit into int32, got {}", name, value)
            return np.int32(value)
        x = _narrowed(name, np.float64(value), whole=kind.integers)
    elif needs_x64(x) and kind.floats:
        x = _narrowed(name, x, whole=kind.integers)
    has_dtype = is_array(x) or isinstance(x, np.generic)
    require_type(has_dtype and getattr(x.dtype, "kind", "") != "m", name, kind.text, value)
    integral, floating = jnp.issubdtype(x.dtype, jnp.integer), jnp.issubdtype(x.dtype, jnp.floating)
    require_type(integral and kind.integers or floating and kind.floats, name, kind.text, value)
    if floating:
        if not kind.narrow and x.dtype.itemsize < 4:
            _refuse_narrow(name, x, kind)
        _representable(name, x.dtype, f"; pass float32{' or integers' if kind.integers else ''}")
        if kind.integers and is_concrete(x):
            _fit_int32(name, np.asarray(x))
        return x.astype(np.float32) if x.dtype.itemsize < 4 else x
    return x if x.dtype == np.int32 else _as_int32(name, x)


def _refuse_narrow(name: str, x: Any, kind: Kind) -> None:
    """Raises for a float dtype in which neighbouring positions have become one, and frequencies others."""
    bits = jnp.finfo(x.dtype).nmant + 1
    expected, fault, ways = (
        ("integers or float32", f"in which {2**bits + 1} becomes {2**bits}", "int32 or float32")
        if kind.integers
        else ("float32", f"which rounds them by up to one part in {2**bits}", "float32")
    )
    hint = f"pass {ways}; .astype(jnp.float32) if these rounded values are meant"
    raise wrong_type(f"{name} must be {expected}, got {describe(x)}, {fault}: {hint}")


def refuse_narrow_frequencies(name: str, x: Any) -> None:
    """Raises for floats of 16 bits or fewer, in an array or alone; any other value passes."""
    array = is_array(x) or isinstance(x, np.generic)
    if array and jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4:
        _refuse_narrow(name, x, FREQUENCIES)


def needs_x64(x: Any) -> bool:
    """Whether x is float64 of NumPy's that JAX cannot hold, because jax_enable_x64 is off."""
    wide = isinstance(x, np.generic) or is_array(x) and isinstance(x, np.ndarray)
    return wide and x.dtype == np.float64 and jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype


def _narrowed(name: str, x: Any, *, whole: bool = False) -> Any:
    """NumPy's float64 as float32, rounded as `jnp` does; with `whole`, as int32 if all values are integral.

    A position must not move: with `whole`, raises if rounding moves a value by more than a thousandth.
    """
    x = np.asarray(x)
    finite = x[np.isfinite(x)]
    if whole:
        _fit_int32(name, x)
    if whole and finite.size == x.size and (np.rint(finite) == finite).all():
        return x.astype(np.int32)
    with np.errstate(over="ignore"):
        rounded = x.astype(np.float32)
    fits = np.isfinite(rounded).sum() == finite.size
    require(fits, "{} must fit into float32, got float64 values up to {:.3g}", name, np.abs(finite).max(initial=0))
    if whole and finite.size:
        rounding = np.abs(finite - rounded[np.isfinite(x)])
        ways = "subtract a common origin first, or pass .astype(np.float32) if these rounded values are meant"
        message = (
            "{} must be integers or floats that float32 holds within 0.001, got float64 {!r}, which becomes {!r}: {}"
        )
        worst = rounding.argmax()
        got = float(finite[worst]), float(finite[worst].astype(np.float32))
        require(rounding[worst] <= 1e-3, message, name, *got, ways)
    return rounded


def _fit_int32(name: str, x: np.ndarray) -> None:
    """Raises for floats outside int32; NaN and infinities, which mark what is masked, pass."""
    finite = x[np.isfinite(x)]
    if finite.size:
        least, largest = float(finite.min()), float(finite.max())
        fits = _INT32.min <= least and largest <= _INT32.max
        require(fits, "{} must fit into int32, got {} values from {} to {}", name, x.dtype, least, largest)


def _as_int32(name: str, value: Any) -> Any:
    """Integers as int32. Wide ones with unknown values stay as they are; their encodings are NaN outside int32."""
    wide = value.dtype.itemsize > 4 or value.dtype == np.uint32
    if isinstance(value, Tracer):
        return value if wide else value.astype(np.int32)
    if wide:
        within(value, _INT32.min, _INT32.max, f"{name} must fit into int32, got {value.dtype} values from {{}} to {{}}")
    with jax.ensure_compile_time_eval():  # stays concrete
        return value.astype(np.int32)


def within(x: Any, low: int, high: int, message: str) -> None:
    """Raises if concrete integers are not all from low to high; the message shows the least and the largest."""
    if not isinstance(x, Tracer) and x.size:
        with jax.ensure_compile_time_eval():  # concrete also while another function is traced
            least, largest = int(x.min()), int(x.max())
        require(low <= least and largest <= high, message, least, largest)


def on_device(x: Any) -> jax.Array:
    """A checked array as JAX's; of NumPy's, `jnp.asarray` would compile a program for each shape."""
    return x if isinstance(x, jax.Array) else jax.device_put(x)


def floats(name: str, x: Any, axes: tuple[str | EllipsisType, ...], static_axes: tuple[int, ...] = ()) -> jax.Array:
    """`x` as a float array of its dtype, with at least the trailing `axes`; those in `static_axes` are not symbolic."""
    shape, x = _shape(axes), unwrap_array(x)
    if needs_x64(x):
        x = _narrowed(name, x)
    require_type(is_array(x) and jnp.issubdtype(x.dtype, jnp.floating), name, f"a float array of shape {shape}", x)
    _representable(name, x.dtype, "; pass float32")
    require(x.ndim >= max(1, len(axes) - 1), "{} must have shape {}, got {}", name, shape, x.shape)
    require_static_size(name, x.shape, *static_axes)
    return on_device(x)


def data(name: str, value: Any) -> jax.Array:
    """`value` as an array of any dtype, whose values JAX holds as they are; NumPy's float64 is rounded to float32."""
    x, kinds = unwrap_array(value), (np.integer, np.floating, np.bool_)
    if needs_x64(x):
        x = _narrowed(name, x)
    ok = is_array(x) and (isinstance(x, jax.Array) or any(jnp.issubdtype(x.dtype, kind) for kind in kinds))
    require_type(ok, name, "an array", x)
    if jnp.issubdtype(x.dtype, jnp.floating):
        _representable(name, x.dtype, "; pass float32")
    elif isinstance(x, np.ndarray) and (dtype := jax.dtypes.canonicalize_dtype(x.dtype)) != x.dtype:
        ends = np.iinfo(dtype)
        within(x, ends.min, ends.max, f"{name} must fit into {dtype}, got {x.dtype} values from {{}} to {{}}")
    return on_device(x)


@functools.cache
def _shape(axes: tuple[str | EllipsisType, ...]) -> str:
    return str(axes).replace("Ellipsis", "...").replace("'", "")


def scalar(name: str, value: Any, dtype: Any) -> jax.Array:
    """`value` as a scalar array; only Python and NumPy numbers are rounded to `dtype`."""
    if isinstance(value, (int, float, np.integer, np.floating)):
        result = number(name, value)
        require(abs(result) <= float(np.finfo(dtype).max), "{} must fit into {}, got {}", name, np.dtype(dtype), result)
        return jnp.asarray(result, dtype)
    return zero_dimensional(name, value, Kind("a number or a scalar integer or float array"))


def zero_dimensional(name: str, value: Any, kind: Kind = POSITIONS) -> jax.Array:
    """`value` as a scalar array, in the dtype that `array` gives it."""
    x = on_device(array(name, value, kind))
    require(not x.ndim, "{} must be a scalar, got shape {}", name, x.shape)
    return x


def floating_dtype(name: str, dtype: Any) -> np.dtype:
    """`dtype` as a float dtype that this configuration of JAX has."""
    has_shape = isinstance(getattr(dtype, "shape", None), tuple) and not isinstance(dtype, np.dtype)
    try:
        result = None if dtype is None or has_shape else jnp.dtype(dtype)  # an array or a number is not a dtype
    except TypeError:
        result = None
    if result is None or not jnp.issubdtype(result, jnp.floating):
        raise wrong_type(f"{name} must be a float dtype, got {dtype if result is None else result!s}")
    _representable(name, result)
    return result


def _representable(name: str, dtype: Any, hint: str = "") -> None:
    """Raises if results in this float dtype would be silently rounded, or wrong."""
    faults = {
        "jax_enable_x64=False cannot hold": dtype == np.float64 and jax.dtypes.canonicalize_dtype(dtype) != dtype,
        "JAX does not have": dtype.itemsize > 8 or not dtype.isnative,
        "has no negative numbers": dtype.itemsize == 1 and float(jnp.finfo(dtype).min) >= 0,  # float8_e8m0fnu
        "has no NaN": dtype.itemsize == 1 and not np.isnan(np.full((), np.nan, dtype)),  # float4 and float6
    }
    if fault := next((fault for fault, holds in faults.items() if holds), ""):
        raise wrong_type(f"{name} is {dtype}, which {fault}{hint}")


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether `shape` broadcasts to `target`."""
    return len(shape) <= len(target) and all(a in (1, b) for a, b in zip(shape[::-1], target[::-1], strict=False))


def broadcastable(name: str, shape: tuple[int, ...], target_name: str, target: tuple[int, ...]) -> None:
    """Raises unless `shape` broadcasts to `target`."""
    ok = broadcasts(shape, target)
    require(ok, "{} of shape {} must broadcast to {}, shape {}", name, shape, target_name, target)


def countable(name: str, n: Any) -> Any:
    """Returns n; raises if int32 cannot count 0, 1, …, n − 1. A symbolic n passes, because it is not known yet."""
    require(not isinstance(n, int) or n <= 2**31, "at most 2³¹ positions can be counted, got {} of length {}", name, n)
    return n


def counted(name: str, length: Any) -> jax.Array:
    """The default positions, 0 to length − 1, along the argument `name`."""
    return jnp.arange(countable(name, length), dtype=jnp.int32)


def require_static_size(name: str, shape: tuple[int, ...], *axes: int) -> None:
    """Raises if one of these axes is symbolic."""
    for axis in axes:
        fits = isinstance(shape[axis], int)
        require(fits, "{} must have a known size along axis {}, got shape {}", name, axis % len(shape), shape)


# Explicit axes of a mesh


def unsharded(name: str, x: Any, axis: int = -1) -> None:
    """Raises if Explicit axes of a mesh shard an axis of x that the computation needs whole."""
    spec = jax.typeof(x).sharding.spec
    message = "{} must not be sharded along axis {} on Explicit axes of a mesh, got {}"
    require(spec[axis] is None, message + "; reshard it, or use jax.shard_map", name, axis % x.ndim, spec)


def sharded_like(name: str, spec: Any, like: str, like_spec: Any) -> None:
    """Raises unless Explicit axes shard each of the last axes as `like_spec`, the sharding of `like`, or not at all."""
    fits = all(axes in (None, other) for axes, other in zip(spec[::-1], like_spec[::-1], strict=False))
    message = "{} must be sharded on Explicit axes of a mesh as {} is, {}, or not at all, got {}"
    require(fits, message, name, like, like_spec, spec)


def sharded_together(specs: dict[str, tuple[Any, ...]]) -> None:
    """Raises if arguments shard an axis of their result differently, or shard two of its axes over the same mesh axis.

    `specs` maps each argument to the sharding on Explicit axes that it implies for the result's trailing axes.
    """
    split = {(i, axes) for spec in specs.values() for i, axes in enumerate(reversed(spec)) if axes is not None}
    used = jax.tree.leaves([axes for _, axes in split])
    if len(split) > len({i for i, _ in split}) or len(used) > len({*used}):
        names, got = (", ".join(map(str, x)) for x in (specs, specs.values()))
        message = "be sharded alike where they share an axis of the result, and over no Explicit axis of a mesh twice"
        raise invalid(f"{names} must {message}, got {got}")
