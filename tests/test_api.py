"""Every public signature, as recorded: an unintended change of one fails.

`python tests/test_api.py` records them anew, where a change is intended.
"""

import difflib
import importlib
import inspect
from pathlib import Path

RECORDED = Path(__file__).parent / "data" / "api.txt"
COMMAND = "python tests/test_api.py"
MODULES = ("posenc_jax", "posenc_jax.hf", "posenc_jax.nnx", "posenc_jax.linen", "posenc_jax.plot")
OF_FLAX = ("parent", "name")  # what Flax gives every Linen module


def default(value):
    """A default without addresses, which differ from run to run."""
    if inspect.isclass(value):
        return value.__name__
    return f"<{value.__qualname__}>" if callable(value) and hasattr(value, "__qualname__") else repr(value)


def signature(f):
    """Names, kinds and defaults, without annotations."""
    f = f.__init__ if inspect.isclass(f) else f  # a metaclass may hide it
    kept, bare = [], False
    for p in inspect.signature(f).parameters.values():
        if p.name == "self" or p.name in OF_FLAX:
            continue
        if p.kind is p.KEYWORD_ONLY and not bare:
            kept.append("*")
        bare |= p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        kept.append(stars + p.name + ("" if p.default is p.empty else f"={default(p.default)}"))
    return f"({', '.join(kept)})"


def public(module):
    """The public names of a module and what they are."""
    names = getattr(module, "__all__", None)
    if names is None:  # what is defined there
        names = [
            n
            for n, x in vars(module).items()
            if not n.startswith("_") and getattr(x, "__module__", "") == module.__name__
        ]
    return {name: getattr(module, name) for name in sorted(names)}


def lines():
    """A line for each function, class, method and property."""
    for name in MODULES:
        for public_name, value in public(importlib.import_module(name)).items():
            yield f"{name}.{public_name}{signature(value)}"
            if not inspect.isclass(value):
                continue
            for member, x in sorted(vars(value).items()):
                own = getattr(x, "__module__", "").startswith("posenc_jax")
                if isinstance(x, property) and not member.startswith("_"):
                    yield f"{name}.{public_name}.{member}"
                elif inspect.isfunction(x) and own and (not member.startswith("_") or member == "__call__"):
                    yield f"{name}.{public_name}.{member}{signature(x)}"


def test_the_public_signatures_are_those_recorded():
    recorded = RECORDED.read_text(encoding="utf-8").splitlines()
    changes = [line for line in difflib.ndiff(recorded, list(lines())) if line[0] in "+-"]
    assert not changes, "\n".join([f"public signatures changed; if that is intended, record them: {COMMAND}", *changes])


def test_a_change_is_seen():
    def before(x, positions=None, *, layout="half"):
        return x

    def after(x, positions=None, *, layout="interleaved"):
        return x

    assert signature(before) == "(x, positions=None, *, layout='half')"
    assert signature(after) != signature(before)
    assert len(RECORDED.read_text(encoding="utf-8").splitlines()) > 60


if __name__ == "__main__":
    RECORDED.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"{RECORDED}: {len(list(lines()))} signatures")
