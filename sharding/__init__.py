"""Rules and layouts as arithmetic that needs no graph: rules of factors, pieces of tensors, and groups of ranks."""
