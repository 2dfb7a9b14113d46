"""Takes collectives that are to go in pieces apart, with the products beside them, so that one piece is on its way
while the product of another is computed.

Input:  `%1 = AllGather(%x) {pieces: 2}`, `%2 = MatMul(%1, %w)`
Output: `%1 = StridedSlice(%x)`, `%2 = AllGather(%1) {piece: "1 of 2"}`, the same of the other rows, a `MatMul` of each
        piece by `%w`, and a `Concat` between two `Reshape`s that puts their rows in order

Input:  `%1 = MatMul(%x, %w)`, `%2 = ReduceScatter(%1) {pieces: 2}`
Output: `%1 = StridedSlice(%w)`, `%2 = MatMul(%x, %1)`, `%3 = ReduceScatter(%2) {piece: "1 of 2"}`, the same of the
        other columns, and their `Concat`

Every element is the sum of the same terms as before, within rounding: BLAS may add them up in another order when a
matmul has other shapes. Other readers of a gathered value read the concatenated pieces, and a value that no matmul
makes for this collective alone is sliced. The number of pieces depends only on the attribute `pieces`, which all ranks
take from the graph that they share (`choose_pieces`).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import OFFLOAD, Graph, Node, Value
from mspc.ir.iterative import iterative
from mspc.ops.collective.collectives import AllGather
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.slicing import part_of
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.rewriter import Emitter
from mspc.passes.lib.collective_pieces import (
    PIECE,
    PIECES,
    RowPieces,
    divides,
    is_candidate,
    made_by_product,
    product_of_blocks,
    reading_products,
    results_of,
    row_pieces,
)


class SendInPieces(Pass):
    """Take collectives with the attribute `pieces` apart."""

    def run(self, graph: Graph) -> bool:
        marked = [node for node in graph.nodes if PIECES in node.attrs and is_candidate(node)]
        if not marked:
            return False
        pieces = _Pieces(graph)
        for node in marked:
            count = node.attrs.pop(PIECES)
            if not isinstance(count, int) or count < 2:
                raise node.error(f"{node.label}: {PIECES} is {count!r}, not a number of pieces", kind=ValueError)
            if not divides(node, count):  # its elements lie in another order than in the graph of all ranks
                continue
            if isinstance(node.op, AllGather):
                pieces.gather(node, count)
            else:
                pieces.sum(node, count)
        pieces.apply()
        remove_dead(graph)
        graph.nodes = _with_joined_nodes(graph.nodes, pieces.joined)
        return True


def _with_joined_nodes(nodes: Sequence[Node], joined: Mapping[Node, Node]) -> list[Node]:
    """Return the nodes with each that is in `joined` only after the one there, or before its reader, and so with views:
    they wait for all pieces, and matmuls of the first ones do not."""
    late: dict[Value, None] = dict.fromkeys(joined)
    behind = {last: node for node, last in joined.items()}
    for node in nodes:
        if node.op.is_view and node.inputs and all(value in late for value in node.inputs):
            late[node] = None
    made: list[Node] = []
    there: set[Value] = set()

    @iterative
    def put(node: Node) -> Generator[Any, None, None]:
        for value in node.inputs:
            if isinstance(value, Node) and value in late and value not in there:
                yield (value,)
        there.add(node)
        made.append(node)

    for node in nodes:
        if node not in late:
            put(node)
            own = behind.get(node)
            if own is not None and own not in there:
                put(own)
    for node in nodes:  # results of the graph
        if node not in there:
            put(node)
    return made


class _Pieces(Emitter):
    """The graph with collectives in pieces."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.updates = Updates(graph)
        self.numbers = {node: number for number, node in enumerate(graph.nodes)}
        self.joined: dict[Node, Node] = {}
        """Gathered values, put together for readers that are no matmuls, and the last of these matmuls."""

    def emit(
        self, place: Node, op: Op, inputs: Sequence[Value], like: Node, parts: Sequence[Node] = (), takes: bool = False
    ) -> Node:
        """Emit as any emitter does; gradients that read `like` in the host's memory read these nodes there too."""
        made = super().emit(place, op, inputs, like, parts, takes)
        if OFFLOAD in like.attrs:
            made.attrs[OFFLOAD] = like.attrs[OFFLOAD]
        return made

    def gather(self, node: Node, count: int) -> None:
        """Gather the parts of the operand's rows one after the other."""
        rows = row_pieces(node, count)
        assert rows is not None
        parts = [self._part(node, node, node.inputs[0], rows.dim, i, count) for i in range(count)]
        gathered = [self._gathered_part(node, part, rows, i, count) for i, part in enumerate(parts)]
        products, others = reading_products(node, self.users, self.results)
        last = gathered[-1]
        for product in products:
            if product in self.gone or not rows.inside(product.inputs[0].tensor_type.size // node.shape[-1], count):
                others = True
                continue
            last = self._multiply(product, gathered, rows)
        if others:
            whole, found = self._joined_pieces(node, node, gathered, rows)
            self.joined[whole] = last
            self.replace(node, found)
        self.drop(node)

    def _gathered_part(self, node: Node, part: Node, rows: RowPieces, index: int, count: int) -> Node:
        """Return a part of all ranks' rows. The rows of each rank are apart from the others', so that they stay
        together if pieces are put together, and nobody takes the number of ranks for a part of the rows."""
        op = node.op
        assert isinstance(op, AllGather)
        if not rows.is_gathered:
            return self._piece(node, node, [part], index, count)
        before, columns = math.prod(part.shape[: op.axis]), part.shape[-1]
        own = self.shaped(node, part, (before, 1, part.tensor_type.size // before // columns, columns), node)
        return self._piece(node, node, [own], index, count, replace(op, axis=1))

    def _multiply(self, product: Node, gathered: Sequence[Node], rows: RowPieces) -> Node:
        """Multiply pieces one after the other, and return the last matmul."""
        made: list[Node] = []
        op = product_of_blocks(product, rows)
        for i, piece in enumerate(gathered):
            blocks = self._blocks(product, piece, rows, len(gathered))
            made.append(self._piece(product, product, [blocks, *product.inputs[1:]], i, len(gathered), op))
        for result in results_of(product, self.users):
            assert isinstance(result, Node)
            own = made if result is product else [self.emit(product, result.op, [each], result) for each in made]  # type: ignore[arg-type]  # of a view
            self.replace(result, self._joined_pieces(product, result, own, rows)[1])
            self.drop(result)
        self.drop(product)
        return made[-1]

    def sum(self, node: Node, count: int) -> None:
        """Sum the parts of the operand's columns one after the other."""
        product, views = made_by_product(node, self.users, self.results)
        operand = node.inputs[0]
        if product is not None and not self._may_wait(product, node):
            product = None
        last = len(operand.shape) - 1
        made: list[Node] = []
        for i in range(count):
            if product is None:
                part: Node = self._part(node, node, operand, last, i, count)
            else:
                part = self._columns(product, node, i, count)
                part = self.shaped(node, part, (*operand.shape[:-1], part.shape[-1]), node)  # type: ignore[assignment]  # the part or a view of it
            made.append(self._piece(node, node, [part], i, count))
        self.replace(node, self.emit(node, Concat(len(node.shape) - 1), made, node))
        for gone in (node, *views, *filter(None, [product])):
            self.drop(gone)

    def _columns(self, product: Node, place: Node, index: int, count: int) -> Node:
        op = product.op
        assert isinstance(op, MatMul | BatchMatMul | FusedMatMul)
        left, right = product.inputs
        matrix = self._part(place, product, right, 0 if op.transpose_b else 1, index, count)
        return self._piece(place, product, [left, matrix], index, count)

    def _may_wait(self, product: Node, node: Node) -> bool:
        """Return whether a matmul may be computed at the place of the collective, and no other collective has taken
        it."""
        if product in self.gone or self.taken(product):
            return False
        return not self.updates.between(product.inputs, self.numbers[product], self.numbers[node])

    def _piece(
        self, place: Node, like: Node, inputs: Sequence[Value], index: int, count: int, op: Op | None = None
    ) -> Node:
        """Emit the node for one piece."""
        made = self.emit(place, op or like.op, inputs, like, takes=True)  # type: ignore[arg-type]  # no foreign one
        made.attrs[PIECE] = told = f"{index + 1} of {count}"
        if "reason" in made.attrs:
            made.attrs["reason"] = f"{made.attrs['reason']}; piece {told}"
        return made

    def _part(self, place: Node, like: Node, value: Value, dim: int, index: int, count: int) -> Node:
        size = value.shape[dim] // count
        return self.emit(place, part_of(value.shape, dim, index * size, (index + 1) * size), [value], like)

    def _joined_pieces(self, place: Node, result: Node, pieces: Sequence[Node], rows: RowPieces) -> tuple[Node, Node]:
        """Return (the pieces put together, the same with the rows in the shape of `result`)."""
        blocks = [self._blocks(place, piece, rows, len(pieces)) for piece in pieces]
        whole = self.emit(place, Concat(len(blocks[0].shape) - 2), blocks, result)
        found = self.shaped(place, whole, result.shape, result)
        assert isinstance(found, Node)
        found.name, found.instance = result.name, result.instance
        return whole, found

    def _blocks(self, place: Node, piece: Node, rows: RowPieces, count: int) -> Value:
        """Return the rows of a piece, with its blocks apart if there are several."""
        shape = (rows.outer, rows.inner // count, piece.shape[-1])
        return self.shaped(place, piece, shape if rows.outer > 1 else shape[1:], piece)
