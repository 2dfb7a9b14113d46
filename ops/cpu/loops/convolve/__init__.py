"""Convolutions are compiled here as matrix products whose factors are read where they lie, without columns."""
