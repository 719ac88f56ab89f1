"""What the kill matrix says of the tiers: what the default misses, what it pays, and a cheaper cover.

    python tests/tools/mutation/cover.py [--times N] [--slow S]

A weighted cover, made greedily: the test function that kills the most mutants for its CPU seconds comes first, until each
mutant is killed by N functions, or by all that kill it. What costs more than S seconds and is not in the cover is a
candidate for the `thorough` mark; a case that is marked and alone kills a mutant should lose the mark.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from run import Kills


def functions(tests: Iterable[str]) -> set[str]:
    """Those whose cases they are."""
    return {test.split("[")[0] for test in tests}


def lost(matrix: Kills) -> dict[str, set[str]]:
    """{mutant: the functions that kill it}, where all cases that do are marked thorough."""
    killed = {name: row["killed"] for name, row in matrix.mutants.items() if row["killed"] and not row["import"]}
    return {name: functions(tests) for name, tests in killed.items() if tests <= matrix.thorough}


def cover(killers: Mapping[str, set[str]], seconds: Mapping[str, float], times: int) -> list[tuple[str, list[str]]]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description="What the kill matrix says of the tiers.")
    parser.add_argument("--times", type=int, default=3, help="functions that are to kill each mutant (default: 3)")
    parser.add_argument("--slow", type=float, default=1.0, help="seconds from which a function is dear (default: 1)")
    options = parser.parse_args()
    matrix, seconds = Kills(), Counter()
    for test, cost in matrix.seconds.items():
        seconds[test.split("[")[0]] += cost
    thorough = functions(matrix.seconds) - functions(set(matrix.seconds) - matrix.thorough)
    rows = {name: row for name, row in matrix.mutants.items() if not row["import"]}
    killers = {name: functions(row["killed"]) for name, row in rows.items()}
    killed = sum(map(bool, killers.values()))
    print(f"{len(matrix.mutants)} mutants: {len(matrix.mutants) - len(rows)} fail at import, a test kills {killed}")
    marked = sum(matrix.seconds[test] for test in matrix.thorough)
    print(f"{sum(seconds.values()):.0f} CPU seconds in all, {marked:.0f} of them marked thorough")
    print(f"\nKilled by thorough cases alone: {len(lost(matrix))}")
    for name, by in lost(matrix).items():
        print(f"  {name}\n    by {', '.join(sorted(by))}")
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
