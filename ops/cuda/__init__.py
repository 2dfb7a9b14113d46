"""CUDA sources that operators share."""
