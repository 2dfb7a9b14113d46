"""Optimizer updates of parameters, and the overflow check before them."""
