"""The passes here add gradients to a graph, and recompute values for them."""
