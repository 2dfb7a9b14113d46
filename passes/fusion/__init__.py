"""Passes that join several operators into one that passes over memory once."""
