"""Operators and networks have counterparts in PyTorch here, which compute what they should."""
