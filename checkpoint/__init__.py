"""Checkpoints: indexed sets of files, slices of them, and other programs' formats."""
