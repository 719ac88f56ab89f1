"""Modules of NNX with random parameters, which NumPy draws without compiling."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx


def drawn(make: Callable[[], Any], rng: np.random.Generator, deviation: float = 0.3) -> Any:
    """The module that `make` returns; its parameters are normal numbers with this standard deviation."""
    graphdef, state = nnx.split(nnx.eval_shape(make))
    return nnx.merge(graphdef, jax.tree.map(lambda w: (deviation * rng.normal(size=w.shape)).astype(w.dtype), state))
