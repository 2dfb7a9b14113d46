"""A comparison of two runs prints a table of the values, and one line that sums it up."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.commands.report.fitting import TextTable, fit
from mspc.commands.report.shortened_tables import alike, layer_kind, print_shortened
from mspc.commands.report.table import line_width, print_table
from mspc.ir.graph import Node
from mspc.verify.difference import ComparedValue

SCREEN = 30
"""Lines of a table of values that is printed with every row."""
MOST_KINDS = 15


def print_values(rows: Sequence[ComparedValue], title: str, all_rows: bool) -> None:
    """Print the values: every one, where there is room on a screen or all of them are requested, else by kind."""
    table = comparison_table(rows, title)
    if all_rows or len(fit(table, line_width()).lines) <= SCREEN:
        print_table(table)
    else:
        print_shortened(kinds_table(rows, title), MOST_KINDS)


def comparison_table(rows: Sequence[ComparedValue], title: str) -> TextTable:
    """One line for every compared value."""
    return TextTable(
        title,
        ("value", "name", "shape", "difference", "tolerance", "remark"),
        [
            (r.kind, r.name, str(r.shape), f"{r.difference:.1e}", f"{r.tolerance:.0e}", r.remark or "-") for r in rows
        ],
        (3, 4),
    )


def kinds_table(rows: Sequence[ComparedValue], title: str) -> TextTable:
    """One line for every kind of value, those of repeated layers together: how many, how many differ, and the worst.
    Kinds that differ come first, then those that are furthest from one device for what is allowed."""
    kinds = alike(rows, lambda r: (r.kind, layer_kind(r.name)))
    ordered = sorted(kinds.items(), key=lambda entry: min(map(_badness, entry[1])))
    cells: list[tuple[str, ...]] = []
    for (kind, name), those in ordered:
        worst = min(those, key=_badness)
        wrong, excused = sum(not r.same for r in those), sum(r.excused for r in those)
        remarks = [f"{wrong} differ{'s' * (wrong == 1)}"] * bool(wrong) + [f"{excused} by rounding"] * bool(excused)
        named = [f"worst: {worst.name}"] * (len(those) > 1 and worst.difference > 0)
        cells.append((
            kind, name if len(those) > 1 else worst.name, str(len(those)),
            f"{worst.difference:.1e}", f"{worst.tolerance:.0e}",
            ", ".join((*remarks, *named)) or "-",
        ))  # fmt: skip
    return TextTable(title, ("value", "kind", "values", "worst", "tolerance", "remark"), cells, (2, 3, 4), below=(5,))


def _badness(row: ComparedValue) -> tuple[bool, bool, float]:
    """Sorts the worst first: what differs, then what is nearest to its tolerance, then what rounding excuses."""
    return row.same, row.excused, -(row.difference / row.tolerance if row.tolerance else row.difference)


def verdict(
    rows: Sequence[ComparedValue], where: str, reference: str, first: Node | None, equal: str = "equal", place: str = ""
) -> str:
    """`equal: 10 values on 8 ranks within 1e-05 of one device, ...` or `differs: 2 of 10 values on 8 ranks ...`.

    equal: what is printed in the place of that word. where: "on 8 ranks".
    reference: "one device". first: the first operator whose value differs, where one does; place: where that is.
    """
    wrong = [r for r in rows if not r.same]
    if wrong:
        worst = max(wrong, key=lambda r: (r.difference, r.tolerance))
        apart = "in shape or in what is finite" if math.isinf(worst.difference) else f"by {worst.difference:.1e}"
        text = (
            f"differs: {len(wrong)} of {_values(len(rows))} {where}; the worst is {worst.kind} {worst.name}, "
            f"{apart} where {worst.tolerance:.0e} is allowed"
        )
        return text if first is None else f"{text}; they part at {first.label}{place}{_line(first)}"
    within = max((r.tolerance for r in rows), default=0.0)
    text = f"{equal}: {_values(len(rows))} {where} within {within:.0e} of {reference}" if within else (
        f"{equal}: {_values(len(rows))} {where} exactly as on {reference}"
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
