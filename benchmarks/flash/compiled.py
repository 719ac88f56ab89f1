"""What the CUDA compiler makes of the kernel of `attention` for an H200, without one: registers, spills, instructions.

`python benchmarks/flash/compiled.py [--only TEXT …] [--keep FOLDER]`; needs the packages of the session `compile` in
noxfile.py for CUDA, and nvidia-cuda-nvdisasm. Instructions are those of the loops over keys, in the order of the code:
on tiles without a mask, and on tiles with one. They are not time.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

DUMP = tempfile.mkdtemp()
os.environ |= {"JAX_PLATFORMS": "cpu", "MOSAIC_GPU_DUMP_TO": DUMP}
FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1]), str(FOLDER.parents[1] / "tests")]


def loops(sass: str) -> list[dict[str, int]]:
    """The instructions of each loop that multiplies matrices."""
    labels, code, found, end = {}, [], [], 0
    for line in sass.splitlines():
        if label := re.match(r"\.(L_x_\d+):", line.strip()):
            labels[label[1]] = len(code)
        elif m := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)(.*)", line):
            code.append((m[1], m[2]))
            target = re.search(r"L_x_\d+", m[2])
            if m[1] == "BRA" and target and labels.get(target[0], -1) >= end:
                body = [name for name, _ in code[labels[target[0]] :]]
                if "HGMMA" in body:
                    end = len(code)
                    kinds = {name: body.count(name) for name in set(body)}
                    found.append({"all": len(body)} | dict(sorted(kinds.items(), key=lambda kind: -kind[1])))
    return found


def report(name: str, make: Any, problem: Any) -> None:
    import jax

    from devices.aot import Target, h200_topology

    for file in Path(DUMP).iterdir():
        file.unlink()
    target = Target("h200", h200_topology())
    dtype = jax.numpy.dtype(problem.dtype)
    q = (problem.batch, problem.queries, problem.heads, problem.head_dim), dtype
    k = (problem.batch, problem.keys, problem.kv_heads, problem.head_dim), dtype
    try:
        compiled = target.compile(make(problem)[0], q, k, k)
    except Exception as error:  # noqa: BLE001 - the others still count
        print(f"{name}: FAILED {type(error).__name__}: {str(error)[:1500]}", flush=True)
        return
    texts = {file.name: file.read_text(errors="replace") for file in Path(DUMP).iterdir() if file.suffix != ".log"}
    usage = " ".join(t for n, t in texts.items() if "ptxas" in n)
    registers, spills = re.findall(r"Used (\d+) registers", usage), re.findall(r"(\d+) bytes spill", usage)
    ignored = sorted(set(re.findall(r"(?:C75\d\d|setmaxnreg[^\n]*ignored)[^\n]*", usage)))
    print(f"{name}: registers {registers}, spilled bytes {spills}, temporaries {compiled.temporaries} {ignored}")
    sass = max((t for n, t in texts.items() if ".sass" in n), key=len, default="")
    for loop in loops(sass):
        print("   ", " ".join(f"{k} {v}" for k, v in list(loop.items())[:14]), flush=True)


def main() -> None:
    import cases

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["kernel"])
    parser.add_argument("--keep", type=Path, help="where to copy what the compiler wrote for the last")
    arguments = parser.parse_args()
    for case in cases.cases():
        if case.make and any(text in case.name for text in arguments.only):
            report(case.name, case.make, case.problem)
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        for file in Path(DUMP).iterdir():
            (arguments.keep / file.name).write_bytes(file.read_bytes())


if __name__ == "__main__":
    main()
