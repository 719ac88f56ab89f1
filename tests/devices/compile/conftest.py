"""These tests read what compilers make, so no program comes from the cache."""

import jax

jax.config.update("jax_compilation_cache_dir", None)
