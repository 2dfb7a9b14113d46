"""Kernels in NumPy and C++ that several operators share, and the threads that they are shared out to."""
