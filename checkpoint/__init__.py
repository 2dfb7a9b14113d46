"""Checkpoints are sets of files with an index. This package reads slices out of them, and other programs' formats."""
