"""Operators that are several others as one. The passes of `passes/fusion` make them."""
