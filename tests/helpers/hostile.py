"""Hostile input: how much of it tests try, and a count of it.

POSENC_HOSTILE=N multiplies it (`nox -f maintenance.py -s fuzz`).
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# The factor; how many examples ran, by kind; dtypes of arrays; and integers beside which something may end
MANY = int(os.environ.get("POSENC_HOSTILE", "1"))
TRIED = collections.Counter()
FLOATS = (np.float16, jnp.bfloat16, np.float32)
EDGES = [0, 1, -1, 2, 65535, 65536, -65536, 2**30, 2**31 - 1, -(2**31), 10**6, 2**31 - 65536]


@pytest.fixture(autouse=True, scope="module")
def print_what_was_tried() -> Iterator[None]:
    """Prints the counts after a module; a module that counts imports this fixture."""
    yield
    print("\ntried:", dict(TRIED))


def profile(examples: int) -> settings:
    """Hypothesis's settings: so many examples, times POSENC_HOSTILE, the same in every run."""
    return settings(
        max_examples=examples * MANY,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
