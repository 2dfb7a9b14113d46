"""Checks MindSpore's dumps: groups, the order in which ranks meet, and the shapes of slices.

A dump is the graph of one rank. Operators are opaque, so nothing is run. Only statements of the text are checked, and
missing ones are listed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from mspc.ir.graph import Graph, Node, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.opaque import OpaqueOp
from mspc.ir.text.limits import LONGEST_LIST, number_of
from mspc.ir.types import TensorType

WORLD = ("nccl_world_group", "hccl_world_group", "mccl_world_group", "WORLD_GROUP")
BEGIN, END, EXECUTE = "begin", "end", "execute"
MAX_RANKS = 8
"""The number of ranks is looked for among so many times the largest rank that is named."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class ForeignDump:
    """A dump. name: of the file. rank: whose it is. stage: BEGIN before the parallel pass, END after it, EXECUTE of the
    graph that ranks execute. graphs: all of the file."""

    name: str
    rank: int
    stage: str
    graphs: tuple[Graph, ...]

    def nodes(self) -> Iterator[Node]:
        """Return the nodes of all graphs."""
        return (node for graph in self.graphs for node in graph.nodes)


@dataclass(frozen=True)
class Wrong:
    """An error at a node of a dump."""

    dump: ForeignDump
    node: Node
    why: str


@dataclass
class DumpsFound:
    """checked: the number of checks of each kind. wrong: the errors. unsaid: missing statements, and how often."""

    checked: Counter[str] = field(default_factory=Counter[str])
    wrong: list[Wrong] = field(default_factory=list[Wrong])
    unsaid: Counter[str] = field(default_factory=Counter[str])


def look_at(dumps: Sequence[ForeignDump]) -> DumpsFound:
    """Look at all dumps of one compile."""
    found = DumpsFound()
    ranks = number_of_ranks({_listed(node) for dump in dumps for node in dump.nodes()})
    groups: dict[str, Shape] = {}
    ahead = [node for dump in dumps if dump.stage == BEGIN for node in dump.nodes()]
    whole = {node.label: each for node in ahead if (each := _global_operands(node)) is not None}
    for dump in dumps:
        for node in dump.nodes():
            if "group" in node.op.attributes():
                _note(found, dump, node, "groups", _group(dump, node, ranks, groups))
            if dump.stage != EXECUTE:
                continue
            shapes = _shapes(node)
            form = SHAPES.get(node.op.name)
            if shapes is None:
                found.unsaid["types of operators"] += form is not None
                continue
            if form is not None:
                _note(found, dump, node, "shapes", form(node, *shapes))
            origin = node.attrs.get("origin_input_shapes")
            is_stated = node.in_strategy is not None and isinstance(origin, tuple)
            operands = (node.in_strategy, origin) if is_stated else whole.get(node.label)
            if operands is not None:
                _note(found, dump, node, "operators with slices by their strategies", _slices(*operands, shapes[0]))
    if not any(dump.stage == EXECUTE for dump in dumps):
        found.unsaid["the programs of ranks: shapes and slices"] += 1
    _order([dump for dump in dumps if dump.stage == EXECUTE], found)
    return found


def _note(found: DumpsFound, dump: ForeignDump, node: Node, what: str, why: str) -> None:
    found.checked[what] += 1
    if why:
        found.wrong.append(Wrong(dump, node, why))


def _global_operands(node: Node) -> tuple[Any, Sequence[Any]] | None:
    """Return (strategy, global shapes of operands) of an operator before the parallel pass, or None."""
    shapes = _shapes(node) if node.in_strategy is not None else None
    return None if shapes is None else (node.in_strategy, shapes[0])


# Groups


def _listed(node: Node) -> Shape:
    return node.op.members if isinstance(node.op, OpaqueOp) else ()


def _group(dump: ForeignDump, node: Node, ranks: int, groups: dict[str, Shape]) -> str:
    fields = node.op.attributes()
    name, members = str(fields["group"]), _listed(node)
    if name in WORLD:
        return f"the group of all ranks lists {_text(members)}" if members and len(members) != ranks else ""
    if not members:
        return ""
    if len(set(members)) < len(members):
        return f"group {name} names a rank twice: {_text(members)}"
    if dump.rank not in members:
        return f"rank {dump.rank} is none of {_text(members)}, whose group {name} it calls"
    if groups.setdefault(name, members) != members:
        return f"group {name} is of {_text(members)} here, and of {_text(groups[name])} elsewhere"
    size = fields.get("rank_size", len(members))
    count = name.split("-", 1)[0]
    if size != len(members) or (count.isdigit() and number_of(count, LONGEST_LIST) != len(members)):
        return f"group {name} is of {len(members)} ranks, and the node says {size}"
    return "" if tiles(members, ranks) else f"groups as {_text(members)} do not partition {ranks} ranks"


def number_of_ranks(groups: Iterable[Shape]) -> int:
    """Return the least number of ranks that divide into groups as these, or into as many of them as may be."""
    several = [group for group in groups if group]
    least = 1 + max((rank for group in several for rank in group), default=0)
    counts = {n: sum(tiles(group, n) for group in several) for n in range(least, MAX_RANKS * least + 1)}
    return max(counts, key=lambda n: (counts[n], -n))


def tiles(members: Sequence[int], ranks: int) -> bool:
    """Return whether all ranks divide into groups that lie as this one does."""
    first = min(members)
    shape = sorted(rank - first for rank in members)
    free = set(range(ranks))
    while free:
        start = min(free)
        group = {start + distance for distance in shape}
        if not group <= free:
            return False
        free -= group
    return True


def _text(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) or "no ranks"


# Shapes


