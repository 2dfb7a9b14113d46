"""Comparison of two compiles, dumps or plans."""
