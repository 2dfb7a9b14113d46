"""Losses as single operators."""
