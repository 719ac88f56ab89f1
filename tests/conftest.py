"""Eight CPU devices and strict promotion, before anything uses JAX."""

import contextlib
import os

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
if os.environ.get("POSENC_TEST_X64") == "1":
    jax.config.update("jax_enable_x64", True)


@pytest.fixture
def on_cpu():
    """One device's results are compared with those of many, which are CPU devices: so it is one of them."""
    first = jax.devices("cpu")[0]
    with contextlib.nullcontext() if first in jax.devices() else jax.default_device(first):
        yield
