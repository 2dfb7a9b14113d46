"""Notes below a table of plans: the measures of a plan that save memory, missing rates, doubtful measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mspc.analysis.cost.machine import TF32, Machine
from mspc.analysis.cost.timeline import MissingRate, stand_in
from mspc.ir.diagnostics import listed
from mspc.ir.text.families import each_of_cells
from mspc.ir.types import dtype_of

NAMED = 3
"""Most cells that a note lists."""


def memory_notes(
    recompute: Sequence[str], cut_further: int, gathered_again: int = 0, offload: Sequence[str] = (),
    offload_states: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Yield notes on the memory-saving measures of a plan.

    recompute, offload: cells that are recomputed, or for which values are on the host; equal ones in a row may be one
    entry. cut_further: parameters stored in smaller slices than operators read. gathered_again: those of them that
    gradients gather again. offload_states: optimizer states are on the host.
    """
    if recompute:
        yield f"computes {_counted(recompute)} again: {listed(recompute, NAMED)}"
    if offload_states:
        yield "keeps optimizer states on the host"
    if offload:
        yield f"keeps what gradients read of {_counted(offload)} on the host: {listed(offload, NAMED)}"
    if cut_further:
        again = f", {gathered_again} of them gathered again for gradients" * bool(gathered_again)
        count = f"{cut_further} parameter{'s' * (cut_further != 1)}"
        yield f"stores {count} in smaller slices than operators read{again}"


def _counted(cells: Sequence[str]) -> str:
    count = sum(1 for name in cells for _ in each_of_cells(name))
    return f"{count} cell{'s' * (count != 1)}"


def missing_rate_notes(missing: Iterable[MissingRate], machine: Machine) -> list[str]:
    """Return a note for every kind of work on a dtype that uses the rates of another one."""
    notes: list[str] = []
    for each in missing:
        other = stand_in(machine, each)
        instead = f"those of products of {other}" if other else "its other_products"
        again = "; `mspc calibrate` measures them" if each.dtype == TF32 or dtype_of(each.dtype).is_float else ""
        what = f"{each.kind} of {each.dtype}"
        why = f"{instead} stand in, so that times may be far off{again}"
        notes.append(f"the file of {machine.name} has no rates of {what}: {why}")
    return notes


LISTED = 5
"""Most doubts that are listed."""


def doubts_text(what: str, doubts: Sequence[str], do: str) -> str:
    """Return a warning with its reasons. what: the unreliable result. do: the advice."""
    more = len(doubts) - LISTED
    listed = [f"  note: {why}" for why in [*doubts[:LISTED], *([f"and {more} more"] if more > 0 else [])]]
    head = f"warning: {what} is not to be believed: the machine was busy, or ranks shared its cores"
    return "\n".join([head, *listed, f"  note: {do}"])
