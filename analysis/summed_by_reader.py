"""Reductions that a GPU leaves to the kernel that reads them, see `passes/communication/sum_in_readers.py`."""

from __future__ import annotations

from mspc.ir.graph import Value

SUMMED = "summed_by_reader"
"""The attribute of such a reduction: its result lies in the place of its operand, and its one reader may add the ranks'
parts up. What a graph computes does not depend on it."""


def is_summed_by_reader(value: Value) -> bool:
    """Whether a value is the result of such a reduction."""
    return SUMMED in getattr(value, "attrs", {})
