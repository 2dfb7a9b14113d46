"""Strategies and plans are read and written here: how files name operators, and how a graph takes what they say."""
