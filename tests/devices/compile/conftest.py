"""What compilers make is the subject, so nothing comes from the cache of compiled programs."""

import jax

jax.config.update("jax_compilation_cache_dir", None)
