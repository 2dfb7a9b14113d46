"""Nodes as the lines of kernels, and what a kernel moves.

A kernel's lines are those of a fused operator, or the one that a single operator is. Lines read values of the graph
and earlier lines; operands that are views are seen through, so that who makes a value is found behind its shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ir.varying import Varying
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import BodyLine, divides, fusible, moves_elements, reshapes
from mspc.ops.fused.elementwise import Expanded, FusedElementwise, expanded_lines, loaded_bytes, steps_of
from mspc.ops.op import Op

Source = tuple[str, int] | Value
"""What a line reads: ("t", another line) or a value of the graph."""
Line = tuple[Op, tuple[Source, ...]]


@dataclass(slots=True)
class NodeLines:
    """The lines of a node, and which of them are its results."""

    lines: list[Line]
    returns: tuple[int, ...]
    _made: tuple[Expanded | None, list[Value]] | None = field(default=None, init=False)
    _operands: tuple[Value, ...] | None = field(default=None, init=False)
    _read_bytes: float | None = field(default=None, init=False)

    @property
    def operands(self) -> tuple[Value, ...]:
        """What it reads of others, once each."""
        if self._operands is None:
            read = (s for _, sources in self.lines for s in sources if isinstance(s, Value))
            self._operands = tuple(dict.fromkeys(read))
        return self._operands

    @property
    def moves(self) -> bool:
        """Whether a line moves elements."""
        return any(moves_elements(op) for op, _ in self.lines)

    def steps(self) -> tuple[tuple[BodyLine, ...], list[Value]]:
        """The lines of a fused operator, and its operands."""
        places: dict[Value, int] = {}
        steps: list[BodyLine] = []
        for op, sources in self.lines:
            read = [("x", places.setdefault(s, len(places))) if isinstance(s, Value) else s for s in sources]
            steps.append(BodyLine(op, tuple(read)))
        return tuple(steps), list(places)

    @property
    def expanded(self) -> Expanded | None:
        """The lines as a kernel of a GPU has them; None where they cannot be one."""
        return self._as_kernel()[0]

    def _as_kernel(self) -> tuple[Expanded | None, list[Value]]:
        """The lines as a kernel has them, and its operands."""
        if self._made is None:
            steps, operands = self.steps()
            try:
                self._made = expanded_lines(steps, self.returns, tuple(v.tensor_type for v in operands)), operands
            except MspcError:
                self._made = None, operands
        return self._made

    def part(self, returns: Sequence[int]) -> NodeLines:
        """The lines that these results are computed from."""
        needed = set(returns)
        for number in range(max(returns), -1, -1):
            if number in needed:
                needed.update(s[1] for s in self.lines[number][1] if not isinstance(s, Value))
        place = {old: new for new, old in enumerate(sorted(needed))}
        lines = [
            (op, tuple(s if isinstance(s, Value) else ("t", place[s[1]]) for s in sources))
            for op, sources in (self.lines[old] for old in place)
        ]
        return NodeLines(lines, tuple(place[line] for line in returns))

    def with_lines_for(self, seen: dict[Value, tuple[Op, ...]], made: NodeLines) -> NodeLines:
        """The kernel with the lines of `made` in place of the operands in `seen`, each of which shows its result by
        these views."""
        lines: list[Line] = []
        known: dict[tuple[Op, tuple[object, ...]], int] = {}

        def add(op: Op, sources: Iterable[Source]) -> tuple[str, int]:
            read = tuple(sources)
            key = op, tuple(id(s) if isinstance(s, Value) else s for s in read)
            if key not in known:
                known[key] = len(lines)
                lines.append((op, read))
            return "t", known[key]

        place: dict[int, tuple[str, int]] = {}
        for number, (op, sources) in enumerate(made.lines):
            place[number] = add(op, (s if isinstance(s, Value) else place[s[1]] for s in sources))
        shown: dict[Value, Source] = {}
        for value, views in seen.items():
            shown[value] = place[made.returns[0]]
            for view in views:
                shown[value] = add(view, (shown[value],))
        own: dict[int, tuple[str, int]] = {}
        for number, (op, sources) in enumerate(self.lines):
            own[number] = add(op, (shown.get(s, s) if isinstance(s, Value) else own[s[1]] for s in sources))
        return NodeLines(lines, tuple(own[line][1] for line in self.returns))

    def plainly_read(self) -> set[Value]:
        """The operands of which lines need the element at their own place."""
        expanded, operands = self._as_kernel()
        assert expanded is not None
        read = {i for step in expanded.steps for kind, i in step.operands if kind == "x" and i < len(operands)}
        return {operands[i] for i in read}

    def read_bytes(self) -> float:
        """Bytes that the kernel loads."""
        if self._read_bytes is None:
            self._read_bytes = self._loaded()
        return self._read_bytes

    def _loaded(self) -> float:
        if not self.moves:
            return sum(value.tensor_type.nbytes for value in self.operands)
        expanded, operands = self._as_kernel()
        types = [value.tensor_type for value in operands]
        if expanded is None:
            return sum(type.nbytes for type in types)
        return sum(loaded_bytes(expanded, types, in_tiles=len(self.lines) == 1))

    def work(self) -> int:
        """Elements of all lines together."""
        expanded = self.expanded
        return len(expanded.steps) * math.prod(expanded.space.dims) if expanded is not None else 0


def kernel_of(node: Node) -> NodeLines | None:
    """The lines of a node that is a fused operator, a single line, or one part of a tensor that is divided; None for
    other nodes."""
    if isinstance(node.op, FusedElementwise):
        operands = node.inputs
        lines: list[Line] = [
            (step.op, tuple(operands[i] if kind == "x" else (kind, i) for kind, i in step.operands))
            for step in steps_of(node.op)
        ]
        return NodeLines(lines, node.op.returns)
    op, inputs = cast(Op, node.op), node.inputs
    if isinstance(op, TupleGetItem):
        whole = inputs[0]
        if not isinstance(whole, Node) or not isinstance(whole.op, Op) or not divides(whole.op):
            return None
        types = [value.type for value in whole.inputs if isinstance(value.type, TensorType)]
        part = looked_at(whole.op).single_result(op.index, *types) if len(types) == len(whole.inputs) else None
        if part is None:
            return None
        op, inputs = part, whole.inputs
    return NodeLines([(looked_at(op), tuple(inputs))], (0,)) if inputs and isinstance(node.type, TensorType) else None


def looked_at(op: Op) -> Op:
    """The operator with one rank's attributes, which its line names, in place of what stands for those of several."""
    values = {name: value.looked() for name, value in op.attributes().items() if type(value) is Varying}
    return replace(op, **values) if values else op


def is_movable(kernel: NodeLines) -> bool:
    """Whether every line can be seen from other places: none combines elements."""
    return all(fusible(op) or moves_elements(op) or reshapes(op) for op, _ in kernel.lines)


def shown_through(value: Value) -> tuple[Value, tuple[Op, ...]]:
    """(what a value shows, by which views, the first one first)."""
    views: list[Op] = []
    while isinstance(value, Node) and reshapes(value.op):
        views.append(cast(Op, value.op))
        value = value.inputs[0]
    return value, tuple(reversed(views))


def types_fit(values: Sequence[Value]) -> bool:
    """Whether all values are tensors of real numbers."""
    return all(isinstance(v.type, TensorType) and not v.type.dtype.is_complex for v in values)
