"""Checks the installed package as a user has it: which files it holds, and the examples of docstrings and README.

    python -I tests/tools/installed.py README.md dist/posenc_jax-….tar.gz

The environment holds the wheel and what it requires, no test tool; `nox -f maintenance.py -s package` makes one for
each Python here, and adds matplotlib to it for the examples of figures.
"""

import doctest
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import sys
import tarfile
from pathlib import Path

import posenc_jax

README, SDIST = Path(sys.argv[1]), Path(sys.argv[2])


def check_files() -> None:
    """The wheel holds the package alone, and the sdist what is needed to build and test it."""
    assert Path(posenc_jax.__file__).is_relative_to(sys.prefix), f"{posenc_jax.__file__} is not the installed package"
    wheel = importlib.metadata.distribution("posenc_jax")
    assert wheel.version == posenc_jax.__version__
    top = {file.parts[0] for file in wheel.files}
    assert top == {"posenc_jax", f"posenc_jax-{wheel.version}.dist-info"}, top
    names = {file.name for file in wheel.files}
    assert {"py.typed", "facts.json", "LICENSE", "METADATA"} <= names
    with tarfile.open(SDIST) as archive:
        shipped = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    needed = {
        "pyproject.toml",
        "hatch_build.py",
        "noxfile.py",
        "maintenance.py",
        "README.md",
        "LICENSE",
        "tests/conftest.py",
    }
    assert needed | {str(file) for file in wheel.files if file.suffix == ".py"} <= shipped
    unwanted = [name for name in shipped if re.match(r"(build|site|\.nox)/|.*__pycache__", name)]
    assert not unwanted, unwanted


def run_docstrings(figures: bool) -> int:
    """Runs the examples in docstrings, of the modules that draw or of all others, and returns how many passed."""
    attempted = 0
    for name in ("posenc_jax", *(found.name for found in pkgutil.walk_packages(posenc_jax.__path__, "posenc_jax."))):
        if name.endswith((".plot", "._figure")) == figures:
            result = doctest.testmod(importlib.import_module(name))
            assert result.failed == 0, f"{result.failed} examples of {name} fail"
            attempted += result.attempted
    assert attempted > (20 if figures else 200), f"only {attempted} examples were found"  # there are more
    return attempted


def run_readme() -> int:
    """Runs README's examples one after the other, and returns how many there are."""
    blocks, names = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL), {}
    for block in blocks:
        exec(block, names)
    assert blocks
    return len(blocks)


if __name__ == "__main__":
    check_files()
    if importlib.util.find_spec("matplotlib"):  # the first run is without matplotlib, and runs the rest
        print(f"{run_docstrings(figures=True)} examples of figures run as installed")
    else:
        counts = run_docstrings(figures=False), run_readme()
        print("examples of docstrings and of README.md that run as installed:", *counts)
