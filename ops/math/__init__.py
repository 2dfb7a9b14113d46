"""Arithmetic, functions element by element, reductions, matrix products."""
