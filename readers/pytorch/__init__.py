"""PyTorch's exported programs are read here as data: no PyTorch is needed, and nothing of them is run."""
