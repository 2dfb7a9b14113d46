"""Pieces of collectives beside the matmuls that read or make their values, and the time they gain."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.nodes import MatmulSizes, product_of, seconds
from mspc.ir.graph import Graph, Node, OpLike, Value, Worklist
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ir.varying import OpKey
from mspc.ops.collective.collectives import AllGather, AllReduce, ReduceScatter
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.ops.tensor.slicing import part_of
from mspc.passes.communication.schedule_communication import ScheduleFacts, launch_order


def exposed_seconds(graph: Graph, machine: Machine) -> dict[Node, float]:
    """Seconds on a machine in which the main stream waits for a collective; those for which it never does are left out.

    Collectives that are apart, as most sums of gradients, have a stream of their own.
    """
    facts = ScheduleFacts(graph, machine)
    main = 0.0
    sides = [0.0, 0.0]
    over = [0.0] * len(facts.nodes)
    cause: list[int | None] = [None] * len(facts.nodes)  # the collective that a view shows
    found: dict[Node, float] = {}
    for i in launch_order(facts):
        if facts.is_collective[i] and not facts.nodes[i].regions:
            apart = facts.apart[i]
            over[i] = sides[apart] = max(sides[apart], main) + facts.costs[i]
            cause[i] = i
            continue
        last = max(facts.operands[i], key=over.__getitem__, default=None)
        ready = 0.0 if last is None else over[last]
        if facts.is_view[i]:
            over[i], cause[i] = ready, None if last is None else cause[last]
            continue
        awaited = None if last is None else cause[last]
        if ready > main and awaited is not None:
            node = facts.nodes[awaited]
            found[node] = found.get(node, 0.0) + ready - main
        main = max(main, ready) + facts.costs[i]
        over[i] = main
    return found


# Libraries compute blocks of a result, one on each multiprocessor at a time, and the last round may have few of them
# (NVIDIA, "Matrix Multiplication Background User's Guide", on wave quantization). They choose among sizes of blocks. On
# an H100 halves, quarters and eighths of the rows or columns of six matmuls of 0.2 to 0.7 ms took the time of this
# model and a launch of 4 us each, within a fifth, and on average within 7 %.


MULTIPROCESSORS = 132
"""Multiprocessors of an H100 or H200."""
TAKEN = 8
"""Multiprocessors that a collective takes beside a matmul."""
BLOCKS = ((128, 256, 1.0), (256, 128, 1.0), (128, 192, 0.97), (192, 128, 0.97), (128, 128, 0.9))
"""Rows and columns of blocks, and how quick they are beside the quickest."""


def filled(product: MatmulSizes, beside: bool = False) -> float:
    """Return the part of a GPU that a product makes use of. beside: while a collective is under way."""
    return _filled(product.batch, product.rows, product.columns, MULTIPROCESSORS - TAKEN * beside)


@functools.lru_cache(maxsize=1024)
def _filled(batch: int, rows: int, columns: int, processors: int) -> float:
    most = 0.0
    for high, wide, quick in BLOCKS:
        rounds = -(-batch * -(-rows // high) * -(-columns // wide) // processors)
        useful = quick * batch * rows * columns / (high * wide)
        most = max(most, useful / (rounds * MULTIPROCESSORS))
    return most


# The model counts the pieces of a collective one by one, each with its start; the matmuls' pieces, each with a launch
# of its own, at the rate of its size and with the multiprocessors that a collective leaves; and every copy: of parts
# that are sent or multiplied, and of pieces put together for readers that need memory.


NEARLY = 0.9
"""The share of the most gain with which fewer pieces are as good: estimates are no closer, and pieces are launches."""


class Gains:
    """The gains of collectives of a rank's graph. exposed: the seconds that each is waited for now."""

    def __init__(self, graph: Graph, exposed: dict[Node, float], machine: Machine) -> None:
        self.exposed, self.machine = exposed, machine
        self.users, self.results = graph.users(), set(graph.results)
        self._known: dict[tuple[OpKey, tuple[Type, ...], Type], float] = {}

    def of(self, node: Node, pieces: int) -> float:
        """Seconds that a step is shorter if a collective goes in so many pieces; 0 if it cannot."""
        exposed = min(self.exposed.get(node, 0.0), self._of(node))
        if not exposed:
            return 0.0
        gain = self._gathered if isinstance(node.op, AllGather) else self._summed
        return gain(node, pieces, exposed)

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
            for product in products
            for result in results_of(product, self.users)
            if self._needs_memory(result)
        )
        sent = self._seconds(node.op, [part], _resized(node.tensor_type, rows.dim, pieces))
        once = sum(self._of(product) for product in products)
        beside, alone = (
            sum(self._rows(each, rows, pieces, is_beside) for each in products) for is_beside in (True, False)
        )
        whole = self._of(node)
        main = whole - exposed  # other work meanwhile
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
        """Return the seconds of a part of a matmul, which fills less of a GPU than the matmul. beside: while a
        collective runs."""
        node = Node(op, [Value(type) for type in operands], made)
        sizes, whole = product_of(node), product_of(product)
        assert sizes is not None
        assert whole is not None
        lesser = filled(whole) / filled(sizes, beside)
        return max(1.0, lesser) * self._seconds(op, operands, made)

    def _rows(self, product: Node, rows: RowPieces, pieces: int, beside: bool) -> float:
        """Return the seconds of a matmul of a part of the rows."""
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
        """Return whether a reader needs the pieces of a value in one memory, unlike kernels of elementwise operators; a
        cast counts as part of its readers."""
        waiting = Worklist([value])
        for each in waiting:
            if each in self.results:
                return True
            for user, _ in self.users.get(each, ()):
                if isinstance(user.op, Cast) or (user.op.is_view and not isinstance(user.type, TupleType)):
                    waiting.add([user])
                elif not (isinstance(user.op, Op) and user.op.cuda):
                    return True
        return False


