"""Passes that add gradients to a graph, and what is computed again for them."""
