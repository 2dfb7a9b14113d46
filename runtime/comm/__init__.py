"""Communicators: what a kernel may ask of one, ranks in one process, MPI."""
