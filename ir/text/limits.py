"""These limits bound what a text may hold. Beyond them lie typing errors and damage, which would fill the memory."""

from __future__ import annotations

LARGEST_CONSTANT = 1 << 26
"""Most elements of a constant."""
LONGEST_LIST = 1 << 20
"""Most members of a list start:stop:step."""
DEEPEST = 32
"""Brackets inside brackets of a value."""
DEEPEST_REGIONS = 100
"""Graphs inside of graphs."""
MOST_RANKS = 1 << 20
"""Ranks that a graph may be for: a group of them is a list."""
