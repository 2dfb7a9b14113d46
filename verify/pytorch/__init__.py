"""What operators and whole networks are in PyTorch, and what PyTorch says of them."""
