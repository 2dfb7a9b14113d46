"""CUDA sources that several operators share."""
