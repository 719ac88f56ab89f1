"""What the times of a case say: ratios to the copies of the same round, their noise, and who is ahead."""

import math

import numpy as np

OURS, COPIES = "posenc", ("plain", "plain again")
TOLERANCE, MOST = 1.02, 0.75  # ahead of another only if faster by more, and in so many of the rounds


def ratios(entry):
    """Of each peer, its times in units of a copy in the same round, for the rounds that it and the copies have."""
    copies, found = [entry["times"].get(name, []) for name in COPIES], {}
    for name, times in entry["times"].items():
        rounds = min(map(len, (times, *copies)))
        if name not in COPIES and rounds:
            found[name] = np.array(times[:rounds]) / np.mean([copy[:rounds] for copy in copies], axis=0)
    return found


def medians(entry):
    return {name: float(np.median(found)) for name, found in ratios(entry).items()}


def noise(entry):
    """By how much the two copies of a round differ, at the median over rounds; nan without them."""
    copies = [entry["times"].get(name, []) for name in COPIES]
    first, second = (np.array(copy[: min(map(len, copies))]) for copy in copies)
    return float(np.median(2 * abs(first - second) / (first + second))) if len(first) else np.nan


def is_ahead(theirs, ours):
    """Whether they are faster at the median and in most rounds."""
    faster = [a < b for a, b in zip(theirs, ours, strict=False)]
    return np.median(theirs) * TOLERANCE < np.median(ours) and np.mean(faster) >= MOST


def short(x):
    """Three significant digits, two below 1."""
    digits = 2 - math.floor(math.log10(x)) - (x < 1) if x > 0 else 0
    return f"{x:,.{max(0, digits)}f}"
