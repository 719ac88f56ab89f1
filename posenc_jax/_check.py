"""What inputs may be: the conversions and errors that every function shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

_INT32 = np.iinfo(np.int32)
_NO_NUMBERS = (bool, np.bool_, np.timedelta64)  # Python and NumPy derive them from integers


def _unheld(dtype: Any) -> str:
    """Why a float dtype cannot hold here what it must, or nothing."""
    if dtype == np.float64 and jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        return ", which jax_enable_x64=False cannot hold"
    if dtype.itemsize > 8 or not dtype.isnative:
        return ", which JAX does not have"
    if dtype.itemsize > 1:
        return ""
    if float(jnp.finfo(dtype).min) >= 0:  # float8_e8m0fnu: half of all waves
        return ", which has no negative numbers"
    return "" if np.isnan(np.full((), np.nan, dtype)) else ", which has no NaN"  # float4 and float6: a wrong number


def is_known(x: Any) -> bool:
    """Whether the values of an array can be looked at now."""
    return not isinstance(x, Tracer)


def is_array(x: Any) -> TypeGuard[jax.Array | np.ndarray]:
    """Whether it is an array, of which JAX can make its own: it has no masks."""
    return isinstance(x, (jax.Array, np.ndarray)) and not isinstance(x, np.ma.MaskedArray)


def describe(value: Any) -> str:
    """A value in an error message: dtype and shape of an array, else its type and beginning."""
    if isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "dtype"):
        masked = "masked " if isinstance(value, np.ma.MaskedArray) else ""
        return f"{masked}{value.dtype} of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r:.60}"


def array(where: str, name: str, value: Any, kinds: str = "an integer or float array") -> Any:
    """`value` as an array of a dtype that positions may have.

    A Python number that is whole becomes int32, any other is rounded to float32.
    """
    message = "{}: {} must be {}, got {}"
    if isinstance(value, int) and not isinstance(value, bool) or type(value) is float and "float" in kinds:
        if isinstance(value, int) or value.is_integer():  # neither NaN nor an infinity is
            if not _INT32.min <= value <= _INT32.max:
                raise ValueError(f"{where}: {name} must fit into int32, got {value}")
            return np.int32(value)
        value = np.float32(value)
    elif not (is_array(value) or isinstance(value, np.generic)) or getattr(value.dtype, "kind", "") == "m":
        raise TypeError(message.format(where, name, kinds, describe(value)))
    integer, floating = jnp.issubdtype(value.dtype, jnp.integer), jnp.issubdtype(value.dtype, jnp.floating)
    if not (integer and "integer" in kinds or floating and "float" in kinds):
        raise TypeError(message.format(where, name, kinds, describe(value)))
    if floating and (unheld := _unheld(value.dtype)):  # integers are cast below, from any byte order
        raise TypeError(f"{where}: {name} is {value.dtype}{unheld}; pass float32 or integers")
    if floating and value.dtype.itemsize < 4:
        return value.astype(np.float32)
    if not integer or value.dtype == np.int32:
        return value
    wide = value.dtype.itemsize > 4 or value.dtype == np.uint32
    if wide and not is_known(value):
        return value  # its values are not known yet: `_phase.wave` gives NaN outside int32
    if wide and value.size:
        low, high = limits(value)
        if low < _INT32.min or high > _INT32.max:
            raise ValueError(f"{where}: {name} must fit into int32, got {value.dtype} values from {low} to {high}")
    if not is_known(value):
        return value.astype(np.int32)
    with jax.ensure_compile_time_eval():  # stays known
        return value.astype(np.int32)


def limits(value: Any) -> tuple[int, int]:
    """The least and the largest of integers that are known, while another function is traced too."""
    with jax.ensure_compile_time_eval():
        return int(value.min()), int(value.max())


def pair(where: str, what: str, queries: Any, keys: Any, kinds: str = "an integer or float array") -> tuple[Any, Any]:
    """Positions or segments (..., queries) and (..., keys) as arrays, of one dtype if they are integers."""
    names = f"query_{what}", f"key_{what}"
    queries, keys = (jnp.asarray(array(where, n, x, kinds)) for n, x in zip(names, (queries, keys), strict=True))
    for name, x, axis in zip(names, (queries, keys), ("queries", "keys"), strict=True):
        if not x.ndim:
            raise ValueError(f"{where}: {name} must have shape (..., {axis}), got ()")
    try:
        jnp.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])
    except ValueError:
        message = f"{names[0]}, shape {queries.shape}, and {names[1]}, shape {keys.shape}, must broadcast"
        raise ValueError(f"{where}: the leading axes of {message}") from None
    of_tile(where, what, queries, keys)
    if all(jnp.issubdtype(x.dtype, jnp.integer) for x in (queries, keys)) and queries.dtype != keys.dtype:
        common = np.promote_types(queries.dtype, keys.dtype)
        if common.kind == "f" or jax.dtypes.canonicalize_dtype(common) != common:
            message = f"{names[0]} of {queries.dtype} and {names[1]} of {keys.dtype}"
            raise TypeError(f"{where}: {message} have no common dtype here; pass int32")
        queries, keys = queries.astype(common), keys.astype(common)
    return queries, keys


def broadcastable(where: str, name: str, shape: tuple[int, ...], target_name: str, target: tuple[int, ...]) -> None:
    """Raises unless `shape` broadcasts to `target`."""
    ok = len(shape) <= len(target) and all(a == 1 or a == b for a, b in zip(shape[::-1], target[::-1], strict=False))
    if not ok:
        raise ValueError(f"{where}: {name} of shape {shape} must broadcast to {target_name}, shape {target}")


def counted(where: str, name: str, length: Any) -> Any:
    """`length`, if int32 can count 0, 1, …, length − 1; that of a symbolic one is not known yet."""
    if isinstance(length, int) and length > 2**31:
        raise ValueError(f"{where}: at most 2³¹ positions can be counted, got {name} of length {length}")
    return length


def known_size(where: str, name: str, shape: tuple[int, ...], *axes: int) -> None:
    """Raises where an axis is symbolic: of its size depends what is computed."""
    for axis in axes:
        if not isinstance(shape[axis], int):
            raise ValueError(
                f"{where}: {name} must have a known size along axis {axis % len(shape)}, got shape {shape}"
            )


def align(x: Any, ndim: int) -> Any:
    """Leading axes of one, for jax_numpy_rank_promotion="raise"."""
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def whole(where: str, name: str, x: Any, axis: int = -1) -> None:
    """Raises where x is split along an axis over Explicit axes of a mesh: its parts are needed together."""
    spec = jax.typeof(x).sharding.spec
    if spec[axis] is not None:
        message = f"{name} must not be sharded along axis {axis % x.ndim} on Explicit axes of a mesh, got {spec}"
        raise ValueError(f"{where}: {message}; reshard it, or use jax.shard_map")


def together(where: str, specs: dict[str, tuple[Any, ...]]) -> None:
    """Raises where arguments would split one axis of their result in two ways, or two of its axes over one of a mesh.

    `specs` has, by the name of an argument, what splits the last axes of the result for it, on Explicit axes.
    """
    split = {(i, axes) for spec in specs.values() for i, axes in enumerate(reversed(spec)) if axes is not None}
    used = jax.tree.leaves([axes for _, axes in split])
    if len(split) > len({i for i, _ in split}) or len(used) > len({*used}):
        names, got = (", ".join(map(str, x)) for x in (specs, specs.values()))
        message = "be sharded alike where they share an axis of the result, and over no Explicit axis of a mesh twice"
        raise ValueError(f"{where}: {names} must {message}, got {got}")


def of_tile(where: str, what: str, queries: Any, keys: Any, **of_heads: Any) -> None:
    """`together` for (..., heads, queries, keys), of positions of both and arrays whose last axis is of heads."""
    (*batch, rows), (*other, columns) = (jax.typeof(x).sharding.spec for x in (queries, keys))
    specs = {f"query_{what}": (*batch, None, rows, None), f"key_{what}": (*other, None, None, columns)}
    heads = {name: (jax.typeof(x).sharding.spec[-1], None, None) for name, x in of_heads.items()}
    together(where, specs | heads)


def beside(where: str, name: str, positions: Any, of: str, x: Any, head_axis: int | None = None) -> None:
    """Raises where positions (..., axes) would split x, which has an axis of heads or none, otherwise than it is."""
    places = [*jax.typeof(positions).sharding.spec[:-1]]
    if head_axis is not None:
        places.insert(max(0, len(places) + head_axis + 2 - x.ndim), None)
    together(where, {name: (*places, None), of: tuple(jax.typeof(x).sharding.spec)})


def floating_dtype(where: str, dtype: Any, name: str = "dtype") -> np.dtype:
    """`dtype` as a float dtype that this configuration can hold."""
    has_shape = isinstance(getattr(dtype, "shape", None), tuple) and not isinstance(dtype, np.dtype)
    try:
        result = None if dtype is None or has_shape else jnp.dtype(dtype)  # not that of an array or a number
    except TypeError:
        result = None
    if result is None or not jnp.issubdtype(result, jnp.floating):
        raise TypeError(f"{where}: {name} must be a float dtype, got {dtype if result is None else result!s}")
    if unheld := _unheld(result):
        raise TypeError(f"{where}: {name} is {result}{unheld}")
    return result


def one_of(where: str, name: str, value: Any, options: tuple[str, ...]) -> Any:
    """`value`, which must be one of `options`."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{where}: {name} must be one of {options}, got {value!r}")
    return value


