"""What a plan does so that ranks hold less, as notes below a table of plans have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mspc.ir.text.families import each_of_cells

NAMED = 3
"""Cells that a note lists."""


def memory_notes(
    recompute: Sequence[str], cut_further: int, gathered_again: int = 0, offload: Sequence[str] = (),
    offload_states: bool = False,
) -> Iterator[str]:  # fmt: skip
    """recompute, offload: cells that are computed again, or of which values are on the host, equal ones in a row as one
    or one by one. cut_further: parameters that are stored in smaller slices than operators read. gathered_again: those
    of them that gradients gather again. offload_states: states of optimizers are on the host."""
    if recompute:
        yield f"computes {_counted(recompute)} again: {_listed(recompute)}"
    if offload_states:
        yield "keeps optimizer states on the host"
    if offload:
        yield f"keeps what gradients read of {_counted(offload)} on the host: {_listed(offload)}"
    if cut_further:
        again = f", {gathered_again} of them gathered again for gradients" * bool(gathered_again)
        count = f"{cut_further} parameter{'s' * (cut_further != 1)}"
        yield f"stores {count} in smaller slices than operators read{again}"


def _counted(cells: Sequence[str]) -> str:
    count = sum(1 for name in cells for _ in each_of_cells(name))
    return f"{count} cell{'s' * (count != 1)}"


def _listed(cells: Sequence[str]) -> str:
    more = len(cells) - NAMED
    return ", ".join(cells[:NAMED]) + f" and {more} more" * (more > 0)
