"""The package as a whole: its imports, its public names with their examples, and how a call is traced.

- Imports run downward, nothing heavy comes with the package, and Flax is needed by its own modules alone.
- One module alone uses JAX's interpreters and other undocumented names, and only the ones listed here.
- Every public name is documented, with examples that run.
- Encodings are computed without temporaries, and a repeated call is not traced again.
"""

import ast
import doctest
import graphlib
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posenc_jax as pe
from helpers.pages import program, text_of
from posenc_jax import hf, kernels, linen, nnx, plot

PACKAGE = Path(pe.__file__).parent
# A room is a folder or a module beside the folders. A module imports from its own room and from earlier ones, and no
# modules import each other in a circle.
ROOMS = "_jax _numerics _frequencies _positions _rotary _encodings _biases _attention".split()
ROOMS += "kernels plot hf _flax linen nnx __init__".split()
FILES = {  # module → its file, "_biases.formulas" → posenc_jax/_biases/formulas.py
    path.relative_to(PACKAGE).as_posix().removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
    for path in PACKAGE.rglob("*.py")
}


def imports_of(path):
    """The modules of the package that a file imports, or from which it imports names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            names = [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        for name in names:
            package, *parts = name.split(".")
            if package == "posenc_jax":
                module = ".".join(parts)
                yield module if module in FILES else ".".join(parts[:-1]) or "__init__"


def test_imports_run_downward_only():
    assert {module.partition(".")[0] for module in FILES} == {*ROOMS}
    imports = {module: {*imports_of(path)} - {module} for module, path in FILES.items()}
    floor = {module: ROOMS.index(module.partition(".")[0]) for module in FILES}
    assert {(module, other) for module in FILES for other in imports[module] if floor[other] > floor[module]} == set()
    graphlib.TopologicalSorter(imports).prepare()  # raises at a circle


# Names, or parts of code, of JAX's undocumented interface
UNDOCUMENTED = "jax.interpreters to_tangent_aval manual_axis_type weak_type= sharding.update spec.update".split()
# What the package uses of jax.interpreters. `axis_primitive_batchers` and `primitive_batchers` must not be in the list,
# because JAX will delete them.
OF_INTERPRETERS = {
    *("ad.Zero", "ad.instantiate_zeros", "ad.is_undefined_primal", "ad.primitive_jvps", "ad.primitive_transposes"),
    *("batching.fancy_primitive_batchers", "mlir.lower_fun", "mlir.register_lowering"),
}


def test_one_module_alone_knows_the_interpreters():
    written = {module: path.read_text(encoding="utf-8") for module, path in FILES.items()}
    knows = {module for module, text in written.items() if any(name in text for name in UNDOCUMENTED)}
    assert knows == {"_jax.primitives"}
    assert not any("jax._src" in text for text in written.values())
    assert set(re.findall(r"\b(?:ad|batching|mlir)\.\w+", written["_jax.primitives"])) == OF_INTERPRETERS


def test_public_names_are_documented():
    assert sorted(pe.__all__) == pe.__all__
    for name in pe.__all__:
        doc = getattr(pe, name).__doc__
        for part in ("Args:", "Examples:", ">>> "):
            assert part in doc, (name, part)
        if name not in ("Frequencies", "CosSin", "KVCache"):
            for part in ("Returns:", "Raises:", "Reference:"):
                assert part in doc, (name, part)
    public = {n for n in vars(pe) if not n.startswith("_") and not isinstance(vars(pe)[n], type(sys))}
    assert public == set(pe.__all__)
    assert (PACKAGE / "py.typed").exists()


# doctest finds functions in the public modules, but classes and module docstrings only in the modules that define them.
PRIVATE = "_attention.cache _biases.formulas _flax.masks _frequencies.frequencies _rotary.cos_sin hf._apply hf._patches"
PRIVATE += " hf._diffusion_plan hf._plan hf._vision_plan linen._biases linen._encodings nnx._biases nnx._encodings"
WITH_EXAMPLES = "posenc_jax", *(f"posenc_jax.{name}" for name in f"hf kernels linen nnx plot {PRIVATE}".split())


@pytest.mark.slow
@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_in_docstrings(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted >= 4 and result.failed == 0  # each of the modules has examples


def test_no_example_is_overlooked():
    """WITH_EXAMPLES finds as many examples as all docstrings of the source contain."""
    nodes = [node for path in FILES.values() for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    written = [ast.get_docstring(node, clean=False) or "" for node in nodes if isinstance(node, documented)]
    find, parse = doctest.DocTestFinder().find, doctest.DocTestParser().get_examples
    found = [test.examples for module in WITH_EXAMPLES for test in find(importlib.import_module(module))]
    assert sum(map(len, found)) == sum(len(parse(text)) for text in written) > 300


def test_importing_brings_in_nothing_heavy():
    """Importing posenc_jax and its kernels loads neither Flax, matplotlib nor Pallas, and starts no backend."""
    code = (
        "import sys, json, jax; had = set(sys.modules); import posenc_jax.kernels; from jax._src import xla_bridge;"
        "print(json.dumps([sorted(set(sys.modules) - had), bool(xla_bridge._backends)]))"
    )
    # The modules that the import added to those of JAX, and whether a backend was started
    modules, backends = json.loads(subprocess.check_output([sys.executable, "-c", code], text=True))
    heavy = {"flax", "matplotlib", "jax.extend", "jax._src.pallas", "jax.experimental.pallas"}
    assert not heavy & set(modules) and not backends and "posenc_jax._jax.workarounds" in modules


def test_flax_is_needed_by_its_modules_alone():
    code = """
import sys
sys.modules["flax"] = None  # as if it were not installed
import jax.numpy as jnp, posenc_jax, posenc_jax.hf, posenc_jax.kernels, posenc_jax.plot
plan = posenc_jax.hf.rotary_from_config({"model_type": "gpt_neox", "head_dim": 8, "num_hidden_layers": 1})
plan.rotate(jnp.ones((1, 2, 1, 8)), 0, head_axis=-2)
for name in ("nnx", "linen"):
    try:
        __import__(f"posenc_jax.{name}")
    except ImportError as error:
        assert "flax" in str(error), error
    else:
        raise AssertionError(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("f", [pe.sinusoidal, lambda p, dim: pe.add_sinusoidal(jnp.zeros((2, 4096, dim)), p)])
def test_encodings_are_computed_without_temporaries(f):
    compiled = jax.jit(lambda p: f(p, 128)).lower(jax.ShapeDtypeStruct((4096,), jnp.int32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 4096  # of results of 2 MiB and more


def test_a_repeated_call_is_not_traced_again():
    with jax.log_compiles(False):
        pe.sinusoidal(np.arange(5), 12)
        with jax.no_tracing():
            pe.sinusoidal(np.arange(5), 12)
            pe.sinusoidal(np.arange(5), pe.geometric(12))


def test_the_overview_of_the_reference_lists_every_public_name():
    overview = program("entries").overview(text_of("docs/api/index.md"))
    assert {*linen.__all__} == {*nnx.__all__}  # so the overview names the modules of NNX alone
    public = {f"{room.__name__}.{name}" for room in (pe, hf, kernels, nnx, plot) for name in room.__all__}
    assert set(re.findall(r"\.md#(posenc_jax\.[\w.]+)\)", overview)) == public
