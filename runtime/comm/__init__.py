"""Communicators: the interface that kernels use, one for ranks in one process, and one for MPI."""
