"""Graphs that nodes run: each prepared once, and walked at every turn."""
