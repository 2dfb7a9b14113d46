"""Parameters of equal layers stand on one line: `%para4_layers.{0..79}.wq: <..>` is 80 of them, `%para4_layers.0.wq` to
`%para83_layers.79.wq`, which differ in that number alone; as operands they stand as `%para4_layers.{0..79}.wq`."""

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
    """The parameters that stand on one line and the name that they have together, by the first of them: those that a
    stack holds, one behind the other."""
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
    """`layers.{0..2}.w` for `layers.0.w`, `layers.1.w`, `layers.2.w`; "" for names that do not count up so."""
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
    """The names of the parameters whose gradient a node is."""
    names = filter(None, str(node.attrs.get("gradient_for", "")).split(","))
    return [member for name in names for member in members_of(name)]


def members_of(name: str) -> Iterator[str]:
    """The names that a common name stands for; a name without numbers in braces stands for itself."""
    match = RANGE.search(name)
    if match is None:
        yield name
        return
    first, last = map(int, match.groups())
    for number in range(first, min(last, first + LONGEST_LIST) + 1):
        yield f"{name[: match.start()]}{number}{name[match.end() :]}"


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
