"""The package as a whole: its names, what it imports, and how a call is traced."""

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

PACKAGE, ROOT = Path(pe.__file__).parent, Path(__file__).parents[2]
# A module imports from its own room and from those before it, and in a room no circle of imports stands.
ROOMS = "_jax _numerics _frequencies _positions _rotary _encodings _biases _attention kernels plot hf _flax linen nnx __init__".split()
FILES = {
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


UNDOCUMENTED = (
    "jax.interpreters",
    "to_tangent_aval",
    "manual_axis_type",
    "weak_type=",
    "sharding.update",
    "spec.update",
)


def test_one_module_alone_knows_the_interpreters():
    written = {module: path.read_text(encoding="utf-8") for module, path in FILES.items()}
    knows = {module for module, text in written.items() if any(name in text for name in UNDOCUMENTED)}
    assert knows == {"_jax.primitives"}
    assert not any("jax._src" in text for text in written.values())


def deprecations(source):
    """The text of each DeprecationWarning that a module gives; what is computed in it stands in braces."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and "DeprecationWarning" in ast.unparse(node):
            said = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and part.value]
            if ast.unparse(node.func).endswith("warn"):
                yield "{}".join(text for text in said if isinstance(text, str))


def undecided(text, version):
    """Why a DeprecationWarning does not say what users must know, or None."""
    if not (found := re.search(r" is deprecated and goes in (\d+)\.(\d+): use \S+", text)):
        return f"{text!r} does not say '… is deprecated and goes in X.Y: use …'"
    now = tuple(map(int, version.split(".")[:2]))
    return None if tuple(map(int, found.groups())) > now else f"{text!r} should be gone in {version}"


def test_deprecations_name_their_end_and_their_replacement():
    texts = [text for path in FILES.values() for text in deprecations(path.read_text(encoding="utf-8"))]
    assert [reason for text in texts if (reason := undecided(text, pe.__version__))] == []


@pytest.mark.parametrize(
    ("text", "version", "good"),
    [
        ("posenc_jax.old is deprecated and goes in 0.3: use posenc_jax.new", "0.2.1", True),
        ("posenc_jax.old is deprecated and goes in 0.10: use posenc_jax.new", "0.9.0", True),
        ("posenc_jax.old is deprecated and goes in 0.3: use posenc_jax.new", "0.3.0", False),
        ("posenc_jax.old is deprecated: use posenc_jax.new", "0.2.1", False),
        ("posenc_jax.old is deprecated and goes in 0.3", "0.2.1", False),
    ],
)
def test_a_deprecation_that_says_too_little_is_seen(text, version, good):
    for call in ("warnings.warn({!r}, DeprecationWarning, stacklevel=2)", "warn({!r}, category=DeprecationWarning)"):
        (found,) = deprecations(f"def old(x):\n    {call.format(text)}\n")
        assert found == text and (undecided(found, version) is None) == good


def test_public_names_are_documented():
    assert sorted(pe.__all__) == pe.__all__
    for name in pe.__all__:
        doc = getattr(pe, name).__doc__
        for part in ("Args:", "Examples:", ">>> "):
            assert part in doc, (name, part)
        if name not in ("Frequencies", "CosSin"):
            for part in ("Returns:", "Raises:", "Reference:"):
                assert part in doc, (name, part)
    public = {n for n in vars(pe) if not n.startswith("_") and not isinstance(vars(pe)[n], type(sys))}
    assert public == set(pe.__all__)
    assert (PACKAGE / "py.typed").exists()


# Functions are found where they are public, and classes and the texts of modules where they stand.
PRIVATE = "_biases.formulas _flax.masks _frequencies.frequencies _rotary.cos_sin hf._apply hf._patches hf._plan hf._vision_plan linen._biases linen._encodings nnx._biases nnx._encodings".split()
WITH_EXAMPLES = "posenc_jax", *(f"posenc_jax.{name}" for name in ("hf", "kernels", "linen", "nnx", "plot", *PRIVATE))


@pytest.mark.slow
@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_in_docstrings(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted >= 4 and result.failed == 0


def test_no_example_is_overlooked():
    nodes = [node for path in FILES.values() for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    written = [ast.get_docstring(node, clean=False) or "" for node in nodes if isinstance(node, documented)]
    find, parse = doctest.DocTestFinder().find, doctest.DocTestParser().get_examples
    found = [test.examples for module in WITH_EXAMPLES for test in find(importlib.import_module(module))]
    assert sum(map(len, found)) == sum(len(parse(text)) for text in written) > 300


def test_importing_brings_in_nothing_heavy():
    code = (
        "import sys, json, jax; had = set(sys.modules); import posenc_jax.kernels; from jax._src import xla_bridge;"
        "print(json.dumps([sorted(set(sys.modules) - had), bool(xla_bridge._backends)]))"
    )
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


# What JAX defines below a comment that it will be deleted goes from jax.interpreters before the library is imported.
WITHOUT_SHIMS = """
import ast, inspect, re, jax
deleted = set()
for public in (jax.interpreters.ad, jax.interpreters.batching, jax.interpreters.mlir):
    for module in {inspect.getmodule(value) for value in vars(public).values()} - {None, public}:
        if not module.__name__.startswith("jax."):
            continue
        source = inspect.getsource(module)
        marked, lines = set(), source.splitlines()
        for node in ast.parse(source).body:
            above = lines[min(n.lineno for n in (node, *getattr(node, "decorator_list", ()))) - 2]
            if re.match("# .*(delete|remove)", above, re.IGNORECASE):
                marked |= {getattr(node, "name", "")} | {t.id for t in getattr(node, "targets", ())}
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):  # name = Marked()
                if getattr(node.value.func, "id", None) in marked:
                    marked |= {target.id for target in node.targets}
        for name in marked & set(vars(public)):
            delattr(public, name)
            deleted.add(name)
