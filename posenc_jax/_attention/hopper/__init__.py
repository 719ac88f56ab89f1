"""Attention by kernels for NVIDIA Hopper GPUs."""
