"""Where parameters are updated, and which values show their memory: what passes that move nodes must respect."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from mspc.ir.graph import Graph, Node, Parameter, Value

VIEWS = frozenset({
    "AddN", "BroadcastTo", "DumpGradient", "Identity", "ReverseV2", "Slice", "SliceExt", "Split", "SplitTensor",
    "SplitV", "SplitWithSize", "StridedSlice", "TensorDump", "Transpose", "Unstack",
})  # fmt: skip
"""Operators whose NumPy kernels may hand out views of their operands, or these themselves."""

class Updates:
    """Where parameters are updated, for values that show a parameter's memory."""

    def __init__(self, graph: Graph) -> None:
        self.numbers: dict[Value, list[int]] = {}
        self.shown: dict[Value, frozenset[Value]] = {}
        self.first = len(graph.nodes)
        for number, node in enumerate(graph.nodes):
            for parameter in self.written(node):
                self.numbers.setdefault(parameter, []).append(number)
                self.first = min(self.first, number)

    def written(self, node: Node) -> set[Value]:
        """The parameters that the node updates."""
        return {p for index in mutated_operands(node.op) for p in self.parameters(node.inputs[index])}

    def changes(self, value: Value) -> bool:
        """Whether a parameter is updated whose memory the value may show."""
        return any(parameter in self.numbers for parameter in self.parameters(value))

    def between(self, values: Iterable[Value], start: int, stop: int) -> bool:
        """Whether what one of the values shows is updated behind position `start`, at `stop` or before."""
        if stop < self.first:
            return False
        for value in values:
            for parameter in self.parameters(value):
                numbers = self.numbers.get(parameter, [])
                if bisect_right(numbers, start) != bisect_right(numbers, stop):
                    return True
        return False

    def last_before(self, values: Iterable[Value], stop: int) -> int:
        """The position of the last update, before `stop`, of what one of the values shows; -1 where there is none."""
        last = -1
        for value in values:
            for parameter in self.parameters(value):
                numbers = self.numbers.get(parameter, [])
                at = bisect_left(numbers, stop)
                last = max(last, numbers[at - 1] if at else -1)
        return last

    def parameters(self, value: Value) -> frozenset[Value]:
        """The parameters whose memory the value may show: itself, through operators that may hand out views of their
        operands, or as the result of an update."""
        if isinstance(value, Parameter):
            return frozenset((value,))
        if not isinstance(value, Node):
            return frozenset()
        known = self.shown.get(value)
        if known is None:
            known = frozenset(p for index in shown_operands(value) for p in self.parameters(value.inputs[index]))
            self.shown[value] = known
        return known


def shown_operands(node: Node) -> Iterable[int]:
    """The operands whose memory the result of the node may show."""
    op = node.op
    mutated = mutated_operands(op)
    if mutated or getattr(op, "fresh", False):
        return mutated
    # Operators without samples are those that put tensors side by side and those that speak to other ranks.
    if op.name in VIEWS or getattr(op, "view", False) or not getattr(op, "samples", ()):
        return range(len(node.inputs))
    return ()


def mutated_operands(op: object) -> tuple[int, ...]:
    """The operands that an operator overwrites."""
    return getattr(op, "mutates", ())


def first_changes(graph: Graph) -> dict[Value, int]:
    """The position of the first node that changes a parameter, by parameter."""
    found: dict[Value, int] = {}
    for number, node in enumerate(graph.nodes):
        for index in mutated_operands(node.op):
            if index < len(node.inputs):
                found.setdefault(node.inputs[index], number)
    return found
