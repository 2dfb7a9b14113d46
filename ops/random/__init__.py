"""Operators that draw random masks and numbers, which are the same on any number of ranks."""
