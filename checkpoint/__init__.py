"""Checkpoints: sets of files with an index, which bytes of which files make up a slice, other programs' formats."""
