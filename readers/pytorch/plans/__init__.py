"""Plans as the owners of PyTorch networks write them: styles of layers, and placements over a mesh of ranks."""
