"""This module finds which values share the memory of others, and where parameters are updated in place. Passes that
reorder nodes and runtimes that share memory must respect both. Operators declare it: `is_view`, `may_alias`, `mutates`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.iterative import iterative
from mspc.ir.types import StackType
from mspc.ops.control.structural import Depend

if TYPE_CHECKING:
    from mspc.ops.control.regions import RegionOp


class Updates:
    """Where parameters are updated, for values that show a parameter's memory."""

    def __init__(self, graph: Graph) -> None:
        self.numbers: dict[Value, list[int]] = {}
        self.shown: dict[Value, frozenset[Value]] = {}
        self.first = len(graph.nodes)
        self._changed: dict[Value, list[int]] = {}
        self._regions: dict[Graph, frozenset[Value]] = {}
        for number, node in enumerate(graph.nodes):
            for parameter in self.written(node) if node.op.mutates else ():
                self.numbers.setdefault(parameter, []).append(number)
                self.first = min(self.first, number)

    def written(self, node: Node) -> set[Value]:
        """The parameters that the node updates."""
        return {p for index in node.op.mutates for p in self.parameters(node.inputs[index])}

    def changes(self, value: Value) -> bool:
        """Whether a parameter is updated whose memory the value may show."""
        return any(parameter in self.numbers for parameter in self.parameters(value))

    def between(self, values: Iterable[Value], start: int, stop: int) -> bool:
        """Whether what one of the values shows is updated behind position `start`, at `stop` or before."""
        if stop < self.first:
            return False
        for value in values:
            numbers = self._updates_of(value)
            if numbers and bisect_right(numbers, start) != bisect_right(numbers, stop):
                return True
        return False

    def last_before(self, values: Iterable[Value], stop: int) -> int:
        """The position of the last update, before `stop`, of what one of the values shows; -1 where there is none."""
        last = -1
        for value in values:
            numbers = self._updates_of(value)
            at = bisect_left(numbers, stop)
            last = max(last, numbers[at - 1] if at else -1)
        return last

    def _updates_of(self, value: Value) -> Sequence[int]:
        """The positions, ascending, at which a parameter is updated whose memory the value may show."""
        known = self._changed.get(value)
        if known is None:
            parameters = self.parameters(value)
            known = sorted({number for parameter in parameters for number in self.numbers.get(parameter, ())})
            self._changed[value] = known
        return known

    @iterative
    def parameters(self, value: Value) -> Generator[Any, frozenset[Value], frozenset[Value]]:
        """The parameters whose memory the value may show: itself, through operators that may hand out views of their
        operands, or as the result of an update."""
        if isinstance(value, Parameter):
            return frozenset((value,))
        if not isinstance(value, Node):
            return frozenset()
        known = self.shown.get(value)
        if known is None:
            shown: set[Value] = set()
            for index in aliased_operands(value, self._regions):
                operand = value.inputs[index]
                if isinstance(operand, Parameter):
                    shown.add(operand)
                else:
                    shown |= yield self, operand
            known = self.shown[value] = frozenset(shown)
        return known


def aliased_operands(node: Node, known: dict[Graph, frozenset[Value]] | None = None) -> Sequence[int]:
    """The operands whose memory the result of the node may show. known: of graphs that several nodes run the parameters
    that their results may show."""
    known = {} if known is None else known
    return _shown_by_regions(node, known) if node.regions else node.op.aliased_operands(len(node.inputs))


def _shown_by_regions(node: Node, known: dict[Graph, frozenset[Value]]) -> Sequence[int]:
    """The same for an operator that runs graphs: operands that are carried through a loop of no turns, and those whose
    parameters a region's results may show."""
    op = cast("RegionOp", node.op)
    found = set(op.passed_operands)
    for number, region in enumerate(node.regions):
        shown = known.get(region)
        if shown is None:
            updates = Updates(region)
            shown = known[region] = frozenset(p for value in region.results for p in updates.parameters(value))
        if not shown:
            continue
        parameters = region.parameters
        for operand, inside in enumerate(op.places(number, [value.type for value in node.inputs])):
            if any(parameters[place] in shown for place in inside):
                found.add(operand)
    return sorted(found)


def first_changes(graph: Graph) -> dict[Value, int]:
    """The position of the first node that changes a parameter, by parameter."""
    found: dict[Value, int] = {}
    for number, node in enumerate(graph.nodes):
        for index in node.op.mutates:
            for value in _entries(node, index) if index < len(node.inputs) else ():
                found.setdefault(value, number)
    return found


def updated_parameters(graph: Graph) -> dict[int, tuple[Parameter, ...]]:
    """The nodes that write to parameters: position to the parameters, ascending."""
    found: dict[int, tuple[Parameter, ...]] = {}
    for number, node in enumerate(graph.nodes):
        written = [value for index in node.op.mutates if index < len(node.inputs) for value in _entries(node, index)]
        parameters = tuple(value for value in written if isinstance(value, Parameter))
        if parameters:
            found[number] = parameters
    return found


def _entries(node: Node, index: int) -> Sequence[Value]:
    """An operand, or the entries of a stack of which the node overwrites every one."""
    value = node.inputs[index]
    return value.inputs if isinstance(value, Node) and isinstance(value.type, StackType) else (value,)


def source(value: Value) -> Value:
    """The value that `value` stands for, once what a `Depend` orders has run."""
    while isinstance(value, Node) and isinstance(value.op, Depend):
        value = value.inputs[0]
    return value
