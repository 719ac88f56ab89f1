"""`examples/` reads folders whose files are broken at random, or raises ValueError or OSError.

An index of weights may name files beside it alone.

POSENC_HOSTILE=N multiplies the number of files (`nox -f maintenance.py -s fuzz`); every draw is the same in every run.
"""

import collections
import importlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.hostile import MANY

files = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed: dependency group examples")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: dependency group examples")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
checkpoint, generate = map(importlib.import_module, ("checkpoint", "generate"))
CASES = 400 * MANY
CONFIG = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
CONFIG |= {"num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 10}
SHAPES = {"embed_tokens": (10, 8), "norm": (8,)}
TENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Numbers and bytes that are put into a file
NUMBERS = 0, 1, 7, 2**31, 2**63 - 1, 2**64 - 1
PIECES = b"[" * 100_000, b'{"a":' * 3000, b"\xff\xfe", b"\0" * 9, b"9" * 400


def spoiled(content, rng):
    """The content after one of six faults: cut off, a bit changed, another header length, a part removed, a part
    inserted, or a digit replaced.
    """
    at = rng.randrange(len(content))
    digit = rng.choice([i for i, byte in enumerate(content[:400]) if 48 <= byte < 58] or [at])
    return rng.choice(
        [
            content[:at],
            content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :],
            rng.choice(NUMBERS).to_bytes(8, "little") + content[8:],
            content[:at] + content[rng.randrange(len(content)) :],
            content[:at] + rng.choice(PIECES) + content[at:],
            content[:digit] + str(rng.choice(NUMBERS)).encode() + content[digit + 1 :],
        ]
    )


def read_tensors(folder, settings):
    """Reads the tensors as `checkpoint.load` does, without making the model."""
    tensors = checkpoint.Tensors(folder, settings)
    tensors.check([f"{name}.weight" for name in SHAPES])
    for name, shape in SHAPES.items():
        array = tensors.read(f"{name}.weight", (name, "embedding" if len(shape) == 2 else "scale"), shape)
        assert array.shape == shape and array.dtype.kind in "fV"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A right folder: the content of each file, and its settings."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {f"model.{name}.weight": np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    files.save_file(tensors, folder / TENSORS)
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, TENSORS)}))
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [])).save(str(folder / "tokenizer.json"))
    settings = checkpoint.read_settings(folder)
    read_tensors(folder, settings)
    return {path.name: path.read_bytes() for path in folder.iterdir()}, settings


def test_broken_folders_are_read_or_refused(whole, tmp_path):
    """Every file is rejected in some case, and most cases are."""
    content, settings = whole
    read = {"config.json": checkpoint.read_settings, "tokenizer.json": generate.tokenizer_of}
    refused = collections.Counter()
    for case in range(CASES):
        rng = random.Random(case)
        name = rng.choice([*sorted(content), TENSORS])
        broken = spoiled(content[name], rng)
        for other, text in content.items():
            (tmp_path / other).write_bytes(broken if other == name else text)
        try:
            read[name](tmp_path) if name in read else read_tensors(tmp_path, settings)
        except (ValueError, OSError) as error:
            assert str(error)
            refused[name] += 1
    print(f"\nrefused of {CASES}:", dict(refused))
    assert set(refused) == set(content) and refused.total() > CASES / 2


@pytest.mark.parametrize("name", [f"../{TENSORS}", "/etc/passwd", "..", 3])
def test_an_index_names_files_beside_it_alone(whole, tmp_path, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / TENSORS).write_bytes(whole[0][TENSORS])
    (inside / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ValueError, match="weight_map must name files beside it"):
        checkpoint.Tensors(inside, whole[1])
