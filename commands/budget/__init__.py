"""Budgets: limits on the bytes, memory and collectives of a compile."""
