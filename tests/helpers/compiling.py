"""Compiler options with which XLA takes half of the time on a CPU and optimizes less.

The default tests compile with them, because most of their programs run once. Files that test what the compiler makes
use the fixture `compiled_anew` and compile as users do, as `nox -s tests_all` does for all files.
"""

from __future__ import annotations

from typing import Any

import jax
from jax._src import compiler

OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
if jax.__version_info__ < (0, 11):
    OPTIONS["xla_cpu_use_fusion_emitters"] = False
# JAX's own function, for which `compile_sooner` may put `_sooner`
as_users = compiler.get_compile_options


def _sooner(*args: Any, env_options_overrides: dict[str, Any] | None = None, **rest: Any) -> Any:
    return as_users(*args, env_options_overrides=OPTIONS | (env_options_overrides or {}), **rest)


def compile_sooner(sooner: bool) -> None:
    """Compiles with OPTIONS from now on, or as users do; what has been compiled stays."""
    compiler.get_compile_options = _sooner if sooner else as_users
