"""What is said of the sizes of operators by which rows are chosen, brought to where they are named, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.math.matmul import GroupedOuter, GroupedProduct, GroupedRows, GroupedSums
from mspc.ops.nn.experts import ExpertPlaces
from mspc.ops.op import Op
from mspc.ops.tensor.selection import TopK
from mspc.verify.scale.said_of_sizes import Row, Types, in_dim, out_dim, whole_numbers


def _fetched(op: FetchRows, operands: Types, results: Types) -> Row:
    table, places = operands
    count = len(places.shape)
    same = [(in_dim(1, d), out_dim(d)) for d in range(count)]
    same += [(in_dim(0, d), out_dim(count + d - 1)) for d in range(1, len(table.shape))]
    return Row([n for n in whole_numbers(op, in_dim(0, 0), "total", "limit") if n.value], same, by_rule=False)


def _sent(op: SendRows, operands: Types, results: Types) -> Row:
    rows, places = operands
    count = len(places.shape)
    same = [(in_dim(1, d), in_dim(0, d)) for d in range(count)]
    same += [(in_dim(0, d), out_dim(d - count + 1)) for d in range(count, len(rows.shape))]
    return Row([n for n in whole_numbers(op, out_dim(0), "size", "total", "limit") if n.value], same, by_rule=False)


def _best(op: TopK, operands: Types, results: Types) -> Row:
    """The best of some: one more is left where there are more."""
    last = len(operands[0].shape) - 1
    same = [(in_dim(0, d), out_dim(d, i)) for i in range(2) for d in range(last)]
    count = operands[0].shape[last]
    least = min(op.k + 1, count)
    return Row(
        same=same, frozen=[out_dim(last, i) for i in range(2)], least=[(in_dim(0, last), count, least)], by_rule=False
    )


def _expert_places(op: ExpertPlaces, operands: Types, results: Types) -> Row:
    """Few rows are not routed as evenly as many, so that blocks of small sizes have more room than `most_rows` says."""
    ends, source = operands
    share = source.shape[0] // op.outer
    row = Row(
        same=[(out_dim(0, 0), out_dim(0, 1)), (in_dim(1, 0), out_dim(0, 2)), (in_dim(0, 0), out_dim(2, 3))],
        by_rule=False,
    )
    row.frozen = [out_dim(0, 3), out_dim(1, 3)]
    row.sizes = [(in_dim(1, 0), share), (in_dim(0, 0), ends.shape[0] // op.parts)]
    if op.room:
        row.numbers = whole_numbers(op, out_dim(0, 0), "room")
        row.room = [(out_dim(0, 0), op.room, in_dim(1, 0), share, op.parts)]
    else:
        row.same.append((out_dim(0, 0), in_dim(1, 0)))
    return row


def _grouped(op: Op, operands: Types, results: Types) -> Row:
    """All groups and all of their matrices: there may be fewer of both. The operators' rules do not say that an end
    belongs to a matrix, as ranks need all ends."""
    if getattr(op, "count", 0) or getattr(op, "first", 0):
        return Row()
    if isinstance(op, GroupedProduct):
        inner, outer = (2, 1) if op.transpose_b else (1, 2)
        same = [(in_dim(0, 0), out_dim(0)), (in_dim(0, 1), in_dim(1, inner)), (in_dim(1, outer), out_dim(1)),
                (in_dim(1, 0), in_dim(2, 0))]  # fmt: skip
    elif isinstance(op, GroupedOuter):
        same = [(in_dim(0, 0), in_dim(1, 0)), (in_dim(0, 1), out_dim(1)), (in_dim(1, 1), out_dim(2)),
                (in_dim(2, 0), out_dim(0))]  # fmt: skip
    elif isinstance(op, GroupedRows):
        same = [(in_dim(0, 0), out_dim(0)), (in_dim(0, 1), out_dim(1)), (in_dim(1, 1), out_dim(1)),
                (in_dim(1, 0), in_dim(2, 0))]  # fmt: skip
    else:
        same = [(in_dim(0, 1), out_dim(1)), (in_dim(1, 0), out_dim(0))]
    return Row(same=same, by_rule=False)


ROUTED: dict[type[Op], Callable[[Any, Types, Types], Row]] = {
    FetchRows: _fetched,
    SendRows: _sent,
    ExpertPlaces: _expert_places,
    TopK: _best,
    GroupedProduct: _grouped,
    GroupedOuter: _grouped,
    GroupedRows: _grouped,
    GroupedSums: _grouped,
}
