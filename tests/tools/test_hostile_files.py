"""Folders of a stranger, their files broken at random: a model's tensors, or a ValueError or OSError of `examples/`.

POSENC_HOSTILE=N multiplies the number of files (`nox -s fuzz`); every draw is the same in every run.
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
checkpoint = importlib.import_module("checkpoint")
CASES = 400 * MANY
CONFIG = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
CONFIG |= {"num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 10, "rope_theta": 1e4}
SHAPES = {"embed_tokens": (10, 8), "norm": (8,)}
BESIDE = "model.safetensors.index.json"
NUMBERS = 0, 1, 7, 2**31, 2**63 - 1, 2**64 - 1


def spoiled(content, rng):
    """The bytes with some changed, cut off, repeated or put in, or with another length of the header."""
    at, kind = rng.randrange(len(content)), rng.randrange(6)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    if kind == 2:
        return rng.choice(NUMBERS).to_bytes(8, "little") + content[8:]
    if kind == 3:
        return content[:at] + content[rng.randrange(len(content)) :]
    if kind == 4:
        return (
            content[:at]
            + rng.choice([b"[" * 100_000, b'{"a":' * 3000, b"\xff\xfe", b"\0" * 9, b"9" * 400])
            + content[at:]
        )
    number = str(rng.choice(NUMBERS)).encode()
    digits = [i for i, byte in enumerate(content[:400]) if 48 <= byte < 58]
    at = rng.choice(digits) if digits else at
    return content[:at] + number + content[at + 1 :]


def header(rng):
    """A file of safetensors whose header says what is not so of tensors that are there."""
    entry = {"dtype": rng.choice(["F32", "F64", "BF16", "I8", "F8_E4M3", "Q4", 3, None])}
    entry["shape"] = rng.choice([[10, 8], [8], [2**40, 2**40], [-1, 8], [], [0], "8", [1.5], [10] * 70])
    entry["data_offsets"] = rng.choice([[0, 320], [320, 0], [0, 2**63], [-8, 8], [0], [0, 0], "0", [4, 324]])
    names = rng.choice(
        [["model.norm.weight"], ["model.embed_tokens.weight", "model.norm.weight"], ["__metadata__"], ["../a", ""]]
    )
    text = json.dumps({name: entry for name in names}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(rng.choice([0, 32, 320, 352]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The content of each file of a folder that is read without an error, and its settings."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {f"model.{name}.weight": np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    files.save_file(tensors, folder / "model.safetensors")
    (folder / BESIDE).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "model.safetensors")}))
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [])).save(str(folder / "tokenizer.json"))
    assert read(folder, checkpoint.read_settings(folder)) == "read"
    return {path.name: path.read_bytes() for path in folder.iterdir()}, checkpoint.read_settings(folder)


def read(folder, settings):
    """All that `load` reads from the files of tensors, without the model."""
    tensors = checkpoint.Tensors(folder, settings)
    tensors.check([f"{name}.weight" for name in SHAPES])
    for name, shape in SHAPES.items():
        array = tensors.read(f"{name}.weight", (name, "embedding" if len(shape) == 2 else "scale"), shape)
        assert array.shape == shape and array.dtype.kind in "fV"
    return "read"


def outcome(call):
    try:
        return call()
    except (ValueError, OSError) as error:
        assert str(error)
        return "refused"


def test_broken_folders_are_read_or_refused(whole, tmp_path, record_property):
    content, settings = whole
    counts = collections.Counter()
    for case in range(CASES):
        rng = random.Random(case)
        name = rng.choice([*sorted(content), "model.safetensors"])
        broken = header(rng) if name == "model.safetensors" and rng.random() < 0.5 else spoiled(content[name], rng)
        for other, text in content.items():
            (tmp_path / other).write_bytes(broken if other == name else text)
        if name == "config.json":
            found = outcome(lambda: checkpoint.read_settings(tmp_path) and "read")
        elif name == "tokenizer.json":
            found = outcome(lambda: tokenizer_of(tmp_path) and "read")
        else:
            found = outcome(lambda: read(tmp_path, settings))
        counts[f"{name} {found}"] += 1
    print("\ntried:", dict(counts))
    record_property("counts", str(dict(counts)))
    assert sum(counts.values()) == CASES and sum(counts[f"{name} refused"] for name in content) > CASES / 2


def tokenizer_of(folder):
    return importlib.import_module("generate").tokenizer_of(folder)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "a/../model.safetensors", "..", 3, None, ["a"]]
)
def test_an_index_names_files_beside_it_alone(whole, tmp_path, name):
    content, settings = whole
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "model.safetensors").write_bytes(content["model.safetensors"])
    (inside / BESIDE).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ValueError, match="weight_map must name files beside it, got"):
        checkpoint.Tensors(inside, settings)
