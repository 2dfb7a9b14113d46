"""Operators that give a graph its shape: tuples, ordering, requests for gradients, and dumps."""
