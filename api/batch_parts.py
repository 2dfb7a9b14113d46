"""Functions that run a network on equal parts of its inputs' rows and add up the results."""

from __future__ import annotations

from typing import Any

from mspc.api.nn.cell import Cell
from mspc.ir.location import Location


class SumOfParts:
    """Adds up the results of a network for equal parts of its inputs' rows."""

    cuts_batch = False

    def __call__(self, network: Cell, count: int, *inputs: Any) -> Any:
        for part in inputs:
            if part.shape[0] % count:
                raise ValueError(
                    f"the rows of every input must be a multiple of the number of parts, not {part.shape[0]} of {count}"
                )
        rows = [part.shape[0] // count for part in inputs]
        total = network(*[part[0:n] for part, n in zip(inputs, rows, strict=True)])
        for i in range(1, count):
            found = network(*[part[i * n : (i + 1) * n] for part, n in zip(inputs, rows, strict=True)])
            total = _added(total, found)
        return total


def _added(total: Any, found: Any) -> Any:
    """Two values added up, or the values of two tuples one by one."""
    if isinstance(total, (tuple, list)):
        return tuple([_added(mine, more) for mine, more in zip(total, found, strict=True)])
    return total + found


class MicroBatches(SumOfParts):
    """The same; where a network has several stages the compiler makes a loop of it, which the stages share.

    place: the line that has made the cell.
    """

    cuts_batch = True

    def __init__(self, place: Location | None) -> None:
        self.place = place
