"""Operators that communicate: collectives, exchanges, sends and receives."""
