"""CPU kernels in NumPy and C++ that several operators share, and the thread pool."""
