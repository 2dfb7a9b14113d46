"""Add a gap after every row of matrices with rows that are no multiple of 16 bytes, if all readers and writers allow
it.

Input:  `%1 = MatMul(%x, %table)` of BFloat16, 2432 x 30522, read by a fused operator along its rows
Output: the same graph; `row_pitch: (30528)` says that a row of `%1` begins every 30528 elements

Tensor cores load 16 bytes at once, and so do the kernels of fused operators: other row offsets make them much
slower (NVIDIA, "Matrix Multiplication Background User's Guide"). A product of two matrices may make and read matrices
with gaps, and a fused operator along rows tensors of its whole rows. All others need memory without gaps, and a value
that one of them touches has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from mspc.ir.graph import Graph, Node, Value, element_types, operand_types
from mspc.ir.types import TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, expanded_steps
from mspc.ops.fused.kernel import Space
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.passes.base import Pass

ALIGNED = 16
"""Bytes of which a row must have a multiple."""
MIN_ROW_BYTES = 1024
"""Bytes of a row from which a gap is nothing beside it."""


class RowPitch(Pass):
    def run(self, graph: Graph) -> bool:
        rows = _Rows(graph)
        changed = False
        for node in graph.nodes:
            pitches = tuple(rows.pitch(node, place) for place in range(len(element_types(node.type))))
            if any(pitches):
                node.attrs["row_pitch"] = pitches
                changed = True
        return changed


class _Rows:
    """The readers and writers of the rows of a graph's values."""

    def __init__(self, graph: Graph) -> None:
        self.users = graph.users()
        self.results = set(graph.results)
        self.spaces: dict[Node, Space | None] = {}

    def pitch(self, node: Node, place: int) -> int:
        """Return the elements from row to row of a result; 0 if there is no gap."""
        type = element_types(node.type)[place]
        if not isinstance(node.op, MatMul | BatchMatMul | FusedElementwise) or len(type.shape) < 2 or not type.size:
            return 0
        length, size = type.shape[-1], type.dtype.itemsize
        if length * size < MIN_ROW_BYTES or not length * size % ALIGNED or not self._makes(node, place, type):
            return 0
        readers = list(self._readers(node, place))
        if not readers or not all(value is not None and self._reads(user, i, value) for user, i, value in readers):
            return 0
        if not any(isinstance(each.op, MatMul | BatchMatMul) for each in (node, *(user for user, _, _ in readers))):
            return 0
        return -(-length * size // ALIGNED) * ALIGNED // size

    def _readers(self, node: Node, place: int) -> Iterator[tuple[Node, int, Value | None]]:
        """Return (reader, operand, value read) of a result, views seen through; None if it may have no gaps."""
        several = len(element_types(node.type)) > 1
        waiting: list[Value] = [node]
        while waiting:
            value = waiting.pop()
            if value in self.results:
                yield node, 0, None
            for user, index in self.users.get(value, ()):
                if several and value is node:
                    if not isinstance(user.op, TupleGetItem):
                        yield user, index, None
                    elif user.op.index == place:
                        waiting.append(user)
                elif user.op.is_view:
                    if not isinstance(user.type, TensorType) or user.type.shape[-1:] != value.shape[-1:]:
                        yield user, index, None
                    waiting.append(user)
                else:
                    yield user, index, value

    def _makes(self, node: Node, place: int, type: TensorType) -> bool:
        if isinstance(node.op, MatMul | BatchMatMul):
            return _is_one_product(node)
        space = self._space(node)
        return space is not None and space.row == type.shape[-1] and math.prod(space.dims) == type.size

    def _reads(self, user: Node, index: int, value: Value) -> bool:
        if isinstance(user.op, MatMul | BatchMatMul):
            return index < 2 and _is_one_product(user)
        if not isinstance(user.op, FusedElementwise):
            return False
        space = self._space(user)
        return space is not None and space.row == value.shape[-1] and math.prod(space.dims) == value.tensor_type.size

    def _space(self, node: Node) -> Space | None:
        if node not in self.spaces:
            assert isinstance(node.op, FusedElementwise)
            steps, _, _, space, moved = expanded_steps(node.op, tuple(operand_types(node)))
            aside = any(step.reduces and number not in space.by_row for number, step in enumerate(steps))
            self.spaces[node] = space if space.columns and not aside and not moved else None
        return self.spaces[node]


def _is_one_product(node: Node) -> bool:
    """Return True for a matmul of two matrices, with a batch among the rows of the first."""
    first, second = node.inputs[:2]
    batched = len(first.shape) > 2
    return len(second.shape) == 2 and not (batched and getattr(node.op, "transpose_a", False))
