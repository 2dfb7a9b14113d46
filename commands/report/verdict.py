"""What a comparison of two runs says: a table of the values, and one line that sums it up."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.commands.report.fitting import Table
from mspc.engine.compared import Row
from mspc.ir.graph import Node


def comparison_table(rows: Sequence[Row], title: str) -> Table:
    """One line for every compared value."""
    return Table(
        title,
        ("value", "name", "shape", "difference", "tolerance", "remark"),
        [
            (r.kind, r.name, str(r.shape), f"{r.difference:.1e}", f"{r.tolerance:.0e}", r.remark or "-") for r in rows
        ],
        (3, 4),
    )


def verdict(rows: Sequence[Row], where: str, beside: str, first: Node | None, equal: str = "equal") -> str:
    """`equal: 10 values on 8 ranks within 1e-05 of one device, ...` or `differs: 2 of 10 values on 8 ranks ...`.

    equal: what is said in the place of that word. where: "on 8 ranks".
    beside: "one device". first: the first operator whose value differs, where one does.
    """
    wrong = [r for r in rows if not r.same]
    if wrong:
        worst = max(wrong, key=lambda r: (r.difference, r.tolerance))
        apart = "in shape or in what is finite" if math.isinf(worst.difference) else f"by {worst.difference:.1e}"
        text = (
            f"differs: {len(wrong)} of {_values(len(rows))} {where}; the worst is {worst.kind} {worst.name}, "
            f"{apart} where {worst.tolerance:.0e} is allowed"
        )
        return text if first is None else f"{text}; they part at {first.label}{_line(first)}"
    within = max((r.tolerance for r in rows), default=0.0)
    text = f"{equal}: {_values(len(rows))} {where} within {within:.0e} of {beside}" if within else (
        f"{equal}: {_values(len(rows))} {where} exactly as on {beside}"
    )  # fmt: skip
    excused = sum(r.excused for r in rows)
    worst = max((r for r in rows if not r.excused), key=lambda r: r.difference, default=None)
    if worst is not None and worst.difference:
        text += f"; the worst is {worst.kind} {worst.name}, by {worst.difference:.1e}"
    grown = " that the update has grown" if any(r.excused and r.kind == "parameter" for r in rows) else ""
    return f"{text}; {excused} more by rounding{grown}" if excused else text


def _values(count: int) -> str:
    return f"{count} value{'s' if count != 1 else ''}"


def _line(node: Node) -> str:
    place = next((f for f in node.frames if not f.file.startswith("mspc/")), node.frames[0] if node.frames else None)
    return f", {place.file}:{place.line}" if place is not None else ""
