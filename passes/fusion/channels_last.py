"""Puts the channels of images behind height and width, the order in which tensor cores work on them.

Input:  `%1 = Conv2D(%x, %w)`, `%2 = ReLU(%1)`, `%3 = ReduceMean(%2) {axis: (2, 3)}`
Output: `%1 = Transpose(%x) {perm: (0, 2, 3, 1)}`, `%2 = Transpose(%w) {perm: (0, 2, 3, 1)}`,
        `%3 = Conv2D(%1, %2) {data_format: "NHWC"}`, `%4 = ReLU(%3)`, `%5 = ReduceMean(%4) {axis: (1, 2)}`

Convolutions begin it, and what reads them continues as long as it can: pooling, work element by element, biases, sums,
joins and slices. Values are transposed where others need them as they were, once for all of these; where a script
transposes them itself nothing moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.convolution.base import Convolution
from mspc.ops.convolution.convolve import Conv2DBackpropFilter, Conv3DBackpropFilter
from mspc.ops.convolution.memory_format import ImageOperator, Shape, first_order, last_order
from mspc.ops.convolution.pooling_base import Pooling
from mspc.ops.fused.batch_norm import BatchStatistics
from mspc.ops.fused.body import fusible
from mspc.ops.math.matmul import BiasAdd
from mspc.ops.tensor.broadcast import BroadcastTo, Reduce
from mspc.ops.tensor.moving import Concat, Transpose
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead


@dataclass(frozen=True)
class ChannelsLast(Pass):
    """Change the order of the dimensions of all images that convolutions make and read."""

    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, Convolution) for node in graph.nodes):
            return False
        walk = _Walk(graph)
        for node in graph.nodes:
            walk.visit(node)
        graph.nodes = walk.b.nodes
        graph.results = [walk.first(value) for value in graph.results]
        remove_dead(graph)
        return True


class _Walk:
    """The nodes in order, each as it was or with its channels last.

    lasts, firsts: values with their channels last, and as they were, by what they were. permuted: nodes that have
    become what makes their value with its channels last.
    """

    def __init__(self, graph: Graph) -> None:
        self.b = Builder(graph, [])
        self.lasts: dict[Value, Value] = {}
        self.firsts: dict[Value, Value] = {}
        self.permuted: set[Value] = set()

    def visit(self, node: Node) -> None:
        """Put a node behind the others."""
        self.b.like(node)
        self.b.phase = node.phase
        change = next((each for kind, each in _CHANGES if isinstance(node.op, kind)), None)
        if change is None and fusible(node.op):
            change = _elementwise
        before = list(node.inputs)
        if change is None or not isinstance(node.type, TensorType) or not change(self, node):
            if isinstance(node.op, BatchStatistics) and before[0] in self.lasts:
                node.op = replace(node.op, axis=len(before[0].shape) - 1)
                node.inputs = [self.lasts[before[0]], *(self.first(value) for value in before[1:])]
            else:
                node.inputs = [self.first(value) for value in before]
        self.b.nodes.append(node)

    def becomes(self, node: Node, op: Any, inputs: Sequence[Value]) -> bool:
        """The node is this operator with its channels last; True."""
        node.op, node.inputs = op, list(inputs)
        node.type = op.infer(*[value.type for value in inputs])
        node.layout = node.in_layouts = None
        self.permuted.add(node)
        self.lasts[node] = node
        return True

    def last(self, value: Value) -> Value:
        """A value with its channels last."""
        found = self.lasts.get(value)
        if found is None:
            found = self.lasts[value] = self._permuted(value, last_order(len(self.shape(value))))
        return found

    def first(self, value: Value) -> Value:
        """A value as it was."""
        if value not in self.permuted:
            return value
        found = self.firsts.get(value)
        if found is None:
            found = self.firsts[value] = self._permuted(value, first_order(len(value.shape)))
        return found

    def shape(self, value: Value) -> Shape:
        """The shape that a value had."""
        if value in self.permuted:
            return tuple(value.shape[d] for d in first_order(len(value.shape)))
        return value.shape

    def _permuted(self, value: Value, order: Shape) -> Node:
        shape = tuple(value.shape[d] for d in order)
        if isinstance(value, Node) and isinstance(value.op, BroadcastTo) and is_flat(value.inputs[0].shape):
            source = value.inputs[0]
            missing = len(order) - len(source.shape)
            row = (*[1] * missing, *source.shape)
            return self.b.emit(BroadcastTo(shape), self.b.emit(Reshape(tuple(row[d] for d in order)), source))
        if keeps_places(value.shape, order):
            return self.b.emit(Reshape(shape), value)
        return self.b.emit(Transpose(order), value)


def keeps_places(shape: Sequence[int], order: Sequence[int]) -> bool:
    """Whether elements stay where they are when the dimensions get this order."""
    remaining = [d for d in order if shape[d] != 1]
    return remaining == sorted(remaining)


def is_flat(shape: Sequence[int]) -> bool:
    """Whether the first two dimensions at most have more than one place."""
    return all(n == 1 for n in shape[-2:]) or sum(n != 1 for n in shape) <= 1


def _convolution(walk: _Walk, node: Node) -> bool:
    op = cast(ImageOperator, node.op).with_channels_last()
    return walk.becomes(node, op, [walk.last(value) for value in node.inputs])


def _weights(walk: _Walk, node: Node) -> bool:
    """The gradient of weights is what the weights are: those who read it do not go on with their channels last."""
    _convolution(walk, node)
    del walk.lasts[node]
    return True


def _pooling(walk: _Walk, node: Node) -> bool:
    return any(value in walk.lasts for value in node.inputs) and _convolution(walk, node)


def _elementwise(walk: _Walk, node: Node) -> bool:
    """One image at least has its channels last, and the others are brought to that order."""
    rank = len(node.shape)
    if rank < 3 or not any(value in walk.lasts and walk.shape(value) == node.shape for value in node.inputs):
        return False
    return walk.becomes(node, node.op, [_aligned(walk, value, rank) for value in node.inputs])


def _aligned(walk: _Walk, value: Value, rank: int) -> Value:
    """An operand of an operator on images of so many dimensions, which is aligned by the last of these."""
    shape = walk.shape(value)
    if len(shape) == rank:
        return walk.last(value)
    value = walk.first(value)
    row = (*[1] * (rank - len(shape)), *shape)
    if all(n == 1 for n in row):
        return value
    order = last_order(rank)
    permuted = tuple(row[d] for d in order)
    while len(permuted) > 1 and permuted[0] == 1:
        permuted = permuted[1:]
    if keeps_places(row, order):
        source = value.inputs[0] if isinstance(value, Node) and isinstance(value.op, Reshape) else value
        return source if source.shape == permuted else walk.b.emit(Reshape(permuted), source)
    return walk.b.emit(Transpose(order), walk.b.emit(Reshape(row), value))


def _bias(walk: _Walk, node: Node) -> bool:
    """The bias of channels, along the last dimension then."""
    image, bias = node.inputs
    if image not in walk.lasts or cast(BiasAdd, node.op).channel(len(node.shape)) != 1:
        return False
    return walk.becomes(node, BiasAdd("NHWC"), [walk.last(image), walk.first(bias)])


def _transposed(walk: _Walk, node: Node) -> bool:
    """A script that puts channels last or first itself: the image may already lie so."""
    value, order = node.inputs[0], cast(Transpose, node.op).order(len(node.shape))
    if len(order) < 3:
        return False
    if order == last_order(len(order)) and value in walk.lasts:
        node.op, node.inputs = Reshape(node.shape), [walk.last(value)]
        node.layout = node.in_layouts = None
        return True
    if order == first_order(len(order)) and value not in walk.permuted:
        walk.lasts[node] = value
    return False


def _reduction(walk: _Walk, node: Node) -> bool:
    value = node.inputs[0]
    if value not in walk.lasts:
        return False
    op = cast(Reduce, node.op)
    rank = len(walk.shape(value))
    axes = op.axes(rank) or tuple(range(rank))
    order = last_order(rank)
    own = replace(op, axis=tuple(sorted(order.index(d) for d in axes)))
    if op.keep_dims:
        return walk.becomes(node, own, [walk.last(value)])
    remaining = [d for d in order if d not in axes]
    if remaining != sorted(remaining):
        return False
    node.op, node.inputs = own, [walk.last(value)]
    node.layout = node.in_layouts = None
    return True


def _concat(walk: _Walk, node: Node) -> bool:
    rank = len(node.shape)
    if rank < 3 or not all(value in walk.lasts for value in _largest(walk, node.inputs)):
        return False
    op = cast(Concat, node.op)
    own = replace(op, axis=last_order(rank).index(op.axis % rank))
    return walk.becomes(node, own, [walk.last(value) for value in node.inputs])


def _largest(walk: _Walk, values: Sequence[Value]) -> list[Value]:
    most = max(value.tensor_type.size for value in values)
    return [value for value in values if value.tensor_type.size == most]


def _slice(walk: _Walk, node: Node) -> bool:
    value, op = node.inputs[0], cast(StridedSlice, node.op)
    masks = op.begin_mask | op.end_mask | op.ellipsis_mask | op.new_axis_mask | op.shrink_axis_mask
    rank = len(walk.shape(value))
    if value not in walk.lasts or masks or len(op.begin) != rank:
        return False
    ends: dict[str, Any] = {
        name: tuple(getattr(op, name)[d] for d in last_order(rank)) for name in ("begin", "end", "strides")
    }
    return walk.becomes(node, replace(op, **ends), [walk.last(value)])


def _sum_over_ranks(walk: _Walk, node: Node) -> bool:
    if len(node.inputs) != 1 or node.inputs[0] not in walk.lasts:
        return False
    return walk.becomes(node, node.op, [walk.last(node.inputs[0])])


_CHANGES: tuple[tuple[type[Any], Callable[[_Walk, Node], bool]], ...] = (
    (Conv2DBackpropFilter, _weights),
    (Conv3DBackpropFilter, _weights),
    (Convolution, _convolution),
    (Pooling, _pooling),
    (BiasAdd, _bias),
    (Transpose, _transposed),
    (Reduce, _reduction),
    (Concat, _concat),
    (StridedSlice, _slice),
    (AllReduce, _sum_over_ranks),
)
