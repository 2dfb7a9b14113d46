"""Attention and its gradients are compiled here: scores are made block by block, never all at once."""
