"""This module finds the cells and parameters that two plans treat otherwise to spare memory."""

from __future__ import annotations

from collections.abc import Iterator

from mspc.commands.comparison.difference import Difference
from mspc.commands.facts.model import PlannedMemory

YES = "yes"
RECOMPUTED, STORED, GATHERED = "computed again for gradients", "stored as", "gathered again for gradients"
OFFLOADED = "kept on the host"


def memory_differences(first: PlannedMemory | None, second: PlannedMemory | None) -> list[Difference]:
    """The cells and parameters that two plans treat otherwise; none where one of the two does not tell.

    Every Difference has as its cell what the plans say of that name, and None where a plan leaves it as it is.
    """
    return [] if first is None or second is None else list(_differences(first, second))


def _differences(first: PlannedMemory, second: PlannedMemory) -> Iterator[Difference]:
    pairs = (
        (RECOMPUTED, dict.fromkeys(first.recompute, YES), dict.fromkeys(second.recompute, YES)),
        (STORED, first.parameters, second.parameters),
        (GATHERED, dict.fromkeys(first.gather_again, YES), dict.fromkeys(second.gather_again, YES)),
        (OFFLOADED, dict.fromkeys(first.offload, YES), dict.fromkeys(second.offload, YES)),
    )
    for what, ours, theirs in pairs:
        for name in dict.fromkeys([*ours, *theirs]):
            if ours.get(name) != theirs.get(name):
                yield Difference(name, what, "", ours.get(name), theirs.get(name))
