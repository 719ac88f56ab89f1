"""Every public signature is the one that api.txt records, so an unintended change fails.

After an intended change, `python tests/tools/test_api.py` records all signatures anew.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from pathlib import Path
from typing import Literal, get_origin

RECORDED = Path(__file__).parent / "api.txt"
COMMAND = "python tests/tools/test_api.py"
MODULES = ("posenc_jax", "posenc_jax.hf", "posenc_jax.kernels", "posenc_jax.nnx", "posenc_jax.linen", "posenc_jax.plot")
OF_FLAX = ("parent", "name")  # the arguments that Flax adds to every Linen module


def default(value):
    """A default without addresses, which differ from run to run."""
    if inspect.isclass(value):
        return value.__name__
    return f"<{value.__qualname__}>" if callable(value) and hasattr(value, "__qualname__") else repr(value)


def returns(f):
    """The annotation of the result, as " -> type"."""
    annotation = inspect.signature(f).return_annotation
    return f" -> {annotation}" if isinstance(annotation, str) else ""  # a dataclass's __init__ has the object None


def signature(f):
    """The signature of a function or class as text, with annotations as the source writes them."""
    f = f.__init__ if inspect.isclass(f) else f  # a metaclass may hide it
    shown, bare = [], False
    for p in inspect.signature(f).parameters.values():
        if p.name in ("self", *OF_FLAX):
            continue
        if p.kind is p.KEYWORD_ONLY and not bare:
            shown.append("*")
        bare |= p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        annotation = "" if p.annotation is p.empty else f": {p.annotation}"
        shown.append(stars + p.name + annotation + ("" if p.default is p.empty else f" = {default(p.default)}"))
    return f"({', '.join(shown)}){returns(f)}"


def public(module):
    """The public objects of a module by name, sorted."""
    defined = [name for name, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in defined if not name.startswith("_")])
    return {name: getattr(module, name) for name in sorted(names)}


def lines():
    """A line for each public function, class, method and property, and for each alias of a Literal type."""
    for name in MODULES:
        for public_name, value in public(importlib.import_module(name)).items():
            yield f"{name}.{public_name}{signature(value)}"
            if not inspect.isclass(value):
                continue
            for member, x in sorted(vars(value).items()):
                own = getattr(x, "__module__", "").startswith("posenc_jax")  # not inherited from Flax
                if isinstance(x, property) and not member.startswith("_"):
                    yield f"{name}.{public_name}.{member}{returns(x.fget)}"
                elif inspect.isfunction(x) and own and (not member.startswith("_") or member == "__call__"):
                    yield f"{name}.{public_name}.{member}{signature(x)}"
    modules = [vars(module) for name, module in sys.modules.items() if name.split(".")[0] == "posenc_jax"]
    yield from sorted({f"{alias} = {x}" for names in modules for alias, x in names.items() if get_origin(x) is Literal})


def test_the_public_signatures_are_those_recorded():
    recorded = RECORDED.read_text(encoding="utf-8").splitlines()
    changes = [line for line in difflib.ndiff(recorded, list(lines())) if line[0] in "+-"]
    assert not changes, "\n".join([f"public signatures changed; if that is intended, record them: {COMMAND}", *changes])


if __name__ == "__main__":
    RECORDED.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"{RECORDED}: {len(list(lines()))} signatures")
