"""Ranks that die, hang or compute a NaN: who notices, and what is said."""
