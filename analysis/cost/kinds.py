"""The cost of a node depends on what kind of work it is: which kernels take it, and how fast they are, follows from its
attributes and the shapes of its operands. A machine has rates of every kind."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mspc.analysis.cost.machine import (
    BIASED,
    CAUSAL,
    DEEP,
    DROPPED,
    FLAT,
    GROUPED,
    MASKED,
    POINTWISE,
    PRODUCTS,
    SHALLOW,
    UNEVEN,
)
from mspc.ir.graph import Node, Value, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import Op

if TYPE_CHECKING:
    from mspc.ops.nn.attention_base import AttentionOp

DEPTH = 4
"""How many times the mean side of its result a product sums up, from which on it is deep: there are too few blocks of
the result for all multiprocessors, so that several share one."""
LOADED = 16
"""Bytes that kernels load at once."""
BLOCK, STEP = 64, 32
"""Rows and columns of a result, and terms of its sums, that kernels compute at least."""


@dataclass(frozen=True)
class MatmulSizes:
    """The sizes of a product of matrices: of so many [rows, summed] by [summed, columns]. pieces: how many a GPU makes
    of it, as libraries repeat an operand for all of a batch or for none."""

    batch: int
    rows: int
    summed: int
    columns: int
    pieces: int = 1

    @property
    def is_deep(self) -> bool:
        """Whether it sums up many more terms than its result has rows and columns."""
        return self.summed >= DEPTH * math.sqrt(self.rows * self.columns)

    @property
    def is_flat(self) -> bool:
        """Whether its result is one row or column of blocks."""
        return self.batch == 1 and min(self.rows, self.columns) <= BLOCK < max(self.rows, self.columns)

    @property
    def filled_up(self) -> float:
        """Operations of kernels that compute blocks of the result."""
        rows, columns = (-(-n // BLOCK) * BLOCK for n in (self.rows, self.columns))
        return 2.0 * self.batch * rows * columns * -(-self.summed // STEP) * STEP


def product_of(node: Node) -> MatmulSizes | None:
    """The sizes of a node that multiplies matrices; None of any other. One matrix for all of a batch on the right makes
    one product."""
    if not isinstance(node.op, MatMul | BatchMatMul | FusedMatMul):
        return None
    made = element_types(node.type)[0].shape
    left, right = (each.shape for each in operand_types(node)[:2])
    transposed = node.op.transpose_a
    rows, summed = left[-2:][:: -1 if transposed else 1]
    batch = math.prod(made[:-2])
    if len(right) == 2 and not transposed:
        batch, rows = 1, batch * rows
    return MatmulSizes(batch, rows, summed, made[-1], _pieces(made[:-2], left[:-2], right[:-2]))


def _pieces(leading: Sequence[int], *operands: Sequence[int]) -> int:
    """How many batches with one stride there are, along whichever of two dimensions there are fewer."""
    batch = math.prod(leading)
    if len(leading) < 2 or all(math.prod(own) in (1, batch) for own in operands):
        return 1
    return min(leading) if len(leading) == 2 else math.prod(leading[:-1])


def kind_of_work(node: Node) -> str:
    """The kind of a node's products, as machines have rates of."""
    op = node.op
    assert isinstance(op, Op)
    if op.work == PRODUCTS:
        return _kind_of_product(node, product_of(node))
    return _form_of(op, tuple(operand_types(node))) + op.work


def _kind_of_product(node: Node, sizes: MatmulSizes | None) -> str:
    if sizes is None:
        return PRODUCTS
    even = _even_bytes(node)
    if even < LOADED:
        return UNEVEN[max(even, min(UNEVEN))]
    if sizes.is_flat:
        return FLAT
    return DEEP if sizes.is_deep else PRODUCTS


def kinds_of_slices(node: Node) -> tuple[str, ...]:
    """The kinds of work that a node's slices may be: sharding changes which of them products are, makes one group of
    channels of several, and gives some queries no key that they do not see."""
    assert isinstance(node.op, Op)
    if node.op.work == PRODUCTS:
        return PRODUCTS, DEEP, FLAT, *UNEVEN.values()
    kind, plain = kind_of_work(node), node.op.work
    if kind.startswith(GROUPED):
        return kind, plain, POINTWISE + plain
    return (kind, plain) if kind.startswith(CAUSAL) else (kind,)


def share_of_scores(node: Node, block: int = 1) -> float:
    """How many scores are computed for every pair of a query and a key; 1 for what is no attention.

    Args:
        block: queries and keys that kernels take together, all of which are computed where one pair is seen.
    """
    from mspc.ops.nn.attention_base import AttentionOp  # late: few networks have any

    return _seen(node.op, operand_types(node), block) if isinstance(node.op, AttentionOp) else 1.0


def _seen(op: AttentionOp, types: Sequence[TensorType], block: int = 1) -> float:
    shape = op.apart.sizes(op.parts(types[0]) if op.packed else types[:3])
    return _share(shape.queries, shape.keys, *op.window(shape), block)


@functools.lru_cache(maxsize=256)
def _share(queries: int, keys: int, low: int | None, high: int | None, block: int) -> float:
    seen = 0
    for first in range(0, queries, block):
        last = min(first + block, queries) - 1
        begin = 0 if low is None else max(0, first + low) // block
        end = keys if high is None else max(0, min(keys, last + high + 1))
        seen += max(0, -(-end // block) - begin) * block * block
    return seen / (queries * keys) if seen else 1.0


def _even_bytes(node: Node) -> int:
    """Bytes of which the rows of all matrices, as they lie in memory, are multiples; `LOADED` at most."""
    return math.gcd(LOADED, *map(_row_bytes, (*node.inputs[:2], node)))


def _row_bytes(value: Value) -> int:
    place, made = 0, value
    while isinstance(made, Node) and isinstance(made.op, TupleGetItem):
        place, made = made.op.index, made.inputs[0]
    pitches = made.attrs.get("row_pitch") if isinstance(made, Node) else None
    [type, *_] = element_types(value.type)
    length = pitches[place] if isinstance(pitches, tuple) else 0
    return (length or type.shape[-1]) * type.dtype.itemsize


def _form_of(op: Op, types: tuple[TensorType, ...]) -> str:
    """What goes before the kind of work of convolutions and attention. It reads few fields of an operator, of which
    others may differ between ranks (`ir.varying`): so it remembers none."""
    from mspc.ops.convolution.base import Convolution  # late: few networks have any
    from mspc.ops.nn.attention_base import KEY_SHIFT, AttentionOp  # late: few networks have any

    if isinstance(op, Convolution):
        _, weight = op.image_and_weights(types)
        if op.group > 1:
            return GROUPED
        if weight[1] * types[0].dtype.itemsize < LOADED:
            return SHALLOW
        return POINTWISE if all(places == 1 for places in op.sizes()) else ""
    if isinstance(op, AttentionOp):
        operands = op.separated(types) if op.packed else types
        terms = [type for name, type in op.named(operands).items() if name in ("real_shift", "attn_mask", KEY_SHIFT)]
        dropped = DROPPED * (op.keep_prob < 1)
        if terms:
            of_queries = any(type.rank > 1 and type.shape[-2] > 1 for type in terms)
            return (BIASED if of_queries else MASKED) + dropped
        if dropped:
            return dropped
        return CAUSAL if _seen(op, types) < 1 else ""
    return ""