def best_pieces(gains: Gains, node: Node, numbers: Sequence[int], least: float) -> int:
    """In how many pieces a collective goes: in the fewest that gain nearly most, 0 if that is less than `least`."""
    found = {pieces: gains.of(node, pieces) for pieces in numbers}
    most = max(found.values())
    return min(pieces for pieces, gain in found.items() if gain >= NEARLY * most) if most > least else 0


def _resized(type: TensorType, dim: int, pieces: int) -> TensorType:
    return type.with_shape((*type.shape[:dim], type.shape[dim] // pieces, *type.shape[dim + 1 :]))


# Between a collective and its matmuls there are only views that keep the last dimension: the one the matmuls sum over
# after a gather, and the one they make before a sum.


Users = Mapping[Value, Sequence[tuple[Node, int]]]
"""The readers of values, as `Graph.users` lists them."""
PIECES = "pieces"
"""The attribute of a collective that says in how many pieces it goes."""
PIECE = "piece"
"""The attribute of a piece, and of its product: which it is, of how many."""


@dataclass(frozen=True)
class RowPieces:
    """The rows of a gathered value in its pieces.

    dim: the dimension of the operand of which each piece has a part. is_gathered: whether that is the one along which
    ranks' tensors are joined. outer: the number of separate blocks of rows in the whole, of each of which a piece has
    one part: those of every rank, if `is_gathered`. inner: rows of a block in the whole.
    """

    dim: int
    is_gathered: bool
    outer: int
    inner: int

    def inside(self, rows: int, pieces: int) -> bool:
        """Return whether so many rows of a product are these, in blocks of which each piece has its share."""
        return rows == self.outer * self.inner and not self.inner % pieces


def row_pieces(node: Node, pieces: int) -> RowPieces | None:
    """Return how an AllGather is taken apart into so many; None if its operand cannot be."""
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
    """Return whether a sum over ranks may go in so many pieces of its last dimension."""
    op, shape = node.op, node.inputs[0].shape
    if isinstance(op, ReduceScatter) and op.axis >= len(shape) - 1:
        return False
    return isinstance(op, AllReduce | ReduceScatter) and bool(shape) and not shape[-1] % pieces


def divides(node: Node, pieces: int) -> bool:
    """Return whether a collective may go in so many pieces. Its operand's shape says so, in which all of its ranks
    agree."""
    return row_pieces(node, pieces) is not None if isinstance(node.op, AllGather) else sums_columns(node, pieces)


def is_candidate(node: Node) -> bool:
    """Return whether a collective may go in pieces: one tensor, whose rows it gathers or whose elements it sums."""
    op = node.op
    if not isinstance(op, AllGather | AllReduce | ReduceScatter) or len(node.inputs) != 1:
        return False
    if not isinstance(node.type, TensorType) or not node.tensor_type.size:
        return False
    return isinstance(op, AllGather) or op.op == "sum"


def reading_products(node: Node, users: Users, results: set[Value]) -> tuple[list[Node], bool]:
    """Return (the products of its phase that multiply the rows of a node by a matrix, whether anything else reads
    it)."""
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
    """Return (the product that makes the operand of a node and is read by nothing else, the views between them in their
    order), or None."""
    views: list[Node] = []
    value = node.inputs[0]
    while isinstance(value, Node) and _keeps_columns(value):
        views.insert(0, value)
        value = value.inputs[0]
    line = [value, *views, node]
    alone = all(
        of not in results and [user for user, _ in users.get(of, ())] == [reader] for of, reader in pairwise(line)
    )
    if not isinstance(value, Node) or not alone or not _multiplies_rows(value) or value.phase != node.phase:
        return None, []
    reads_columns = isinstance(value.op, FusedMatMul) and (value.op.bias or value.op.keeps_before)
    return (None, []) if reads_columns else (value, views)


def product_of_blocks(product: Node, rows: RowPieces) -> Op:
    """Return the operator that multiplies blocks of rows as a product does all of them."""
    op = product.op
    assert isinstance(op, MatMul | BatchMatMul | FusedMatMul)
    return BatchMatMul(op.transpose_a, op.transpose_b) if isinstance(op, MatMul) and rows.outer > 1 else op


def results_of(product: Node, users: Users) -> Iterator[Value]:
    """Yield the tensors that a product makes, of several those that are read."""
    if isinstance(product.type, TensorType):
        yield product
    else:
        yield from (user for user, _ in users.get(product, ()))


def _keeps_columns(node: Node) -> bool:
    return isinstance(node.op, Reshape) and node.shape[-1:] == node.inputs[0].shape[-1:] and bool(node.shape)


def _multiplies_rows(node: Node) -> bool:
    """Return whether a matmul has independent rows and one matrix on the right: besides a bias it reads nothing
    else."""
    op = node.op
    if not isinstance(op, MatMul | BatchMatMul | FusedMatMul) or op.transpose_a or len(node.inputs[1].shape) != 2:
        return False
    return not isinstance(op, FusedMatMul) or not (op.addend or op.activation == "gelu_gradient")
