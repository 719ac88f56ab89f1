"""Every formula once, in mpmath or float64 NumPy, and values that other libraries computed. Nothing here is the library's."""
