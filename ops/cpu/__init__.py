"""Kernels in NumPy that several operators share."""
