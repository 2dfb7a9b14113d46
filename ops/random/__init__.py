"""Random masks and numbers, the same on any number of ranks."""
