"""Compiled graphs on GPUs: planned memory, kernels and collectives captured into one CUDA graph."""
