"""The package as a whole: its names, what it imports, and how a call is traced."""

import ast
import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe

PACKAGE = Path(pe.__file__).parent
FLOORS = {
    "_check": 0,
    "_mesh": 0,
    "_distance": 1,
    "_blockwise": 1,
    "_phase": 0,
    "frequencies": 1,
    "positions": 1,
    "axes": 2,
    "scalings": 2,
    "_turn": 2,
    "sinusoidal": 2,
    "rotation": 3,
    "rotary": 3,
    "xpos": 4,
    "bias": 3,
    "learned_bias": 3,
    "attention": 2,
    "_bias_parameters": 4,
    "_positional_attention": 4,
    "learned": 2,
    "fourier": 2,
    "_hf_models": 0,
    "_hf_config": 2,
    "_hf_rope": 3,
    "hf": 4,
    "_nnx_attention": 5,
    "_linen_attention": 5,
    "nnx": 6,
    "linen": 6,
    "_figure": 2,
    "plot": 6,
    "__init__": 7,
}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("posenc_jax"):
            names = [node.module] if node.module != "posenc_jax" else [f"posenc_jax.{n.name}" for n in node.names]
            yield from (name.removeprefix("posenc_jax.") for name in names)
        elif isinstance(node, ast.Import):
            yield from (n.name.removeprefix("posenc_jax.") for n in node.names if n.name.startswith("posenc_jax."))


def test_imports_run_downward_only():
    modules = {path.stem: set(imports_of(path)) for path in PACKAGE.glob("*.py")}
    assert set(modules) == set(FLOORS)
    upward = {(m, n) for m, names in modules.items() for n in names if FLOORS[n] >= FLOORS[m]}
    assert upward == set()


def test_public_names_are_documented():
    assert sorted(pe.__all__) == pe.__all__
    for name in pe.__all__:
        doc = getattr(pe, name).__doc__
        for part in ("Args:", "Examples:", ">>> "):
            assert part in doc, (name, part)
        if name != "Frequencies":
            for part in ("Returns:", "Raises:", "Reference:"):
                assert part in doc, (name, part)
    public = {n for n in vars(pe) if not n.startswith("_") and not isinstance(vars(pe)[n], type(sys))}
    assert public == set(pe.__all__)
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "module",
    "frequencies positions axes scalings sinusoidal rotation rotary xpos bias learned_bias attention learned fourier hf nnx _nnx_attention linen _linen_attention plot".split(),
)
def test_the_examples_in_docstrings(module):
    result = doctest.testmod(importlib.import_module(f"posenc_jax.{module}"))
    assert result.attempted >= 4 and result.failed == 0


def test_importing_brings_in_no_flax_no_matplotlib_and_starts_no_backend():
    code = (
        "import sys, json, posenc_jax, jax; from jax._src import xla_bridge;"
        "print(json.dumps([m in sys.modules for m in ('flax', 'matplotlib', 'scipy.special', 'decimal')]"
        " + [bool(xla_bridge._backends)]))"
    )
    flax, matplotlib, *_, backends = json.loads(subprocess.check_output([sys.executable, "-c", code], text=True))
    assert not (flax or matplotlib or backends)


def test_a_call_is_traced_in_few_equations():
    table = jax.make_jaxpr(lambda p: pe.sinusoidal(p, 128))(jnp.arange(16, dtype=jnp.int32))
    assert len(table.eqns) <= 45
    added = jax.make_jaxpr(pe.add_sinusoidal)(jnp.zeros((2, 16, 128)))
    assert len(added.eqns) <= 65


@pytest.mark.parametrize(
    "f",
    [
        lambda p: pe.sinusoidal(p, 128),
        lambda p: pe.sinusoidal(p, 128, layout="half"),
        lambda p: pe.sinusoidal(p.astype(jnp.float32), 128),
        lambda p: pe.add_sinusoidal(jnp.zeros((2, *p.shape, 128)), p),
        lambda p: pe.add_sinusoidal(jnp.zeros((2, *p.shape, 128))),
    ],
)
def test_no_temporaries(f):
    compiled = jax.jit(f).lower(jax.ShapeDtypeStruct((4096,), jnp.int32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 4096


def test_a_repeated_call_is_not_traced_again():
    with jax.log_compiles(False):
        pe.sinusoidal(np.arange(5), 12)
        with jax.no_tracing():
            pe.sinusoidal(np.arange(5), 12)
            pe.sinusoidal(np.arange(5), pe.geometric(12))
