"""A product of every matrix of a batch with one and the same matrix is one product of all rows, forward and backward.

Input:  `%1 = BatchMatMul(%x, %w)` of (8, 128, 64) and (64, 48),
        `%8 = BatchMatMul(%x, %7) {transpose_a: true}`, `%9 = ReduceSum(%8) {axis: (0,)}`
Output: `%1 = Reshape(%x) {shape: (1024, 64)}`, `%2 = MatMul(%1, %w)`, `%3 = Reshape(%2) {shape: (8, 128, 48)}`,
        `%9 = MatMul(Reshape(%x), Reshape(%7)) {transpose_a: true}`

So networks that write `ops.matmul(x, w)`, or `x @ w`, compile like those with layers of `nn.Dense`: `join_products`,
which follows, knows products of rows. It runs on a rank's graph.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.tensor.reshape import Reshape
from mspc.passes.base import Pass
from mspc.passes.fusion.rewriter import Emitter
from mspc.passes.fusion.simplify_products import left_of_batch


class ProductsOfRows(Pass):
    def run(self, graph: Graph) -> bool:
        emitter = Emitter(graph)
        for node in graph.nodes:
            if isinstance(node.op, BatchMatMul) and _has_one_matrix(node):
                x, y = node.inputs
                op = MatMul(transpose_b=node.op.transpose_b)
                made = emitter.emit(node, op, [_rows(emitter, node, x), y], node, takes=True)
                emitter.replace(node, emitter.emit(node, Reshape(node.shape), [made], node))
            elif left_of_batch(node) == 0 and emitter.only_reader(node.inputs[0]) is node:
                product = node.inputs[0]
                assert isinstance(product, Node)
                # Where it was: a parameter that it reads may change ahead of the sum.
                operands = [_rows(emitter, product, value) for value in product.inputs]
                made = emitter.emit(product, MatMul(transpose_a=True), operands, product, takes=True)
                emitter.drop(product)
                emitter.replace(node, emitter.shaped(node, made, node.shape, node))
        return emitter.apply()


def _has_one_matrix(node: Node) -> bool:
    x, y = node.inputs
    assert isinstance(node.op, BatchMatMul)
    return not node.op.transpose_a and len(x.shape) > 2 == len(y.shape) and node.tensor_type.size > 0


def _rows(emitter: Emitter, place: Node, value: Value) -> Value:
    columns = value.shape[-1]
    return emitter.shaped(place, value, (value.tensor_type.size // columns, columns), place)
