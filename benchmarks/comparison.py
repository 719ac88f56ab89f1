"""What results say: ratios to the units of the same round, their noise, and who is ahead."""

import json
import math
import pathlib
import re

import numpy as np
from cases import GPU, LOOPS, SPEED, case_of

OURS, PLAIN, AGAIN = "posenc", "plain", " again"
CASES = {case.name: case for case in (*SPEED, *LOOPS, *GPU)}
RESULTS = pathlib.Path(__file__).parent / "results"
TOLERANCE, MOST = 1.02, 0.75  # ahead of another only if faster by more, and in so many of the rounds


def kept(folder=RESULTS):
    """The results of all processors, the newest first, with the aims of today."""
    paths = [path for path in sorted(folder.glob("cpu-*.json")) if not re.search("_(quick|part)$", path.stem)]
    results = sorted((json.loads(path.read_text()) for path in paths), key=lambda of: of["date"], reverse=True)
    for entry in (entry for result in results for entry in result["speed"] if entry["name"] in CASES):
        entry["case"]["aim"] = CASES[entry["name"]].aim
    return results


def units(entry):
    """The times of the case's unit, which each round has twice."""
    unit = case_of(entry["case"]).unit
    return [entry["times"].get(name, []) for name in (unit, unit + AGAIN)]


def ratios(entry):
    """Of each peer, its times in units of the same round, for the rounds that it and the units have."""
    both, unit, found = units(entry), case_of(entry["case"]).unit, {}
    for name, times in entry["times"].items():
        rounds = min(map(len, (times, *both)))
        if name not in (unit, unit + AGAIN) and rounds:
            found[name] = np.array(times[:rounds]) / np.mean([times[:rounds] for times in both], axis=0)
    return found


def medians(entry):
    return {name: float(np.median(found)) for name, found in ratios(entry).items()}


def noise(entry):
    """By how much the two units of a round differ, at the median over rounds; nan without them."""
    both = units(entry)
    first, second = (np.array(times[: min(map(len, both))]) for times in both)
    return float(np.median(2 * abs(first - second) / (first + second))) if len(first) else np.nan


def is_ahead(theirs, ours):
    """Whether they are faster at the median and in most rounds."""
    faster = [a < b for a, b in zip(theirs, ours, strict=False)]
    return np.median(theirs) * TOLERANCE < np.median(ours) and np.mean(faster) >= MOST


def short(x):
    """Three significant digits, two below 1."""
    digits = 2 - math.floor(math.log10(x)) - (x < 1) if x > 0 else 0
    return f"{x:,.{max(0, digits)}f}"
