"""What a step gains if a collective goes in pieces beside the products next to it, by the rates of a machine.

Counted are the pieces of a collective one by one, each with its start; the products' pieces, each with a launch of its
own, at the rate of its size and with the multiprocessors that a collective leaves; and every copy: of the parts that
are sent or multiplied, and of what has to be put together for readers that need memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.analysis.cost.kinds import product_of
from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import seconds
from mspc.ir.graph import Graph, Node, OpLike, Value
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ir.varying import OpKey
from mspc.ops.collective.collectives import AllGather
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import Op
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.slicing import part_of
from mspc.passes.communication.filled_blocks import filled
from mspc.passes.communication.product_places import (
    RowPieces,
    made_by_product,
    product_of_blocks,
    reading_products,
    results_of,
    row_pieces,
    sums_columns,
)

NEARLY = 0.9
"""The share of the most gain with which fewer pieces are as good: estimates are no closer, and pieces are launches."""


class Gains:
    """What collectives of a rank's graph gain. exposed: how long each is waited for as it is."""

    def __init__(self, graph: Graph, exposed: dict[Node, float], machine: Machine) -> None:
        self.exposed, self.machine = exposed, machine
        self.users, self.results = graph.users(), set(graph.results)
        self._known: dict[tuple[OpKey, tuple[Type, ...], Type], float] = {}

    def of(self, node: Node, pieces: int) -> float:
        """Seconds that a step is shorter where a collective goes in so many pieces; 0 where it cannot."""
        exposed = min(self.exposed.get(node, 0.0), self._of(node))
        if not exposed:
            return 0.0
        return self._gathered(node, pieces, exposed) if isinstance(node.op, AllGather) else self._summed(
            node, pieces, exposed
        )

    def _gathered(self, node: Node, pieces: int, exposed: float) -> float:
        rows = row_pieces(node, pieces)
        if rows is None:
            return 0.0
        products, others = reading_products(node, self.users, self.results)
        products = [each for each in products if rows.inside(each.inputs[0].tensor_type.size // node.shape[-1], pieces)]
        if not products:
            return 0.0
        operand = node.inputs[0].tensor_type
        part = _resized(operand, rows.dim, pieces)
        copies = pieces * self._copy(operand, part, rows.dim)
        copies += self._join(node.tensor_type, rows, pieces) if others else 0.0
        copies += sum(
            self._join(result.tensor_type, rows, pieces)
            for product in products for result in results_of(product, self.users) if self._needs_memory(result)
        )
        sent = self._seconds(node.op, [part], _resized(node.tensor_type, rows.dim, pieces))
        once = sum(self._of(product) for product in products)
        beside, alone = (
            sum(self._rows(each, rows, pieces, is_beside) for each in products) for is_beside in (True, False)
        )
        whole = self._of(node)
        main = whole - exposed  # what else there is to do meanwhile
        for i in range(pieces):
            main = max(main, (i + 1) * sent)
            main += beside if main < pieces * sent else alone
        return whole + once - main - copies

    def _summed(self, node: Node, pieces: int, exposed: float) -> float:
        product, _ = made_by_product(node, self.users, self.results)
        if product is None or not sums_columns(node, pieces):
            return 0.0
        operand = node.inputs[0].tensor_type
        last = operand.rank - 1
        left, right = (value.tensor_type for value in product.inputs[:2])
        op = product.op
        assert isinstance(op, MatMul | BatchMatMul | FusedMatMul)
        columns = 0 if op.transpose_b else 1
        matrix = _resized(right, columns, pieces)
        copies = pieces * self._copy(right, matrix, columns)
        made = _resized(node.tensor_type, node.tensor_type.rank - 1, pieces)
        if self._needs_memory(node):
            copies += self._seconds(Concat(node.tensor_type.rank - 1), [made] * pieces, node.type)
        sent = self._seconds(node.op, [_resized(operand, last, pieces)], made)
        columns_made = _resized(product.tensor_type, product.tensor_type.rank - 1, pieces)
        beside, alone = (
            self._piece(product, op, [left, matrix], columns_made, is_beside) for is_beside in (True, False)
        )
        whole, once = self._of(node), self._of(product)
        main = side = 0.0
        for _ in range(pieces):
            main += beside if side > main else alone
            side = max(side, main) + sent
        return whole + once - max(side, main + whole - exposed) - copies

    def _piece(self, product: Node, op: Op, operands: Sequence[TensorType], made: Type, beside: bool) -> float:
        """Seconds of a part of a product, which fills less of a GPU than the product. beside: while a collective is
        under way."""
        node = Node(op, [Value(type) for type in operands], made)
        sizes, whole = product_of(node), product_of(product)
        assert sizes is not None
        assert whole is not None
        lesser = filled(whole) / filled(sizes, beside)
        return max(1.0, lesser) * self._seconds(op, operands, made)

    def _rows(self, product: Node, rows: RowPieces, pieces: int, beside: bool) -> float:
        """Seconds of a product of a part of the rows."""
        left, *others = (value.tensor_type for value in product.inputs)
        shape = (rows.outer, rows.inner // pieces, left.shape[-1])
        types = [left.with_shape(shape if rows.outer > 1 else shape[1:]), *others]
        op = product_of_blocks(product, rows)
        return self._piece(product, op, types, op.infer(*types), beside)

    def _copy(self, whole: TensorType, part: TensorType, dim: int) -> float:
        return self._seconds(part_of(whole.shape, dim, 0, part.shape[dim]), [whole], part)

    def _of(self, node: Node) -> float:
        return self._seconds(node.op, [value.type for value in node.inputs], node.type)

    def _join(self, whole: TensorType, rows: RowPieces, pieces: int) -> float:
        shape = (rows.outer, rows.inner, whole.shape[-1])
        block = whole.with_shape((rows.outer, rows.inner // pieces, whole.shape[-1]))
        return self._seconds(Concat(1), [block] * pieces, whole.with_shape(shape))

    def _seconds(self, op: OpLike, operands: Sequence[Type], result: Type) -> float:
        key = OpKey(op), tuple(operands), result
        if key not in self._known:
            self._known[key] = seconds(Node(op, [Value(type) for type in operands], result), self.machine)
        return self._known[key]

    def _needs_memory(self, value: Value) -> bool:
        """Whether anything reads a value that does not read it where its pieces lie, as kernels of elementwise
        operators do; a cast is part of those that read it."""
        waiting, seen = [value], {value}
        while waiting:
            each = waiting.pop()
            if each in self.results:
                return True
            for user, _ in self.users.get(each, ()):
                if isinstance(user.op, Cast) or (user.op.is_view and not isinstance(user.type, TupleType)):
                    if user not in seen:
                        seen.add(user)
                        waiting.append(user)
                elif not (isinstance(user.op, Op) and user.op.cuda):
                    return True
        return False


def best_pieces(gains: Gains, node: Node, numbers: Sequence[int], least: float) -> int:
    """In how many pieces a collective goes: in the fewest that gain nearly most, 0 where that is less than `least`."""
    found = {pieces: gains.of(node, pieces) for pieces in numbers}
    most = max(found.values())
    return min(pieces for pieces, gain in found.items() if gain >= NEARLY * most) if most > least else 0


def _resized(type: TensorType, dim: int, pieces: int) -> TensorType:
    return type.with_shape((*type.shape[:dim], type.shape[dim] // pieces, *type.shape[dim + 1 :]))
