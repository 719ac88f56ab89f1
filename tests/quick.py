"""Options with which XLA:CPU compiles in a third of the time: the same HLO, less optimized machine code.

For tests of what the HLO shows (collectives, shardings, temporaries, work) and of values within a tolerance.
"""

import jax
import jax.numpy as jnp


def _known(option, value):
    """Whether this XLA has the option; they come and go."""
    try:
        jax.jit(jnp.positive, compiler_options={option: value})(0)
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return False
    return True


QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
QUICK = {option: value for option, value in QUICK.items() if _known(option, value)}
