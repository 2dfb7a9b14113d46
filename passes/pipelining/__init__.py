"""Passes that split a network into stages, each on ranks of its own, which hand micro-batches on."""