def layout(where: str, value: Any) -> Any:
    """How the two waves of a pair are stored."""
    return one_of(where, "layout", value, ("interleaved", "half"))


def out_of_range(where: str, value: Any) -> Any:
    """What a position outside a table gives."""
    return one_of(where, "out_of_range", value, ("error", "nan", "zeros"))


def number(where: str, name: str, value: Any) -> float:
    """`value` as a finite Python float."""
    if isinstance(value, _NO_NUMBERS) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{where}: {name} must be a number, got {describe(value)}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise ValueError(f"{where}: {name} must be finite, got {result}")
    return result


def positive(where: str, name: str, value: Any) -> float:
    """`value` as a finite Python float above zero."""
    result = number(where, name, value)
    if result <= 0:
        raise ValueError(f"{where}: {name} must be positive, got {result}")
    return result


def positive_float32(where: str, name: str, value: Any) -> float:
    """`value` as a Python float that float32 holds: a smaller one is rounded to zero, or taken for it on a device."""
    result, limits = positive(where, name, value), np.finfo(np.float32)
    least, most = float(limits.tiny), float(limits.max)
    if not least <= result <= most:
        raise ValueError(f"{where}: {name} must be from {least:.1e} to {most:.1e} for float32, got {result}")
    return result


def integer(where: str, name: str, value: Any, least: int | None = None, kinds: str = "an integer") -> int:
    """`value` as a Python integer, of at least `least`."""
    if isinstance(value, _NO_NUMBERS) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{where}: {name} must be {kinds}, got {describe(value)}")
    if least is not None and value < least:
        raise ValueError(f"{where}: {name} must be at least {least}, got {value}")
    return int(value)


