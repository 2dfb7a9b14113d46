"""Fused operators, which the passes of `passes/fusion` create."""
