"""What the compilers of TPUs and of an H200 make of the library and of its peers, without devices.

`python benchmarks/compiled.py [--target v5e v6e | --target h200] [--quick] [--json PATH]`;
`nox -f maintenance.py -s bench_compiled` runs it in the environments that the compilers need. The compilers are the
real ones and only the running is missing:

    cycles        as the TPU compiler estimates them, over those of an elementwise copy of the result's size or, for a
                  table, of a fill; transfers to and from faster memory, which have no estimate, at the copy's rate.
                  "≥" where another large operation has none (reshapes that copy, scatters), "–" where a loop is
                  estimated for one turn, and from the CUDA compiler
    temporaries   bytes of the device's memory that the program keeps for itself
    writes        operations that write an array of at least the result's size, beside transfers to faster memory: one
                  is least, also where there are two results
    fusions       kernels, more or less, of any size

The peers are the modules of `peers` that run on JAX, and the formulas of `formulas.py`. Exits with status 1 if, on a
TPU, any of them has fewer cycles than the library by more than 2%, both being known; those within 2% are named too. The
JSON keeps other targets' figures of before.
"""

import argparse
import datetime
import importlib
import json
import pkgutil
import sys
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp
from cases import SPEED
from formulas import FORMULAS
from reference import compact, markdown, progress

HERE = Path(__file__).parent
# The helpers of the tests that compile are not part of the package: benchmarks use tests, not the reverse.
sys.path.append(str(HERE.parent / "tests"))
import peers  # noqa: E402
import peers.posenc as library  # noqa: E402
from estimates import transferred, unestimated  # noqa: E402
from peers import plain  # noqa: E402

from devices import aot  # noqa: E402

TARGETS, TIE = ("v5e", "v6e", "h200"), 0.02
COMPILERS = ("libtpu", "jax-cuda13-plugin", "nvidia-cuda-nvcc")
# Attention at 16,384 takes too long to compile where it is dense.
CASES = [case for case in SPEED if case.kind != "attention" or case.shape[1] <= 4096]
QUICK = [case for case in CASES if case.dtype == "float32" and case.shape[1] != 512 and case.kind != "attention"]
HEAD = ["case", "", "cycles, copies or fills", "temporaries, bytes", "writes", "fusions"]


def rivals():
    """All that run on JAX and can be imported."""
    found = []
    for module in pkgutil.iter_modules(peers.__path__):
        try:
            peer = importlib.import_module(f"peers.{module.name}")
        except ImportError as error:
            progress(f"without {module.name}: {error}")
            continue
        if peer.FRAMEWORK == "jax" and peer not in (library, plain):
            found.append(peer)
    return found + FORMULAS


def make_target(name):
    topology = aot.h200_topology() if name == "h200" else aot.tpu_topology(f"{name}:2x2")
    return aot.Target(name, topology)


def program(case, peer):
    """The function and its arguments, or `None` where the peer has none."""
    make = getattr(peer, case.kind, None)
    if make is None or case.kind in getattr(peer, "EAGER", ()) or case.layout and case.layout not in peer.LAYOUTS:
        return None
    function, (batch, length) = make(case), case.shape[:2]
    if case.kind == "table":
        return function, ((batch,), jnp.int32)
    shape = case.shape
    if case.layout and peer.HEAD_AXIS == -3:
        shape = (batch, shape[2], length, shape[3])
    x, positions = (shape, jnp.dtype(case.dtype)), ((batch, 1), jnp.int32)
    if case.backward:
        return (lambda x, dy: _both(function, x, dy)), x, x
    return {"decode": (function, x, positions), "attention": (function, x, x, x)}.get(case.kind, (function, x))


def _both(function, x, dy):
    y, back = jax.vjp(function, x)
    return y, back(dy)[0]


def figure(target, case, peer):
    compiled = target.compile(*program(case, peer))
    yardstick, arrays = (target.fill, 1) if case.kind == "table" else (target.copy, 2)  # as many are read and written
    yardstick = yardstick(case.shape, jnp.dtype(case.dtype)).cycles
    known = target.name != "h200" and "while" not in unestimated(compiled)
    cycles = round(compiled.cycles + transferred(compiled) / (arrays * case.size) * yardstick) if known else None
    return {
        "target": target.name,
        "case": case.name,
        "who": peer.NAME,
        "cycles": cycles,
        "ratio": cycles / yardstick if known else None,
        "unestimated": len(unestimated(compiled)) if known else 0,
        "temporaries": compiled.temporaries,
        "writes": sum(not name.endswith(("-start", "-done")) for name in compiled.large),
        "fusions": compiled.fusions,
    }


def measure(target, cases):
    """The figures of one target; the library's come first in every case."""
    found, others = [], rivals()
    for case in cases:
        for peer in (library, *others):
            if program(case, peer) is None:
                continue
            progress(f"{target.name}: {case.name}: {peer.NAME}")
            try:
                found.append(figure(target, case, peer))
            except Exception as error:  # a peer that does not compile is a figure too
                if peer is library:
                    raise
                progress(f"does not compile: {error}")
                found.append({"target": target.name, "case": case.name, "who": peer.NAME, "error": str(error)[:500]})
    return found


def below(figures, factor):
    """The figures of peers with fewer cycles than that multiple of the library's in the same case."""
    ours = {f["case"]: f["cycles"] for f in figures if f["who"] == library.NAME and not f["unestimated"]}
    known = [f for f in figures if f["who"] != library.NAME and f.get("cycles") and not f["unestimated"]]
    return [f for f in known if f["cycles"] < factor * (ours.get(f["case"]) or 0)]


def row(f):
    if "error" in f:
        return [f["case"], f["who"], "does not compile", "", "", ""]
    ratio = "–" if f["ratio"] is None else f"{'≥ ' * bool(f['unestimated'])}{f['ratio']:.2f}"
    return [f["case"], f["who"], ratio, f"{f['temporaries']:,}", str(f["writes"]), str(f["fusions"])]


def versions(of):
    found = {"jax": jax.__version__, "python": sys.version.split()[0]}
    packages = {package for peer in of for package in peer.PACKAGES} | set(COMPILERS)
    for package in sorted(packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def write(path, target, figures):
    """This target's figures; the file keeps the others'."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    kept[target] = {"date": today, "versions": versions([library, *rivals()]), "figures": figures}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(compact(kept) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=["v5e", "v6e"])
    parser.add_argument("--quick", action="store_true", help="a few cases, and no file unless --json names one")
    parser.add_argument("--json", type=Path, help="where figures are written; build/compiled.json")
    options = parser.parse_args()
    lost, tied = [], []
    for name in options.target:
        figures = measure(make_target(name), QUICK if options.quick else CASES)
        print(f"## {name}\n\n{markdown(HEAD, [row(f) for f in figures])}\n", flush=True)
        if path := options.json or (None if options.quick else HERE.parent / "build" / "compiled.json"):
            write(path, name, figures)
        lost += below(figures, 1 - TIE)
        tied += [f for f in below(figures, 1 + TIE) if f not in lost]
    for verdict, found in (("fewer cycles than", lost), ("as many cycles as", tied)):
        for f in found:
            print(f"{f['target']}: {f['case']}: {f['who']} has {verdict} the library: {f['ratio']:.2f}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
