"""Training steps that networks share, as optimizers and the scaling of a loss, are compared with PyTorch."""
