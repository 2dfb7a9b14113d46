"""Budgets limit the bytes, the memory and the collectives of a compile."""
