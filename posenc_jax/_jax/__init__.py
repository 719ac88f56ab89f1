"""What JAX and its compilers must be told: arrays, errors, checks, primitives, derivatives, sharding, workarounds."""
