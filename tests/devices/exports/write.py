"""`python tests/devices/exports/write.py FOLDER`: exports every case, for CPU, CUDA and TPU, with the results here.

Beside them, what else users store: pickles, the settings of a plan, and the states of modules.
"""

import functools
import json
import pickle
import sys
from pathlib import Path

import jax
import numpy as np
from cases import bias_of, biases_of_modules, cases, derivative_of, flat, objects
from jax import export

import conftest  # noqa: F401  eight devices
from posenc_jax.hf import plan_to_config


def main(folder):
    for name, (f, arguments, shapes, derivative) in cases().items():
        made = export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(*shapes)
        (folder / f"{name}.bin").write_bytes(made.serialize(vjp_order=int(derivative)))
        results = {"y": np.asarray(jax.jit(f)(*arguments))}
        if derivative:
            results["dx"] = np.asarray(jax.jit(functools.partial(derivative_of, f))(arguments))
        np.savez(folder / f"{name}.npz", **results)
    (folder / "objects.pickle").write_bytes(pickle.dumps(objects()))
    (folder / "plan.json").write_text(json.dumps(plan_to_config(objects()["plan"])))
    (folder / "states").mkdir()
    for name, module in biases_of_modules().items():
        np.savez(folder / "states" / f"{name}.npz", **flat(module), result=bias_of(module))
    (folder / "version").write_text(jax.__version__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
