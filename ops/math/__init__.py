"""Operators of arithmetic: functions element by element, reductions and matrix products."""
