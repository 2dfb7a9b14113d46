"""Passes that take out what nobody needs."""
