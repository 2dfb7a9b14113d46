"""Summary of a compile that fits one screen: a row for every kind of layer, and the most expensive collectives.

The number of its lines does not depend on the number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mspc.commands.facts.model import GRADIENTS
from mspc.commands.report.facts import CollectiveRow, OperatorRow, Report
from mspc.commands.report.tables import (
    ALL,
    ELLIPSIS,
    MAX_KINDS,
    OUTSIDE,
    TextTable,
    alike,
    clipped,
    fits_screen,
    group,
    heading,
    layer_kind,
    line_width,
    most_expensive_kinds,
    named_cells,
    print_line,
    print_report,
    print_shortened,
    report_tables,
    size_text,
    strategy_text,
    total_lines,
)
from mspc.ir.diagnostics import listed

MAX_COLLECTIVES = 10
MAX_LINES = 4
"""Most source lines that are listed for inserted slices."""
MAX_NOTES = 4
MIN_STRATEGIES = 22
"""Least width, in characters, of the column with the strategies of operators."""


def print_summary(report: Report, folder: Path) -> None:
    """Print the table of a compile if it fits a screen, else its summary."""
    if fits_screen([table for table in report_tables(report) if table.rows]):
        print_report(report, folder)
        return
    print(heading(report, folder))
    print()
    print_shortened(kinds_table(report), MAX_KINDS)
    print()
    if report.collectives:
        title = f"most expensive collectives of rank {report.rank}, with the bytes it sends in one step"
        print_shortened(collectives_table(report.collectives, title), MAX_COLLECTIVES)
        print()
    if report.slices:
        print_line(_slices(report))
    for line in total_lines(report):
        print_line(line)
    print_line(f"{ALL} shows every operator, parameter, collective and slice; --json FILE writes them")
    for note in report.notes[:MAX_NOTES]:
        print_line(f"note: {note}")
    if (more := len(report.notes) - MAX_NOTES) > 0:
        print_line(f"{ELLIPSIS} and {more} more notes; {ALL} shows them")


def kinds_table(report: Report) -> TextTable:
    """Return a row for every kind of cell, below the kind that contains it. If there are too many, the kinds that send
    most come first, then those with most operators."""
    operators = alike(report.operators, lambda row: layer_kind(row.scope))
    sent = alike(report.collectives, lambda row: layer_kind(row.scope.removeprefix(GRADIENTS)))
    numbers = {name: sum(row.bytes for row in rows) for name, rows in sent.items()}
    kinds = most_expensive_kinds((*operators, *sent), lambda k: (numbers.get(k, 0), len(operators.get(k, ()))))
    inside, shown = named_cells(kinds)
    rows: list[tuple[str, ...]] = []
    strategies: list[list[str]] = []
    for kind, name in shown:
        own, mine = operators.get(kind, []), sent.get(kind, [])
        cells = len({row.scope.removeprefix(GRADIENTS) for row in (*own, *mine)}) if kind else 0
        numbers_of = (str(cells or OUTSIDE), str(len(own)), str(len(mine)), size_text(numbers.get(kind, 0)))
        rows.append((name, *numbers_of))
        strategies.append(_strategies(own))
    columns = ("cell", "cells", "operators", "collectives", "bytes sent")
    width = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    rest = max(MIN_STRATEGIES, line_width() - sum(width) - 2 * len(width))
    rows = [(*row, _listed(own, rest)) for row, own in zip(rows, strategies, strict=True)]
    return TextTable(
        f"kinds of cells{inside}, forward operators, collectives of rank {report.rank}",
        (*columns, "how they are sharded"), rows, (1, 2, 3, 4),
    )  # fmt: skip


def collectives_table(rows: Sequence[CollectiveRow], title: str) -> TextTable:
    """Return the collectives that send most first, with one row for equal ones of repeated layers. Reasons that
    differ in the numbers of layers have `*` for them."""
    merged = alike(rows, lambda row: (
        row.operator, row.ranks, row.bytes, row.line, row.times, layer_kind(row.reason or ""), layer_kind(row.scope)
    ))  # fmt: skip
    ordered = sorted(merged.values(), key=lambda those: -sum(row.bytes for row in those))
    return TextTable(
        title, ("operator", "group", "times", "bytes", "line", "reason"),
        [
            (
                those[0].operator, f"{those[0].dimension} {group(those[0].ranks)}".strip(),
                f"{sum(row.runs for row in those)}{' an iteration' * those[0].a_turn}",
                size_text(sum(row.bytes for row in those)), those[0].line or "-",
                (reasons[0] if len(reasons) == 1 else layer_kind(reasons[0])) or "-",
            )
            for those in ordered
            for reasons in [list(dict.fromkeys(row.reason for row in those))]
        ],
        (2, 3), below=(5,),
    )  # fmt: skip


def _strategies(operators: list[OperatorRow]) -> list[str]:
    """Return the distinct strategies of a kind's operators, those with most operands first: they matter most."""
    texts: dict[str, int] = {}
    for row in operators:
        if any(part > 1 for shards in row.strategy for part in shards):
            texts[f"{row.operator} {strategy_text(row.strategy)}"] = len(row.strategy)
    not_sharded = "replicated" if any(row.strategy for row in operators) else "-"
    return sorted(texts, key=lambda text: -texts[text]) or [not_sharded]


def _listed(texts: list[str], width: int) -> str:
    """Return as many of the texts as fit into the width, at least one, and the number of the others."""
    for count in range(len(texts), 0, -1):
        more = f" +{len(texts) - count}" if count < len(texts) else ""
        found = ", ".join(texts[:count]) + more
        if len(found) <= width:
            return found
    more = f" +{len(texts) - 1}" if len(texts) > 1 else ""
    return clipped(texts[0], width - len(more)) + more


def _slices(report: Report) -> str:
    lines = [*alike(report.slices, lambda row: row.line or "-")]
    count = len(report.slices)
    places = listed(lines, MAX_LINES)
    if count == 1:
        return f"1 slice was inserted, which sends nothing, at {places}"
    return f"{count} slices were inserted, which send nothing, at {places}"

