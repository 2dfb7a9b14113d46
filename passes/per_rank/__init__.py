"""Passes that make the graph of one rank."""
