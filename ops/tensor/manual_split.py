"""Tables that are split by hand (`manual_split`) have equal slices here, which are gathered where they are looked up.

A user promises that the integers of one part of the fields name rows of one part of the table. Here the table is
stored in equal parts and gathered, so that any integers give the right rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.named_layout import NamedLayout
from mspc.ops.control.constraint import constrained
from mspc.ops.op import Op, RequestedSharding

REQUESTS = ("manual_split", "manual_split_with_offset")


def gathered_by_hand(
    b: Builder, op: Op, axis: int, offset: int, asked: RequestedSharding, inputs: Sequence[Value]
) -> Sequence[Value] | None:
    """The look-up `op` in a table that is stored in slices, None where there is no such attribute.

    Raises:
        MspcError: the attribute does not fit the strategy or the table.
    """
    attribute = next((name for name in REQUESTS if asked.attrs.get(name) not in (None, False)), None)
    if attribute is None:
        return None
    label = f"{op.name}: {attribute}"
    ins = asked.in_strategy
    if ins is None or len(ins) != 2 or any(isinstance(entry, NamedLayout) for entry in ins):
        raise MspcError(f"{label} needs a strategy of two tuples", notes=["shard the operator, as in ((2, 1), (1, 2))"])
    table, ids = ins
    sizes = _rows(label, attribute, asked.attrs[attribute])
    if axis != 0:
        raise MspcError(f"{label} needs axis 0, not {axis}")
    if offset != 0:
        raise MspcError(f"{label} needs offset 0, not {offset}")
    if not table or len(sizes) != table[0] or not ids or table[0] != ids[-1]:
        raise MspcError(
            f"{label} has {len(sizes)} parts, but the strategy shards the table {table[0] if table else 1} ways and "
            f"the fields {ids[-1] if ids else 1} ways"
        )
    used, ranks = math.prod(table), b.graph.attrs.get("ranks", 1)
    if used < ranks:
        raise MspcError(f"{label} needs a part for each of the {ranks} ranks, but the strategy {table} has {used}")
    rows = inputs[0].shape[0]
    if sum(sizes) != rows:
        raise MspcError(f"{label} has {sum(sizes)} rows in all, the table {rows}")
    found = b.emit(op, constrained(b, inputs[0], table), inputs[1])
    found.in_strategy, found.out_strategy = ((1, *table[1:]), ids), asked.out_strategy
    return (found,)


def _rows(label: str, attribute: str, given: object) -> list[int]:
    """Rows of every part. Raises MspcError where the attribute says something else."""
    wanted = "numbers of rows" if attribute == "manual_split" else "pairs (rows, offset)"
    entries = cast("Sequence[object]", given) if isinstance(given, (tuple, list)) else ()
    sizes: list[int] = []
    for entry in entries:
        if attribute == "manual_split":
            size = entry
        else:
            pair = cast("Sequence[object]", entry) if isinstance(entry, (tuple, list)) else ()
            size = pair[0] if len(pair) == 2 else None
        if isinstance(size, int) and size > 0:
            sizes.append(size)
    if not isinstance(given, (tuple, list)) or len(sizes) != len(entries):
        raise MspcError(f"{label} must be a tuple of {wanted}, not {given!r}")
    return sizes
