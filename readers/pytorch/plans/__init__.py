"""PyTorch plans: parallel styles per layer, and placements over a device mesh."""
