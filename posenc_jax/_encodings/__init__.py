"""Encodings that are added to embeddings: sinusoidal with its shifts, learned, Fourier features; their parser."""
