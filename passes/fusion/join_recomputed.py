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
from mspc.passes.fusion.alive import is_part
from mspc.passes.fusion.groups import FARTHEST, MOST_LINES, MOST_OPERANDS
from mspc.passes.fusion.rewriter import gathered, parts_of, successor

MOST_MOVED = 8
"""Nodes that move behind a kernel."""


def join_recomputed(graph: Graph) -> int:
    """Join what is made again to kernels behind or ahead of it; the bytes that are read less."""
    joined = 0
    for copy in [node for node in graph.nodes if node.attrs.get("recomputed") and _lines(node)]:
        if isinstance(copy.type, TensorType):  # several results keep their kernel
            joined += _Joining(graph, copy).run()
    return joined


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
    """What is made again, `copy`, and its places in the graph."""

    def __init__(self, graph: Graph, copy: Node) -> None:
        self.graph, self.copy = graph, copy
        self.position: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
        self.updates = Updates(graph)

    def run(self) -> int:
        if self.copy not in self.position:  # it has been joined to another
            return 0
        at = self.position[self.copy]
        near = self.graph.nodes[max(0, at - FARTHEST) : at + FARTHEST]
        for kernel in sorted(near, key=lambda node: (-self._shared(node), self.position[node])):
            saved = self._shared(kernel)
            if not saved:
                break
            moved = self._moved(kernel)
            if moved is None:
                continue
            op = self._joined(kernel)
            if op is not None:
                self._rewrite(kernel, moved, *op)
                return saved
        return 0

    def _shared(self, kernel: Node) -> int:
        """Bytes of what both read, as much as the copy has elements at least."""
        if kernel is self.copy or not _lines(kernel):
            return 0
        size = self.copy.tensor_type.size
        both = [v for v in dict.fromkeys(self.copy.inputs) if v in kernel.inputs and isinstance(v, Node)]
        return sum(value.tensor_type.nbytes for value in both if value.tensor_type.size >= size)

    def _moved(self, kernel: Node) -> list[Node] | None:
        """The nodes that must move behind the kernel; None where they cannot, or the copy cannot go to its place."""
        at, place = self.position[self.copy], self.position[kernel]
        if place < at:
            known = all(self.position.get(value, -1) < place for value in self.copy.inputs)
            return [] if known and not self.updates.between(self.copy.inputs, place, at) else None
        behind: dict[Value, None] = {self.copy: None}
        for node in self.graph.nodes[at + 1 : place + 1]:
            if behind.keys().isdisjoint(node.inputs):
                continue
            op = node.op
            if node is kernel or op.mutates or (isinstance(op, Op) and op.has_side_effect):
                return None
            if self.updates.between(node.inputs, self.position[node], place):
                return None
            behind[node] = None
        if len(behind) > MOST_MOVED + 1 or self.updates.between(self.copy.inputs, at, place):
            return None
        return [cast(Node, node) for node in behind if node is not self.copy]

    def _joined(self, kernel: Node) -> tuple[FusedElementwise, list[Value]] | None:
        """The operator of both, and its operands; None where it cannot be one kernel, or needs more passes."""
        operands: dict[Value, int] = {}
        numbers: dict[BodyLine, int] = {}
        returns: list[int] = []
        for node in (kernel, self.copy):
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

    def _rewrite(self, kernel: Node, moved: list[Node], op: FusedElementwise, operands: list[Value]) -> None:
        graph, copy = self.graph, self.copy
        type = op.infer(*[value.type for value in operands])
        labels = dict.fromkeys((*parts_of(kernel), *parts_of(copy)))
        made = gathered(op, operands, type, [copy, kernel], labels)
        made.attrs.pop("recomputed", None)
        assert isinstance(type, TupleType)
        again = successor(made, len(type.elements) - 1, copy)
        parts, replaced = [again], dict[Value, Value]({copy: again})
        if isinstance(kernel.type, TensorType):
            parts.insert(0, successor(made, 0, kernel))
            replaced[kernel] = parts[0]
        nodes: list[Node] = []
        for node in graph.nodes:
            if node is copy or node in moved:
                continue
            if is_part(node) and node.inputs[0] is kernel:
                node.inputs = [made]
            nodes += [made, *parts, *moved] if node is kernel else [node]
        graph.nodes = nodes
        graph.replace(replaced)
