"""Every formula once, in mpmath or float64 NumPy, and what other libraries computed: nothing of this library."""
