"""Codebases that people train with, this library put in place of their positional code."""
