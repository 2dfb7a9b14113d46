"""Finds the products beside a collective: those that read what it gathers, and the one that makes what it sums.

Between them stand views alone, which keep the last dimension as it is: what the products sum over in the one case, what
they make in the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from mspc.ir.graph import Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import AllGather, AllReduce, ReduceScatter
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Reshape

Users = Mapping[Value, Sequence[tuple[Node, int]]]
"""The readers of values, as `Graph.users` lists them."""
PIECES = "pieces"
"""The attribute of a collective that says in how many pieces it goes."""
PIECE = "piece"
"""The attribute of a piece, and of its product: which it is, of how many."""


@dataclass(frozen=True)
class RowPieces:
    """How the rows of what is gathered lie in its pieces.

    dim: the dimension of the operand of which each piece has a part. is_gathered: whether that is the one along which
    ranks' tensors are joined. outer: how many blocks of rows lie apart in the whole, of each of which a piece has one
    part: those of every rank, where `is_gathered`. inner: rows of a block in the whole.
    """

    dim: int
    is_gathered: bool
    outer: int
    inner: int

    def inside(self, rows: int, pieces: int) -> bool:
        """Whether so many rows of a product are these, in blocks of which each piece has its share."""
        return rows == self.outer * self.inner and not self.inner % pieces


def row_pieces(node: Node, pieces: int) -> RowPieces | None:
    """How an AllGather is taken apart into so many; None where its operand cannot be."""
    assert isinstance(node.op, AllGather)
    shape, axis, made = node.inputs[0].shape, node.op.axis, node.shape
    if axis >= len(shape) - 1:
        return None
    for dim in range(axis + 1):
        if shape[dim] >= pieces and not shape[dim] % pieces:
            outer = math.prod(made[:dim]) * (made[dim] // shape[dim] if dim == axis else 1)
            return RowPieces(dim, dim == axis, outer, math.prod(made[:-1]) // outer)
    return None


def sums_columns(node: Node, pieces: int) -> bool:
    """Whether a sum over ranks may go in so many pieces of its last dimension."""
    op, shape = node.op, node.inputs[0].shape
    if isinstance(op, ReduceScatter) and op.axis >= len(shape) - 1:
        return False
    return isinstance(op, AllReduce | ReduceScatter) and bool(shape) and not shape[-1] % pieces


def divides(node: Node, pieces: int) -> bool:
    """Whether a collective may go in so many pieces. Its operand's shape says so, in which all of its ranks agree."""
    return row_pieces(node, pieces) is not None if isinstance(node.op, AllGather) else sums_columns(node, pieces)


def is_candidate(node: Node) -> bool:
    """Whether a collective may go in pieces: it has one tensor, whose rows it gathers or whose elements it sums."""
    op = node.op
    if not isinstance(op, AllGather | AllReduce | ReduceScatter) or len(node.inputs) != 1:
        return False
    if not isinstance(node.type, TensorType) or not node.tensor_type.size:
        return False
    return isinstance(op, AllGather) or op.op == "sum"


def reading_products(node: Node, users: Users, results: set[Value]) -> tuple[list[Node], bool]:
    """(the products of its phase that multiply the rows of a node by a matrix, whether anything else reads it)."""
    found: dict[Node, None] = {}
    others = False
    waiting: list[Value] = [node]
    while waiting:
        value = waiting.pop()
        others |= value in results
        for user, index in users.get(value, ()):
            if _keeps_columns(user):
                waiting.append(user)
            elif index == 0 and _multiplies_rows(user) and user.phase == node.phase and value not in user.inputs[1:]:
                found[user] = None
            else:
                others = True
    return list(found), others


def made_by_product(node: Node, users: Users, results: set[Value]) -> tuple[Node | None, list[Node]]:
    """(the product that makes the operand of a node and is read by nothing else, the views between them in their
    order); None where there is none."""
    views: list[Node] = []
    value = node.inputs[0]
    while isinstance(value, Node) and _keeps_columns(value):
        views.insert(0, value)
        value = value.inputs[0]
    line = [value, *views, node]
    alone = all(_is_only_reader(reader, of, users, results) for of, reader in pairwise(line))
    if not isinstance(value, Node) or not alone or not _multiplies_rows(value) or value.phase != node.phase:
        return None, []
    return (value, views) if _plain(value) else (None, [])


def product_of_blocks(product: Node, rows: RowPieces) -> Op:
    """The operator that multiplies blocks of rows as a product does all of them."""
    op = product.op
    assert isinstance(op, MatMul | BatchMatMul | FusedMatMul)
    return BatchMatMul(op.transpose_a, op.transpose_b) if isinstance(op, MatMul) and rows.outer > 1 else op


def results_of(product: Node, users: Users) -> Iterator[Value]:
    """The tensors that a product makes, of several those that are read."""
    if isinstance(product.type, TensorType):
        yield product
    else:
        yield from (user for user, _ in users.get(product, ()))


def _keeps_columns(node: Node) -> bool:
    return isinstance(node.op, Reshape) and node.shape[-1:] == node.inputs[0].shape[-1:] and bool(node.shape)


def _is_only_reader(reader: Value, value: Value, users: Users, results: set[Value]) -> bool:
    return value not in results and [user for user, _ in users.get(value, ())] == [reader]


def _multiplies_rows(node: Node) -> bool:
    """Whether a product has rows, each for itself, and one matrix on the right: beside a bias it reads nothing else."""
    op = node.op
    if not isinstance(op, MatMul | BatchMatMul | FusedMatMul) or op.transpose_a or len(node.inputs[1].shape) != 2:
        return False
    return not isinstance(op, FusedMatMul) or not (op.addend or op.activation == "gelu_gradient")


def _plain(node: Node) -> bool:
    """Whether columns of a product's result may be made one part after the other, by parts of its matrix alone."""
    return not isinstance(node.op, FusedMatMul) or not (node.op.bias or node.op.keeps_before)
