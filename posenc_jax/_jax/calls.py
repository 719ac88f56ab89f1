"""Calls of public functions whose arguments are parsed once per type, not in every call."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection
from types import NoneType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

F = TypeVar("F", bound=Callable[..., Any])

# Of other dtypes, values decide whether an argument is valid.
_INT32 = frozenset([np.dtype(np.int32)])
_DTYPES = frozenset(map(np.dtype, (np.int32, np.bool_, np.float16, jnp.bfloat16, np.float32, np.float64)))


def parsed_once(
    *, integers: Collection[str] = (), check: Callable[..., None] | None = None, **static: tuple[type, ...]
) -> Callable[[F], F]:
    """Decorates a function of arrays: `jax.jit` compiles it once for each type of the arrays and value of the settings.

    Parsing takes ten times as long as running a small program that is compiled. It is left out where types and settings
    alone decide whether arguments are valid: for arrays of JAX that are not traced, and settings of exactly the types
    that `static` names ((1,) and (True,) are one key of `jax.jit`). Other calls run the function as it is.

    Args:
      integers: the arguments whose values decide in every dtype but int32.
      check: takes all arguments by name, and raises for values that are wrong.
      **static: for each setting, the types of its values; `tuple` stands for tuples of the other types.
    """

    def decorate(f: F) -> F:
        parameters = inspect.signature(f).parameters
        names, positional = [*parameters], sum(each.kind != each.KEYWORD_ONLY for each in parameters.values())
        rules = {name: static.get(name, _INT32 if name in integers else _DTYPES) for name in names}
        jitted = jax.jit(f, static_argnames=[*static], inline=True)

        @functools.wraps(f)
        def call(*args: Any, **options: Any) -> Any:
            if len(args) > positional:
                return f(*args, **options)
            given = dict(zip(names, args, strict=False)) | options
            for name, x in given.items():  # faster than `all` of a generator
                if not _is_known(x, rules.get(name, ())):
                    return f(*args, **options)
            y = jitted(*args, **options)
            if check is not None:
                check(**given)
            return y

        return call  # type: ignore[return-value]

    return decorate


def _is_known(x: Any, rule: Collection[Any]) -> bool:
    """Whether x is a value of one of these types, or None or an array of one of these dtypes that is not traced."""
    of = type(x)
    if type(rule) is tuple:
        return of in rule and (of is not tuple or all(type(each) in rule and type(each) is not tuple for each in x))
    return x is None or _is_array(of) and x.dtype in rule


@functools.cache
def _is_array(of: type) -> bool:
    """Whether this is the type of JAX's arrays that are not traced."""
    return issubclass(of, jax.Array) and not issubclass(of, Tracer)


def cached_by_value(f: F) -> F:
    """Decorates a function of plain values: a call with equal values of equal types returns the same object again.

    Calls with other values, such as arrays, run the function as it is.
    """
    cache: dict[Any, Any] = {}

    @functools.wraps(f)
    def call(*args: Any, **options: Any) -> Any:
        try:
            key = _typed((args, *sorted(options.items())))
            if (found := cache.get(key)) is not None:
                return found
        except TypeError:  # not plain
            return f(*args, **options)
        result = f(*args, **options)
        if len(cache) >= 256:
            cache.clear()
        cache[key] = result
        return result

    return call  # type: ignore[return-value]


def _typed(x: Any) -> Any:
    """A key of a plain value, which tells 1, 1.0 and True apart; raises TypeError for other values."""
    if isinstance(x, (tuple, list)):
        return (type(x), *map(_typed, x))
    if not (isinstance(x, (int, float, str, NoneType, np.generic)) or dataclasses.is_dataclass(x)):
        raise TypeError
    return type(x), x
