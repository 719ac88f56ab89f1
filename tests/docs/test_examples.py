"""The models of `examples/`: vit, t5, dit and video run from the command line, and vit learns at two resolutions.

`nox -f maintenance.py -s parity` compares T5 and the decoder with transformers.
"""

import functools
import importlib
import sys

import jax
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
from helpers.closeness import assert_within
from helpers.modules import drawn
from helpers.pages import ROOT
from oracles import attention, rotations

RNG = np.random.default_rng(0)


@pytest.fixture
def example(monkeypatch):
    """Imports an example by its name, as a user runs it."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield importlib.import_module


def test_rope_in_a_block_of_a_vit_sees_differences_of_positions_alone(example):
    """Shifting the whole grid changes nothing; exchanging rows and columns does."""
    vit = example("vit")
    block = nnx.jit(drawn(lambda: vit.Block(32, 2, pe.axial(16, 2, 100.0), rngs=nnx.Rngs(0)), RNG))
    x = RNG.normal(size=(2, 15, 32)).astype(np.float32)
    grid = np.indices((3, 5)).reshape(2, 15).T.astype(np.int32)  # (row, column) of 15 patches
    here, there, other = (np.asarray(block(x, p)) for p in (grid, grid + np.int32([100, -30]), grid[:, ::-1]))
    assert_within(there, here, 1e-5, against="the same grid elsewhere")
    assert np.abs(other - here).max() > 1e-3


def test_grouped_attention_with_a_cache_is_that_of_the_whole(example):
    """In float64, in two windows; a cache of another window is refused."""
    rotate = functools.partial(pe.rotary, frequencies=8, head_axis=-2)
    x, p = RNG.normal(size=(2, 6, 16)).astype(np.float32), np.arange(6, dtype=np.int32)

    def make(window):
        layer = example("grouped_attention").GroupedQueryAttention
        return layer(16, 4, 2, 8, rotate, window=window, rngs=nnx.Rngs(0))

    for window in ((None, None), (2, None)):
        layer = drawn(functools.partial(make, window), RNG)
        q, k, v = (
            (x @ np.asarray(getattr(layer, f"{name}_proj").kernel[...], np.float64)).reshape(2, 6, -1, 8)
            for name in "qkv"
        )
        q, k = (rotations.rotate_by(z, p[:, None, None] * pe.geometric(8).angular, "half") for z in (q, k))
        y = attention.dense(q, k, v, seen=attention.may_see(p, p, causal=True, window=window)).y
        want = y.reshape(2, 6, -1) @ np.asarray(layer.o_proj.kernel[...], np.float64)
        assert_within(nnx.jit(layer)(x, p)[0], want, 1e-4)
        cache = pe.kv_cache(2, 6, 2, 8, window=window)
        first, cache = nnx.jit(layer)(x[:, :4], p[:4], cache)
        second, _ = nnx.jit(layer)(x[:, 4:], p[4:], cache)
        assert_within(np.concatenate([first, second], 1), want, 1e-4)
    with pytest.raises(ValueError, match="the cache's window is"):
        layer(x, p, pe.kv_cache(2, 9, 2, 8, window=(3, None)))


@pytest.mark.slow
@pytest.mark.parametrize("call", ["vit", "t5", "dit", "video --figure video.png"])
def test_the_models_run_from_the_command_line(example, call, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    name, *options = call.split()
    monkeypatch.setattr(sys, "argv", [name, "--steps", "25", *options])
    example(name).main()
    assert len(capsys.readouterr().out.splitlines()) >= 3  # what each prints about its run
    assert [path.name for path in tmp_path.iterdir()] == options[1:]


@pytest.mark.slow
def test_a_vit_with_sinusoids_learns_sides_and_keeps_them_at_another_resolution(example):
    """After 150 steps the fraction of images whose side it names, where it trained and on a larger grid."""
    vit = example("vit")
    model, _ = vit.train("sincos", 150)
    assert vit.correct(model, *vit.made_images(RNG, 400, (5, 5))) > 0.9
    assert vit.correct(model, *vit.made_images(RNG, 400, (8, 5))) > 0.65
