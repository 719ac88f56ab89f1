"""What griffe does not see of signatures when it reads the package for the reference."""

from typing import Any

import griffe


class Signatures(griffe.Extension):
    """Adds the decorator that Flax applies to Linen modules: griffe's own extension then reads their fields."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Makes a Linen module a dataclass, before its fields are read."""
        if any(isinstance(base, griffe.Expr) and base.canonical_path == "flax.linen.Module" for base in cls.bases):
            decorator = griffe.ExprName("dataclasses.dataclass")
            cls.decorators.append(griffe.Decorator(decorator, lineno=None, endlineno=None))

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Drops the default `()` that griffe gives to `*arguments`."""
        for parameter in func.parameters:
            if parameter.kind is griffe.ParameterKind.var_positional:
                parameter.default = None
