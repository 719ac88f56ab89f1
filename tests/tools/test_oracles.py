"""No oracle imports the library, and every recorded file says where its values come from."""

import json
import subprocess
import sys

import numpy as np

from oracles import recorded

FOLDER = recorded.FOLDER.parent


def test_no_oracle_imports_the_library():
    names = [f"oracles.{path.stem}" for path in FOLDER.glob("[a-z]*.py")] + ["oracles.recorded"]
    code = f"import sys, {', '.join(names)}; print({{'posenc_jax', 'conformance', 'jax'}} & set(sys.modules))"
    output = subprocess.check_output([sys.executable, "-c", code], cwd=FOLDER.parent, text=True)
    assert output == "set()\n"


def test_what_is_recorded_names_its_source():
    with np.load(recorded.FOLDER / "hf_rotations.npz") as file:
        texts = {"hf_rotations": json.loads(str(file["about"]))}
    texts |= {path.stem: recorded.read(path.stem) for path in recorded.FOLDER.glob("*.json")}
    assert not [name for name, text in texts.items() if len(text["about"]) < 20]
    del texts["notebook_values"]  # written by hand, without a command
    assert not [name for name, text in texts.items() if "-s parity -- --record" not in text["command"]]