def _shapes(node: Node) -> tuple[list[Shape], list[Shape]] | None:
    """Return the shapes of a node's tensors and of its results; None if the text has no types for them."""
    types = [t for value in node.inputs for t in _types(value.type)]
    made = _types(node.type)
    if None in types or None in made or not made:
        return None
    return [t.shape for t in types if t is not None], [t.shape for t in made if t is not None]


def _types(type: Any) -> list[TensorType | None]:
    if str(type).startswith("<null>"):
        return [None]
    try:
        return [t for t in element_types(type) if isinstance(t, TensorType)]
    except TypeError:
        return []


def _size(node: Node) -> int:
    fields = node.op.attributes()
    size = fields.get("rank_size", len(_listed(node)))
    return size if isinstance(size, int) else 0


def _along_first(part: Shape, whole: Shape, size: int, verb: str) -> str:
    if not size or (part and whole and (part[0] * size, *part[1:]) == whole):
        return ""
    return f"a group of {size} {verb} {part} and {whole}, which do not fit together"


def _same(node: Node, operands: Sequence[Shape], results: Sequence[Shape]) -> str:
    return "" if list(operands) == list(results) else f"{operands} become {results}"


def _reshaped(node: Node, operands: Sequence[Shape], results: Sequence[Shape]) -> str:
    if math.prod(operands[0]) == math.prod(results[0]):
        return ""
    return f"{operands[0]} has other elements than {results[0]}"


def _strided(node: Node, operands: Sequence[Shape], results: Sequence[Shape]) -> str:
    numbers = [getattr(value, "value", None) for value in node.inputs[1:]]
    tuples = [number for number in numbers[:3] if isinstance(number, tuple)]
    if len(tuples) < 3 or any(numbers[3:]) or len(tuples[0]) != len(operands[0]):
        return ""
    made: list[int] = []
    for size, begin, end, step in zip(operands[0], *tuples, strict=True):
        if step < 1 or begin < 0 or end < 0:
            return ""
        if begin >= size or end > size:
            return f"places {begin} to {end} are not all in {size}"
        made.append(max(0, -(-(end - begin) // step)))
    return "" if tuple(made) == results[0] else f"the slice is {tuple(made)}, and the result {results[0]}"


def _product(node: Node, operands: Sequence[Shape], results: Sequence[Shape]) -> str:
    flags = [value.value for value in node.inputs[2:4] if isinstance(getattr(value, "value", None), bool)]
    if len(operands) < 2 or len(flags) < 2 or len(operands[0]) < 2 or len(operands[1]) < 2:
        return ""
    (a, b), (left, right) = operands[:2], flags
    rows, inner = (a[-1], a[-2]) if left else (a[-2], a[-1])
    other, columns = (b[-1], b[-2]) if right else (b[-2], b[-1])
    if inner != other:
        return f"{a} and {b} have sides {inner} and {other}"
    return "" if results[0][-2:] == (rows, columns) else f"{a} times {b} is no {results[0]}"


SHAPES: Mapping[str, Callable[[Node, Sequence[Shape], Sequence[Shape]], str]] = {
    "AllGather": lambda node, operands, results: _along_first(operands[0], results[0], _size(node), "gathers"),
    "ReduceScatter": lambda node, operands, results: _along_first(results[0], operands[0], _size(node), "scatters"),
    "AllReduce": _same,
    "Broadcast": _same,
    "Reshape": _reshaped,
    "StridedSlice": _strided,
    "MatMul": _product,
    "BatchMatMul": _product,
}
"""The rule for the shapes of each operator."""


def _slices(strategy: Any, whole: Sequence[Any], operands: Sequence[Shape]) -> str:
    """Check that redistributions and slices of parameters bring an operator the slices of its strategy."""
    for number, (cuts, shape, own) in enumerate(zip(strategy, whole, operands, strict=False)):
        if not isinstance(cuts, tuple) or not isinstance(shape, tuple) or len(cuts) != len(shape):
            continue
        if any(isinstance(cut, tuple) for cut in cuts):  # a Layout, of which the text has no mesh
            continue
        if any(size % cut for size, cut in zip(shape, cuts, strict=True)):
            return f"strategy {cuts} does not divide operand {number} of shape {shape}"
        wanted = tuple(size // cut for size, cut in zip(shape, cuts, strict=True))
        if wanted != own:
            return f"operand {number} is {own}, and strategy {cuts} makes {wanted} of {shape}"
    return ""


# Order


def _order(dumps: Sequence[ForeignDump], found: DumpsFound) -> None:
    calls: dict[tuple[Shape, int], list[Node]] = {}
    by_rank = {dump.rank: dump for dump in dumps}
    if dumps and len(by_rank) < 2:
        found.unsaid["programs of other ranks: the order of their meetings, and their slices"] += 1
        return
    for rank, dump in by_rank.items():
        for node in dump.nodes():
            members = tuple(sorted(_listed(node)))
            if len(members) > 1:
                calls.setdefault((members, rank), []).append(node)
    for members, first in calls:
        for other in members:
            if other <= first or other not in by_rank:
                continue
            found.checked["orders"] += 1
            mine, theirs = calls[members, first], calls.get((members, other), [])
            for one, its in itertools.zip_longest(mine, theirs):
                if one is None or its is None or one.op.name != its.op.name or str(one.type) != str(its.type):
                    said = "nothing" if its is None else f"{its.label}, {its.type}"
                    node = one if one is not None else its
                    words = "nothing" if one is None else f"{one.label}, {one.type}"
                    why = f"rank {first} calls {words} where rank {other} calls {said}, in group {_text(members)}"
                    found.wrong.append(Wrong(by_rank[first if one is not None else other], node, why))
                    break
