"""Names of equal cells that are one graph: `layers-CellList/[0..79]-Layer` in a scope, or in the name of an operator or
a parameter, stands for the 80 cells that a loop's turns run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mspc.ir.text.families import common_name
from mspc.ir.text.limits import LONGEST_LIST

CELLS = re.compile(r"\[(\d{1,9})\.\.(\d{1,9})\]")


def name_of_cells(names: Sequence[str]) -> str:
    """`layers-CellList/[0..2]` for `layers-CellList/0`, `layers-CellList/1`, `layers-CellList/2`; "" for names that do
    not count up so."""
    return common_name(tuple(names)).replace("{", "[").replace("}", "]")


def are_cells(name: str) -> bool:
    """Whether a name stands for several cells, or for what is in them."""
    return "[" in name and CELLS.search(name) is not None


def each_of_cells(name: str) -> Iterator[str]:
    """The names that one stands for; itself where that is one."""
    match = CELLS.search(name)
    if match is None:
        yield name
        return
    first, last = map(int, match.groups())
    for behind in each_of_cells(name[match.end() :]):
        for number in range(first, min(last, first + LONGEST_LIST) + 1):
            yield f"{name[: match.start()]}{number}{behind}"
