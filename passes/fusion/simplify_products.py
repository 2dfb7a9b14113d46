"""Let matmuls read operands before their transposes, and make one matmul of a sum over a batch.

Input:  `%1 = Transpose(%k) {perm: (0, 1, 3, 2)}`, `%2 = BatchMatMul(%q, %1)`,
        `%7 = BatchMatMul(%x, %6) {transpose_a: true}`, `%8 = ReduceSum(%7) {axis: (0,)}`
Output: `%2 = BatchMatMul(%q, %k) {transpose_b: true}`,
        `%7 = MatMul(Reshape(%x), Reshape(%6)) {transpose_a: true}`, with the batch among the rows that are summed

The second is the gradient of a matrix that multiplies all matrices of a batch: a matrix for each of them need not be
written, and the sum is rounded once. So it is for a sum of products of one kind, as the gradient of a matrix is that
multiplies in every step of a sequence, if the joined operands are smaller than the results. A product that is only
read transposed is made so, from exchanged operands. If a transpose does more than exchange the last two
dimensions, the rest of it remains if the last dimension then stays in its place. It runs on a rank's graph, where
nothing is sharded any more.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.iterative import iterative
from mspc.ir.types import FLOAT32, HALVES
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.arithmetic import AddN
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat, Transpose
from mspc.ops.tensor.reshape import Cast, ReduceSum, Reshape
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.rewriter import NodeWalk

Shape = tuple[int, ...]


class SimplifyProducts(Pass):
    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, MatMul | BatchMatMul) for node in graph.nodes):
            return False
        changed = remove_dead(graph)
        walk = _ProductWalk(graph)
        walk.run()
        if not walk.replaced:
            return changed
        remove_dead(graph)
        return True


class _ProductWalk(NodeWalk):
    """read_by: the nodes that read a value that is no result. exchanged: transposes that replace others for matmuls."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.read_by: dict[Value, list[Node]] = {}
        self.exchanged: dict[Value, Node] = {}

    def visit(self, node: Node) -> None:
        begin = len(self.nodes)
        if isinstance(node.op, MatMul | BatchMatMul):
            made: Value | None = self._product(node)
        elif isinstance(node.op, Transpose):
            made = self._transposed(node)
        elif isinstance(node.op, ReduceSum):
            made = self._sum(node)
        elif isinstance(node.op, AddN):
            made = self._total(node)
        else:
            made = None
        if made is None:
            self.nodes.append(node)
        else:
            self.replaced[node] = made
        now = node if made is None else made
        if node not in self.results and now in self.nodes[begin:]:
            self.read_by[now] = self.readers(node)

    # What is simpler

    def _product(self, node: Node) -> Value | None:
        op = node.op
        assert isinstance(op, MatMul | BatchMatMul)
        flags, inputs = [op.transpose_a, op.transpose_b], list(node.inputs)
        for place, value in enumerate(inputs):
            found = self._exchanged(value, node)
            if found is not None:
                inputs[place], flags[place] = found, not flags[place]
        if inputs == node.inputs:
            return None
        return self._like(node, replace(op, transpose_a=flags[0], transpose_b=flags[1]), inputs, node.shape)

    @iterative
    def _exchanged(self, value: Value, reader: Node) -> Generator[Any, Value | None, Value | None]:
        """Return a value with the last two dimensions exchanged, if it exists or is cheaper, else None."""
        if not isinstance(value, Node):
            return None
        if isinstance(value.op, Reshape) and _stays(value.inputs[0].shape, value.shape):
            found = yield self, value.inputs[0], reader
            return None if found is None else self._shaped(found, _swapped(value.shape), value)
        if not isinstance(value.op, Transpose) or self.updates.between(value.inputs, -1, self.index):
            return None
        order = value.op.order(len(value.shape))
        rest = (*order[:-2], order[-1], order[-2])
        if _is_still(rest, value.inputs[0].shape):
            return self._shaped(value.inputs[0], _swapped(value.shape), value)
        if order[-1] == len(order) - 1 or rest[-1] != len(order) - 1:
            return None
        if value not in self.exchanged and self._are_products(self.read_by.get(value, ())):
            self.exchanged[value] = self._like(value, Transpose(rest), value.inputs, _swapped(value.shape))
        return self.exchanged.get(value)

    def _are_products(self, readers: Sequence[Node]) -> bool:
        """Return True if there are readers, and all are matmuls or reshapes of a batch for matmuls."""
        waiting = list(readers)
        for reader in waiting:  # it becomes longer
            if isinstance(reader.op, MatMul | BatchMatMul):
                continue
            users = self.readers(reader)
            is_view = isinstance(reader.op, Reshape) and _stays(reader.inputs[0].shape, reader.shape)
            if not is_view or not users or reader in self.results:
                return False
            waiting += users
        return bool(readers)

    def _is_read_once(self, value: Value) -> bool:
        return len(self.read_by.get(value, ())) == 1

    def _transposed(self, node: Node) -> Value | None:
        """Return one transpose for two, or the matmul that makes its own transpose, or None."""
        (value,), op = node.inputs, node.op
        assert isinstance(op, Transpose)
        order = op.order(len(value.shape))
        if not isinstance(value, Node) or len(order) < 2:
            return None
        if isinstance(value.op, Transpose) and not self.updates.between(value.inputs, -1, self.index):
            inner = value.op.order(len(value.shape))
            return self._ordered(node, value.inputs[0], tuple(inner[d] for d in order))
        last = len(order) - 1
        rest = tuple({last: last - 1, last - 1: last}.get(d, d) for d in order)
        if not _is_still(rest, _swapped(value.shape)) and not (order[-1] != last == rest[-1]):
            return None
        made = self._other_way(value)
        return None if made is None else self._ordered(node, made, rest)

    @iterative
    def _other_way(self, value: Value) -> Generator[Any, Value | None, Value | None]:
        """Return a matmul that nothing else reads with its last two dimensions exchanged, through reshapes of the
        batch."""
        if not isinstance(value, Node) or not self._is_read_once(value):
            return None
        op = value.op
        if isinstance(op, Reshape) and _stays(value.inputs[0].shape, value.shape):
            made = yield self, value.inputs[0]
            return None if made is None else self._shaped(made, _swapped(value.shape), value)
        if not isinstance(op, MatMul | BatchMatMul) or self.updates.between(value.inputs, -1, self.index):
            return None
        flags = {"transpose_a": not op.transpose_b, "transpose_b": not op.transpose_a}
        return self._like(value, replace(op, **flags), value.inputs[::-1], _swapped(value.shape))

    def _sum(self, node: Node) -> Value | None:
        """Return one matmul for the sum over the last dimensions of a batch, if the rows of each operand are
        contiguous."""
        remaining, product = left_of_batch(node), node.inputs[0]
        if remaining is None or not isinstance(product, Node) or not self._is_read_once(product):
            return None
        if self.updates.between(product.inputs, -1, self.index):
            return None
        batch = product.shape[:-2]
        parts = [self._shaped(v, (*batch[:remaining], -1, v.shape[-1]), product) for v in product.inputs]
        one = BatchMatMul(transpose_a=True) if remaining else MatMul(transpose_a=True)
        made = self._like(product, one, parts, (*batch[:remaining], *product.shape[-2:]))
        return self._shaped(made, node.shape, node)

    def _total(self, node: Node) -> Value | None:
        """Return a sum with one matmul for equal terms, over all their summed dimensions, if that makes less: the
        gradient of a matrix used step after step."""
        alike: dict[Hashable, dict[Value, Node]] = {}
        for value in node.inputs:
            product, wide = self._term(value)
            if product is not None:
                x, y = product.inputs
                alike.setdefault((product.op, x.type, y.type, wide), {})[value] = product
        parts = list(node.inputs)
        for terms in alike.values():
            products = list(terms.values())
            x, y = products[0].inputs
            if len(products) > 1 and x.tensor_type.size + y.tensor_type.size < products[0].tensor_type.size:
                parts = [value for value in parts if value not in terms]
                parts.append(self._one_of(products, node))
        if len(parts) == len(node.inputs):
            return None
        return parts[0] if len(parts) == 1 else self._like(node, AddN(), parts, node.shape)

    def _term(self, value: Value) -> tuple[Node | None, bool]:
        """Return the matmul that a term of a sum is, and whether it is one of halves, widened for the sum."""
        wide = isinstance(value, Node) and isinstance(value.op, Cast) and value.op.dst_type == FLOAT32
        product = value.inputs[0] if wide and isinstance(value, Node) else value
        if not isinstance(product, Node) or not isinstance(product.op, MatMul):
            return None, wide
        if not self._is_read_once(value) or not self._is_read_once(product):
            return None, wide
        if (wide and product.tensor_type.dtype not in HALVES) or self.updates.between(product.inputs, -1, self.index):
            return None, wide
        return product, wide

    def _one_of(self, products: Sequence[Node], node: Node) -> Node:
        op = products[0].op
        assert isinstance(op, MatMul)
        sides: list[Value] = []
        for place, axis in ((0, 0 if op.transpose_a else 1), (1, 1 if op.transpose_b else 0)):
            values = [product.inputs[place] for product in products]
            shape = list(values[0].shape)
            shape[axis] *= len(values)
            joined = self.make(node, Concat(axis), values, values[0].tensor_type.with_shape(tuple(shape)))
            joined.frames = products[0].frames
            sides.append(joined)
        wide = products[0].tensor_type.dtype != node.tensor_type.dtype
        one: Op = FusedMatMul(op.transpose_a, op.transpose_b, wide=True) if wide else op
        made = self._like(products[0], one, sides, node.shape)
        made.type, made.phase = node.type, node.phase
        return made

    # How

    def _like(self, node: Node, op: Op, inputs: Sequence[Value], shape: Shape) -> Node:
        return self.make(node, op, inputs, node.tensor_type.with_shape(shape), takes=True)

    def _ordered(self, node: Node, value: Value, order: Shape) -> Value:
        if _is_still(order, value.shape):
            return self._shaped(value, node.shape, node)
        return self._like(node, Transpose(order), [value], node.shape)

    def _shaped(self, value: Value, shape: Shape, like: Node) -> Value:
        """Return `value` in a shape; one -1 in it is inferred."""
        shape = Reshape(shape).resolved(value.shape)
        if value.shape == shape:
            return value
        return self.make(like, Reshape(shape), [value], value.tensor_type.with_shape(shape))


def left_of_batch(node: Node) -> int | None:
    """Return how many batch dimensions are left by a sum that one matmul of all rows could do; None for other nodes."""
    op, product = node.op, node.inputs[0] if node.inputs else None
    if not isinstance(op, ReduceSum) or not isinstance(product, Node) or not isinstance(product.op, BatchMatMul):
        return None
    x, y = product.inputs
    batch, axes = product.shape[:-2], sorted(op.axes(len(product.shape)))
    left = len(batch) - len(axes)
    flags = (product.op.transpose_a, product.op.transpose_b)
    if not axes or axes != list(range(left, len(batch))) or flags != (True, False):
        return None
    if x.shape[:-2] != batch or y.shape[:-2] != batch or product.tensor_type.dtype != node.tensor_type.dtype:
        return None
    return left


def _swapped(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


def _stays(source: Shape, target: Shape) -> bool:
    return len(source) >= 2 and len(target) >= 2 and source[-2:] == target[-2:]


def _is_still(order: Sequence[int], shape: Shape) -> bool:
    """Return True if elements keep their positions in this order of dimensions."""
    moved = [d for d in order if shape[d] != 1]
    return moved == sorted(moved)
