"""Rules and layouts as pure arithmetic, without a graph: factor rules, pieces, groups of ranks."""
