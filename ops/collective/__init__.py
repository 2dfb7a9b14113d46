"""Operators by which ranks communicate: collectives, exchanges, sends and receives."""
