"""Let kernels read operands of slices, joins, transposes and the like in place, for GPUs.

Input:  `%1 = StridedSlice(%x)`, `%2 = Neg(%1)`, `%3 = Concat(%2, %y)`, `%4 = Mul(%3, %z)`
Output: `%4 = FusedElementwise(%x, %y, %z)` with these as its lines; nobody stores the slice, its negation or the join

A value that an operator on places makes, or an elementwise operator ahead of one, becomes lines of the kernels that
read it, as long as nothing has changed since: in all of them if fewer bytes move then, as nobody stores the value;
else in those that by themselves move fewer. Work done twice counts as bytes (`WORK`), and so does memory that is
not loaded in its order. Values made of parameters alone stay, as an optimizer may store them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import divides, moves_elements, reshapes
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.fuse_elementwise import row_member
from mspc.passes.fusion.fusion_groups import (
    FARTHEST,
    MAX_LINES,
    MAX_OPERANDS,
    NodeLines,
    enough_rows,
    is_movable,
    kernel_of,
    shown_through,
    types_fit,
)
from mspc.passes.fusion.keep_for_gradients import drop_unread_results
from mspc.passes.fusion.rewriter import parts_of

WORK = 0.5
"""Bytes that could be moved while a line computes an element."""


class FuseMoves(Pass):
    def run(self, graph: Graph) -> bool:
        if not any(_moves(node) for node in graph.nodes):
            return False
        changed = remove_dead(graph)
        kernels = _Kernels(graph)
        waiting = list(kernels.kernels)
        while waiting:  # what has come behind an operator that moves elements may be read from there, too
            taken = {reader for value in waiting for reader in kernels.place(value)}
            waiting = [value for value in kernels.kernels if not taken.isdisjoint(kernels.readers.get(value, ()))]
        if not kernels.changed:
            return changed
        kernels.write()
        drop_unread_results(graph)
        remove_dead(graph)
        return True


def _moves(node: Node) -> bool:
    return moves_elements(node.op) or divides(node.op)


@dataclass(frozen=True, slots=True)
class _Reader:
    """A kernel that reads a value's operands instead. saved: bytes it moves less. work: additional work."""

    node: Node
    kernel: NodeLines
    saved: float
    work: int