def positive_int(where: str, name: str, value: Any) -> int:
    """`value` as a Python integer of at least one."""
    return integer(where, name, value, 1)


def size(where: str, name: str, value: Any) -> int:
    """`value` as a number of features or heads: what is computed for each of them on the host stays small."""
    if (result := positive_int(where, name, value)) > 2**20:
        raise ValueError(f"{where}: {name} must be at most 2²⁰, got {result!r:.60}")
    return result


def sequence(where: str, name: str, value: Any, kinds: str) -> tuple[Any, ...]:
    """`value` as a tuple; its items are for the caller to check."""
    no_items = isinstance(value, (str, bytes, bytearray, memoryview)) or getattr(value, "ndim", 1) == 0
    if no_items or not isinstance(value, (Sequence, np.ndarray)):
        raise TypeError(f"{where}: {name} must be a sequence of {kinds}, got {describe(value)}")
    return tuple(value)


def flag(where: str, name: str, value: Any) -> bool:
    """`value` as a Python bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{where}: {name} must be True or False, got {describe(value)}")
    return bool(value)


def floats(where: str, name: str, x: Any, axes: str) -> jax.Array:
    """`x` as an array of floats of at least the axes that `axes` names behind its dots; its dtype is kept."""
    if not is_array(x) or not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{where}: {name} must be a float array of shape {axes}, got {describe(x)}")
    if unheld := _unheld(x.dtype):
        raise TypeError(f"{where}: {name} is {x.dtype}{unheld}; pass float32")
    if x.ndim < axes.count(","):
        raise ValueError(f"{where}: {name} must have shape {axes}, got {x.shape}")
    return jnp.asarray(x)


def scalar(where: str, name: str, value: Any, dtype: Any) -> jax.Array:
    """`value` as a scalar array; Python and NumPy numbers are rounded to `dtype` only."""
    if isinstance(value, (int, float, np.integer, np.floating)):
        result = number(where, name, value)
        if abs(result) > float(np.finfo(dtype).max):
            raise ValueError(f"{where}: {name} must fit into {np.dtype(dtype)}, got {result}")
        return jnp.asarray(result, dtype)
    result = array(where, name, value, "a number or a scalar integer or float array")
    if result.ndim:
        raise ValueError(f"{where}: {name} must be a scalar, got shape {result.shape}")
    return jnp.asarray(result)


def inside(*arrays: Any) -> Any:
    """The dtype to compute in: float64 if an array is, else float32."""
    return np.float64 if any(x.dtype == np.float64 for x in arrays) else np.float32
