"""Operators that make, move, choose and convert the elements of tensors."""
