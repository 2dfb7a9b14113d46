"""Random masks and numbers, equal on any number of ranks."""
