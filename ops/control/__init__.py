"""Structural operators: tuples, regions, ordering, gradient requests and dumps."""
