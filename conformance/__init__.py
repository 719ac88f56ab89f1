"""Vectors for positional encodings, and a runner that puts libraries to them; `README.md` says how."""