assert {"axis_primitive_batchers", "primitive_batchers"} <= deleted, deleted

import numpy as np, posenc_jax as pe
x, p = np.ones((3, 5, 4), np.float32), np.arange(3, dtype=np.int32)
rotate = lambda x, p: pe.rotary(x, p, head_axis=None)
assert np.array_equal(jax.vmap(rotate)(x[:, 0], p), rotate(x[:, 0], p))
scaled = jax.vmap(lambda p: p * rotate(x[0, 0], np.int32(7)), axis_name="i")  # a rotation of what is not mapped
assert np.array_equal(scaled(np.ones(3, np.float32)), np.broadcast_to(rotate(x[0, 0], np.int32(7)), (3, 4)))
loss = lambda x, p: pe.attention(*3 * (rotate(x, p)[:, None],)).sum()
assert jax.vmap(jax.grad(loss))(x, np.ones((3, 5), np.float32)).shape == x.shape
"""


def test_it_runs_without_what_jax_is_about_to_delete():
    subprocess.run([sys.executable, "-c", WITHOUT_SHIMS], check=True)


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


def test_the_overview_of_the_reference_lists_every_public_name():
    overview = program("entries").overview(text_of("docs/api/index.md"))
    rooms = (pe, hf, kernels, linen, nnx, plot)
    public = {f"{room.__name__}.{name}" for room in rooms for name in room.__all__}
    assert set(re.findall(r"\.md#(posenc_jax\.[\w.]+)\)", overview)) == public


def test_the_contributing_page_shows_every_room():
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/.]+?)/?` \| (.*) \|$", page, re.M)
    rooms = {name.replace("/", ".").removesuffix(".py"): text for name, text in rows}
    assert [name for name in rooms if "." not in name] == ROOMS[:-1]
    for room, text in rooms.items():
        assert room not in FILES or room[0] != "_" or FILES[room].read_text(encoding="utf-8") == f'"""{text}"""\n', room
    assert all(path.read_text(encoding="utf-8").lstrip("r").startswith('"""') for path in FILES.values())
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")} | {"unit"}
    assert folders == set(re.findall(r"^  (\w+)/ ", page.rpartition("\ntests/\n")[2], re.M))
    private = {room[1:] for room in ROOMS[:-1] if room[0] == "_"}
    assert {path.parent.name for path in (ROOT / "tests" / "unit").glob("*/*.py")} == private
