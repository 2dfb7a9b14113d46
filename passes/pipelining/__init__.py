"""Passes that split a network into pipeline stages."""
