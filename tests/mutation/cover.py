"""What the kill matrix says of the tiers: what the default misses, what it pays, and a cheaper cover.

    python tests/mutation/cover.py [--times N] [--slow S]

A weighted cover, made greedily: the test function that kills the most mutants for its CPU seconds comes first, until each
mutant is killed by N functions, or by all that kill it. What costs more than S seconds and is not in the cover is a
candidate for the `thorough` mark; what is marked and alone kills a mutant is a candidate for losing it.
"""

import argparse
import re
from collections import Counter, defaultdict

from run import ROOT, Kills


def marked():
    """The test functions that are marked thorough as a whole."""
    names = set()
    for path in (ROOT / "tests").glob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(
            r"^@pytest\.mark\.thorough\b[^\n]*\n(?:@[^\n]*\n|[ )\]][^\n]*\n)*def (test_\w+)", text, re.M
        ):
            names.add(f"tests/{path.name}::{found[1]}")
    return names


def cover(killers, seconds, times):
    """The functions chosen, each with what it kills anew, dearest choice last."""
    need = {mutant: min(times, len(by)) for mutant, by in killers.items() if by}
    kills = defaultdict(set)
    for mutant, by in killers.items():
        for function in by:
            kills[function].add(mutant)
    chosen = []
    while any(need.values()):
        gain = {f: sum(need[m] > 0 for m in mutants) / (seconds[f] + 0.01) for f, mutants in kills.items()}
        best = max(gain, key=gain.get)
        chosen.append((best, [m for m in kills.pop(best) if need[m] > 0]))
        for mutant in chosen[-1][1]:
            need[mutant] -= 1
    return chosen


def main():
    parser = argparse.ArgumentParser(description="What the kill matrix says of the tiers.")
    parser.add_argument("--times", type=int, default=3, help="functions that are to kill each mutant (default: 3)")
    parser.add_argument("--slow", type=float, default=1.0, help="seconds from which a function is dear (default: 1)")
    options = parser.parse_args()
    matrix, thorough, seconds = Kills(), marked(), Counter()
    for test, cost in matrix.seconds.items():
        seconds[test.split("[")[0]] += cost
    rows = {name: row for name, row in matrix.mutants.items() if not row["import"]}
    killers = {name: {test.split("[")[0] for test in row["killed"]} for name, row in rows.items()}
    killed = [name for name, by in killers.items() if by]
    lost = [name for name in killed if not killers[name] - thorough]
    print(
        f"{len(matrix.mutants)} mutants: {len(matrix.mutants) - len(rows)} fail at import, {len(killed)} are killed by a test"
    )
    total = sum(seconds.values())
    print(f"{total:.0f} CPU seconds in all, {sum(seconds[f] for f in thorough):.0f} of them marked thorough")
    print(f"\n{len(lost)} are killed by thorough tests alone:")
    for name in lost:
        print(f"  {name}\n    by {', '.join(sorted(killers[name]))}")
    chosen = cover(killers, seconds, options.times)
    names = {function for function, _ in chosen}
    print(
        f"\nA cover, {options.times} times: {len(chosen)} functions, {sum(seconds[f] for f in names):.0f} CPU seconds; its dear ones:"
    )
    for function, new in chosen:
        if seconds[function] >= options.slow:
            print(
                f"  {seconds[function]:6.1f} s  {len(new):3d} mutants  {function}{'  (thorough)' if function in thorough else ''}"
            )
    print("\nDear, not in the cover, not marked:")
    for function, cost in seconds.most_common():
        if cost >= options.slow and function not in names | thorough:
            print(f"  {cost:6.1f} s  {function}")


if __name__ == "__main__":
    main()
