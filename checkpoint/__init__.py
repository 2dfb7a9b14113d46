"""Checkpoints: sets of files with an index, the bytes that make up a slice, other programs' formats."""
