"""Writes what test_exports.py loads: `python tests/devices/exports/write.py FOLDER`.

The folder gets each case, exported for CPU, CUDA and TPU, with its results here; and what else users store: pickles,
the settings of a plan, and the states of modules.
"""

import json
import pickle
import sys
from pathlib import Path

import jax
import numpy as np
from cases import MODULES, bias_of, cases, flat, objects, results
from flax import nnx
from jax import export

import conftest  # noqa: F401  eight devices
from posenc_jax.hf import plan_to_config


def main(folder):
    for name, case in cases().items():
        made = export.export(jax.jit(case.function), platforms=("cpu", "cuda", "tpu"))(*case.shapes)
        (folder / f"{name}.bin").write_bytes(made.serialize(vjp_order=int(case.derivative)))
        np.savez(folder / f"{name}.npz", **results(case.function, case))
    (folder / "objects.pickle").write_bytes(pickle.dumps(objects()))
    (folder / "plan.json").write_text(json.dumps(plan_to_config(objects()["plan"])))
    rng = np.random.default_rng(0)
    for name, make in MODULES.items():
        graph, state = nnx.split(make())
        state = jax.tree.map(lambda w: (0.3 * rng.normal(size=w.shape)).astype(w.dtype), state)
        np.savez(folder / f"state of {name}.npz", **flat(state), result=bias_of(graph, state))
    (folder / "version").write_text(jax.__version__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
