"""Passes that remove unneeded nodes."""
