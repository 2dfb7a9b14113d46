"""Graphs run on GPUs with planned memory, and with kernels and collectives in one CUDA graph."""
