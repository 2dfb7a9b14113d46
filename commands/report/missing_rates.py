"""Notes on rates that a machine's file lacks, wherever times are estimated by it."""

from __future__ import annotations

from collections.abc import Iterable

from mspc.analysis.cost.machine import TF32, Machine
from mspc.analysis.cost.missing_rates import MissingRate, stand_in
from mspc.ir.types import dtype_of


def missing_rate_notes(missing: Iterable[MissingRate], machine: Machine) -> list[str]:
    """A note for every kind of work on an element type that takes the rates of another one."""
    notes: list[str] = []
    for each in missing:
        other = stand_in(machine, each)
        instead = f"those of products of {other}" if other else "its other_products"
        again = "; `mspc calibrate` measures them" if each.dtype == TF32 or dtype_of(each.dtype).is_float else ""
        what = f"{each.kind} of {each.dtype}"
        why = f"{instead} stand in, so that times may be far off{again}"
        notes.append(f"the file of {machine.name} has no rates of {what}: {why}")
    return notes
