"""Pass the terms added to attention's scores separately if their sum is larger than they are.

Input:  `%1 = Add(%bias, %padding)` of (1, 12, 512, 512) and (16, 1, 1, 512),
        `%2 = FlashAttentionScore(%q, %k, %v, %1) {optional: ("real_shift")}`
Output: `%2 = FlashAttentionScore(%q, %k, %v, %bias, %padding) {optional: ("real_shift", "key_shift")}`

The sum would be a number for every query and key of every head and member of the batch, which each attention reads and
its gradients read again. A term equal for all queries, as padding is, becomes the second addend; the rest stays
the first one, with a shape of its own. Both are added, so that rows with all keys at a number as -1e9 remain as
the script says. The pass looks through sums and casts, and through broadcasts of a mask over queries before work
element by element (`narrow`). The gradient of the first addend keeps its shape: `sum_in_kernels` sums it.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Builder, Constant, Graph, Node, Value
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import FLOAT32, FLOAT64, TensorType
from mspc.ops.bases import Elementwise
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.nn.attention import FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_base import KEY_SHIFT, AttentionOp
from mspc.ops.tensor.reshape import BroadcastTo, Cast, ExpandDims, Reshape
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead

# Finds the one row of a tensor whose rows are all alike: a mask that is the same for all queries, repeated for them.
#
# Input:  `%1 = BroadcastTo(%mask) {shape: (16, 1, 512, 512)}`, `%2 = Sub(1, %1)`, `%3 = Mul(%2, -1e9)`
# Output: `%2 = Sub(1, %mask)`, `%3 = Mul(%2, -1e9)` of (16, 1, 1, 512)


DEPTH = 8
"""How many operators between what is repeated and its reader are looked at."""


def narrow(b: Builder, value: Value, visited: list[Node]) -> Value | None:
    """Return `value` with one element in its last dimension but one: itself or nodes that `b` emits, aligned right with
    it.

    None if rows may differ, or it has no dimensions. visited: receives the nodes in between.
    """
    begin, seen = len(b.nodes), len(visited)
    found = _narrowed(b, value, visited, DEPTH) if value.shape else None
    if found is None:
        del b.nodes[begin:]
        del visited[seen:]
    return found


def _narrowed(b: Builder, value: Value, visited: list[Node], depth: int) -> Value | None:
    if not isinstance(value.type, TensorType):
        return None
    shape = value.shape
    if len(shape) < 2 or shape[-2] == 1:
        return value
    if not isinstance(value, Node) or not depth:
        return None
    op = value.op
    inputs: list[Value] = []
    for operand in value.inputs:
        inner = _narrowed(b, operand, visited, depth - 1)
        if inner is None:
            return None
        inputs.append(inner)
    visited.append(value)
    if isinstance(op, BroadcastTo):
        return inputs[0]
    if isinstance(op, Reshape | ExpandDims):
        moved = _with_ones(inputs[0], value.inputs[0].shape, shape)
        return None if moved is None else b.emit(Reshape(moved), inputs[0])
    if not isinstance(op, Elementwise) or not op.broadcasts or op.has_side_effect or isinstance(value, Constant):
        return None
    return b.emit(op, *inputs)


def _with_ones(narrowed: Value, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of a narrowed operand of a reshape that adds or removes ones before the last two dimensions;
    None for other reshapes."""
    if len(before) < 2 or before[-2:] != after[-2:]:
        return None
    own = (1,) * (len(before) - len(narrowed.shape)) + narrowed.shape
    sizes = [(n, mine) for n, mine in zip(before[:-2], own[:-2], strict=True) if n != 1]
    if [n for n, _ in sizes] != [n for n in after[:-2] if n != 1]:
        return None
    rest = iter(mine for _, mine in sizes)
    return (*(1 if n == 1 else next(rest) for n in after[:-2]), *own[-2:])


SHIFT = "real_shift"
MAX_TERMS = 64
"""Terms into which a sum is taken apart; a value that is added to itself again and again has more than fit a list."""
Shape = tuple[int, ...]


class SplitAddends(Pass):
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
    op = node.op
    return isinstance(op, AttentionOp) and SHIFT in op.optional and KEY_SHIFT not in op.optional and not op.packed


@dataclass(frozen=True)
class _Parts:
    """The parts of an addend.

    rest: the part that differs between queries, or all of it. of_keys: the other part. read: the terms of both. first:
    the number of the first node between these and the addend.
    """

    rest: Value
    of_keys: Value | None
    read: tuple[Value, ...]
    first: int


class _Splitter:
    """Splits addends, each once, before the first attention that reads it. nodes: the new list so far."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self._builder = Builder(graph, self.nodes)
        self._updates = Updates(graph)
        self._numbers: dict[Value, int] = {node: number for number, node in enumerate(graph.nodes)}
        self._parts: dict[Value, _Parts | None] = {}

    def split(self, node: Node) -> bool:
        """Give an attention its addend's parts; return False if the addend stays."""
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
        """Return the sum in the type of the values, or in one that holds the numbers of all."""
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
    """Return the terms of a sum, each aligned right with it. visited: receives the nodes in between."""
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
    if len(parts) == 1 or len(parts) > MAX_TERMS:
        return [value]
    visited.append(value)
    return parts


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


def _stripped(shape: Shape) -> Shape:
    """Return the shape without leading ones."""
    return shape[next((d for d, n in enumerate(shape) if n != 1), len(shape)) :]


def _bytes(values: Sequence[Value], shift: Value) -> int:
    """Return the bytes of the sum of values in the type of the addend."""
    if not values:
        return 0
    return math.prod(np.broadcast_shapes(*(v.shape for v in values))) * shift.tensor_type.dtype.itemsize
