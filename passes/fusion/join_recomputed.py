"""Lets a kernel of the gradients make what was to be made again for others, where it reads that of which it is made.

Input:  `%1 = FusedElementwise(%g, %u) {body: ("SiLU(x0)", "Mul(t0, x1)")}`, made again, `%2 = MatMul(%d, %1)`, and
        behind them `%3 = FusedElementwise(%dh, %g, %u)`, the gradients of %g and %u
Output: `%3 = FusedElementwise(%dh, %g, %u)` with these lines and one more result, and `%2` behind it

Every shared operand is read once less. Few readers (`MOST_MOVED`) move behind the kernel, none over an update of what
it reads, and no collective does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mspc.analysis.aliasing import Updates
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import TensorType, TupleType
from mspc.ops.fused.body import BodyLine, by_element
from mspc.ops.fused.elementwise import FusedElementwise, space_of_steps, steps_of
from mspc.ops.op import Op
from mspc.passes.fusion.groups import FARTHEST, MOST_LINES, MOST_OPERANDS
from mspc.passes.fusion.rewriter import gathered, parts_of, successor

MOST_MOVED = 8
"""Nodes that move behind a kernel."""


def join_recomputed(graph: Graph) -> int:
    """Join what is made again to kernels behind or ahead of it; the bytes that are read less."""
    joining = _Joining(graph)
    saved = at = 0
    while at < len(graph.nodes):
        node = graph.nodes[at]
        # Several results keep their kernel.
        alone = node.attrs.get("recomputed") and isinstance(node.type, TensorType) and _lines(node)
        found = joining.join(at) if alone else None
        saved += found[0] if found is not None else 0
        at = found[1] if found is not None else at + 1
    return saved


def _lines(node: Node) -> Sequence[BodyLine]:
    """The lines of an elementwise kernel; () of all else."""
    if node.phase != "backward" or not isinstance(node.op, Op) or node.op.mutates:
        return ()
    if isinstance(node.op, FusedElementwise):
        return steps_of(node.op)
    if not by_element(node.op) or not isinstance(node.type, TensorType):
        return ()
    return (BodyLine(node.op, tuple(("x", i) for i in range(len(node.inputs)))),)


def _returns(node: Node) -> tuple[int, ...]:
    return node.op.returns if isinstance(node.op, FusedElementwise) else (0,)


class _Joining:
    """The nodes of a graph near what is made again. users: the readers of every value, as they are now."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        graph.nodes = list(graph.nodes)  # whoever has the old one may go back to it
        self.updates = Updates(graph)
        self.users: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            self._reads(node)

    def _reads(self, node: Node) -> None:
        for value in dict.fromkeys(node.inputs):
            self.users.setdefault(value, []).append(node)

    def join(self, at: int) -> tuple[int, int] | None:
        """Join the node at this place; the bytes that are read less, and the place of the node behind it; None where
        it stays."""
        nodes, copy = self.graph.nodes, self.graph.nodes[at]
        begin = max(0, at - FARTHEST)
        places = range(begin, min(len(nodes), at + FARTHEST))
        shared = {place: _shared(copy, nodes[place]) for place in places}
        for place in sorted(places, key=lambda place: (-shared[place], place)):
            if not shared[place]:
                break
            moved = self._moved(at, place)
            op = None if moved is None else _joined(copy, nodes[place])
            if moved is not None and op is not None:
                return shared[place], self._rewrite(at, place, moved, *op)
        return None

    def _moved(self, at: int, place: int) -> list[Node] | None:
        """The nodes that must move behind the kernel at `place`; None where they cannot, or the copy cannot go
        there."""
        nodes = self.graph.nodes
        copy, kernel = nodes[at], nodes[place]
        if place < at:
            between = nodes[place : at + 1]
            known = set(between).isdisjoint(copy.inputs)
            return [] if known and not self._change(copy.inputs, between[1:]) else None
        behind: dict[Value, None] = {copy: None}
        for number in range(at + 1, place + 1):
            node = nodes[number]
            if behind.keys().isdisjoint(node.inputs):
                continue
            if node is kernel or node.op.mutates or (isinstance(node.op, Op) and node.op.has_side_effect):
                return None
            if self._change(node.inputs, nodes[number + 1 : place + 1]):
                return None
            behind[node] = None
        if len(behind) > MOST_MOVED + 1 or self._change(copy.inputs, nodes[at + 1 : place + 1]):
            return None
        return [cast(Node, node) for node in behind if node is not copy]

    def _change(self, values: Sequence[Value], nodes: Sequence[Node]) -> bool:
        """Whether one of the nodes updates what one of the values shows."""
        writing = [node for node in nodes if node.op.mutates]
        shown = {p for value in values for p in self.updates.parameters(value)} if writing else set[Value]()
        return any(not shown.isdisjoint(self.updates.written(node)) for node in writing)

    def _rewrite(self, at: int, place: int, moved: list[Node], op: FusedElementwise, operands: list[Value]) -> int:
        """Put both in the kernel's place; the place of the node that was behind the copy."""
        nodes = self.graph.nodes
        copy, kernel = nodes[at], nodes[place]
        type = op.infer(*[value.type for value in operands])
        labels = dict.fromkeys((*parts_of(kernel), *parts_of(copy)))
        made = gathered(op, operands, type, [copy, kernel], labels)
        made.attrs.pop("recomputed", None)
        assert isinstance(type, TupleType)
        again = successor(made, len(type.elements) - 1, copy)
        parts = [again]
        for node in (copy, kernel):
            for value in dict.fromkeys(node.inputs):
                self.users[value].remove(node)
        self._reads(made)
        if isinstance(kernel.type, TensorType):
            parts.insert(0, successor(made, 0, kernel))
            self._replace(kernel, parts[0])
        else:
            self._replace(kernel, made)  # for the parts that there are
        self._replace(copy, again)
        for part in parts:
            self._reads(part)
        first, last = min(at, place), max(at, place) + 1
        gone = {copy, *moved}
        own = [made, *parts, *moved]
        nodes[first:last] = [
            new for node in nodes[first:last] if node not in gone for new in (own if node is kernel else [node])
        ]
        return at if place > at else at + len(parts)

    def _replace(self, old: Node, new: Node) -> None:
        readers = self.users.pop(old, [])
        for reader in readers:
            reader.inputs = [new if value is old else value for value in reader.inputs]
        if readers:
            self.users.setdefault(new, []).extend(readers)
        if old in self.graph.results:
            self.graph.results = [new if value is old else value for value in self.graph.results]


