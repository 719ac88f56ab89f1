"""Errors about arguments, and the decorator that begins them with the name of the public function.

An error names the argument, the constraint and the value received. `require` does not know which function it serves:
`public` does.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")
_FOLDER, _JAX = __file__.removesuffix("_jax/errors.py"), jax.__file__.removesuffix("__init__.py")

# What errors about arguments begin with, and whether a public function that is called adds its name.
_where: ContextVar[tuple[str, bool]] = ContextVar("where", default=("", True))


def prefixed(message: str) -> str:
    """The message behind the name of the public function; the outermost one, if one calls another."""
    return _where.get()[0] + message


def invalid(message: str) -> ValueError:
    """The error for an argument of the right type."""
    return ValueError(prefixed(message))


def wrong_type(message: str) -> TypeError:
    """The error for an argument of a wrong type or dtype."""
    return TypeError(prefixed(message))


def public(f: Callable[P, R]) -> Callable[P, R]:
    """A public function or method: errors about its arguments begin with its name.

    A function's module becomes the public package around it; `__init__` and `__call__` go by the name of their class.
    """
    name = f.__qualname__
    for method in (".__init__", ".__post_init__", ".__call__"):
        name = name.removesuffix(method)
    result = naming(name)(f)
    if "." not in f.__qualname__:
        result.__module__ = f.__module__.split("._")[0]
    return result


def naming(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function whose argument errors begin with `name`, unless another such function calls it."""

    def decorate(f: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(f)
        def named(*args: P.args, **kwargs: P.kwargs) -> R:
            if not _where.get()[1]:
                return f(*args, **kwargs)
            token = _where.set((prefixed(f"{name}: "), False))
            try:
                return f(*args, **kwargs)
            except (TypeError, ValueError) as error:
                _refuse_base(f, kwargs)
                _refuse_unnamed(f, args)
                if _is_within(error) and jax.config.jax_traceback_filtering != "off":  # type: ignore[attr-defined]
                    error = error.with_traceback(None)  # where a check stands does not help its reader
                raise error
            finally:
                _where.reset(token)

        return named

    return decorate


def _refuse_base(f: Callable[..., Any], options: dict[str, Any]) -> None:
    """Raises for an option by which other libraries take what `frequencies` hold, unless f has it too."""
    for name in {"base", "theta", "rope_theta"} & {*options}:
        names = inspect.signature(f).parameters
        if name not in names and "frequencies" in names:
            value = f"{options[name]!r:.60}"
            given = f"frequencies=geometric(width, {value})"
            raise wrong_type(f"{name} must be given as {given}, got {name}={value}") from None


def _refuse_unnamed(f: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Raises for arguments by position of a function that takes names alone."""
    names = inspect.signature(f).parameters if arguments else {}
    if names and all(parameter.kind == parameter.KEYWORD_ONLY for parameter in names.values()):
        raise wrong_type(f"arguments must be given by name, as {[*names][0]}={arguments[0]!r:.60}") from None


def _is_within(error: Exception) -> bool:
    """Whether a module of this package raised the error, and no function of the caller stands in between."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return files[-1].startswith(_FOLDER) and all(name.startswith((_FOLDER, _JAX)) for name in files)


@contextlib.contextmanager
def _naming_after(prefix: str) -> Iterator[None]:
    token = _where.set((prefix, True))
    try:
        yield
    finally:
        _where.reset(token)


def callback() -> contextlib.AbstractContextManager[None]:
    """Wraps a call of the caller's function: public functions called inside name their errors themselves."""
    return _naming_after("")


def labelled(label: str) -> contextlib.AbstractContextManager[None]:
    """Puts a label, and the name of a public function called inside, into errors after the names around."""
    return _naming_after(prefixed(f"{label}: "))


def require(condition: Any, message: str, *got: Any) -> None:
    """Raises ValueError, its message formatted with `got`, unless the condition holds."""
    if not condition:
        raise invalid(message.format(*got))


def require_type(condition: Any, name: str, expected: str, value: Any) -> None:
    """Raises TypeError for the value unless the condition holds."""
    if not condition:
        raise wrong_type(f"{name} must be {expected}, got {describe(value)}")


def describe(value: Any) -> str:
    """Describes a value in an error message: an array by dtype and shape, others by type and first characters."""
    if isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "dtype"):
        masked = "masked " if isinstance(value, np.ma.MaskedArray) else ""
        return f"{masked}{value.dtype} of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r:.60}"
