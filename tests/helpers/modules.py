"""Modules of NNX whose parameters NumPy draws, so that nothing is compiled."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx


def drawn(make: Callable[[], Any], rng: np.random.Generator) -> Any:
    """The module that `make` returns, with normal numbers of deviation 0.3 for its parameters."""
    graphdef, state = nnx.split(nnx.eval_shape(make))
    return nnx.merge(graphdef, jax.tree.map(lambda w: (0.3 * rng.normal(size=w.shape)).astype(w.dtype), state))
