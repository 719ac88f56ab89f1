"""Trains the demo's decoder with the biases of T5 and of FIRE, 10 minutes, and keeps what they learn for the drawings.

    python docs/trained_biases.py

writes docs/drawings/trained_biases.json: T5's table and the parameters of FIRE in the first layer.
"""

import json
import pathlib
import platform
import sys

import jax
import numpy as np
from flax import nnx

DOCS = pathlib.Path(__file__).parent
STEPS, SEED = 2000, 0
sys.path.insert(0, str(DOCS.parent / "demo"))


def main() -> None:
    """Trains both, one after the other."""
    import corpus
    from models import VARIANTS, Setup
    from train_text import train

    setup, (text, *_) = Setup(), corpus.read()
    kept = {}
    for name in ("t5", "fire"):
        model, losses = train(setup, VARIANTS[name], text, STEPS, SEED)
        bias = model.blocks[0].attention.attention_fn.bias
        weights = nnx.to_pure_dict(nnx.state(bias, nnx.Param))
        kept[name] = {key: np.asarray(value).round(5).tolist() for key, value in weights.items()}
        kept[name]["bits_per_byte"] = round(float(np.mean(losses[-100:])), 3)
    versions = f"JAX {jax.__version__}, Python {platform.python_version()}"
    about = f"docs/trained_biases.py, {STEPS} steps, seed {SEED}, {versions}"
    path = DOCS / "drawings" / "trained_biases.json"
    path.write_text(json.dumps({"made_by": about, **kept}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
