"""This module prints the table of a compile for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mspc.commands.report.facts import MemoryRow, Report
from mspc.commands.report.fitting import TextTable
from mspc.commands.report.table import print_line, print_table

LISTED_RANKS = 16
"""Longer groups print as start:stop:step."""


def print_report(report: Report, folder: Path) -> None:
    """The table of a compile, with every row."""
    print(heading(report, folder))
    print()
    for table in report_tables(report):
        if table.rows:
            print_table(table)
            print()
    for line in (*total_lines(report), *(f"note: {note}" for note in report.notes)):
        print_line(line)


def heading(report: Report, folder: Path) -> str:
    """The first line: what was compiled, and where its files are."""
    ranks = f"{report.ranks} rank{'s' if report.ranks > 1 else ''}"
    return f"{report.mode}, {ranks}, compile {report.compile_id}, in {folder}"


def total_lines(report: Report) -> list[str]:
    """What a rank's step runs, sends and takes."""
    totals, memory, size = report.totals, report.memory, size_text
    runs = f" that run {totals.runs} times" if totals.runs != totals.operators else ""
    more = f" and {size(totals.bytes_a_turn)} per iteration of loops that only the run counts"
    more = more if totals.bytes_a_turn else ""
    return [
        f"rank {report.rank}: {totals.operators} operators{runs}, {totals.collectives} collectives, "
        f"{size(totals.bytes_sent)} sent per step{more}",
        f"memory: weights {size(memory.weights)}, states {size(memory.states)}, inputs {size(memory.inputs)}, "
        f"step {size(memory.step)} (gradients {size(memory.gradients)}, activations {size(memory.activations)}, "
        f"temporary buffers {size(memory.temporary)} at most, each at its own time), together "
        f"{size(totals.peak_bytes)}" + on_host(memory),
    ]


def on_host(memory: MemoryRow) -> str:
    """What lies in the host's memory; "" where nothing does."""
    parts = {"states": memory.states_on_host, "activations": memory.values_on_host}
    told = [f"{name} {size_text(nbytes)}" for name, nbytes in parts.items() if nbytes]
    return f"; on the host {', '.join(told)}" if told else ""


def report_tables(report: Report) -> list[TextTable]:
    """Operators, parameters, collectives and slices."""
    operators = TextTable(
        "operators (forward)",
        ("operator", "instance", "strategy", "from", "line"),
        [
            (o.operator, o.instance or "-", strategy_text(o.strategy), o.origin or "-", o.line)
            for o in report.operators
        ],
        below=(3,),
    )
    operators = with_times(operators, 5, [o.times for o in report.operators])
    parameters = TextTable(
        f"inputs and parameters, with the slice of rank {report.rank}",
        ("name", "kind", "type", "shape", "slice", "bytes"),
        [(p.name, p.kind, p.dtype, str(p.shape), str(p.slice), size_text(p.bytes)) for p in report.parameters],
        (5,),
    )
    collectives = TextTable(
        f"collectives of rank {report.rank}, with the bytes it sends in one step",
        ("operator", "group", "bytes", "line", "reason"),
        [
            (c.operator, group(c.ranks), size_text(c.bytes), c.line or "-", c.reason or "-")
            for c in report.collectives
        ],
        (2,),
        below=(4,),
    )
    collectives = with_times(collectives, 3, [c.times for c in report.collectives])
    slices = TextTable(
        "slices that were inserted; nothing is sent",
        ("before", "after", "line", "reason"),
        [(str(s.shape), str(s.slice), s.line or "-", s.reason or "-") for s in report.slices],
        below=(3,),
    )
    return [operators, parameters, collectives, slices]


def with_times(table: TextTable, place: int, times: Sequence[str]) -> TextTable:
    """The table with a column at a place that says how often a step runs what is in a row, where any runs in a loop or
    by a condition."""
    if not any(times):
        return table
    rows = [(*row[:place], text or "once", *row[place:]) for row, text in zip(table.rows, times, strict=True)]
    columns = (*table.columns[:place], "runs", *table.columns[place:])
    numbers, below = (tuple(i + (i >= place) for i in those) for those in (table.numbers, table.below))
    return replace(table, columns=columns, rows=rows, numbers=numbers, below=below)


def group(ranks: tuple[int, ...]) -> str:
    """`0-1-2-3`; many ranks with one stride as start:stop:step."""
    if len(ranks) <= LISTED_RANKS:
        return "-".join(map(str, ranks)) or "-"
    step = ranks[1] - ranks[0]
    if step > 0 and ranks == tuple(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}:{ranks[-1] + step}:{step}"
    return f"{len(ranks)} ranks from {ranks[0]}"


def strategy_text(strategy: tuple[tuple[int, ...], ...]) -> str:
    """`(2, 1) (1, 4)`, one tuple per input."""
    return " ".join(str(entry).replace(",)", ")") for entry in strategy) or "-"


def time_text(seconds: float) -> str:
    """A time in the unit that suits it."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def size_text(count: int) -> str:
    """Return a number of bytes in the largest unit of which there is one."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024  # type: ignore[assignment]  # a float from here on
    return f"{count:.1f} GiB"


def sizes_text(first: int, second: int) -> str:
    """Return two numbers of bytes as `1.6 MiB -> 1.8 MiB`, one if they are equal, and exact if rounding hides that they
    differ."""
    texts = size_text(first), size_text(second)
    if first != second and texts[0] == texts[1]:
        texts = f"{first:,} B", f"{second:,} B"
    return " -> ".join(dict.fromkeys(texts))
