"""Families: parameters of equal layers on one line. `%para4_layers.{0..79}.wq: <..>` is 80 of them,
`%para4_layers.0.wq` to `%para83_layers.79.wq`, which differ in that number only; as operands they are written
`%para4_layers.{0..79}.wq`."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from operator import attrgetter

from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.text.limits import LONGEST_LIST
from mspc.ir.types import StackType

RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_NUMBER = re.compile(r"\d+")
_BARE = re.compile(r"[\w.\-/\[\]$]+\Z")
_FACTS = attrgetter("kind", "type", "trainable", "layout", "global_type", "attrs")


def families(graph: Graph) -> dict[Parameter, tuple[list[Parameter], str]]:
    """Return (parameters on one line, common name) by the first of them: equal parameters that one stack holds, in
    consecutive order."""
    place = dict(zip(graph.parameters, itertools.count(), strict=False))
    found: dict[Parameter, tuple[list[Parameter], str]] = {}
    for node in graph.nodes:
        if not isinstance(node.type, StackType) or len(node.inputs) < 2:
            continue
        members = [value for value in node.inputs if isinstance(value, Parameter)]
        if len(members) != len(node.inputs) or members[0] in found or members[0] not in place:
            continue
        first = place[members[0]]
        if graph.parameters[first : first + len(members)] == members:
            facts = _FACTS(members[0])
            name = common_name(tuple([member.name for member in members]))
            if name and all([_FACTS(member) == facts for member in members]):
                found[members[0]] = members, name
    return found


@functools.lru_cache(maxsize=4096)
def common_name(names: tuple[str, ...]) -> str:
    """Return `layers.{0..2}.w` for `layers.0.w`, `layers.1.w`, `layers.2.w`; "" for names that do not count up."""
    if not _BARE.match(names[0]):
        return ""
    for match in _NUMBER.finditer(names[0]):
        first = int(match.group())
        before, behind = names[0][: match.start()], names[0][match.end() :]
        if str(first) == match.group() and names[1] == f"{before}{first + 1}{behind}":
            if list(names) != [f"{before}{i}{behind}" for i in range(first, first + len(names))]:
                return ""
            return f"{before}{{{first}..{first + len(names) - 1}}}{behind}"
    return ""


def gradient_names(node: Node) -> list[str]:
    """Return the names of the parameters that a node is the gradient of."""
    names = filter(None, str(node.attrs.get("gradient_for", "")).split(","))
    return [member for name in names for member in members_of(name)]


def members_of(name: str) -> Iterator[str]:
    """Yield the names in a common name, at most LONGEST_LIST + 1. A name without numbers in braces yields itself."""
    match = RANGE.search(name)
    if match is None:
        yield name
        return
    first, last = map(int, match.groups())
    for number in range(first, min(last, first + LONGEST_LIST) + 1):
        yield f"{name[: match.start()]}{number}{name[match.end() :]}"


CELLS = re.compile(r"\[(\d{1,9})\.\.(\d{1,9})\]")


def name_of_cells(names: Sequence[str]) -> str:
    """Return `layers-CellList/[0..2]` for `layers-CellList/0`, `layers-CellList/1`, `layers-CellList/2`; "" for names
    that do not count up."""
    return common_name(tuple(names)).replace("{", "[").replace("}", "]")


def are_cells(name: str) -> bool:
    """Return whether a name denotes several cells, or their contents."""
    return "[" in name and CELLS.search(name) is not None


def each_of_cells(name: str) -> Iterator[str]:
    """Yield the names of the cells that a name denotes; the name itself if that is one cell."""
    match = CELLS.search(name)
    if match is None:
        yield name
        return
    first, last = map(int, match.groups())
    for behind in each_of_cells(name[match.end() :]):
        for number in range(first, min(last, first + LONGEST_LIST) + 1):
            yield f"{name[: match.start()]}{number}{behind}"
