"""Passes that make one rank's own graph."""
