"""Passes that insert, bucket and order collectives."""
