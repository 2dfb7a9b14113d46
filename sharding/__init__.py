"""Sharding arithmetic without a graph: factor rules, slices of tensors and groups of ranks."""
