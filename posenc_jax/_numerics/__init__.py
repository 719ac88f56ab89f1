"""Arithmetic with known error bounds: fixed-point phases, sines, exponentials, distances."""
