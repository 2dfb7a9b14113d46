"""Attention and its gradients are compiled here: scores are made block by block, and are never in memory all at once."""