class _Kernels:
    """All nodes that are kernels, their operands, and the readers of values (views and parts seen through).

    nodes: the kernels. kernels: by the value that they make, with its number among their results. results: these by
    kernel. others: values read by nodes that are no kernels. last: the position of the last read of a value, including
    the reads of its moved copies soon after. moved: by value those that hold only its elements, as its slices do.
    """

    def __init__(self, graph: Graph) -> None:
        self.updates = Updates(graph)
        self.position = {node: number for number, node in enumerate(graph.nodes)}
        self.nodes: dict[Node, NodeLines] = {}
        self.kernels: dict[Value, tuple[Node, int]] = {}
        self.results: dict[Node, list[Value]] = {}
        self.readers: dict[Value, dict[Node, None]] = {}
        self.others = {shown_through(value)[0] for value in graph.results}
        self.last: dict[Value, int] = {}
        self.moved: dict[Value, list[Value]] = {}
        self.changed: dict[Node, list[str]] = {}
        for node in graph.nodes:
            self._add(node)

    def _add(self, node: Node) -> None:
        if reshapes(node.op):
            return
        kernel = self._kernel(node)
        if kernel is not None:
            self.nodes[node] = kernel
            if isinstance(node.type, TensorType):
                self._makes(node, node, 0)
        if isinstance(node.op, TupleGetItem) and isinstance(node.inputs[0], Node) and node.inputs[0] in self.nodes:
            self._makes(node.inputs[0], node, node.op.index)
            return
        if kernel is None and divides(node.op):
            return  # its parts read for it
        for value in kernel.operands if kernel is not None else node.inputs:
            root = shown_through(value)[0]
            self.last[root] = self.position[node]
            if kernel is None:
                self.others.add(root)
            else:
                if moves_elements(kernel.lines[0][0]) and len(kernel.operands) == 1:
                    self.moved.setdefault(root, []).append(node)
                self.readers.setdefault(root, {})[node] = None

    def _makes(self, node: Node, value: Value, number: int) -> None:
        self.kernels[value] = node, number
        self.results.setdefault(node, []).append(value)

    def _kernel(self, node: Node) -> NodeLines | None:
        if node.phase == "update" or ("reason" in node.attrs and _moves(node)):
            return None  # `fuse_updates` makes updates of them; a redistribution takes other slices on every rank
        may = isinstance(node.op, FusedElementwise | TupleGetItem) or moves_elements(node.op)
        if not may and row_member(node, self.updates) is None:
            return None
        kernel = kernel_of(node)
        return kernel if kernel is not None and types_fit(kernel.operands) else None

    def _is_read(self, value: Value) -> bool:
        return value in self.others or bool(self.readers.get(value))

    def place(self, value: Value) -> list[Node]:
        """Make a value's lines part of the kernels that read it, if that is better; return these kernels."""
        node, number = self.kernels[value]
        readers = self.readers.get(value, {})
        kernel = self.nodes[node]
        if not readers or value.type.nbytes == 0:
            return []
        if not kernel.moves and not any(self.nodes[reader].moves for reader in readers):
            return []  # `fuse_elementwise` has decided
        made = kernel.part([kernel.returns[number]])
        if not is_movable(made) or self._may_be_kept(made):
            return []
        found = [each for reader in readers if (each := self._reader(reader, node, value, made)) is not None]
        dies = value not in self.others and len(found) == len(readers)
        if dies and self._worth(found, self._ceases(value, node, kernel, made), value):
            chosen = found
        else:
            chosen = [each for each in found if self._worth([each], (0.0, 0), None)]
        for each in chosen:
            for root in self._stored_longer([each]):
                self.last[root] = self.position[each.node]  # with what else is read of it
            self._take(each, value, node)
        return [each.node for each in chosen]

    def _may_be_kept(self, made: NodeLines) -> bool:
        """Return True if a value is computed from parameters alone."""
        if all(moves_elements(op) or reshapes(op) for op, _ in made.lines):
            return False
        roots = [shown_through(value)[0] for value in made.operands]
        return all(isinstance(r, Constant) or (isinstance(r, Parameter) and r.kind != "input") for r in roots)

    def _reader(self, reader: Node, maker: Node, value: Value, made: NodeLines) -> _Reader | None:
        """Return a kernel with a value's lines, or None if it cannot have them."""
        old = self.nodes[reader]
        seen = {v: views for v in old.operands for root, views in [shown_through(v)] if root is value}
        if old.expanded is None or (not made.moves and not old.plainly_read().isdisjoint(seen)):
            return None  # an elementwise operator ahead of another is not for this pass
        start, stop = self.position[maker], self.position[reader]
        if self.updates.between(made.operands, start, stop):
            return None
        new = old.with_lines_for(seen, made)
        if len(new.lines) > MAX_LINES or len(new.operands) > MAX_OPERANDS or len({*new.returns}) < len(new.returns):
            return None
        expanded = new.expanded
        if expanded is None or len(expanded.steps) > MAX_LINES or len(expanded.moved) > MAX_OPERANDS:
            return None
        space = expanded.space
        if space.columns and not old.expanded.space.columns and not enough_rows(math.prod(space.dims), space.row):
            return None
        return _Reader(reader, new, old.read_bytes - new.read_bytes, new.work() - old.work())

    def _ceases(self, value: Value, node: Node, kernel: NodeLines, made: NodeLines) -> tuple[float, int]:
        """Return (bytes, work) saved once nothing reads a value."""
        others = [v for v in self.results[node] if v is not value and self._is_read(v)]
        if not others:
            return value.type.nbytes + made.read_bytes, made.work()
        left = kernel.part([kernel.returns[self.kernels[v][1]] for v in others])
        return value.type.nbytes + kernel.read_bytes - left.read_bytes, 0

    def _worth(self, readers: Sequence[_Reader], ceases: tuple[float, int], value: Value | None) -> bool:
        """Return True if fewer bytes move, and no more are stored for longer than the value is."""
        saved = ceases[0] + sum(each.saved for each in readers)
        work = sum(each.work for each in readers) - ceases[1]
        if saved <= max(0.0, WORK * work):
            return False
        longer = self._stored_longer(readers)
        if value is None or not longer:
            return not longer
        # Values that only kernels read need not be stored.
        moved = (v for root in longer for v in self.moved.get(root, ()))
        others = dict.fromkeys(v for v in moved if v not in self.others and self.readers.get(v))
        return sum(root.type.nbytes for root in longer) <= sum(v.type.nbytes for v in {value: None, **others})

    def _stored_longer(self, readers: Sequence[_Reader]) -> set[Node]:
        """Return the bytes stored for long for the readers only."""
        found = set[Node]()
        for each in readers:
            for value in each.kernel.operands:
                root = shown_through(value)[0]
                if isinstance(root, Node) and self.position[each.node] - self.last.get(root, -1) > FARTHEST:
                    found.add(root)
        return found

    def _take(self, each: _Reader, value: Value, maker: Node) -> None:
        self.nodes[each.node] = each.kernel
        labels = self.changed.setdefault(each.node, list(parts_of(_whole(each.node))))
        labels[:0] = [label for label in self.changed.get(maker) or parts_of(_whole(maker)) if label not in labels]
        del self.readers[value][each.node]
        for operand in each.kernel.operands:
            root = shown_through(operand)[0]
            self.readers.setdefault(root, {})[each.node] = None
        if value not in self.others and not self.readers[value]:
            self._drop(value, maker)

    def _drop(self, value: Value, maker: Node) -> None:
        """Forget the reads of a value that nothing reads, if its kernel makes nothing else."""
        if any(self._is_read(other) for other in self.results[maker]):
            return
        for operand in self.nodes[maker].operands:
            self.readers.get(shown_through(operand)[0], {}).pop(maker, None)

    def write(self) -> None:
        """Change the nodes."""
        for node, labels in self.changed.items():
            kernel = self.nodes[node]
            node.attrs["fused"] = tuple(labels)
            node.op, node.inputs = kernel.fused(), list(kernel.operands)


def _whole(node: Node) -> Node:
    """Return the node whose part a node is, or itself."""
    return cast(Node, node.inputs[0]) if isinstance(node.op, TupleGetItem) else node
