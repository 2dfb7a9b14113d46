"""Operators of a whole graph get the layouts that cost least together."""
