"""Shards transformers as is usual by hand: of two products in a row the first weight by columns, the second by rows,
so that one sum over ranks follows the pair (Shoeybi et al., "Megatron-LM", 2019); the batch over the remaining ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ops.control.regions import Loop, MakeStack, runs_layers, runs_micro_batches
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.search.plans.weights import WeightValues

MOST = 8
"""Ranks that share a product at most where nothing is known of hosts."""


def tensor_sizes(ranks: int, per_host: int) -> list[int]:
    """How many ranks may share a product: powers of two that divide their number, within a host."""
    most = min(ranks, per_host or MOST)
    return [size for size in (2, 4, 8, 16) if size <= most and ranks % size == 0]


def shard_in_pairs(graph: Graph, ranks: int, tensor: int) -> None:
    """Give the products of a graph, read but not compiled yet, strategies of pairs; `tensor` ranks share each.

    Raises:
        MspcError: no product follows on another, a dimension cannot be sharded so often, or a weight would be sharded
            by rows and by columns.
    """
    pairs = _Pairs(ranks // tensor, tensor)
    pairs.shard(graph, {})
    if not pairs.count:
        raise MspcError("no product of a weight follows on another")


class _Pairs:
    """The pairs of a graph. data, tensor: ranks among which rows and products are shared. count: of the pairs that were
    found; opened: what a first product makes, and what follows from it."""

    def __init__(self, data: int, tensor: int) -> None:
        self.data, self.tensor = data, tensor
        self.opened: set[Value] = set()
        self.weights = WeightValues()
        self.by_rows: dict[Value, bool] = {}
        self.count = 0

    def shard(self, graph: Graph, outside: Mapping[Value, Value]) -> None:
        """Shard the products of a graph, and of equal layers in it. outside: for parameters of theirs what is read in
        their place. Raises MspcError."""
        for node in graph.nodes:
            self.weights.add([node], outside)
            comes_open = any(outside.get(value, value) in self.opened for value in node.inputs)
            if runs_layers(node) or runs_micro_batches(node):
                self.shard(node.regions[-1], {**outside, **_handed_in(node, outside)})
            weight = self._weight(node, outside)
            if weight is None:
                if comes_open:
                    self.opened.add(node)
                continue
            self.count += comes_open
            if self.by_rows.setdefault(weight, comes_open) != comes_open:
                raise MspcError(f"pairs shard {weight.name} by columns for one product and by rows for another")
            _shard(node, self.data, self.tensor, by_rows=comes_open)
            if not comes_open:
                self.opened.add(node)

    def _weight(self, node: Node, outside: Mapping[Value, Value]) -> Parameter | None:
        """The trained weight of a matmul; None for other nodes, and for matmuls of activations."""
        if not isinstance(node.op, MatMul | BatchMatMul) or len(node.inputs) != 2:
            return None
        x, matrix = node.inputs
        weight = self.weights.of(matrix, outside)
        if weight is None or not weight.trainable or len(matrix.tensor_type.shape) != 2:
            return None
        return weight if self.weights.of(x, outside) is None else None


def _handed_in(node: Node, outside: Mapping[Value, Value]) -> dict[Value, Value]:
    """For the parameters of a layer, or of a micro-batch, what it reads in their place: of a stack of weights the
    first. outside: the same of the graph that the node is in."""
    op, body = node.op, node.regions[-1]
    assert isinstance(op, Loop)
    found: dict[Value, Value] = {}
    for number, value in enumerate(node.inputs):
        place = op.inside(0, number)
        if place is not None:
            is_stack = isinstance(value, Node) and isinstance(value.op, MakeStack)
            found[body.parameters[place]] = value.inputs[0] if is_stack else outside.get(value, value)
    return found


def _shard(node: Node, data: int, tensor: int, by_rows: bool) -> None:
    """Set the strategy of one product. Raises MspcError."""
    op, (x, weight) = node.op, node.inputs
    assert isinstance(op, MatMul | BatchMatMul)
    shape = x.tensor_type.shape
    left, right = [1] * len(shape), [1, 1]
    rows, inner = (len(shape) - 1, len(shape) - 2) if op.transpose_a else (0, len(shape) - 1)
    left[rows] = data
    if by_rows:
        left[inner] = tensor
        right[1 if op.transpose_b else 0] = tensor
    else:
        right[0 if op.transpose_b else 1] = tensor
    for value, shards in ((x, left), (weight, right)):
        for size, count in zip(value.tensor_type.shape, shards, strict=True):
            if size % count:
                raise MspcError(f"{node.label} has a dimension of {size}, which {count} ranks cannot share")
    node.in_strategy = (tuple(left), tuple(right))
