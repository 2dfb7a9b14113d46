"""Operators whose windows slide over images: convolutions, pooling and resizing."""
