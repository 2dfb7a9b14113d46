"""Budgets of bytes, memory and collectives that a compile must keep."""
