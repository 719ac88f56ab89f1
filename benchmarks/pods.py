"""Bytes that each device of a whole TPU pod holds, as the TPU compiler says: every encoding, rotation and bias.

`python benchmarks/pods.py` compiles and writes results/pods.json and results/pods.md, which the documentation includes;
`nox -f maintenance.py -s "bench_compiled(tpu)"` runs it in the environment that the compiler needs. `--tables` writes
the tables of the JSON anew. `tests/devices/on_pods.py` has the cases, and says what each device may keep.
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


def text(result):
    """What the page includes."""
    *few, many = pods.PODS
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    parts = {
        "versions": f"{result['date']}, {versions}",
        "few": table(result, few),
        "many": table(result, [many]),
        "paper": paper(result),
    }
    return (
        "\n\n".join(f"<!-- --8<-- [start:{k}] -->\n\n{v}\n\n<!-- --8<-- [end:{k}] -->" for k, v in parts.items()) + "\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="compile nothing")
    if not parser.parse_args().tables:
        RESULTS.write_text(compact(measure()) + "\n", encoding="utf-8")
    RESULTS.with_suffix(".md").write_text(text(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
