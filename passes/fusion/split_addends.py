"""Hands what is added to attention's scores over as its parts, where their sum is larger than they are.

Input:  `%1 = Add(%bias, %padding)` of (1, 12, 512, 512) and (16, 1, 1, 512),
        `%2 = FlashAttentionScore(%q, %k, %v, %1) {optional: ("real_shift")}`
Output: `%2 = FlashAttentionScore(%q, %k, %v, %bias, %padding) {optional: ("real_shift", "key_shift")}`

The sum would be a number for every query and key of every head and member of the batch, which each attention reads and
its gradients read again. What is the same for all queries, as padding is, becomes the second addend; the rest stays
the first one, with a shape of its own. Both are added, so that rows whose keys all get a number as -1e9 remain what
the script says. Sums and casts between are gone through, and so is what repeats a mask for every query ahead of work
element by element (`narrow`). The gradient of the first addend keeps its shape: `sum_in_kernels` sums it.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.analysis.aliasing import Updates
from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, FLOAT64, TensorType
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.nn.attention import FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_base import KEY_SHIFT, AttentionOp
from mspc.ops.tensor.broadcast import BroadcastTo
from mspc.ops.tensor.reshape import Cast, ExpandDims, Reshape
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.one_query import narrow

SHIFT = "real_shift"
MOST_TERMS = 64
"""Terms into which a sum is taken apart; a value that is added to itself again and again has more than fit a list."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class SplitAddends(Pass):
    """Replace sums that attention adds to its scores by their parts."""

    def run(self, graph: Graph) -> bool:
        found = [node for node in graph.nodes if _splits(node)]
        if not found:
            return False
        splitter = _Splitter(graph)
        changed = False
        for node in list(graph.nodes):
            changed |= _splits(node) and splitter.split(node)
            splitter.nodes.append(node)
        if changed:
            graph.nodes = splitter.nodes
            remove_dead(graph)
        return changed


def _splits(node: Node) -> bool:
    """Whether a node is an attention with one addend."""
    op = node.op
    return isinstance(op, AttentionOp) and SHIFT in op.optional and KEY_SHIFT not in op.optional and not op.packed


@dataclass(frozen=True)
class _Parts:
    """What an addend is made of. rest: what differs from query to query, or all of it; of_keys: what does not. read:
    what both are made of; first: the number of the first node between these and the addend."""

    rest: Value
    of_keys: Value | None
    read: tuple[Value, ...]
    first: int


class _Splitter:
    """Takes addends apart, each once, ahead of the first attention that reads it. nodes: the graph's so far."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self._builder = Builder(graph, self.nodes)
        self._updates = Updates(graph)
        self._numbers: dict[Value, int] = {node: number for number, node in enumerate(graph.nodes)}
        self._parts: dict[Value, _Parts | None] = {}

    def split(self, node: Node) -> bool:
        """Give an attention its addend's parts; False where the addend stays."""
        op = node.op
        assert isinstance(op, AttentionOp)
        at = op.first_optional + op.optional.index(SHIFT)
        shift = node.inputs[at]
        if shift not in self._parts:
            b = self._builder.like(node)
            b.phase, b.forward = node.phase, None
            self._parts[shift] = self._parts_of(shift)
        parts = self._parts[shift]
        if parts is None or self._updates.between(parts.read, parts.first, self._numbers[node]):
            return False
        optional = list(op.optional)
        node.inputs[at] = parts.rest
        if parts.of_keys is not None:
            place = op.first_optional + len(optional)
            node.inputs.insert(place, parts.of_keys)
            optional.append(KEY_SHIFT)
        changed = replace(op, optional=tuple(optional))
        if isinstance(changed, FlashAttentionScoreShiftGrad):
            changed = replace(changed, result_shape=changed.result_shape or shift.shape)
        node.op = changed
        return True

    def _parts_of(self, shift: Value) -> _Parts | None:
        visited: list[Node] = []
        terms = _terms(shift, visited)
        of_keys: list[Value] = []
        rest: list[Value] = []
        begin = len(self.nodes)
        for term in terms:
            narrowed = narrow(self._builder, term, visited)
            if narrowed is None:
                rest.append(term)
            else:
                of_keys.append(narrowed)
        needed = _bytes(rest, shift) + _bytes(of_keys, shift)
        if needed >= shift.type.nbytes:
            del self.nodes[begin:]
            return None
        dtype = shift.tensor_type.dtype
        sums = [self._sum(values) for values in (rest, of_keys) if values]
        if sums[0].tensor_type.dtype != dtype:  # it has the type of its gradient
            sums[0] = self._builder.emit(Cast(dtype), sums[0])
        first = min(self._numbers.get(node, 0) for node in visited)
        made = set(self.nodes[begin:])
        read = [value for node in [*visited, *made] for value in node.inputs]
        return _Parts(sums[0], sums[1] if len(sums) > 1 else None, tuple(dict.fromkeys(read)), first)

    def _sum(self, values: Sequence[Value]) -> Value:
        """In the one type of the values, or in a wider one that holds the numbers of all."""
        types = {value.tensor_type.dtype for value in values}
        if len(types) > 1:
            wide = FLOAT64 if FLOAT64 in types else FLOAT32
            values = [v if v.tensor_type.dtype == wide else self._builder.emit(Cast(wide), v) for v in values]
        total = values[0]
        for value in values[1:]:
            total = self._builder.emit(Add(), total, value)
        return total


@iterative
def _terms(value: Value, visited: list[Node]) -> Generator[Any, list[Value], list[Value]]:
    """What a tensor is the sum of, each aligned with it at the right. visited: gets what is between."""
    inputs: list[Value] = []
    if isinstance(value, Node) and _is_float(value):
        inputs = [operand for operand in value.inputs if _is_float(operand)]
        inner = inputs[0] if inputs else value
        if not isinstance(value.op, Add | AddN | Cast | BroadcastTo):
            moved = isinstance(value.op, Reshape | ExpandDims) and _stripped(inner.shape) == _stripped(value.shape)
            inputs = inputs if moved else []
        if len(inputs) != len(value.inputs):
            inputs = []
    if not isinstance(value, Node) or not inputs:
        return [value]
    parts: list[Value] = []
    for operand in inputs:
        parts += yield operand, visited
    # A value that is no sum stays as it is: who narrows it goes through it again. So does a sum of very many terms.
    if len(parts) == 1 or len(parts) > MOST_TERMS:
        return [value]
    visited.append(value)
    return parts


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


def _stripped(shape: Shape) -> Shape:
    """Without the ones in front."""
    return shape[next((d for d, n in enumerate(shape) if n != 1), len(shape)) :]


def _bytes(values: Sequence[Value], shift: Value) -> int:
    """Of the sum of values in the type of the addend."""
    if not values:
        return 0
    return math.prod(np.broadcast_shapes(*(v.shape for v in values))) * shift.tensor_type.dtype.itemsize
