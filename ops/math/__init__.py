"""Arithmetic operators: elementwise functions, reductions and matmuls."""
