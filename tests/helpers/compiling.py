"""How XLA compiles for a CPU in half of the time, to machine code that is less optimized.

Default tests compile so, because most of their programs run once, but for the files whose subject is what the compiler
makes; `nox -s tests_all` compiles as users do.
"""

from __future__ import annotations

from typing import Any

import jax
from jax._src import compiler

OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
if jax.__version_info__ < (0, 11):
    OPTIONS["xla_cpu_use_fusion_emitters"] = False
as_users = compiler.get_compile_options


def _sooner(*args: Any, env_options_overrides: dict[str, Any] | None = None, **rest: Any) -> Any:
    return as_users(*args, env_options_overrides=OPTIONS | (env_options_overrides or {}), **rest)


def compile_sooner(sooner: bool) -> None:
    """From now on; what has been compiled stays."""
    compiler.get_compile_options = _sooner if sooner else as_users
