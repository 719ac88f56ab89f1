"""Puts this library into one codebase, in an environment that holds both: `python -m clients.run NAME`.

`--source DIR` runs the codebase's own tests of positions too, from a checkout of it: as they are, and with this
library in it. Flax's examples, Bonsai and MaxDiffusion are on no package index: `PYTHONPATH=DIR` has their
checkout.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
TRAINING = {
    "maxtext": "MaxText",
    "gemma": "Gemma",
    "tunix": "Tunix",
    "levanter": "Levanter",
    "keras_hub": "Keras Hub",
    "equinox": "Equinox",
    "penzai": "Penzai",
    "flax_examples": "Flax's examples",
    "bonsai": "Bonsai",
    "maxdiffusion": "MaxDiffusion",
}
SERVING = {"tpu_inference": "tpu-inference", "sglang_jax": "sglang-jax"}
NAMES = (*TRAINING, *SERVING)


def line(client: str, found: dict[str, Any]) -> str:
    """What is found of a model, in one line."""
    parts = [f"{client}, {found['model']}"]
    for what in ("outputs", "gradients"):
        noise, deleted = found[f"{what} noise"], found[f"{what} deleted"]
        parts.append(f"{what} {found[what]:.0e} (noise {noise:.0e}, without rotation {deleted:.0e})")
    parts += [f"{what} {found[what]:.2f}" for what in ("time", "function", "compile") if what in found]
    if "moved ours" in found:
        parts.append(f"moved by 10⁶ {found['moved ours']:.0e}, theirs {found['moved theirs']:.0e}")
    if "error ours" in found:
        parts.append(f"off float64 by {found['error ours']:.0e}, theirs {found['error theirs']:.0e}")
    if "wrong" in found:
        parts.append(f"theirs is wrong, {found['outputs theirs']:.0e}: {found['wrong']}")
    return " · ".join([*parts, "passed" if found["passed"] else "FAILED"])


def own_tests(client: str, tests: list[str], source: Path) -> tuple[int, list[str]]:
    """How many of their own tests pass as they are, and which of these fail with this library."""
    tests = [test for test in tests if (source / test).exists()]
    if not tests:
        sys.exit(f"{source} holds none of {client}'s tests")
    outcomes, paths = [], [Path.cwd(), source, *(source / folder for folder in ("src", "lib/levanter/src", "python"))]
    for put_in in ("", "yes"):
        environment = os.environ | {"POSENC_CLIENT": client, "POSENC_PUT_IN": put_in}
        environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "clients.plugin", *tests]
        output = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True).stdout
        outcomes.append(set(re.findall(r"^PASSED (\S+)", output, re.M)))
    if not outcomes[0]:
        sys.exit(f"{client}: none of its own tests pass as they are, so they show nothing:\n{output[-2000:]}")
    return len(outcomes[0]), sorted(outcomes[0] - outcomes[1])


def version(client: Any) -> str:
    """The version that is installed, or the commit of a checkout."""
    if not hasattr(client, "ROOT"):
        return importlib.metadata.version(client.PACKAGE)
    command = ["git", "-C", str(client.ROOT), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def lines(client: str) -> int:
    """How many lines the functions of a client have that are copied: their bodies, without comments."""
    text = (Path(__file__).parent / f"{client}.py").read_text(encoding="utf-8")
    text = text.partition("[start:copy]\n")[2].partition("# --8<-- [end:copy]")[0]
    bodies = [
        node.body[ast.get_docstring(node) is not None :] for node in ast.parse(text).body if hasattr(node, "body")
    ]
    copied = [text.splitlines()[body[0].lineno - 1 : body[-1].end_lineno] for body in bodies]
    return sum(bool(line.partition("#")[0].strip()) for body in copied for line in body)


def short(value: float) -> str:
    """A number with one digit, 3e-7, whose hyphen ends no line."""
    return f"{value:.0e}".replace("e-0", "e\N{NON-BREAKING HYPHEN}").replace("e+00", "")


def table() -> str:
    """The tables of all that is written in results/, without times, which depend on what else the machine does."""
    parts, wrong = [], []
    for group, titles in {"training": TRAINING, "serving": SERVING}.items():
        rows = ["| codebase | outputs, gradients | moved |", "| --- | --- | --- |"]
        for name, title in titles.items():
            if (path := RESULTS / f"{name}.json").exists():
                written = json.loads(path.read_text(encoding="utf-8"))
                title += f" {written['version'].partition('.dev')[0]}"
                rows.append(row(title, lines(name), written["models"]))
                wrong += [
                    f"- {title}, {found['model']}: {found['wrong']} ({short(found['outputs theirs'])})"
                    for found in written["models"]
                    if "wrong" in found
                ]
        parts += [f"For {group}:", "\n".join(rows)]
    heading = "Wrong there, so compared with float64; in brackets, how far the original's outputs are off:"
    return "\n\n".join([*parts, heading, "\n".join(wrong)]) + "\n"


def row(title: str, count: int, models: list[dict[str, Any]]) -> str:
    """A codebase in a row: its lines, and the largest differences of its models."""
    cells = [f"{title}, {len(models)} model{'s' * (len(models) > 1)}, {count} lines"]
    cells.append(", ".join(short(max(found[key] for found in models)) for key in ("outputs", "gradients")))
    moved = [[found[f"moved {whose}"] for found in models if "moved ours" in found] for whose in ("theirs", "ours")]
    cells.append(" → ".join(short(max(each)) for each in moved if each))
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Runs one client, writes what is found of it, and makes the table anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=NAMES)
    parser.add_argument("--only", help="models whose name has this in it; nothing is written", default="")
    parser.add_argument("--source", type=Path, help="a checkout of the codebase, whose own tests are run")
    options = parser.parse_args()
    client = importlib.import_module(f"clients.{options.client}")
    from clients.harness import OCTAVES, errors, put_in, run

    models = []
    for trial, timed in client.trials():
        if options.only.lower() in trial.name.lower():
            models.append(run(trial, client.REPLACED, timed))
            print(line(options.client, models[-1]), flush=True)
    if not options.only:
        theirs = errors(client.FAR)
        with put_in(client.REPLACED):
            ours = errors(client.FAR)
        print(f"{options.client}, of positions below {OCTAVES[-1]:,}: off by {max(ours):.0e}, theirs {max(theirs):.0e}")
        RESULTS.mkdir(exist_ok=True)
        written = {
            "about": f"{client.PACKAGE} with this library put in, beside itself; times are ours to theirs, on a CPU",
            "command": f"nox -f maintenance.py -s 'clients({options.client})'"
            + " -- --source DIR" * hasattr(client, "ROOT"),
            "package": client.PACKAGE,
            "version": version(client),
            "far": {"below": OCTAVES[1:], "theirs": theirs, "ours": ours},
            "models": models,
        }
        text = json.dumps(written, indent=1, ensure_ascii=False) + "\n"
        (RESULTS / f"{options.client}.json").write_text(text, encoding="utf-8")
        (RESULTS / "table.md").write_text(table(), encoding="utf-8")
    broken = []
    if options.source and client.TESTS:
        passing, broken = own_tests(options.client, client.TESTS, options.source.resolve())
        print(f"{options.client}, its own tests: {passing - len(broken)} of {passing} that pass pass with this library")
        print("\n".join(broken))
    if broken or not models or not all(each["passed"] for each in models):
        sys.exit(f"{options.client}: not as it should be")


if __name__ == "__main__":
    main()
