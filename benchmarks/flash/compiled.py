"""What the CUDA compiler makes of the kernels of `attention` for an H200, without one: registers, spills, instructions.

`python benchmarks/flash/compiled.py [--only TEXT …] [--output FILE] [--keep FOLDER]`; needs nvidia-cuda-nvdisasm,
mpmath and the packages of the session `compile` for CUDA but nvidia-nvjitlink, with which ptxas ignores
`setmaxnreg`. FILE keeps what it has of other cases. Instructions are those of the loops over tiles, in the order of the
code: tiles without a mask, then those with one, and in `d_key_value`, whose rows are keys, the other way round; of
given positions or a window, with one, without one, with one. A warp takes them for all its scores. They are not time.

It fails if a case does not compile, if registers spill, or if a block needs more than the 227 KB of shared memory that
it has on an H100 or H200.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

DUMP = tempfile.mkdtemp()
os.environ |= {"JAX_PLATFORMS": "cpu", "MOSAIC_GPU_DUMP_TO": DUMP}
FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), *(str(FOLDER.parents[1] / name) for name in ("", "tests", "benchmarks"))]


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


def figures(problem: Any, make: Any, backward: bool, known: dict[str, Any]) -> dict[str, Any]:
    """What became of a case; `known` are those of kernels, by the hash of their code."""
    import jax

    from devices.aot import Target, h200_topology

    for file in Path(DUMP).iterdir():
        file.unlink()
    target = Target("h200", h200_topology())
    dtype = jax.numpy.dtype(problem.dtype)
    q = (problem.batch, problem.queries, problem.heads, problem.head_dim), dtype
    k = (problem.batch, problem.keys, problem.kv_heads, problem.head_dim), dtype
    v = (*k[0][:-1], problem.value_dim or problem.head_dim), dtype
    function, more = make(problem)
    compiled = target.compile(function, q, k, v, *((x.shape, x.dtype) for x in more))
    width = problem.head_dim + -problem.head_dim % 64
    texts = {file.name: file.read_text(errors="replace") for file in Path(DUMP).iterdir() if file.suffix != ".log"}
    codes = dict(re.findall(r'/(\w+)/\w+"[^\n]*?kernel_hash = ("(?:[^"\\]|\\.)*")', compiled.text))
    for name, code in codes.items():
        if code not in known:  # one that was compiled before is not written again
            found = {file: text for file, text in texts.items() if re.match(rf"{name}_\d+\.", file)}
            known[code] = _of_kernel(found, width)
    kernels = {name: known[code] for name, code in codes.items()}
    forward = kernels.pop("attend")
    if backward and not kernels:
        return {"temporaries": compiled.temporaries, "backward": "by XLA, tile by tile"}
    return {"temporaries": compiled.temporaries} | (kernels or forward)


def _of_kernel(texts: dict[str, str], width: int) -> dict[str, Any]:
    """By what the compiler wrote of a kernel for heads of a width."""
    usage, resources = (" ".join(t for n, t in texts.items() if word in n) for word in ("ptxas", "resources"))
    if ignored := re.findall(r"(?:C75\d\d|setmaxnreg[^\n]*ignored)[^\n]*", usage):
        raise RuntimeError(ignored[0])
    sass = max((t for n, t in texts.items() if ".sass" in n), key=len)
    # The columns of its products are those of a tile and features, and a warp has 16 rows of a tile.
    columns = {int(n) for n in re.findall(r"HGMMA\.64x(\d+)x16", sass)}
    scores = min(columns - {width}, default=width) * 16 / 32  # of a thread
    return {
        "registers": int(re.search(r"Used (\d+) registers", usage)[1]),
        "spilled_bytes": max(map(int, re.findall(r"(\d+) bytes spill", usage))),
        "shared_bytes": int(re.search(r"smem_scratch_bytes=(\d+)", resources)[1]),
        "loops": [{"all": x["all"], "per_score": round(x["all"] / scores, 2)} | _most(x) for x in loops(sass)],
    }


def _most(loop: dict[str, int]) -> dict[str, int]:
    """The most frequent instructions, and those that read and write spilled registers."""
    return {k: v for n, (k, v) in enumerate(loop.items()) if k != "all" and (n < 10 or k in ("LDL", "STL"))}


def faults(case: dict[str, Any]) -> list[str]:
    """What a case that failed to compile says, or which of its kernels spill or do not fit."""
    if "failed" in case:
        return [case["failed"]]
    kernels = [x for x in (case, *case.values()) if isinstance(x, dict) and "registers" in x]
    return [
        f"{x['spilled_bytes']} bytes spilled, {x['shared_bytes']} shared"
        for x in kernels
        if x["spilled_bytes"] or x["shared_bytes"] > 227 * 1024
    ]


def main() -> None:
    import cases
    from reference import compact

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--keep", type=Path, help="where to copy what the compiler wrote for the last")
    arguments = parser.parse_args()
    known, found = {}, {}
    if arguments.output and arguments.output.exists():
        found = json.loads(arguments.output.read_text())["cases"]
    names = "jax", "jaxlib", "nvidia-cuda-nvcc", "nvidia-nvvm"
    environment = {"compiled for": "NVIDIA H200, not run"} | {n: importlib.metadata.version(n) for n in names}
    what = "posenc_jax.attention by implementation='mosaic_gpu', by benchmarks/flash/compiled.py"
    for case in [*cases.cases(), *cases.compiled_alone()]:
        if case.problem and case.problem.mapped:  # a mesh is of devices that are here; vmap renames kernels
            continue
        if not case.name.startswith(("kernel", "right")) or not any(text in case.name for text in arguments.only):
            continue
        try:
            found[case.name] = figures(case.problem, case.make, case.backward, known)
        except Exception as error:  # noqa: BLE001 - the others still count
            found[case.name] = {"failed": f"{type(error).__name__}: {str(error)[:1500]}"}
        print(json.dumps(case.name, ensure_ascii=False), json.dumps(found[case.name]), flush=True)
        if arguments.output:
            result = {"environment": environment, "compiled": what, "cases": found}
            arguments.output.write_text(compact(result) + "\n")
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        for file in Path(DUMP).iterdir():
            (arguments.keep / file.name).write_bytes(file.read_bytes())
    if wrong := {name: told for name, case in found.items() if (told := faults(case))}:
        sys.exit(json.dumps(wrong, indent=1))


if __name__ == "__main__":
    main()
