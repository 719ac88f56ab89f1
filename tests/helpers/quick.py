"""Options with which XLA:CPU compiles in a third to a half of the time, to less optimized machine code.

For tests whose subject is the HLO (collectives, shardings, temporaries, work) or values within a tolerance. In
`nox -s tests_all` only the slow cases compile with these options, and the default tests compile as users do.
POSENC_TEST_OPTIMIZED=1 makes every test compile as users do.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

ALWAYS = os.environ.get("POSENC_TEST_OPTIMIZED") == "1"
optimized = ALWAYS  # `conftest.py` sets it, for imports and then for each test


@functools.cache
def _less() -> dict[str, Any]:
    def known(option: str, value: Any) -> bool:
        """Whether this XLA has the option; they come and go."""
        try:
            jax.jit(jnp.positive, compiler_options={option: value})(0)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            return False
        return True

    wanted = {
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,  # gone in JAX 0.12
        "xla_cpu_multi_thread_eigen": False,  # a third less to compile on JAX 0.12
        "xla_cpu_parallel_codegen_split_count": 1,  # a fifth less on JAX 0.10
    }
    return {option: value for option, value in wanted.items() if known(option, value)}


def compiler_options() -> dict[str, Any]:
    """The options of the test that runs."""
    return {} if optimized else _less()


def quick(f: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` with these options; not inside another."""
    return jax.jit(f, compiler_options=compiler_options())
