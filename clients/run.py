"""Runs one client in its own environment: `python -m clients.run NAME`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def line(client: str, found: dict[str, Any]) -> str:
    """What is found of a model, in one line."""
    parts = [f"{client} {found['model']}:"]
    parts += [f"{what} {found[what]:.0e} (noise {found[f'{what} noise']:.0e}, deleted {found[f'{what} deleted']:.0e})" for what in ("outputs", "gradients")]
    parts += [f"{what} {found[what]:.2f}" for what in ("time", "function", "compile") if what in found]
    if "moved ours" in found:
        parts.append(f"moved by 10⁶ {found['moved ours']:.0e}, theirs {found['moved theirs']:.0e}")
    return " · ".join([*parts, "passed" if found["passed"] else "FAILED"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client")
    parser.add_argument("--only", help="models whose name has this in it", default="")
    parser.add_argument("--write", action="store_true", help="write results/CLIENT.json")
    options = parser.parse_args()
    client = importlib.import_module(f"clients.{options.client}")
    from clients.harness import run

    found = []
    for trial, timed in client.trials():
        if options.only.lower() in trial.name.lower():
            found.append(run(trial, client.REPLACED, timed))
            print(line(options.client, found[-1]), flush=True)
    if options.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{options.client}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    if not found or not all(each["passed"] for each in found):
        sys.exit(f"{options.client}: not as it should be")


if __name__ == "__main__":
    main()
