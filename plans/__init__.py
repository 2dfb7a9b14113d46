"""Strategies and plans as files: their names for operators, what they say of a graph, and how a graph takes it."""
