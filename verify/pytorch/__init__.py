"""Operators, optimizers and networks are compared with their counterparts in PyTorch."""
