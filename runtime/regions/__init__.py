"""Subgraphs that nodes run: prepared once, executed at every iteration."""
