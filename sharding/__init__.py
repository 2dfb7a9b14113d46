"""Rules and layouts as pure arithmetic, without a graph: factor rules, pieces of tensors, groups of ranks."""
