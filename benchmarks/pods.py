"""Bytes that each device of a whole TPU pod holds, as the TPU compiler says: every encoding, rotation and bias.

`python benchmarks/pods.py` compiles and writes results/pods.json and the report of it, results/pods.md;
`nox -f maintenance.py -s "bench_compiled(tpu)"` runs it in the environment that the compiler needs. `--tables` writes
the report of the JSON anew. `tests/devices/on_pods.py` has the cases, and says what each device may keep.
"""

import argparse
import datetime
import json
import sys
from importlib import metadata
from pathlib import Path

import jax

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))
from reference import compact, markdown, progress  # noqa: E402

from devices import on_pods as pods  # noqa: E402

RESULTS = HERE / "results" / "pods.json"
SIZES = ("arguments", "result", "temporaries")
SHARDS, LENGTH = 65_536, 2**31
ON_PAPER = [
    "sinusoidal",
    "sinusoidal, bfloat16",
    "add_sinusoidal, counted",
    "rotary, half, counted",
    "rotary, two heads",
    "learned",
    "alibi",
]
COMPILED = ["sinusoidal"]  # for 65,536


def measure():
    figures = [figure(pod, case) for pod in pods.PODS for case in (*pods.cases(pod), pods.TEXTBOOK)]
    sizes = [figure(pod, case) for pod in pods.SIZES for case in pods.cases(pod) if case.name in ON_PAPER]
    sizes += [figure(pod, case) for pod in pods.LARGEST for case in pods.cases(pod) if case.name in COMPILED]
    versions = {"python": sys.version.split()[0], "jax": jax.__version__, "libtpu": metadata.version("libtpu")}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "versions": versions, "figures": figures, "sizes": sizes}


def figure(pod, case):
    progress(f"{pod}: {case.name}")
    return {"function": case.name, "target": pod, "first": first(case)} | case.figures(pod)


def first(case):
    """The first argument, as text."""
    if not case.arguments:
        return "–"
    shape, dtype, _ = case.arguments[0]
    power = lambda n: f"2{str(n.bit_length() - 1).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"  # noqa: E731
    sizes = ", ".join(power(n) if n > 10_000 and n & (n - 1) == 0 else str(n) for n in shape)
    return f"{dtype} ({sizes})"


def mib(size):
    return "0" if not size else "< 1" if size < 2**19 else f"{size / 2**20:,.0f}"


def table(result, pods):
    """Targets of the same figures in one row; they are named where they differ."""
    rows = {}
    for f in result["figures"]:
        if f["target"] in pods:
            key = f["function"], f["first"], *(mib(f[size]) for size in SIZES), ", ".join(f["collectives"]) or "none"
            rows.setdefault(key, []).append(f["target"])
    alike = len({tuple(targets) for targets in rows.values()}) == 1
    target = {key: [] if alike else [", ".join(targets)] for key, targets in rows.items()}
    head = ["function", "first argument", *([] if alike else ["target"])]
    head += [*(f"{size}, MiB" for size in SIZES), "collectives"]
    return markdown(head, [[*key[:2], *target[key], *key[2:]] for key in rows])


def line(result, function, size):
    """Bytes whatever the number of devices, and for each position of a device: the line through 256 and 512 chips."""
    points = []
    for f in result["sizes"]:
        if f["function"] == function:
            (case,) = (case for case in pods.cases(f["target"]) if case.name == function)
            points.append((case.positions(f["target"]), f[size]))
    (few, x), (many, y), *_ = points
    each = (x - y) / (few - many)
    return x - each * few, each


def paper(result):
    """A device of 65,536, by arithmetic."""
    rows = []
    for function in ON_PAPER:
        lines = [line(result, function, size) for size in SIZES]
        sizes = [(constant + each * (LENGTH // SHARDS)) / 2**20 for constant, each in lines]
        rows.append([function, *(f"{each:.0f}" for _, each in lines), *(f"{size:.1f}" for size in sizes)])
    head = ["function", *(f"{size}, bytes a position" for size in SIZES), *(f"{size}, MiB" for size in SIZES)]
    return markdown(head, rows)


TEXT = """\
# Whole TPU pods, compiled

{versions}. Compiled, not run: no TPU was available. A compiled program has fixed collectives, shapes and memory, but
no time.

Each row is a function compiled for all chips of a pod, with 2³⁰ positions along the sequence unless the first
argument says otherwise. Figures are for one device; where no target is named, v5e and v6e agree to the MiB. "Batch
and heads" has a mesh of three axes, 4 × 16 × 4 or 8 × 8 × 8.

## 256 chips of v5e and v6e

{few}

## 512 chips of v5p

{many}

Besides its arguments and result, a device keeps:

| function | keeps |
| --- | --- |
| encoding, addition, shift, matrix, similarity | nothing |
| rotary embedding, four heads and more; xPos | cosine and sine, 1,024 bytes per position; xPos eight more |
| bias | the distance, four bytes per score; T5 fifteen comparisons, a byte each; FIRE the network's numbers |
| learned table, Fourier features | the looked-up rows; cosines and sines |

## 65,536 devices

Extrapolated from smaller pods, for 2³¹ positions, 32,768 on each device:

{paper}

If n devices split N positions, each holds a + b N/n bytes of any array: b per position, and a for constants. Two pod
sizes determine the line and a third checks it: 256 and 512 chips of v5p predict what each of 4,096 holds, in most
cases to the byte. An array of all positions would show as 4 GiB in a; instead a is at most a learned table of 2 MiB.

The compiler also takes such a pod (v5p:64x32x32) for the encoding of 2³⁰ positions: no collective, no temporaries, 64
KiB of positions and 8 MiB of result on each device. For a rotary embedding it runs out of fast memory.
"""


def text(result):
    """The report."""
    *few, many = pods.PODS
    versions = ", ".join([result["date"], *(f"{name} {version}" for name, version in result["versions"].items())])
    return TEXT.format(versions=versions, few=table(result, few), many=table(result, [many]), paper=paper(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="compile nothing")
    if not parser.parse_args().tables:
        RESULTS.write_text(compact(measure()) + "\n", encoding="utf-8")
    RESULTS.with_suffix(".md").write_text(text(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
