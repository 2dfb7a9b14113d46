"""Communicators: the interface, ranks in one process, and MPI."""
