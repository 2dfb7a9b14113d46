"""What operators and whole networks are in PyTorch, and what PyTorch computes for them."""
