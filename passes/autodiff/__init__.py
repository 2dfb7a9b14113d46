"""Gradients, and what is computed again for them."""
