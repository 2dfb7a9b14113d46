"""Passes that add gradients to a graph and recompute values for them."""
