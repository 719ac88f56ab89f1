"""Eight CPU devices and strict promotion, before anything uses JAX."""

import os

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
if os.environ.get("POSENC_TEST_X64") == "1":
    jax.config.update("jax_enable_x64", True)
