"""Rules and layouts as arithmetic that needs no graph: rules of factors, slices of tensors, and groups of ranks."""
