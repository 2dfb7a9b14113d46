"""Passes that decide the layout of every value."""
