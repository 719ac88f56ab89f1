"""What griffe does not see when it reads the package for the reference: fields of Linen modules, and links."""

import re
from typing import Any

import griffe
from entries import NAMES

PUBLIC = {name for names in NAMES.values() for name in names}
CODE = re.compile(r"(?<![\[`\w])`([\w.]+)`(?![\]`])")


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


class Links(griffe.Extension):
    """Links a docstring's first mention of each public name: of the same public module, or else of `posenc_jax`."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrites all docstrings, before they are parsed."""
        for owner in (pkg, *_members(pkg)):
            if owner.docstring:
                owner.docstring.value = _linked(owner.docstring.value, owner)


def _members(owner: Any) -> Any:
    """All modules, classes, functions and properties below an object."""
    for member in owner.members.values():
        if not member.is_alias:
            yield member
            yield from _members(member)


def _linked(text: str, owner: Any) -> str:
    package, module, *_ = f"{owner.canonical_path}.".split(".")
    seen = {owner.name}

    def link(match: re.Match[str]) -> str:
        prefixes = ("", f"{package}.{module}.", f"{package}.")
        found = [name for prefix in prefixes if (name := prefix + match[1]) in PUBLIC]
        if not found or (name := found[0].rpartition(".")[2]) in seen:
            return match[0]
        seen.add(name)
        return f"[`{match[1]}`][{found[0]}]"

    return CODE.sub(link, text)
