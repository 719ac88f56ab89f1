"""`python tests/devices/exports/write.py FOLDER`: exports every case, for CPU, CUDA and TPU, with the results here."""

import functools
import sys
from pathlib import Path

import jax
import numpy as np
from cases import cases, derivative_of
from jax import export

import conftest  # noqa: F401  eight devices


def main(folder):
    for name, (f, arguments, shapes, derivative) in cases().items():
        made = export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(*shapes)
        (folder / f"{name}.bin").write_bytes(made.serialize(vjp_order=int(derivative)))
        results = {"y": np.asarray(jax.jit(f)(*arguments))}
        if derivative:
            results["dx"] = np.asarray(jax.jit(functools.partial(derivative_of, f))(arguments))
        np.savez(folder / f"{name}.npz", **results)
    (folder / "version").write_text(jax.__version__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
