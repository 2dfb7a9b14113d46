"""Comparison of operators, optimizers and networks with PyTorch."""
