"""Operators that create, move, select and convert the elements of tensors."""
