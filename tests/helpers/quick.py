"""Options with which XLA:CPU compiles in a third of the time: the same HLO, less optimized machine code.

For tests whose subject is the HLO (collectives, shardings, temporaries, work) or values within a tolerance. Where the
thorough tests run too, `conftest.py` sets `POSENC_TEST_OPTIMIZED`, and every test compiles as users do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _known(option: str, value: Any) -> bool:
    """Whether this XLA has the option; they come and go."""
    try:
        jax.jit(jnp.positive, compiler_options={option: value})(0)
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return False
    return True


OPTIMIZED = os.environ.get("POSENC_TEST_OPTIMIZED") == "1"
QUICK = {} if OPTIMIZED else {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
QUICK = {option: value for option, value in QUICK.items() if _known(option, value)}


def quick(f: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` with these options; not inside another."""
    return jax.jit(f, compiler_options=QUICK)
