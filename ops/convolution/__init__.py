"""Windows that slide over images: convolutions, pooling, resizing."""
