"""Graphs on GPUs: planned memory, kernels and collectives in one CUDA graph."""
