"""What the installed transformers changed beside the newest release that is recorded, as Markdown for an issue.

`nox -s parity -- --newest` runs this with the newest release there is, before its tests.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import census
import record_defaults
import transformers

from helpers.defaults import flat, moved, of_releases
from oracles import recorded
from posenc_jax.hf import _models, _refused


def rows(table):
    """A table as Markdown, or that it is empty."""
    head, *body = table
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)] if body else ["None."]


def report(before=None):
    """The lines of the issue, beside a release that is recorded."""
    installed, releases = record_defaults.installed(), of_releases(recorded.read("hf_defaults"))
    release = transformers.__version__
    here = record_defaults.numbers(release)
    before = before or max(
        (name for name in releases if record_defaults.numbers(name) <= here), key=record_defaults.numbers
    )
    old, known = releases[before], _models.MODELS.keys() | _refused.REFUSED.keys()
    yield f"# transformers {release} beside {before}"
    yield "\n## Defaults that moved, of model types that are read\n"
    table = [["model type", "key", before, release]]
    for name, key, first, last in moved(old, installed):
        if name in _models.MODELS:
            table.append([f"`{name}`", f"`{key}`", str(first)[:60], str(last)[:60]])
    yield from rows(table)
    yield "\n## Keys with a default that are new or gone, of model types that are read\n"
    table = [["model type", "new", "gone"]]
    for name in sorted(old.keys() & installed.keys() & _models.MODELS.keys()):
        first, last = flat(name, old[name]), flat(name, installed[name])
        if first.keys() != last.keys():
            keys = (last.keys() - first.keys(), first.keys() - last.keys())
            table.append([f"`{name}`", *(", ".join(f"`{key}`" for key in sorted(some)) for some in keys)])
    yield from rows(table)
    yield "\n## Model types that are new\n"
    fate = {name: kind for kind, names in census.census().items() for name in names}
    new = sorted(name for name in installed.keys() - old.keys())
    missing = sorted(name for name, kind in fate.items() if kind == "missing")
    kinds = {name: fate.get(name, "known" if name in known else "without rotary code") for name in {*new, *missing}}
    yield from rows([["model type", "what becomes of it"], *([f"`{name}`", kinds[name]] for name in sorted(kinds))])
    yield "\n## Model types that are gone\n"
    yield from rows([["model type"], *([f"`{name}`"] for name in sorted(old.keys() - installed.keys()))])


if __name__ == "__main__":
    print("\n".join(report()))
