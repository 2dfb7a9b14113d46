"""Passes that decide which layout every value has."""
