"""Kernels for NumPy that operators share."""
