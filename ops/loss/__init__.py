"""Losses that are single operators."""
