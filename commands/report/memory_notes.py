"""What a plan does so that ranks hold less, as notes below a table of plans have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mspc.ir.cell_names import each_of_cells

NAMED = 3
"""Cells that a note lists."""


def memory_notes(recompute: Sequence[str], cut_further: int, gathered_again: int = 0) -> Iterator[str]:
    """recompute: cells that are computed again, equal ones in a row as one or one by one. cut_further: parameters that
    are stored in smaller slices than operators read. gathered_again: those of them that gradients gather again."""
    if recompute:
        more = len(recompute) - NAMED
        listed = ", ".join(recompute[:NAMED]) + f" and {more} more" * (more > 0)
        count = sum(1 for name in recompute for _ in each_of_cells(name))
        yield f"computes {count} cells again: {listed}"
    if cut_further:
        again = f", {gathered_again} of them gathered again for gradients" * bool(gathered_again)
        count = f"{cut_further} parameter{'s' * (cut_further != 1)}"
        yield f"stores {count} in smaller slices than operators read{again}"
