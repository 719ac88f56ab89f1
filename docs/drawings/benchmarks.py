"""The benchmark's figures, of the newest of the results that are kept with it."""

import importlib.util
import pathlib
import sys
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


def _module() -> ModuleType:
    """benchmarks/figures.py, which imports its neighbours."""
    if "benchmark_figures" not in sys.modules:
        sys.path.append(str(FOLDER))
        spec = importlib.util.spec_from_file_location("benchmark_figures", FOLDER / "figures.py")
        sys.modules["benchmark_figures"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["benchmark_figures"])
    return sys.modules["benchmark_figures"]


def _drawn(function: str, *args: Any) -> Figure:
    drawer = _module()
    return getattr(drawer, function)(drawer.kept()[0], drawer.SCHEMES[""], *args)


def benchmark_bars() -> Figure:
    """Bars for each of fifteen cases: the time of each library as a multiple of a plain copy of the same bytes, on
    logarithmic axes. The bar of posenc_jax is blue. In rotary cases it ends nearest to the line of one copy, and others
    reach from one and a half to twenty-one. The page How fast gives its numbers."""
    return _drawn("bars")


def benchmark_errors() -> Figure:
    """Largest error against position for each library on logarithmic axes. posenc_jax stays level at 5e-8 to two
    billion. Libraries with phases in float32 rise together in a straight line from 2e-7 to 2; some of them end at one
    million. So do the Flax examples, which stay level at 3e-8."""
    return _drawn("accuracy")


def benchmark_length() -> Figure:
    """Time of a call and memory beside the result against length, for tables and rotary embeddings, each library a
    line, on logarithmic axes. All times grow with the length, and the thick line of posenc_jax is the lowest of the
    libraries but for rotary embeddings of short sequences, where lines cross. Its memory stays at the bottom of the
    axis; that of the others grows with the length, but for keras_hub and tables."""
    return _drawn("growth", "length")


def benchmark_heads() -> Figure:
    """Time of a call and memory beside the result against the number of heads, on logarithmic axes. The times of all
    grow with the heads; the line of posenc_jax is the lowest from four heads on. Its memory is 2 megabytes from four
    heads on and next to nothing with one; that of most others grows with the heads."""
    return _drawn("growth", "heads")
