"""The README's examples run, and say what is so."""

import re
from pathlib import Path

import jax
import numpy as np

import posenc_jax as pe

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_examples():
    namespace = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as a user has them
        for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
            exec(block, namespace)
        assert namespace["model"](np.array([[1, 2, 3]])).shape == (1, 3, 512)
        for layer in ("layer", "biased"):
            assert namespace[layer](np.ones((1, 3, 512), np.float32)).shape == (1, 3, 512)
        assert namespace["rotate"](namespace["key"], 31).shape == namespace["key"].shape
        again = pe.rotary(namespace["query"], np.arange(-40, 60))
        np.testing.assert_allclose(*(x.astype(np.float32) for x in (namespace["earlier"], again)), rtol=0, atol=0.03)
        np.testing.assert_array_equal(namespace["partial"][..., 64:], namespace["key"][..., 64:])
        want = jax.nn.dot_product_attention(
            *(namespace[x].astype(np.float32) for x in "qkv"),
            bias=pe.alibi(np.arange(1000), np.arange(1000), np.full(8, 0.1, np.float32))[None],
            is_causal=True,
        )
        np.testing.assert_allclose(namespace["y"].astype(np.float32), want, rtol=0, atol=0.02)
    np.testing.assert_array_equal(namespace["tile"], pe.alibi(1000 + np.arange(64), np.arange(128), 8))
    assert namespace["packed"].tolist() == [0, 1, 2, 0, 1] and namespace["padded"].tolist() == [[0, 0, 0, 1, 2]]
    assert namespace["image"].shape == (337, 2) and namespace["mixed"].shape == (344, 3)
    assert namespace["ring"].shape == (4, 2048) and namespace["noise"].shape == (2, 320)
    np.testing.assert_allclose(namespace["moved"], pe.sinusoidal(np.arange(5, 1029), 512), rtol=0, atol=5e-7)
    assert namespace["M"].shape == (512, 512) and namespace["curve"][0] == 256
    assert namespace["patches"].shape == (14, 14, 384) and namespace["x"].shape == (2, 1024, 512)


def test_nothing_is_left_to_fill_in():
    assert not re.findall(r"\b[A-Z]{3,}_[A-Z]+\b|TODO|TBD", README)


def test_files_it_names_exist():
    names = re.findall(r"\]\(([^)#:]+)\)|src(?:set)?=\"([^\"]+)\"|`((?:benchmarks|tests|examples)/[\w./]+)`", README)
    paths = {name for found in names for name in found if name}
    assert {"CITATION.cff", "docs/phase_error.png", "benchmarks/rotary_error.py"} <= paths
    assert all((ROOT / path).exists() for path in paths), paths
