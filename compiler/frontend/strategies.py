"""Strategies of operators that say how an operand arrives where it is used in another cut.

`MatMul` with the attribute `enable_nd_tp` and `Gather` with `manual_split` have them in MindSpore. The operand passes
through a Cast to its own element type that carries the cut in which it arrives; the operator has the cut that it uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.api.ops.primitive import Primitive
from mspc.compiler.frontend.sharding import marked
from mspc.compiler.frontend.state import Tracer
from mspc.ir.named_layout import NamedLayout
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import EmbeddingLookup, Gather

Strategies = tuple[Any, ...] | None
MANUAL_SPLITS = ("manual_split", "manual_split_with_offset")


def arranged(
    tracer: Tracer, primitive: Primitive, op: Op, operands: Sequence[Any]
) -> tuple[Sequence[Any], Strategies, Strategies]:
    """(operands, in_strategy, out_strategy) of a call of `primitive`.

    Raises:
        MspcError: the strategies do not fit the attribute.
    """
    ins, outs = primitive.in_strategy, primitive.out_strategy
    if isinstance(op, MatMul | BatchMatMul) and primitive.attrs.get("enable_nd_tp") and ins is not None:
        return _product(tracer, op, operands, ins, outs)
    if isinstance(op, Gather | EmbeddingLookup):
        for attribute in MANUAL_SPLITS:
            if attribute in primitive.attrs:
                return _rows_by_hand(tracer, primitive, op, operands, attribute)
    return operands, ins, outs


# Products on meshes of two and three axes ----------------------------------------------------------------------


def _product(
    tracer: Tracer, op: MatMul | BatchMatMul, operands: Sequence[Any], ins: tuple[Any, ...], outs: Strategies
) -> tuple[Sequence[Any], Strategies, Strategies]:
    """x [..., m, k] is cut finer than the product uses it: by axes that cut n as well, and w [..., k, n] perhaps too.
    Both are gathered; the partial sums are scattered over the dimension from which x was gathered (n for k)."""
    if len(ins) != 2 or not all(isinstance(entry, NamedLayout) and len(entry.axes) > 1 for entry in ins):
        raise tracer.error(f"{op.name}: enable_nd_tp needs a Layout for each of its two tensors")
    first, second = ins
    *batch, m, k = _turned(first.axes, op.transpose_a)
    *other, inner, n = _turned(second.axes, op.transpose_b)
    shared = _common_prefix(k, inner)
    used_m = tuple(a for a in m if a not in n)
    x = marked(tracer, tracer.value(operands[0]), first) if (used_m, shared) != (m, k) else operands[0]
    w = marked(tracer, tracer.value(operands[1]), second) if shared != inner else operands[1]
    used = (
        _named(first, _turned((*batch, used_m, shared), op.transpose_a)),
        _named(second, _turned((*other, shared, n), op.transpose_b)),
    )
    if outs is None and x is not operands[0]:
        result = (*batch, (*used_m, *shared), n) if used_m != m else (*batch, used_m, (*n, *shared))
        outs = (_named(first, result),)
    return [x, w], used, outs


def _turned(axes: Sequence[tuple[int, ...]], transposed: bool) -> tuple[tuple[int, ...], ...]:
    *batch, row, column = axes
    return (*batch, column, row) if transposed else (*batch, row, column)


def _common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return left[:count]


def _named(like: NamedLayout, axes: Sequence[tuple[int, ...]]) -> NamedLayout:
    last = len(like.device_matrix) - 1
    return replace(like, tensor_map=tuple(tuple(last - a for a in entry) or -1 for entry in axes))


# Tables that are split by hand ---------------------------------------------------------------------------------


def _rows_by_hand(
    tracer: Tracer, primitive: Primitive, op: Gather | EmbeddingLookup, operands: Sequence[Any], attribute: str
) -> tuple[Sequence[Any], Strategies, Strategies]:
    """The user promises that the integers of one part of the fields name rows of one part of the table. Here the table
    is stored in equal parts and gathered, so that any integers give the right rows."""
    label = f"{op.name}: {attribute}"
    ins = primitive.in_strategy
    if ins is None or len(ins) != 2 or any(isinstance(entry, NamedLayout) for entry in ins):
        raise tracer.error(f"{label} needs a strategy of two tuples", ["shard the operator, as in ((2, 1), (1, 2))"])
    table, ids = ins
    sizes = primitive.attrs[attribute]
    if attribute == "manual_split_with_offset":
        pairs = isinstance(sizes, tuple | list) and all(isinstance(s, tuple | list) and len(s) == 2 for s in sizes)
        sizes = [size for size, _ in sizes] if pairs else None
    if not isinstance(sizes, tuple | list) or not all(isinstance(n, int) and n > 0 for n in sizes):
        wanted = "numbers of rows" if attribute == "manual_split" else "pairs (rows, offset)"
        raise tracer.error(f"{label} must be a tuple of {wanted}, not {primitive.attrs[attribute]!r}")
    rows = tracer.value(operands[0]).shape[0]
    axis = getattr(op, "axis", 0)
    if axis != 0:
        raise tracer.error(f"{label} needs axis 0, not {axis}")
    if op.offset != 0:
        raise tracer.error(f"{label} needs offset 0, not {op.offset}")
    if len(sizes) != table[0] or not ids or table[0] != ids[-1]:
        raise tracer.error(
            f"{label} has {len(sizes)} parts, but the strategy cuts the table {table[0]} ways and the fields "
            f"{ids[-1] if ids else 1} ways"
        )
    if sum(sizes) != rows:
        raise tracer.error(f"{label} has {sum(sizes)} rows in all, the table {rows}")
    stored = marked(tracer, tracer.value(operands[0]), table)
    return [stored, *operands[1:]], ((1, *table[1:]), ids), primitive.out_strategy