def _shared(copy: Node, kernel: Node) -> int:
    """Bytes of what both read, as much as the copy has elements at least."""
    if kernel is copy or not _lines(kernel):
        return 0
    size = copy.tensor_type.size
    both = [v for v in dict.fromkeys(copy.inputs) if v in kernel.inputs and isinstance(v, Node)]
    return sum(value.tensor_type.nbytes for value in both if value.tensor_type.size >= size)


def _joined(copy: Node, kernel: Node) -> tuple[FusedElementwise, list[Value]] | None:
    """The operator of both, and its operands; None where it cannot be one kernel, or needs more passes."""
    operands: dict[Value, int] = {}
    numbers: dict[BodyLine, int] = {}
    returns: list[int] = []
    for node in (kernel, copy):
        own: list[int] = []
        for line in _lines(node):
            read = tuple(
                ("x", operands.setdefault(node.inputs[i], len(operands))) if kind == "x" else ("t", own[i])
                for kind, i in line.operands
            )
            own.append(numbers.setdefault(BodyLine(line.op, read), len(numbers)))
        returns += [own[i] for i in _returns(node)]
    if len(numbers) > MOST_LINES or len(operands) > MOST_OPERANDS or len(set(returns)) < len(returns):
        return None
    op, types = FusedElementwise.of(list(numbers), returns), [value.tensor_type for value in operands]
    try:
        if space_of_steps(op, types).columns:
            return None
    except MspcError:
        return None
    return op, list(operands)
