"""The GPU runtime: planned memory, kernels and collectives in one CUDA graph."""
