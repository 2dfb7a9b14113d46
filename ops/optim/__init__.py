"""Operators that update parameters, and the test for an overflow that goes before them."""
